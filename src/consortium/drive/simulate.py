"""A federation in one process: the real core and the real coordinator's work, with the
sites played by an engine and time by a clock that jumps to whatever is due next.

By default a block of sites is one fact, because the protocol must not cost more than
the training. With `record=True` every update is stored, checked and logged on its own,
exactly as a coordinator does it. Both give the same model, with one exception: in blocks
nobody can be excluded for standing out among the round's norms, because only sums are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from consortium.core import inputs as i
from consortium.core.codec import decode
from consortium.core.ending import Facts
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.state import Federation
from consortium.drive.accounts import Accounts
from consortium.drive.clock import ManualClock
from consortium.drive.cohort import Cohort, Drops, OnWork
from consortium.drive.coordinate import Coordinator
from consortium.drive.directory import DataDirectory
from consortium.drive.driver import Driver
from consortium.drive.engine import Engine, LocalEngine, SimulatedSite, begin, simulated_site
from consortium.drive.hands import hands_for
from consortium.drive.history import History, RoundRecord, worst_of
from consortium.drive.local import LocalWork, refuse_unfollowed
from consortium.drive.paced import PacedCohort
from consortium.drive.population import (
    Population,
    has_reports,
    have_own_names,
    place_of,
    strangers,
)
from consortium.drive.prices import price_for
from consortium.drive.rng import seed_bytes, stream
from consortium.drive.states import FileStates, MemoryStates, SiteStates
from consortium.drive.workers import WorkerEngine, can_fork, default_workers
from consortium.errors import (
    ConsortiumError,
    ImpossiblePlanError,
    InsufficientParticipantsError,
    QualityError,
    UsageError,
    WrongPhaseError,
)
from consortium.model import Layout, Vector, digest_of, save_model
from consortium.plan.noise import resolved
from consortium.plan.values import Plan
from consortium.privacy.noise import Noise, SimulatedNoise
from consortium.store.memory import MemoryBlobs, MemoryLog
from consortium.store.ports import Blobs, Log
from consortium.tasks import AUTO, Site, Task, pace_of

_CHECKED_SITES = 64
_MANY_SITES = 100
_MADE_READY = 2000  # sites: it takes about a millisecond each
_SHOWN = 10  # names in a message


@dataclass(frozen=True, slots=True)
class Options:
    """How to simulate. Nothing here changes the model but `drops`, and `engine` by rounding.

    `engine`: "loop" trains one site after the other; other names are faster engines of the
    task's kind; "auto" leaves the choice to a rule.
    `workers`: processes that train sites side by side; 0: this one, one site after another;
    None: one a core for tasks that ask for it, such as torch models, else 0.
    """

    record: bool = False
    engine: str = AUTO
    workers: int | None = None
    drops: Drops | None = None
    on_round: Callable[[RoundRecord], None] | None = None
    on_work: OnWork | None = None
    directory: DataDirectory | None = None  # None: in memory, gone with the process
    is_auditable: bool = True  # on a directory: keep all that rounds leave behind
    task_hash: Digest | None = None  # None: the task is not a bundle of files


@dataclass(frozen=True, slots=True)
class Run:
    """A finished simulation."""

    plan: Plan
    seed: int
    state: Federation
    history: History
    layout: Layout
    model: Vector
    model_digest: Digest
    records: tuple[bytes, ...]  # the log
    local: LocalWork
    first: Vector  # the model that round one started from
    sites: Sequence[SimulatedSite]
    states: SiteStates

    @property
    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The final shared tensors."""
        return self.layout.unflatten(self.model)

    @property
    def model_round(self) -> int:
        """The round that made the final model; 0 for the one that round one started from."""
        return self.state.versions[self.state.current].round

    def at(self, name: str) -> Any:
        """The complete model as one site would use it: to predict, to save, to export."""
        at = place_of(self.sites, name)
        if at is None:
            raise UsageError(f"there is no site `{name}`")
        seat = Seat(at + 1)
        here = simulated_site(
            self.sites[at], seat, self.plan, self.seed, self.model_round, "evaluate"
        )
        return self.local.complete(here, self.model, self.states.current(seat))


def simulate(
    task: Task,
    plan: Plan,
    sites: Sequence[SimulatedSite],
    *,
    seed: int,
    options: Options | None = None,
) -> Run:
    """Run the whole federation here. The same seed gives the same model digest."""
    plan = resolved(plan)
    check_study(task, plan, sites, seed)
    simulation = _Simulation(task, plan, sites, seed, options or Options())
    try:
        return simulation.run()
    finally:
        simulation.close()


def check_study(
    task: Task,
    plan: Plan,
    sites: Sequence[SimulatedSite],
    seed: int = 0,
    engine: str | None = None,
) -> None:
    """Refuse what could not run: before a folder is made or a model trained."""
    plan.check()
    refuse_unfollowed(task, plan)
    plan = resolved(plan)
    plan.terms(task.metrics)
    reports = plan.conditions() or plan.selection.strategy == "diverse"
    if reports and not has_reports(sites):
        raise ImpossiblePlanError(
            "the plan chooses sites by what they report, and these sites report nothing",
            hint='from Python: SimulatedSite("a", data, report=(("memory_gb", 32),))',
        )
    unknown = strangers(sites, sorted(plan.simulation.pace))
    if unknown:
        raise ImpossiblePlanError(
            f"[simulation] has the pace of `{unknown[0]}`, and there is no such site",
            hint=f"the sites are: {', '.join(site.name for site in sites[:_SHOWN])}",
        )
    if len(sites) < plan.federation.quorum:
        raise InsufficientParticipantsError(
            f"{len(sites)} sites, but the plan's quorum is {plan.federation.quorum}"
        )
    if not have_own_names(sites):
        raise UsageError("two sites have the same name", hint="each site has a name of its own")
    _check_sites(task, plan, sites, seed, engine or AUTO)


def _check_sites(
    task: Task, plan: Plan, sites: Sequence[SimulatedSite], seed: int, engine: str
) -> None:
    """Say before the first round which site's model is not like the others'. Of a thousand
    sites only the first are asked: the others are, when they train."""
    local, _ = begin(task, plan, sites, seed)
    plan.form(local.layout, 0, local.reported)  # what is masked may leave too little room for noise
    for seat, site in enumerate(sites[:_CHECKED_SITES], start=1):
        with suppress(QualityError):  # such a site sits the rounds out, and says so
            local.check(simulated_site(site, seat, plan, seed, 0, "start"))
    pace_of(task, lambda: _example(local, sites, seed), engine)


class _Simulation:
    """The driver, the coordinator's hands and the sites, and the loop around them."""

    def __init__(
        self,
        task: Task,
        plan: Plan,
        sites: Sequence[SimulatedSite],
        seed: int,
        options: Options,
    ) -> None:
        self._plan, self._sites, self._seed, self._options = plan, sites, seed, options
        self._terms = plan.terms(task.metrics, is_simulated=True)
        local, self._start = begin(task, plan, sites, seed)
        self._local, self._layout = local, local.layout
        self._clock = ManualClock()
        self._history = History(lambda seat: sites[seat - 1].name)
        self._stream = seed_bytes(seed, "federation", 0)[:16].hex()
        self._open(options.directory)
        self._hands = hands_for(
            plan,
            self._layout,
            self._blobs,
            self._clock,
            lambda number: seed_bytes(seed, "selection", number),
            metrics=self._terms.metrics,
            accounts=Accounts(self._log, self._clock, price_for(plan.privacy.limits)),
            noise_at=self._noise_at,
        )
        self._cohort = Cohort(
            _engine(local, sites, seed, options),
            self._hands,
            self._states,
            options.drops,
            options.on_work,
        )
        self._paced = PacedCohort(self._cohort, self._takes_ms) if plan.takes_time else None
        self._unneeded: set[Digest] = set()  # blobs to drop, once nobody trains from them

    def close(self) -> None:
        self._cohort.close()

    def _noise_at(self, number: int, column: int) -> Noise:
        """From the seed: a simulation protects nobody."""
        return SimulatedNoise(stream(self._seed, "release", number, column))

    def _takes_ms(self, seat: Seat) -> int:
        return self._plan.simulation.takes_ms(self._sites[seat - 1].name)

    def _open(self, directory: DataDirectory | None) -> None:
        """In memory, or on a directory: there an interrupted run goes on where it was."""
        self._coordinator: Coordinator | None = None
        self._states: SiteStates = MemoryStates()
        if directory is None:
            self._log: Log = MemoryLog()
            self._blobs: Blobs = MemoryBlobs()
            self._driver = Driver(self._log, self._stream, self._clock)
            return
        self._log, self._blobs = directory.log, directory.blobs
        self._states = FileStates(directory.path / "sites" / self._stream)
        for record in self._log.read(self._stream):
            fact = decode(record)
            self._clock.advance_to(fact.at_ms)
            self._history.add(fact)
        self._coordinator = Coordinator(directory, self._stream, self._clock)
        self._driver = self._coordinator.driver

    def run(self) -> Run:
        self._set_up()
        state = self._driver.state
        while state.finished is None:
            facts = self._driver.work(self._hands)
            answer = None if facts else self._answer()
            if answer is not None:
                facts = self._driver.feed(answer)
            self._note(facts)
            if not facts:
                self._wait()
        if self._coordinator is not None:
            self._coordinator.keep_checkpoint()
        digest = state.versions[state.current].model
        return Run(
            plan=self._plan,
            seed=self._seed,
            state=state,
            history=self._history,
            layout=self._layout,
            model=self._hands.model(digest),
            model_digest=digest,
            records=tuple(self._log.read(self._stream)),
            local=self._local,
            first=self._start,
            sites=self._sites if isinstance(self._sites, Population) else tuple(self._sites),
            states=self._states,
        )

    def _answer(self) -> i.Input | None:
        """The next thing that a site says now."""
        sites = self._cohort if self._paced is None else self._paced
        return sites.answer(self._driver.state, self._clock.now_ms())

    def _set_up(self) -> None:
        """Idempotent: what an interrupted run has done already makes no facts."""
        plan, layout, blobs, state = self._plan, self._layout, self._blobs, self._driver.state
        now_ms = self._clock.now_ms()
        blobs.put(plan.canonical())  # beside the log: an auditor can redo every sum
        blobs.put(layout.canonical())
        task_hash = self._options.task_hash or digest_of(b"consortium/task/not-bundled")
        self._feed(i.Found(self._stream, now_ms))
        if self._terms.budget is not None:
            assert self._hands.accounts is not None
            self._hands.accounts.open(self._terms.budget, plan.privacy.limits)
        if state.plan is None:
            adopt = i.AdoptPlan(plan.digest, task_hash, layout.digest, self._terms, now_ms)
            self._feed(adopt)
        if (state.plan, state.task) != (plan.digest, task_hash):
            raise WrongPhaseError(
                "the data directory holds a run of another plan or task",
                hint="take a new directory, or the plan and the task that it was made with",
            )
        self._settle()  # a run that was killed may not have come to it
        if not state.versions:
            self._feed(i.InstallModel(blobs.put(save_model(layout, self._start)), now_ms))
        self._admit()

    def _admit(self) -> None:
        """Everybody as one cohort, or one by one; the same again when a run goes on."""
        roster = self._driver.state.roster
        is_single = (
            self._options.record
            or self._plan.takes_time
            or self._plan.strategy.needs_rows
            or self._needs_rows()
            or has_reports(self._sites)
        )
        is_other = bool(roster.cohorts) if is_single else bool(roster.members)
        if is_other or (len(roster) not in (0, len(self._sites)) and not is_single):
            raise WrongPhaseError(
                "the data directory holds a run of other sites, or with --record the other way",
                hint="go on with the same sites and the same --record",
            )
        if is_single:
            self._admit_one_by_one()
        elif not roster.cohorts:
            self._feed(i.AdmitCohort(len(self._sites), self._clock.now_ms()))

    def _needs_rows(self) -> bool:
        """Noise of a coordinator comes on a sum of rows, not of blocks; but for masked ones, whose
        sums are on a grid."""
        return self._plan.privacy.hides == "site" and not self._plan.is_masked

    def _admit_one_by_one(self) -> None:
        for number in range(1, len(self._sites) + 1):
            site = SiteId(seed_bytes(self._seed, "site", number)[:16].hex())
            self._feed(i.Admit(site, b"", self._clock.now_ms()))
        self._report()

    def _report(self) -> None:
        """Sites that were admitted one by one say that they are there, as agents do."""
        for seat in list(self._driver.state.roster.members):
            report = tuple(sorted(self._sites[seat - 1].report))
            self._feed(i.Report(Seat(seat), report, self._clock.now_ms()))

    def _feed(self, item: i.Input) -> None:
        self._note(self._driver.feed(item))

    def _note(self, facts: Facts) -> None:
        for fact in facts:
            ended = self._history.add(fact)
            if ended is None:
                continue
            self._add_sites(ended)
            ended.bytes_sent = self._cohort.sent_bytes()
            self._settle()
            self._forget()
            if self._coordinator is not None and self._options.is_auditable:
                self._coordinator.keep_checkpoint()
            if self._options.on_round is not None:
                self._options.on_round(ended)

    def _add_sites(self, ended: RoundRecord) -> None:
        """What each member measured of the candidate: in blocks, the log has sums only."""
        over = self._driver.state.ended
        if over is not None and over.model is not None:
            names = [metric.name for metric in self._terms.metrics]
            ended.sites = {
                site: dict(zip(names, means, strict=True))
                for site, means in self._cohort.means(over.model).items()
            }
            ended.worst = worst_of(ended.sites, self._terms.metrics)
            if len(ended.sites) > _MANY_SITES:
                for older in self._history.rounds[-2:-1]:
                    older.sites = {}  # memory must not grow with rounds times sites

    def _settle(self) -> None:
        """What sites kept in the round that ended counts if its candidate was published."""
        over, state = self._driver.state.ended, self._driver.state
        if over is None:
            return
        is_published = state.versions[state.current].round == over.number
        members = over.members if is_published else ()
        if not self._terms.is_buffered:
            self._states.settle(over.number, members)
            return
        for seat in over.invited:
            if seat not in state.passing:
                self._states.settle(over.number_of(seat), members, (seat,))

    def _forget(self) -> None:
        """In memory, what a round leaves behind is dropped: memory follows the cohort and not
        the number of rounds. On a directory everything stays, for auditors, unless nobody will
        audit it: then it holds what the run needs to go on."""
        over, state = self._driver.state.ended, self._driver.state
        if over is None or (self._coordinator is not None and self._options.is_auditable):
            return
        present = state.versions[state.current]
        needed = {present.model, present.server_state}
        for made in state.passing.values():
            needed |= {made.base, made.server_state, made.update}
        models = (over.base, over.model, over.server_state, over.model_state)
        self._unneeded |= {*over.submitted.values(), *(part[2] for part in over.partials)}
        self._unneeded |= {model for model in models if model is not None}
        for digest in sorted(self._unneeded - needed):
            self._blobs.drop(digest)
        self._unneeded &= needed

    def _wait(self) -> None:
        """Nothing can happen now: jump to the next time that something is due."""
        now_ms, wake_ms = self._clock.now_ms(), self._driver.wakes_at_ms()
        done_ms = None if self._paced is None else self._paced.next_ms(now_ms)
        if done_ms is not None and (wake_ms is None or done_ms < wake_ms):
            wake_ms = done_ms
        if wake_ms is None:
            raise InsufficientParticipantsError("no round can open, now or later")
        self._clock.advance_to(wake_ms)
        self._report()


def _engine(
    local: LocalWork, sites: Sequence[SimulatedSite], seed: int, options: Options
) -> Engine:
    """The engine that the task's own rule or the caller names, in this process or in one a
    core. Never chosen by timing."""
    task = local.task
    pace = pace_of(task, lambda: _example(local, sites, seed), options.engine)
    engine = LocalEngine(replace(local, engine=pace.engine), sites, seed, pace.at_once)
    workers = options.workers
    if workers is None:
        workers = default_workers() if task.prefers_workers else 0
    workers = min(workers, len(sites))
    if workers < 1 or not can_fork():
        return engine
    return WorkerEngine(engine, workers, partial(_get_ready, engine))


def _get_ready(engine: LocalEngine) -> None:
    """Let the task make what it keeps of each site once, and not once in each worker: where data
    is in memory already, and most sites will be asked. What is wrong with a site is told when
    its turn comes."""
    sites, plan = engine.sites, engine.local.plan
    a_round = plan.selection.target or plan.selection.fraction * len(sites)
    are_here = not isinstance(sites, Population) and not isinstance(sites[0].data, str | Path)
    are_asked = len(sites) <= min(plan.federation.rounds * a_round, _MADE_READY)
    if engine.at_once == 1 or not are_here or not are_asked:
        return
    for seat in range(1, len(sites) + 1):
        make = partial(engine.site, Seat(seat), 0, "start")
        with suppress(ConsortiumError, SystemExit):
            pace_of(engine.local.task, make, engine.local.engine)


def _example(local: LocalWork, sites: Sequence[SimulatedSite], seed: int) -> Site:
    """The site whose data gave the layout: its model is everybody's, but for what stays."""
    seat = next(at for at, site in enumerate(sites) if site.name == local.made_by)
    return simulated_site(sites[seat], seat + 1, local.plan, seed, 0, "start")
