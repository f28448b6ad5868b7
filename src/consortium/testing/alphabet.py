"""What may arrive: the finite set of inputs that the explorer tries in every state.

Times are taken from the deadlines in force, so that every comparison is tried before, at
and after its edge, wherever an extension has moved it. Clocks are not assumed to run
forwards: every input is tried at every one of its times, in every state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import decide, evolve
from consortium.core.ids import DIGEST_BYTES, Digest, Seat, Seats, SiteId
from consortium.core.secagg import SIGNATURE_BYTES
from consortium.core.state import Federation
from consortium.core.tables import Step
from consortium.core.terms import Terms

START_MS = 1_000
READY = "ready"  # what the sites report; terms may have a condition on it
STRANGER = Seat(99)
SEEDS = (bytes(32), b"\1" * 32)
QUIET_NORM, LOUD_NORM = 1.0, 100.0
# Duties report at these fixed times: the core compares none of them with a deadline.
_SCREENED_MS, _SUMMED_MS = START_MS + 200, START_MS + 300
_JUDGED_MS, _RELEASED_MS = START_MS + 600, START_MS + 700
_KEYED_MS, _SHARED_MS = START_MS + 2, START_MS + 3
_AGREED_MS, _ANSWERED_MS = START_MS + 249, START_MS + 250
_FREES_IN_MS = 5_000  # more than any round takes
_ANOMALIES = tuple(sorted(f.ANOMALIES))


def digest(label: str) -> Digest:
    """A recognisable stand-in for a SHA-256 digest."""
    return Digest(label.encode().ljust(DIGEST_BYTES, b"."))


def update_of(seat: Seat) -> Digest:
    """The update that an honest seat sends."""
    return digest(f"update of {seat}")


FIRST_MODEL, MODEL, OTHER_MODEL = digest("first model"), digest("model"), digest("other model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alphabet:
    """Who may do what besides taking part honestly; every name is a set of seats.

    Every seat submits, is checked and evaluates, whatever is written here; where the terms
    ask for a screen, it may exclude any of them. More seats in more sets mean more states:
    each set multiplies the walk by about two.
    """

    sites: int = 4
    swapping: Seats = ()  # send another update, first or second
    faulty: Seats = ()  # their update fails its checks
    loud: Seats = ()  # their update is a hundred times as large
    failing: Seats = ()  # say that they cannot go on
    leaving: Seats = ()  # are revoked
    doubting: Seats = ()  # find the candidate bad
    reporting: Seats = ()  # become ineligible, and eligible again
    is_led: bool = False  # the lead holds, resumes, rolls back and stops between rounds
    is_cancelled: bool = True  # the lead cancels the open round
    is_replanned: bool = False  # the lead adopts a plan that costs more
    has_shared: bool = False  # the walk begins where all have shared their seeds
    outcomes: tuple[f.Outcome, ...] = tuple(f.Outcome)  # what the gate may say
    seeds: tuple[bytes, ...] = SEEDS

    @property
    def seats(self) -> Seats:
        return tuple(Seat(number) for number in range(1, self.sites + 1))


def founding(terms: Terms, alphabet: Alphabet) -> list[f.Fact]:
    """The facts of a federation that is ready for its first round, or on its way in it."""
    state, facts = Federation(), list[f.Fact]()
    report = ((READY, True),)
    arrivals: list[i.Input] = [
        i.Found("explored", START_MS),
        i.AdoptPlan(digest("plan"), digest("task"), digest("layout"), terms, START_MS),
        i.InstallModel(FIRST_MODEL, START_MS),
        *(i.Admit(SiteId(f"site-{seat}"), b"", START_MS) for seat in alphabet.seats),
        *(i.Report(seat, report, START_MS) for seat in alphabet.seats),
    ]
    if alphabet.has_shared:
        arrivals += [i.OpenRound(START_MS), i.Drawn(1, alphabet.seeds[0], START_MS + 1)]
        arrivals += [keys_of(1, seat) for seat in alphabet.seats]
        arrivals += [_shares_of(1, seat) for seat in alphabet.seats]
    for item in arrivals:
        for fact in decide(state, item):
            evolve(state, fact)
            facts.append(fact)
    return facts


@dataclass(frozen=True, slots=True)
class Moment:
    """What the inputs of a state depend on."""

    number: int
    deadline_ms: int
    evaluate_by_ms: int
    wake_ms: int  # the time that the state waits for
    members: int
    is_open: bool
    is_summed: bool
    next_number: int = 1
    position: int = 0  # facts that the account has at least
    step: Step | None = None  # of the open round, if its sum is secret

    @classmethod
    def of(cls, state: Federation) -> Moment:
        present, due_ms = state.round or state.ended, max(state.due_ms, START_MS)
        paid = state.next_number, max(state.positions.values(), default=0)
        is_masked = state.terms is not None and state.terms.is_masked
        if present is None:
            return cls(0, START_MS, START_MS, due_ms, 0, False, False, *paid)
        wake_ms = due_ms
        if state.round is not None:
            is_evaluated = state.round.step is Step.EVALUATING
            wake_ms = present.evaluate_by_ms if is_evaluated else present.deadline_ms
        return cls(
            state.last_number,
            present.deadline_ms,
            present.evaluate_by_ms,
            wake_ms,
            len(present.members),
            state.round is not None,
            present.model is not None,
            *paid,
            state.round.step if state.round is not None and is_masked else None,
        )


def inputs(moment: Moment, terms: Terms, alphabet: Alphabet) -> tuple[i.Input, ...]:
    """Everything that may arrive at this moment, each once."""
    arrivals = (
        *_from_the_lead(moment, alphabet),
        *_ticks(moment, terms),
        *_draws(moment, alphabet),
        *_submissions(moment, terms, alphabet),
        *_checks(moment, terms, alphabet),
        *_losses(moment, alphabet),
        *_screens(moment, terms, alphabet),
        *_sums(moment, terms),
        *_scores(moment, terms, alphabet),
        *_verdicts(moment, alphabet),
        *_old_news(moment),
        *_payments(moment, terms, alphabet),
        *_exchanges(moment, terms, alphabet),
    )
    return tuple(dict.fromkeys(arrivals))


def _from_the_lead(at: Moment, alphabet: Alphabet) -> Iterator[i.Input]:
    yield i.OpenRound(max(START_MS, at.wake_ms))
    yield i.CancelRound(at.number + 1, at.deadline_ms - 1)
    if alphabet.is_cancelled:
        yield i.CancelRound(at.number, at.deadline_ms - 1)
    if alphabet.is_led:
        yield from (i.Hold(START_MS), i.Resume(START_MS), i.Stop(START_MS))
        yield from (i.RollBack(0, START_MS), i.RollBack(9, START_MS))
        yield i.InstallModel(FIRST_MODEL, START_MS)


def _ticks(at: Moment, terms: Terms) -> Iterator[i.Input]:
    yield i.Tick(at.wake_ms)
    if at.wake_ms > START_MS:
        yield i.Tick(at.wake_ms - 1)
    if not at.is_open:
        return  # when exactly a round opens makes no difference but in the times
    yield i.Tick(at.wake_ms + 1)
    if at.step is not None and at.step is not Step.TRAINING:
        yield i.Tick(at.wake_ms + 1, at.wake_ms + 1)  # the coordinator was down
        return  # nothing but keys, shares and answers is waited for
    yield i.Tick(at.wake_ms + terms.grace_ms)
    yield i.Tick(at.wake_ms + terms.grace_ms + 1)


def _draws(at: Moment, alphabet: Alphabet) -> Iterator[i.Input]:
    for seed in alphabet.seeds:
        yield i.Drawn(at.number, seed, START_MS + 1)
    yield i.Drawn(at.number + 1, SEEDS[0], START_MS + 1)
    yield i.Drawn(at.number, b"short", START_MS + 1)


def _earlier(at: Moment, alphabet: Alphabet) -> Iterator[i.Input]:
    """By the invitation of the round before, up to its deadline and after it."""
    good, base, number = (0.5,), (0.25,), at.number - 1
    for now_ms in (START_MS, at.deadline_ms, at.deadline_ms + 1):
        for seat in alphabet.seats:
            yield i.Submit(number, seat, update_of(seat), None, now_ms)
        for seat in alphabet.failing:
            yield i.Fail(number, seat, f.Failure.TRAINING, None, now_ms)
    for seat in alphabet.seats:
        yield i.Score(number, seat, MODEL, 10, good, base, None, at.evaluate_by_ms)
        yield i.Submit(number, seat, _other_update(seat), None, START_MS)


def _submissions(at: Moment, terms: Terms, alphabet: Alphabet) -> Iterator[i.Input]:
    times = (at.deadline_ms - 1, at.deadline_ms, at.deadline_ms + 1)
    for seat in (*alphabet.seats, STRANGER):
        for now_ms in times:
            yield i.Submit(at.number, seat, update_of(seat), None, now_ms)
    if terms.is_buffered:  # by invitations that may have passed on
        yield from _earlier(at, alphabet)
    for seat in alphabet.swapping:
        for now_ms in times:
            yield i.Submit(at.number, seat, _other_update(seat), None, now_ms)
    for seat in alphabet.reporting:
        for is_ready in (True, False):
            yield i.Report(seat, ((READY, is_ready),), START_MS)
    yield i.Report(STRANGER, (), START_MS)


def _checks(at: Moment, terms: Terms, alphabet: Alphabet) -> Iterator[i.Input]:
    late_ms = at.deadline_ms + 1
    for now_ms in (at.deadline_ms, late_ms, late_ms + terms.grace_ms):
        for seat in alphabet.seats:
            yield _checked(at.number, seat, None, QUIET_NORM, now_ms)
        for seat in alphabet.faulty:
            yield _checked(at.number, seat, f.Fault.FORMAT, QUIET_NORM, now_ms)
        for seat in alphabet.loud:
            yield _checked(at.number, seat, None, LOUD_NORM, now_ms)
    for seat in alphabet.seats:
        yield i.Checked(at.number, seat, _other_update(seat), None, 1.0, QUIET_NORM, at.deadline_ms)


def _checked(number: int, seat: Seat, fault: f.Fault | None, norm: float, now_ms: int) -> i.Checked:
    return i.Checked(number, seat, update_of(seat), fault, 1.0, norm, now_ms)


def _other_update(seat: Seat) -> Digest:
    return digest(f"another update of {seat}")


def _losses(at: Moment, alphabet: Alphabet) -> Iterator[i.Input]:
    for now_ms in (at.deadline_ms, at.deadline_ms + 1):
        for seat in (*alphabet.failing, STRANGER):
            yield i.Fail(at.number, seat, f.Failure.TRAINING, None, now_ms)
        for seat in (*alphabet.leaving, STRANGER):
            yield i.Dismiss(seat, f.Departure.REVOKED, now_ms)


def _screens(at: Moment, terms: Terms, alphabet: Alphabet) -> Iterator[i.Input]:
    """Nobody, every one alone, some together and all stand out; and what no screen finds."""
    yield i.Screened(at.number, at.members, (), _SCREENED_MS)
    if not terms.is_screened:
        return
    found = tuple((seat, _ANOMALIES[seat % len(_ANOMALIES)]) for seat in alphabet.seats)
    for size in range(len(found) + 1):
        for excluded in combinations(found, size):
            yield i.Screened(at.number, at.members, excluded, _SCREENED_MS)
    (first, fault), second = found[0], found[-1]
    for count in (at.members - 1, at.members + 1):
        yield i.Screened(at.number, count, (), _SCREENED_MS)
        yield i.Screened(at.number, count, (second,), _SCREENED_MS)
    for excluded in (
        ((STRANGER, fault),),
        ((first, f.Fault.MAGNITUDE),),
        (second, (first, fault)),
        ((first, fault), (first, fault)),
    ):
        yield i.Screened(at.number, at.members, excluded, _SCREENED_MS)


def _sums(at: Moment, terms: Terms) -> Iterator[i.Input]:
    models = (MODEL, OTHER_MODEL) if at.is_summed else (MODEL,)
    for count in (at.members, at.members + 1):
        for model in models:
            for scores in _sums_of_scores(terms):
                yield i.Summed(at.number, count, model, None, _SUMMED_MS, *scores)
        yield i.NotSummed(at.number, count, f.RoundEnd.NOT_FINITE, _SUMMED_MS)


def _sums_of_scores(terms: Terms) -> Iterator[tuple[int, tuple[float, ...]]]:
    """What a sum says of its base: nothing; where the plan asks, also that it is good, bad or all
    but perfect, that nobody had a record, and what no sum says."""
    yield 0, ()
    if not terms.has_scored_sums:
        yield 10, (5.0,) * len(terms.metrics)
        return
    for share in (0.5, 0.25, 0.01):
        yield 100, tuple(100.0 * share for _ in terms.metrics)
    yield 0, (0.0,) * len(terms.metrics)
    yield -1, (0.0,) * len(terms.metrics)
    yield 10, (0.0,) * (len(terms.metrics) + 1)
    yield 10, (math.inf,) * len(terms.metrics)


def _scores(at: Moment, terms: Terms, alphabet: Alphabet) -> Iterator[i.Input]:
    good, base = (0.5,) * len(terms.metrics), (0.25,) * len(terms.metrics)
    on_time_ms, late_ms = at.evaluate_by_ms, at.evaluate_by_ms + 1
    for seat in (*alphabet.seats, STRANGER):
        yield i.Score(at.number, seat, MODEL, 10, good, base, None, on_time_ms)
        yield i.Score(at.number, seat, MODEL, 10, good, base, None, late_ms)
        yield i.Score(at.number, seat, OTHER_MODEL, 10, good, base, None, on_time_ms)
    for seat in alphabet.doubting:
        yield i.Score(at.number, seat, MODEL, 20, base, good, None, on_time_ms)
        yield i.Score(at.number, seat, MODEL, 0, base, good, None, on_time_ms)
        yield i.Score(at.number, seat, MODEL, 20, (*base, 0.0), good, None, on_time_ms)


def _verdicts(at: Moment, alphabet: Alphabet) -> Iterator[i.Input]:
    for model in (MODEL, OTHER_MODEL):
        for outcome in alphabet.outcomes:
            yield i.Verdict(at.number, model, outcome, _JUDGED_MS)
        yield i.Released(at.number, model, _RELEASED_MS)


def _old_news(at: Moment) -> Iterator[i.Input]:
    """Messages that speak of the round before this one, or of one yet to come."""
    for number in (at.number - 1, at.number + 1):
        yield i.Submit(number, Seat(1), update_of(Seat(1)), None, at.deadline_ms)
        yield i.Fail(number, Seat(2), f.Failure.TRAINING, None, at.deadline_ms)
        yield _checked(number, Seat(1), None, QUIET_NORM, at.deadline_ms)
        yield i.Screened(number, at.members, (), _SCREENED_MS)
        yield i.Summed(number, at.members, MODEL, None, _SUMMED_MS)
        yield i.Verdict(number, MODEL, f.Outcome.ACCEPTED, _JUDGED_MS)
        yield i.Released(number, MODEL, _RELEASED_MS)


def keys_of(number: int, seat: Seat, whose: str = "") -> i.GiveKeys:
    """The keys that an honest seat gives for a round, or those of somebody else."""
    whose = whose or f"{seat} in {number}"
    mask, seal, own = (digest(f"{part} of {whose}") for part in ("mask", "seal", "own"))
    return i.GiveKeys(number, seat, mask, seal, own, bytes(SIGNATURE_BYTES), _KEYED_MS)


def _shares_of(number: int, seat: Seat) -> i.GiveShares:
    return i.GiveShares(number, seat, digest(f"shares of {seat}"), None, _SHARED_MS)


def _consent_of(number: int, seat: Seat, whose: str) -> i.GiveConsent:
    half = digest(f"signature of {whose} in {number}")
    return i.GiveConsent(number, seat, half + half, _AGREED_MS)


def _exchanges(at: Moment, terms: Terms, alphabet: Alphabet) -> Iterator[i.Input]:
    """Keys, shares, signatures and answers, in time, twice, others, copied, too early and too late:
    each at one time, as the core compares none of them with a deadline."""
    if not terms.is_masked:
        return
    old_news = [(number, Seat(1)) for number in (at.number - 1, at.number + 1)]
    for number, seat in (*((at.number, seat) for seat in (*alphabet.seats, STRANGER)), *old_news):
        yield keys_of(number, seat)
        yield _shares_of(number, seat)
        yield _consent_of(number, seat, str(seat))
        yield i.GiveAnswer(number, seat, digest(f"answer of {seat}"), None, _ANSWERED_MS)
    for seat in alphabet.swapping:
        yield keys_of(at.number, seat, f"another of {seat}")
        yield keys_of(at.number, seat, f"{alphabet.seats[-1]} in {at.number}")
        yield i.GiveShares(at.number, seat, digest(f"other shares {seat}"), None, _SHARED_MS)
        yield _consent_of(at.number, seat, f"another of {seat}")
        yield i.GiveAnswer(at.number, seat, digest(f"other answer {seat}"), None, _ANSWERED_MS)


def dearer(terms: Terms) -> Terms:
    """Another plan: every round costs more."""
    assert terms.budget is not None, "only a plan that costs something can cost more"
    costs = tuple(replace(cost, releases=cost.releases + 1) for cost in terms.budget.costs)
    return replace(terms, budget=replace(terms.budget, costs=costs))


def _payments(at: Moment, terms: Terms, alphabet: Alphabet) -> Iterator[i.Input]:
    """The account says yes, no and never, about this round and others; it has forgotten what it
    knew; it was told. Refusals come at one time, so that they do not add up."""
    if terms.budget is None:
        return
    for number in (at.next_number, at.next_number - 1, at.next_number + 1, 0):
        for position in (at.position + 1, at.position):
            yield i.Granted(number, position, max(START_MS, at.wake_ms))
        for frees_ms in (None, START_MS, START_MS + _FREES_IN_MS):
            yield i.Denied(number, frees_ms, START_MS)
    yield from (i.AccountTold(number, START_MS) for number in range(at.next_number + 1))
    if alphabet.is_replanned:
        plan, task, layout = digest("dearer plan"), digest("task"), digest("layout")
        yield i.AdoptPlan(plan, task, layout, dearer(terms), START_MS)
