"""Whether a plan's noise leaves anything of what sites learn.

What is compared: the longest step that a round's sum could make, if every record or site pulled in
the same direction with the whole clip, and the length of the noise on it. Noise of σC on each of d
numbers is σC√d long. So the ratio is the best that could be; below one there is more noise than
signal in every round, whatever the records say.

    one site      the coordinator adds noise once, to the sum of n rows of length C: n / (σ√d)
    the same      h of n sites make the noise that is promised, n add their shares: √(nh) / (σ√d)
    local         each of n sites adds noise of 2σC, and noises add up by squares: √n / (2σ√d)
    one record    s steps at each of n sites, each on q·m records: √(s·n)·q·m / (σ√d)

Pure: figures come in, a ratio and a sentence go out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from consortium.errors import ImpossiblePlanError
from consortium.plan.security import honest_sites
from consortium.plan.values import Plan

FEW = 16  # records of an expected batch: below, a step is noise and hardly anything else


@dataclass(frozen=True, slots=True)
class Signal:
    """What the ratio is made of. `records` are those of a usual site; None: nobody has said."""

    unit: str
    sigma: float
    size: int  # numbers that leave a site
    sites: int  # of a round
    steps: int = 1  # of a site in a round
    rate: float = 1.0
    records: int | None = None

    @property
    def ratio(self) -> float | None:
        """The signal in units of the noise; None where the records are not known."""
        if self.unit == "record" and self.records is None:
            return None
        return self._reached(self.sites, self.records or 0)

    @property
    def sites_needed(self) -> int | None:
        """Sites of a round for a ratio of one; None where the records are not known."""
        ratio = self.ratio
        if ratio is None:
            return None
        power = 1 if self.unit == "site" else 2
        return math.ceil(self.sites / ratio**power)

    @property
    def records_needed(self) -> int | None:
        """Records of each site for a ratio of one, with as many sites as there are."""
        if self.unit != "record":
            return None
        return math.ceil(1 / self._reached(self.sites, 1))

    @property
    def batch(self) -> float | None:
        """Records that a step is expected to look at; None: not known, or there are no steps."""
        return None if self.records is None else self.rate * self.records

    def _reached(self, sites: int, records: int) -> float:
        noise = self.sigma * math.sqrt(self.size)
        if self.unit == "site":
            return sites / noise
        if self.unit == "local":
            return math.sqrt(sites) / (2 * noise)
        return math.sqrt(self.steps * sites) * self.rate * records / noise


def signal_of(
    plan: Plan, size: int, sites: int | None = None, records: int | None = None
) -> Signal:
    """The signal of one round of a plan whose noise is known. `sites`: that there are; the plan
    says how many of them a round has. `records`: of a usual site, where the plan does not say."""
    section = plan.privacy
    if not section.is_on or section.noise_multiplier is None or size < 1:
        raise ImpossiblePlanError(
            "this plan has no noise to compare with", hint="consortium lock PLAN"
        )
    of_round, unit = sites_of_round(plan, sites), section.hides
    if plan.has_noise_shares:  # of more sites than the noise is made for there is more of it
        shares = math.sqrt(of_round / honest_sites(plan))
        return Signal(unit, section.noise_multiplier * shares, size, of_round)
    if unit != "record":
        return Signal(unit, section.noise_multiplier, size, of_round)
    return Signal(
        unit,
        section.noise_multiplier,
        size,
        of_round,
        section.steps_of(plan.training.epochs),
        section.rate,
        section.records or records,
    )


def sites_of_round(plan: Plan, sites: int | None) -> int:
    """How many updates a round hopes for; the quorum where nothing better is known."""
    selection, quorum = plan.selection, plan.federation.quorum
    if selection.target is not None:
        return selection.target
    return quorum if sites is None else max(quorum, math.ceil(selection.fraction * sites))


def warnings(signal: Signal) -> list[str]:
    """What is hopeless about it, and what would help; empty when nothing is."""
    found, ratio = [], signal.ratio
    if ratio is not None and ratio < 1:
        found.append(
            f"in every round the noise is {_times(1 / ratio)} the signal at its best, for "
            f"{_count(signal.size, 'number')} of {_count(signal.sites, 'site')}: little can be "
            f"learnt. What would help: {'; '.join(_remedies(signal))}."
        )
    return [*found, *_few(signal)]


def _few(signal: Signal) -> list[str]:
    batch, records = signal.batch, signal.records
    if batch is None or records is None or batch >= FEW:
        return []
    rate = math.ceil(1000 * FEW / records) / 1000
    help_ = f"sampling_rate = {rate:g} in [privacy]" if rate <= 1 else "more records at each site"
    return [
        f"a step looks at {batch:.3g} records on average, and has noise as if they were many. "
        f"What would help: {help_}."
    ]


def _remedies(signal: Signal) -> list[str]:
    """The strongest first."""
    needed = _count(signal.sites_needed or 0, "site")
    if signal.unit == "record":
        found = [
            f"{_count(signal.records_needed or 0, 'record')} at each site",
            f"{needed} a round",
        ]
    else:
        found = ['unit = "record"', f"{needed} a round"]
    return [
        *found,
        "a smaller shared model, with other layers private or frozen",
        "a larger epsilon",
    ]


def _times(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 100 else f"{factor:,.0f} times"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
