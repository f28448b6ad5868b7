"""One site's part of a round: run the task, hold it to its contract, make the row that leaves.

The same code runs for a simulated site and at a real one. What the task keeps at the site,
and what the strategy keeps there (SCAFFOLD's variate) and what compression left, is one file
of tensors: it never leaves, and it changes only together with an update that was made.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from consortium.core.facts import Failure
from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.drive.base_scores import bounded_scores
from consortium.drive.contribution import Contribution, Contributions
from consortium.drive.leaving import HELD_BACK, Made, leaving
from consortium.drive.private import check_delta, noised_scores, refuse_open_scores
from consortium.drive.rng import stream
from consortium.errors import (
    ConsortiumError,
    ImpossiblePlanError,
    LayoutError,
    QualityError,
    SchemaError,
    SiteDataError,
    TaskError,
    TaskResultError,
)
from consortium.model import STEP, Layout, Vector
from consortium.plan.privacy import BOUNDED_METRIC
from consortium.plan.strategy import TAU, VARIATE
from consortium.plan.values import Plan
from consortium.tasks import (
    LOOP,
    Inventory,
    LocalRules,
    NumpyTask,
    SideBySide,
    Site,
    Task,
    Trained,
    TrainedTogether,
)
from consortium.tensors import CODES, Tensors, load_tensors

SEE_MORE = "run again with -vv (before the command) to see the whole error; it may show data"
_OF_TASK = "task/"  # what the task keeps, beside what the strategy keeps


Scores = tuple[list[float], int]  # (sum of each metric over the test records, how many)
# What a metric that is no number counts as: worse than any that is, and still one that adds up.
WORST = 1e30


@dataclass(frozen=True, slots=True)
class LocalWork:
    """What every site of a federation does alike."""

    task: Task
    layout: Layout
    plan: Plan
    pinned: Digest | None = None  # of the frozen tensors, where the layout was made
    columns: tuple[str, ...] | None = None  # there, if the task knows them
    made_by: str = ""  # the site whose data gave the layout, for error messages
    engine: str = LOOP  # how a task that can train sites side by side does it

    def train(
        self, site: Site, base: Vector, variate: Vector | None, state: bytes | None
    ) -> Contribution:
        """Train at one site from `base`; `variate` is the server's, when there is one."""
        made, own = self._prepared(site, base, variate, state)
        try:
            made.scores = self._base_scores(made.site, base)
            trained = self._trained(made.site, self.layout.unflatten(base))
        except QualityError:  # the findings stay at the site
            made.fail(Failure.DATA_QUALITY)
            return self._leaving(self._rows(1), [made]).each()[0]
        step = self._flat(made.site, trained.shared) - base
        rows = self._rows(1, step[None, :])
        self._fill(rows[0], made, trained, step, variate, own)
        return self._leaving(rows, [made]).each()[0]

    def train_together(
        self,
        sites: Sequence[Site],
        base: Vector,
        variate: Vector | None,
        states: Sequence[bytes | None],
        into: npt.NDArray[Any] | None = None,
    ) -> Contributions:
        """The same at several sites, by a task that trains them side by side. Rows are made in
        `into` (n, d), where an update is nothing but a step."""
        prepared = [
            self._prepared(site, base, variate, state)
            for site, state in zip(sites, states, strict=True)
        ]
        for made, _ in prepared if self.plan.has_scored_sums else ():
            with suppress(QualityError):  # training finds it too, and says so
                made.scores = self._base_scores(made.site, base)
        here, shared = [made.site for made, _ in prepared], self.layout.unflatten(base)
        train = cast(SideBySide, self.task).train_together
        many = self._call(here[0], "train", train, here, shared, self.engine)
        steps = self._steps_of(many, base, into)
        rows = self._rows(len(here), steps)
        is_plain = not self.plan.strategy.is_normalised and variate is None
        for at, (made, own) in enumerate(prepared):
            records = many.records[at]
            if records is None:
                made.fail(Failure.DATA_QUALITY)
            elif is_plain:
                self._note(made, records, many.states[at])
            else:
                self._fill(rows[at], made, many.at(at), steps[at], variate, own)
        return self._leaving(rows, [made for made, _ in prepared])

    def _leaving(self, rows: npt.NDArray[Any], made: Sequence[Made]) -> Contributions:
        return leaving(self.plan, self.layout, rows, made, self.reported)

    @property
    def reported(self) -> tuple[Metric, ...]:
        """The metrics that leave a site."""
        return self.plan.reported(self.task.metrics)

    def _base_scores(self, site: Site, base: Vector) -> tuple[float, ...]:
        """What goes into a masked sum of how the model does here that the round begins from. It
        draws from a stream of its own: training goes as it would without."""
        if not self.plan.has_scored_sums:
            return ()
        rng = stream(site.own_seed, "evaluate", site.round)
        here = replace(site, rng=rng, rules=LocalRules(), state=self._shown(site.state))
        shared = self.layout.unflatten(base)
        try:
            result = self._call(here, "evaluate", self.task.evaluate, here, shared)
        except QualityError:
            raise
        except SiteDataError:  # it has nothing to try a model on, and takes part all the same
            return bounded_scores(self.plan, self.reported, ([], 0))
        if _has_no_records(result):
            return bounded_scores(self.plan, self.reported, ([], 0))
        return bounded_scores(self.plan, self.reported, _scores(here, self.reported, result))

    def _shown(self, state: Tensors | None) -> Tensors | None:
        """What evaluation may see of what the task keeps. Scores that leave as they are must not
        follow from records that only noise on updates hides: what is kept was made of those."""
        return None if self.plan.privacy.hides in ("site", "local") else state

    def _prepared(
        self, site: Site, base: Vector, variate: Vector | None, state: bytes | None
    ) -> tuple[Made, Vector | None]:
        """The site with what the strategy asks of it and what it kept, and its own variate."""
        if state is None and variate is None and self.plan.strategy.proximal == 0.0:
            return Made(site, None), None
        kept = {} if state is None else load_tensors(state)
        own = kept.get(VARIATE)
        if variate is not None and own is None:
            own = np.zeros_like(base)
        rules = self._rules(base, variate, own)
        site = replace(site, rules=rules, state=_of_task(kept))
        return Made(site, kept.get(HELD_BACK)), own

    def _rows(self, count: int, steps: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """(count, d) in the strategy's form, with these steps; they are used as they are where
        an update is nothing but a step."""
        form = self.plan.strategy.form(self.layout)
        if steps is not None and (form.size, form.dtype) == (self.layout.size, steps.dtype):
            return steps
        rows = np.zeros((count, form.size), form.dtype)
        if steps is not None:
            for row, step in zip(rows, steps, strict=True):
                form.part(row, STEP)[:] = step
        return rows

    def evaluate(self, site: Site, model: Vector, state: bytes | None) -> Scores:
        """Try a model on one site's test records."""
        kept = {} if state is None else load_tensors(state)
        site = replace(site, state=self._shown(_of_task(kept)))
        shared = self.layout.unflatten(model)
        result = self._call(site, "evaluate", self.task.evaluate, site, shared)
        found = _scores(site, self.reported, result)
        return noised_scores(self.plan, site, found) if self.plan.has_noised_scores else found

    def complete(self, site: Site, model: Vector, state: bytes | None) -> Any:
        """The complete model of one site, shared and private parts together, in the form that
        the task gives it: for torch tasks a `consortium.torch.SiteModel`."""
        make = getattr(self.task, "complete", None)
        if make is None:
            raise TaskResultError(
                "the task makes no complete models",
                hint="export its arrays as .safetensors; in Python, run.tensors has them",
            )
        kept = {} if state is None else load_tensors(state)
        site = replace(site, state=_of_task(kept))
        return self._call(site, "the task", make, site, self.layout.unflatten(model))

    def check(self, site: Site) -> None:
        """Whether this site's model is the one that the others have: same shared tensors,
        same frozen ones. Told before the first round rather than in the middle of it."""
        if self.plan.privacy.hides == "record" and hasattr(self.task, "check_private"):
            self._call(site, "the task", self.task.check_private, site)
        inventory = self.inventory(site)
        found = Layout(inventory.leaves)
        if found != self.layout:
            raise self._layout_error(site, self.layout.difference(found))
        if inventory.columns != self.columns:
            raise SchemaError(
                f"site {site.name}: its columns are not those of site {self.made_by}, or in "
                "another order, and the model takes them all alike",
                hint='read_csv(..., columns=["age", ...]) reads the same ones in the same order',
            )
        if inventory.pinned != self.pinned:
            raise LayoutError(
                f"site {site.name}: the frozen layers are not those of site {self.made_by}",
                hint="frozen layers are loaded from the same file at every site",
            )

    def inventory(self, site: Site) -> Inventory:
        """What leaves this site and what stays."""
        found = self._call(site, "the task", self.task.inventory, site)
        assert isinstance(found, Inventory)
        refuse_open_scores(self.plan, found)
        return found

    def _rules(self, base: Vector, variate: Vector | None, own: Vector | None) -> LocalRules:
        mu = self.plan.strategy.proximal
        if mu == 0.0 and variate is None:
            return LocalRules()
        correction = None
        if variate is not None and own is not None:
            correction = self.layout.unflatten(variate - own)
        return LocalRules(mu, self.layout.unflatten(base), correction)

    def _trained(self, site: Site, shared: dict[str, Any]) -> Trained:
        result = self._call(site, "train", self.task.train, site, shared)
        if isinstance(result, tuple) and len(result) == 2:
            result = Trained(*result)
        if not isinstance(result, Trained) or not isinstance(result.shared, Mapping):
            kind = type(result).__name__
            raise TaskResultError(
                f"site {site.name}: train returned {kind}",
                hint="return (shared, records), or consortium.Trained(...)",
            )
        if result.state is not None and not _can_be_kept(result.state):
            raise TaskResultError(
                f"site {site.name}: what train keeps is not a dictionary of arrays of numbers",
                hint="return consortium.Trained(shared, records, state={name: array})",
            )
        return replace(result, records=_count(site, "train", result.records))

    def _steps_of(
        self, many: TrainedTogether, base: Vector, into: npt.NDArray[Any] | None
    ) -> npt.NDArray[Any]:
        """(n, d): how far every site's shared tensors went."""
        count, layout = len(many.records), self.layout
        rows = into
        if rows is None or (rows.shape, rows.dtype) != ((count, layout.size), layout.dtype):
            rows = np.empty((count, layout.size), layout.dtype)
        at = 0
        for spec in self.layout.specs:
            part = slice(at, at + spec.size)
            tensors = many.shared[spec.name].reshape(count, spec.size)
            np.subtract(tensors, base[part], out=rows[:, part], dtype=self.layout.dtype)
            at += spec.size
        return rows

    def _flat(self, site: Site, tensors: Any) -> Vector:
        try:
            return self.layout.flatten(tensors)
        except LayoutError as error:
            raise self._layout_error(site, error.message) from None

    def _layout_error(self, site: Site, what: str) -> LayoutError:
        if what.startswith("site "):
            return LayoutError(what)
        if self.made_by in ("", site.name):
            return LayoutError(f"site {site.name}: {what}")
        return LayoutError(
            f"site {site.name}: {what} (as at site {self.made_by})",
            hint="read the same columns= and categories= (also the label's) at every site, or keep "
            "the layer there: co.private(layer)",
        )

    def _fill(
        self,
        row: Vector,
        made: Made,
        trained: Trained,
        step: Vector,
        variate: Vector | None,
        own: Vector | None,
    ) -> None:
        """Put into a row that holds the step what the strategy sends beside it, and what stays
        beside the row."""
        strategy, site = self.plan.strategy, made.site
        kept = self._note(made, trained.records, trained.state)
        if not strategy.is_normalised and variate is None:
            return
        form = strategy.form(self.layout)
        if strategy.is_normalised:  # FedNova sends the step of one local step, and how many
            steps = _steps(site, trained)
            form.part(row, STEP)[:] = step / np.float64(steps)
            form.part(row, TAU)[:] = steps
        if variate is not None and own is not None:
            # Option II of the paper: c_i+ = c_i - c + (x - y) / (K lr).
            lr = self.plan.training.lr_in(site.round)
            change = -variate - step / (_steps(site, trained) * lr)
            form.part(row, VARIATE)[:] = change
            kept[VARIATE] = (own + change).astype(form.dtype)

    def _note(self, made: Made, records: int, state: Tensors | None) -> dict[str, Any]:
        """What stays beside the row, as far as the task says."""
        check_delta(self.plan, made.site, records)
        kept = {f"{_OF_TASK}{name}": array for name, array in state.items()} if state else {}
        made.records, made.kept = records, kept
        return kept

    def _call(self, site: Site, what: str, function: Any, *arguments: Any) -> Any:
        """Run the user's code. Its error text may carry data, so only type and place are told."""
        try:
            return function(*arguments)
        except LayoutError as error:
            raise self._layout_error(site, error.message) from None
        except (SiteDataError, TaskResultError) as error:
            raise named(error, site.name) from error.__cause__
        except ConsortiumError:
            raise
        except (Exception, SystemExit) as error:  # the user's own code: it may raise anything
            raise TaskResultError(
                f"site {site.name}: {what} failed: {where(error, function)}", hint=SEE_MORE
            ) from error


def named(error: TaskError, site: str) -> TaskError:
    """The same error with the site's name before it."""
    if error.message.startswith("site "):
        return error
    return type(error)(f"site {site}: {error.message}", hint=error.hint)


def refuse_unfollowed(task: Task, plan: Plan) -> None:
    """A plan that changes local training, or keeps layers at the site, needs a task that does
    what it asks: else something would be sent that the plan says stays."""
    strategy, personal = plan.strategy, plan.personal
    if isinstance(task, NumpyTask) and (personal.layers or personal.name != "none"):
        raise ImpossiblePlanError(
            "[personal] is about the layers of torch models, and this task has none",
            hint="leave [personal] out; what a task gives as Trained(state=...) stays at the site",
        )
    if plan.privacy.hides == "record" and not getattr(task, "trains_privately", False):
        raise ImpossiblePlanError(
            'unit = "record" needs a task that trains on single records by our own steps',
            hint='a torch task without loop= and step=; or unit = "site" or "local" in [privacy]',
        )
    if plan.has_noised_scores and BOUNDED_METRIC not in getattr(task, "measures_by_us", ()):
        raise ImpossiblePlanError(
            f"nobody can vouch for what one record does to the task's own `{BOUNDED_METRIC}`",
            hint=f'metrics=["{BOUNDED_METRIC}"] without a function, or test_records = "public"',
        )
    if personal.name == "fedrep" and not task.follows_rules:
        raise ImpossiblePlanError(
            "fedrep trains in turns, and the task has a loop of its own",
            hint='take loop= out of @co.task, or name = "fedper"',
        )
    if (strategy.proximal or strategy.has_variates) and not task.follows_rules:
        raise ImpossiblePlanError(
            f"strategy `{strategy.name}` changes the gradients, and the task does not use "
            "what it asks for",
            hint="use site.rules.adjusted(shared, gradients) in training, and say "
            "follows_rules=True",
        )


def where(error: BaseException, function: Any) -> str:
    """The error's type and the last line of the user's own file that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    frame = (own or frames)[-1]
    parts = frame.filename.split("/")
    # A library's file may have the name of the user's own: say whose it is.
    place = parts[-1] if own else "/".join(parts[-3:])
    return f"{type(error).__name__} in {place}:{frame.lineno}"


def _can_be_kept(state: object) -> bool:
    return isinstance(state, Mapping) and all(
        isinstance(name, str) and np.asarray(array).dtype in CODES for name, array in state.items()
    )


def _of_task(kept: Mapping[str, Any]) -> dict[str, Any] | None:
    own = {
        name.removeprefix(_OF_TASK): array
        for name, array in kept.items()
        if name.startswith(_OF_TASK)
    }
    return own or None


def _steps(site: Site, trained: Trained) -> float:
    if trained.steps is None or not math.isfinite(trained.steps) or trained.steps <= 0:
        raise TaskResultError(
            f"site {site.name}: the strategy needs to know how many steps training took",
            hint="return consortium.Trained(shared, records, steps=...)",
        )
    return float(trained.steps)


def _scores(site: Site, metrics: Sequence[Metric], result: Any) -> Scores:
    try:
        means, records = result
        values = [_usable(float(means[metric.name]), metric) for metric in metrics]
    except KeyError as error:
        raise TaskResultError(
            f"site {site.name}: evaluate left out {error}",
            hint="return ({metric: mean}, records) with every metric that the task reports",
        ) from None
    except (TypeError, ValueError):
        raise TaskResultError(
            f"site {site.name}: evaluate returned {type(result).__name__}",
            hint="return ({metric: mean}, records)",
        ) from None
    count = _count(site, "evaluate", records)
    return [value * count for value in values], count


def _has_no_records(result: Any) -> bool:
    records = result[1] if isinstance(result, tuple) and len(result) == 2 else None
    is_count = isinstance(records, int | np.integer) and not isinstance(records, bool)
    return is_count and int(cast(int, records)) == 0


def _usable(value: float, metric: Metric) -> float:
    """A model that gives no number here must not pass the gate because others judge it."""
    if math.isfinite(value):
        return value
    return -WORST if metric.higher_is_better else WORST


def _count(site: Site, what: str, records: object) -> int:
    if not isinstance(records, int | np.integer) or isinstance(records, bool) or records < 1:
        raise TaskResultError(
            f"site {site.name}: {what} must say how many records it used, at least one"
        )
    return int(records)
