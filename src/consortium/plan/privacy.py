"""Differential privacy: whom a plan protects, how much, and what it may cost.

The three units are different promises. "record": one record more or less at a site, by noise in
the site's own training; it holds against everybody, the coordinator included. "site": one site
more or less, by noise on the sum; it holds against everybody but the coordinator, who sees the
updates. "local": any update of a site for any other, by noise at the site, with very much of it.

A plan says ε; how much noise that takes is computed once, by `consortium.plan.noise`, and becomes
part of the plan that is locked: nobody who runs it computes it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from consortium.core.account_facts import Cost, Costs, Limits
from consortium.plan.section import Section

Unit = Literal["none", "record", "site", "local"]
# What one round may cost, by the words of the first design.
LEVELS = {"very strong": 0.1, "strong": 0.5, "moderate": 1.0, "weak": 5.0}
# A score is how many test records there are and how many the model gets right: one record changes
# both by one at most.
SCORE_SENSITIVITY = math.sqrt(2)
BOUNDED_METRIC = "accuracy"  # of one record it is at least 0 and at most 1


@dataclass(frozen=True, slots=True)
class Preset:
    """What a name sets."""

    unit: Unit = "none"
    epsilon_per_round: float | None = None
    weekly: float | None = None
    monthly: float | None = None


PRESETS = {"none": Preset(), "healthcare": Preset("record", 0.5, 3.5, 15.0)}


class PrivacySection(Section):
    """Whom the plan protects by noise, and how much of the budget a round may take."""

    preset: Literal["none", "healthcare"] = Field(
        default="none",
        description='"healthcare": per record, 0.5 a round, 3.5 in 7 days, 15 in 30 days',
    )
    unit: Unit | None = Field(
        default=None,
        description="what is hidden: one record, one site, or one site from the coordinator too",
    )
    epsilon: float | None = Field(
        default=None, gt=0, le=1e6, description="of all rounds of the plan together"
    )
    epsilon_per_round: float | None = Field(
        default=None, gt=0, le=1e6, description="of one round, in place of epsilon"
    )
    level: Literal["very strong", "strong", "moderate", "weak"] | None = Field(
        default=None, description="a name for epsilon_per_round: 0.1, 0.5, 1 or 5"
    )
    delta: float = Field(
        default=1e-5, gt=0, lt=1, description="of every epsilon; below one in the records of a site"
    )
    clip: float = Field(
        default=1.0,
        ge=1e-9,
        le=1e9,
        description="largest L2 norm of a record's gradient, or of an update",
    )
    sampling_rate: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="chance of a record to be in a step; unset: 0.01. For records only",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="local steps a round; unset: epochs / sampling_rate. For records only",
    )
    records: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="of a usual site, a public number that steps are divided by; unset: each site "
        "takes its own, with noise. For records only",
    )
    test_records: Literal["private", "public"] = Field(
        default="private",
        description='"public": scores on them leave as they are, and nothing is promised of them',
    )
    dataset: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]{1,48}$",
        description="whose budget is spent; unset: that of the federation's name",
    )
    weekly: float | None = Field(
        default=None, gt=0, le=1e6, description="most epsilon in any 7 days"
    )
    monthly: float | None = Field(
        default=None, gt=0, le=1e6, description="most epsilon in any 30 days"
    )
    lifetime: float | None = Field(
        default=None, gt=0, le=1e6, description="most epsilon ever; unset: epsilon, if that is set"
    )
    noise_multiplier: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="noise in units of what is hidden; unset: computed from epsilon",
    )
    noise_at: Literal["coordinator", "sites"] | None = Field(
        default=None,
        description="who adds the noise of one site; unset: the sites where sums are masked, else "
        "the coordinator",
    )
    colluding: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="sites of a round whose noise the coordinator may know; unset: as many as "
        "masks stand. For noise_at = sites",
    )
    side_noise: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="the same for counts and scores; unset: computed. For records only",
    )

    @property
    def hides(self) -> Unit:
        """The unit."""
        return self.unit or PRESETS[self.preset].unit

    @property
    def is_on(self) -> bool:
        return self.hides != "none"

    @property
    def is_resolved(self) -> bool:
        """Whether it says how much noise there is."""
        has_side = self.side_noise is not None or self.hides != "record"
        return self.noise_multiplier is not None and has_side

    @property
    def rate(self) -> float:
        return 0.01 if self.sampling_rate is None else self.sampling_rate

    @property
    def target(self) -> tuple[float, bool] | None:
        """The ε that is asked for, and whether it is that of all rounds; None: it is not said."""
        if self.epsilon is not None:
            return self.epsilon, True
        level = None if self.level is None else LEVELS[self.level]
        each = self.epsilon_per_round or level or PRESETS[self.preset].epsilon_per_round
        return None if each is None else (each, False)

    @property
    def limits(self) -> Limits:
        """What the account of the data set may spend."""
        preset = PRESETS[self.preset]
        lifetime = self.epsilon if self.lifetime is None else self.lifetime
        return Limits(
            self.delta, self.weekly or preset.weekly, self.monthly or preset.monthly, lifetime
        )

    def steps_of(self, epochs: int) -> int:
        """Local steps of a round, in each of which a record is looked at with `rate`."""
        return math.ceil(epochs / self.rate) if self.steps is None else self.steps

    def costs(self, epochs: int, *, has_scores: bool) -> Costs:
        """Of one round: the model, and what else leaves. The noise must have been computed."""
        assert self.noise_multiplier is not None, "the noise was not computed"
        if self.hides != "record":
            return (Cost(self.noise_multiplier, 1, 1.0),)
        assert self.side_noise is not None, "the noise was not computed"
        counts = int(self.records is None)
        scores = 2 if has_scores and self.test_records == "private" else 0  # of candidate and base
        side = Cost(self.side_noise, counts + scores, 1.0)
        model = Cost(self.noise_multiplier, self.steps_of(epochs), self.rate)
        return (model, side) if side.releases else (model,)
