"""`consortium budget plan`: what the rounds of a plan will cost, before anybody runs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli import words
from consortium.cli.gauges import WINDOWS, epsilon, place, promise_pairs
from consortium.cli.report import command, envelope, say
from consortium.cli.sheet import Grid, Sheet, show
from consortium.errors import PlanFileError, UsageError

if TYPE_CHECKING:
    from consortium.plan import Plan
    from consortium.plan.forecast import Allowance, Pace, Price
    from consortium.plan.signal import Signal

_COUNTS = (1, 7, 30)  # rounds that are always priced, beside the plan's own number
_MOST_PRICES = 12  # of a plot

_PlanFile = Annotated[
    Path, typer.Argument(metavar="[PLAN_FILE]", help="The plan. Default: consortium.toml.")
]
_Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds, instead of the plan's.")]
_Epsilon = Annotated[
    float | None, typer.Option("--epsilon", help="Say also which noise this epsilon would need.")
]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set a key of the plan; repeatable."),
]
_Size = Annotated[
    int | None,
    typer.Option(metavar="D", min=1, help="Numbers that leave a site. Default: from plan.lock."),
]
_Records = Annotated[
    int | None,
    typer.Option(min=1, help="Of a usual site, where the plan does not say it."),
]
_Sites = Annotated[int | None, typer.Option(min=1, help="That there are. Default: the quorum.")]
_Plot = Annotated[
    Path | None, typer.Option(help="Draw epsilon by rounds: a .svg, .png or .pdf file.")
]


@command
def plan_budget(
    plan_file: _PlanFile = Path("consortium.toml"),
    rounds: _Rounds = None,
    wanted: _Epsilon = None,
    settings: _Settings = None,
    size: _Size = None,
    records: _Records = None,
    sites: _Sites = None,
    plot: _Plot = None,
) -> None:
    """Show what a plan's rounds cost, how many its limits pay for, and what the noise leaves.

    Nothing is asked of anybody: it is what would be if nobody else spent from the same account.
    """
    from consortium.plan.forecast import allowances, pace, prices, with_target
    from consortium.plan.signal import signal_of

    plan, locked = _with_noise(_asked_for(plan_file, rounds, settings or []), plan_file.parent)
    given, size = allowances(plan), size or locked
    forecast = Forecast(
        plan,
        prices(plan, [*_COUNTS, plan.federation.rounds]),
        given,
        pace(plan, given),
        None if size is None else signal_of(plan, size, sites, records),
        None if wanted is None else with_target(plan, wanted),
    )
    show(forecast.sheet())
    for warning in forecast.warnings():
        say(f"WARNING: {warning}")
    if plot is not None:
        _draw(forecast, plot)
    envelope("budget plan", forecast.told())


def _asked_for(plan_file: Path, rounds: int | None, settings: list[str]) -> Plan:
    from consortium.plan import read_plan
    from consortium.plan.settings import parse_setting, variants

    found = variants(read_plan(plan_file), [parse_setting(text) for text in settings])
    if len(found) > 1:
        raise UsageError("--set with several values is for simulate", hint="one value for each key")
    plan = found[0].plan
    if not plan.privacy.is_on:
        raise UsageError(
            f"{plan_file} asks for no differential privacy: its rounds cost nothing, and promise "
            "nothing",
            hint="consortium budget plan --set privacy.preset=healthcare",
        )
    if rounds is None:
        return plan
    federation = plan.federation.model_copy(update={"rounds": rounds})
    return plan.model_copy(update={"federation": federation})


def _with_noise(plan: Plan, folder: Path) -> tuple[Plan, int | None]:
    """The plan with its noise, and how many numbers leave a site, where a lock beside it says so.
    The noise of the lock counts if it is the lock of this very plan."""
    from consortium.drive.lock import LOCK, read_lock
    from consortium.plan.noise import resolved

    if not (folder / LOCK).exists():
        return resolved(plan), None
    try:
        lock, _ = read_lock(folder)
    except PlanFileError:
        return resolved(plan), None
    same = lock.applied(plan)
    return (same if same.digest == lock.plan else resolved(plan)), lock.layout.size


@dataclass(frozen=True, slots=True)
class Forecast:
    """What there is to say of a plan whose noise is known."""

    plan: Plan
    prices: list[Price]
    allowances: list[Allowance]
    pace: Pace
    signal: Signal | None  # None: nobody has said how large the model is
    wanted: Plan | None  # the plan with another epsilon

    def sheet(self) -> Sheet:
        title = f"{self.plan.federation.name}: what its rounds cost"
        limits = self._limits() if self.allowances else [("limits", "none: [privacy] weekly, …")]
        return Sheet(title, [self._about(), self._prices(), limits, self._after()])

    def warnings(self) -> list[str]:
        from consortium.plan.signal import warnings

        found = [] if self.signal is None else warnings(self.signal)
        for one in self.allowances:
            if not one.rounds:
                found.append(f"one round costs more than {one.window} = {one.limit:g} pays for.")
        asked = self.plan.federation.rounds
        if 0 < self.pace.rounds < asked:
            found.append(f"the budget ends after {self.pace.rounds:,} of {asked:,} rounds.")
        return found

    def told(self) -> dict[str, object]:
        """The same for machines."""
        from consortium.plan.promises import ADJACENCY, AGAINST
        from consortium.privacy.accountant import name_for

        section, budget, signal = self.plan.privacy, self.plan.budget, self.signal
        assert budget is not None, "a private plan has a budget"
        return {
            "federation": self.plan.federation.name,
            "account": budget.account,
            "unit": self.plan.unit,
            "adjacency": ADJACENCY[self.plan.unit],
            "against": AGAINST[self.plan.unit],
            "delta": section.delta,
            "accountant": name_for(budget.costs),
            "noise_multiplier": section.noise_multiplier,
            "side_noise": section.side_noise,
            "prices": [asdict(one) for one in self.prices],
            "limits": [asdict(one) for one in self.allowances],
            "pace": asdict(self.pace),
            "wanted": None if self.wanted is None else _target(self.wanted),
            "signal": None if signal is None else asdict(signal) | _ratios(signal),
            "warnings": self.warnings(),
        }

    def _about(self) -> list[tuple[str, str]]:
        from consortium.plan.privacy import SCORE_SENSITIVITY
        from consortium.privacy.accountant import name_for

        section, budget = self.plan.privacy, self.plan.budget
        assert budget is not None, "a private plan has a budget"
        pairs = promise_pairs(self.plan.unit, section.delta, name_for(budget.costs))
        if section.target is not None:
            pairs.append(("asked for", _asked(self.plan)))
        side = f"; {section.side_noise:g} on counts and scores" if section.side_noise else ""
        pairs.append(("noise", f"{_noise(self.plan)}{side}"))
        if self.wanted is not None:
            pairs.append(("or else", f"{_asked(self.wanted)} needs noise of {_noise(self.wanted)}"))
        if section.hides == "record":
            steps = section.steps_of(self.plan.training.epochs)
            rate = f"a record is in each with chance {section.rate:g}"
            pairs.append(("steps", f"{steps:,} a round; {rate}"))
        if self.plan.has_noised_scores and section.side_noise is not None:
            much = section.side_noise * SCORE_SENSITIVITY
            pairs.append(("scores", f"noise of {much:.3g} on a site's counts of test records"))
        return pairs

    def _prices(self) -> Grid:
        rows = [(f"{one.rounds:,}", epsilon(one.epsilon), epsilon(one.rdp)) for one in self.prices]
        header = ("rounds", "epsilon", "by RDP alone")
        return Grid(header, rows, frozenset(header))

    def _limits(self) -> Grid:
        rows = [
            (
                WINDOWS[one.window],
                f"{one.limit:g}",
                f"{one.rounds:,}",
                _then(one),
            )
            for one in self.allowances
        ]
        header = ("in any", "limit", "pays for rounds", "then")
        return Grid(header, rows, frozenset(header[1:3]), frozenset(header[:1]))

    def _after(self) -> list[tuple[str, str]]:
        pairs = [("the plan", self._pace())]
        if self.signal is None:
            return [*pairs, ("signal", "not known: consortium lock, or --size, tells the model's")]
        signal = self.signal
        if signal.batch is not None:
            told = f"{signal.batch:.4g} records expected in a step ({signal.rate:g} of "
            pairs.append(("batch", f"{told}{signal.records:,})"))
        return [*pairs, ("signal", _signal(signal))]

    def _pace(self) -> str:
        asked, paid = self.plan.federation.rounds, self.pace.rounds
        if not paid:
            return f"none of its {asked:,} rounds can be paid"
        of = f"its {asked:,} rounds" if paid == asked else f"{paid:,} of its {asked:,} rounds"
        if not self.pace.lasts_ms:
            return f"{of} can follow each other at once"
        return f"{of} can be paid; the last opens {words.span(self.pace.lasts_ms)} after the first"


def _asked(plan: Plan) -> str:
    target = plan.privacy.target
    assert target is not None, "there is an epsilon to tell of"
    over = f"all {plan.federation.rounds:,} rounds together" if target[1] else "one round"
    return f"epsilon {target[0]:g} for {over}"


def _noise(plan: Plan) -> str:
    section = plan.privacy
    twice = "twice " if section.hides == "local" else ""
    return f"{section.noise_multiplier:g} times {twice}the clip of {section.clip:g}"


def _target(plan: Plan) -> dict[str, object]:
    target, section = plan.privacy.target, plan.privacy
    assert target is not None, "there is an epsilon to tell of"
    noise = {"noise_multiplier": section.noise_multiplier, "side_noise": section.side_noise}
    return {"epsilon": target[0], "of_all_rounds": target[1], **noise}


def _then(one: Allowance) -> str:
    if not one.rounds:
        return "not even one"
    if one.length_ms is None:
        return "no further round, ever"
    return f"the next waits until {words.span(one.length_ms)} after the first of these"


def _ratios(signal: Signal) -> dict[str, object]:
    needed = {"sites_needed": signal.sites_needed, "records_needed": signal.records_needed}
    return {"ratio": signal.ratio, "batch": signal.batch, **needed}


def _signal(signal: Signal) -> str:
    of = f"{signal.size:,} numbers of {signal.sites:,} sites a round"
    if signal.ratio is None:
        return (
            f"as strong as the noise with {signal.records_needed:,} records at each site, for {of}"
        )
    return f"at best {signal.ratio:.3g} times the noise, for {of}"


def _draw(forecast: Forecast, plot: Path) -> None:
    """Both accountants by rounds, and every limit."""
    from consortium.cli.plot import Line, draw_lines
    from consortium.plan.forecast import prices

    plan, last = forecast.plan, forecast.plan.federation.rounds
    counts = {1 + round((last - 1) * at / (_MOST_PRICES - 1)) for at in range(_MOST_PRICES)}
    found = prices(plan, counts)
    lines = [Line("epsilon", [(one.rounds, one.epsilon) for one in found])]
    lines.append(Line("by RDP alone", [(one.rounds, one.rdp) for one in found]))
    lines += [Line(place(one.window), [], one.limit) for one in forecast.allowances]
    section = plan.privacy
    title = f"{plan.federation.name}: per {plan.unit}, delta {section.delta:g}"
    draw_lines(lines, plot, title=title, across="rounds")
    say(f"drawn: {plot}")
