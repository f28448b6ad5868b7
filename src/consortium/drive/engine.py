"""Local work in a simulation, in this process. One site after the other it is the plain engine
that every faster one is tested against."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from consortium.aggregate.block import BLOCK
from consortium.core.ids import Seat
from consortium.core.terms import ReportValue
from consortium.drive.contribution import Contribution, Contributions, together
from consortium.drive.local import SEE_MORE, LocalWork, Scores, named, where
from consortium.drive.rng import stream
from consortium.errors import (
    ConsortiumError,
    InternalError,
    QualityError,
    SiteDataError,
    TaskResultError,
)
from consortium.model import Layout, Vector
from consortium.plan.values import Plan
from consortium.privacy.noise import Noise, SimulatedNoise
from consortium.tasks import LOOP, RecordPrivacy, Site, Task

States = Callable[[Seat], bytes | None]  # what a site keeps, as it was before this work


@dataclass(frozen=True, slots=True)
class SimulatedSite:
    """A site of a simulation: its name, its data, what it reports of itself."""

    name: str
    data: Any
    report: tuple[tuple[str, ReportValue], ...] = ()


@dataclass(frozen=True, slots=True)
class Training:
    """What sites are asked to train in one round."""

    round: int
    base: Vector
    variate: Vector | None
    states: States
    # Who trains side by side with whom, if the engine does that. What a site gets may depend on
    # it by rounding, so it follows from the round alone: not from who is asked when, or by whom.
    groups: Sequence[Sequence[Seat]] = ()
    # In which order rows are added up; empty: they are not, each goes its own way.
    ranks: Mapping[Seat, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """Sites that are trained side by side, and the places of those whose results are wanted."""

    seats: Sequence[Seat]
    wanted: Sequence[int]
    # Among the wanted, the first of a block that ends with them or goes on behind them: their rows
    # can be added up where they are made. None: all of them go on with somebody else's block.
    first_of_block: int | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """What sites are asked to evaluate in one round."""

    round: int
    model: Vector
    states: States


class Engine(Protocol):
    """Plays sites. Results come in the order of the seats that were asked, of training some
    seats at a time; closing the generator early is allowed and stops the work."""

    @property
    def sites(self) -> Sequence[SimulatedSite]: ...

    @property
    def at_once(self) -> int:
        """How many sites it trains side by side, at most."""
        ...

    def train(
        self, seats: Sequence[Seat], work: Training
    ) -> Generator[Contributions, None, None]: ...

    def evaluate(self, seats: Sequence[Seat], work: Trial) -> Generator[Scores, None, None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Trains and evaluates the sites of a simulation in this process."""

    local: LocalWork
    sites: Sequence[SimulatedSite]  # seat 1 is the first
    seed: int
    at_once: int = 1  # sites that are trained side by side, if the task's engine can

    def train(self, seats: Sequence[Seat], work: Training) -> Generator[Contributions, None, None]:
        for job in jobs_of(seats, work, self.at_once):
            states = [work.states(seat) for seat in job.seats]
            made = self.train_some(job.seats, work.round, work.base, work.variate, states)
            yield made.at(job.wanted)

    def evaluate(self, seats: Sequence[Seat], work: Trial) -> Generator[Scores, None, None]:
        for seat in seats:
            yield self.evaluate_one(seat, work.round, work.model, work.states(seat))

    def train_some(
        self,
        seats: Sequence[Seat],
        number: int,
        base: Vector,
        variate: Vector | None,
        states: Sequence[bytes | None],
        into: npt.NDArray[Any] | None = None,
    ) -> Contributions:
        """Train at these seats: side by side if the task can, one after the other if not. Rows
        are made in `into` (n, d), if that can be done without a copy."""
        if self.local.engine == LOOP:
            (seat,), (state,) = seats, states
            return together(self.train_one(seat, number, base, variate, state))
        sites = [self.site(seat, number, "train") for seat in seats]
        return self.local.train_together(sites, base, variate, states, into)

    def train_one(
        self, seat: Seat, number: int, base: Vector, variate: Vector | None, state: bytes | None
    ) -> Contribution:
        return self.local.train(self.site(seat, number, "train"), base, variate, state)

    def evaluate_one(self, seat: Seat, number: int, model: Vector, state: bytes | None) -> Scores:
        return self.local.evaluate(self.site(seat, number, "evaluate"), model, state)

    def site(self, seat: Seat, number: int, purpose: str) -> Site:
        """What the task at this seat gets to know in this round."""
        return simulated_site(
            self.sites[seat - 1], seat, self.local.plan, self.seed, number, purpose
        )

    def close(self) -> None:
        """Nothing is open."""


def simulated_site(
    site: SimulatedSite, seat: int, plan: Plan, seed: int, number: int, purpose: str
) -> Site:
    """A simulated site as its task sees it; every random stream is its own."""
    made = Site(
        name=site.name,
        data=site.data,
        round=number,
        rng=stream(seed, purpose, number, seat),
        training=plan.training,
        personal=plan.personal,
        own_seed=_own_seed(seed, seat),
    )
    if not plan.privacy.is_on or purpose == "start":  # a first model tells nothing of records
        return made
    # From a seed, as everything in a simulation: it hides nothing from who knows the seed.
    return with_noise(made, plan, SimulatedNoise(stream(seed, f"noise {purpose}", number, seat)))


def with_noise(site: Site, plan: Plan, noise: Noise) -> Site:
    """The site with the noise of a private plan, from this source."""
    return replace(site, noise=noise, privacy=_record_privacy(plan, noise))


def _record_privacy(plan: Plan, noise: Noise) -> RecordPrivacy | None:
    section = plan.privacy
    if section.hides != "record":
        return None
    if section.noise_multiplier is None or section.side_noise is None:
        raise InternalError("the noise of a private plan is computed before it is run")
    expected = None if section.records is None else section.rate * section.records
    return RecordPrivacy(
        clip=section.clip,
        sigma=section.noise_multiplier,
        rate=section.rate,
        steps=section.steps_of(plan.training.epochs),
        expected_batch=expected,
        noise=noise,
        count_sigma=section.side_noise,
    )


@lru_cache(maxsize=1 << 14)
def _own_seed(seed: int, seat: int) -> int:
    return int(stream(seed, "own", 0, seat).integers(1 << 62))


def jobs_of(seats: Sequence[Seat], work: Training, at_once: int) -> list[Job]:
    """What to train for these seats, in their order: each with its group, or by itself."""
    if at_once == 1 or not work.groups:
        return [Job(part, range(len(part))) for part in in_parts(seats, at_once)]
    group_of = {seat: number for number, group in enumerate(work.groups) for seat in group}
    jobs = []
    for number, some in groupby(seats, key=group_of.__getitem__):
        wanted, group = list(some), work.groups[number]
        places = {seat: at for at, seat in enumerate(group)}
        before = work.groups[number - 1][-1] if number else None
        first = _first_of_block(wanted, before, work.ranks) if work.ranks else None
        jobs.append(Job(group, [places[seat] for seat in wanted], first))
    return jobs


def _first_of_block(
    wanted: Sequence[Seat], before: Seat | None, ranks: Mapping[Seat, int]
) -> int | None:
    """Where a block begins among the wanted. A group is no longer than a block."""
    known = -1 if before is None else ranks[before] // BLOCK
    return next((at for at, seat in enumerate(wanted) if ranks[seat] // BLOCK > known), None)


def in_parts(seats: Sequence[Seat], most: int) -> Iterator[Sequence[Seat]]:
    """Seats in parts of nearly one size, of `most` at most, in their order.

    >>> [len(part) for part in in_parts([Seat(n) for n in range(100)], 64)]
    [50, 50]
    """
    parts = -(-len(seats) // most)
    for at in range(parts):
        yield seats[len(seats) * at // parts : len(seats) * (at + 1) // parts]


def begin(
    task: Task, plan: Plan, sites: Sequence[SimulatedSite], seed: int
) -> tuple[LocalWork, Vector]:
    """What every site does alike, and the model that round one starts from. The form of the
    shared tensors may depend on the data, so those of the first site that has usable data
    are taken."""
    if not sites:
        raise TaskResultError("there is no site", hint="one file, one site")
    for site in sites[:-1]:
        with suppress(QualityError):  # such a site sits the rounds out
            return _begin(task, plan, site, seed)
    return _begin(task, plan, sites[-1], seed)


def _begin(task: Task, plan: Plan, first: SimulatedSite, seed: int) -> tuple[LocalWork, Vector]:
    site = simulated_site(first, 0, plan, seed, 0, "start")
    try:
        tensors = task.first(site)
        layout = Layout.of(tensors)
        inventory = task.inventory(site)
    except SiteDataError as error:
        raise named(error, first.name) from error.__cause__
    except ConsortiumError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code: it may raise anything
        function = getattr(task, "start", task.first)
        raise TaskResultError(f"start failed: {where(error, function)}", hint=SEE_MORE) from error
    vector = layout.flatten(tensors)
    if not np.isfinite(vector).all():
        raise TaskResultError("start gave numbers that are not finite")
    found = inventory.pinned, inventory.columns
    return LocalWork(task, layout, plan, *found, made_by=first.name), vector
