"""The coordinator's machine under random inputs, with hundreds of sites.

After every input: `decide` changed nothing, the encoded facts fold into the same state,
every fact was legal, the invariants hold. Rules act on many sites at once, so that rounds
with hundreds of sites get somewhere; `nonsense` sends anything at any time.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.account_facts import Cost
from consortium.core.answers import receipt
from consortium.core.codec import decode, encode
from consortium.core.facts import ANOMALIES, Departure, Failure, Fault, Outcome, RoundEnd
from consortium.core.federation import decide, evolve, is_legal, owed, owed_by, replay
from consortium.core.ids import Seat, SiteId
from consortium.core.state import Federation, Round
from consortium.core.tables import Step
from consortium.core.terms import (
    Budget,
    Close,
    Comparison,
    Condition,
    Masking,
    Metric,
    Selection,
    Terms,
)
from consortium.errors import CodecError, Refusal, RestoredBackupError

from .fact_text import values_of
from .invariants import check_state
from .small import digest, evaluating, keys_of, sharing, summing, training, unmasking

SHARES = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])
OUTCOMES = st.sampled_from([Outcome.ACCEPTED, *Outcome])
INPUTS: list[type[Any]] = list(get_args(i.Input))

TERMS = st.builds(
    Terms,
    rounds=st.integers(2, 20),
    quorum=st.integers(1, 40),
    wait_for=st.integers(1, 60),
    target=st.sampled_from([0, 0, 50, 120]),
    overselect_ppm=st.sampled_from([1_000_000, 1_300_000]),
    selection=st.sampled_from(Selection),
    spread=st.just(("region",)),
    conditions=st.sampled_from([(), (), (Condition("battery", Comparison.GREATER, 0.3),)]),
    max_extensions=st.integers(0, 2),
    every_ms=st.sampled_from([0, 7_200_000]),
    close=st.sampled_from(Close),
    norm_factor=st.sampled_from([0, 10]),
    metrics=st.just((Metric("accuracy", True), Metric("loss", False))),
    judged_by=st.sampled_from(["", "loss", "accuracy"]),
    stop_below=st.sampled_from([None, 0.01]),
    patience=st.integers(0, 3),
    is_screened=st.booleans(),
).map(lambda terms: replace(terms, wait_for=max(terms.wait_for, terms.quorum)))


def _buffered(terms: Terms, buffer: int, max_staleness: int) -> Terms:
    """The same without a barrier."""
    return replace(
        terms,
        overselect_ppm=1_000_000,
        close=Close.ALL_OR_DEADLINE,
        is_screened=False,
        buffer=max(buffer, terms.quorum),
        max_staleness=max_staleness,
        discount_ppm=500_000,
    )


def _masked(terms: Terms, phase_ms: int) -> Terms:
    """The same with secret sums."""
    quorum = max(3, terms.quorum)
    return replace(
        terms,
        quorum=quorum,
        wait_for=max(terms.wait_for, quorum),
        close=Close.ALL_OR_DEADLINE,
        norm_factor=0,
        judged_by="",
        stop_below=None,
        patience=0,
        is_screened=False,
        masking=Masking(phase_ms),
    )


def _scored(terms: Terms, judged_by: str) -> Terms:
    """The same with scores inside the sums."""
    return replace(terms, judged_by=judged_by, is_gated=False, has_scored_sums=True)


MASKED_TERMS = st.builds(_masked, TERMS, st.sampled_from([60_000, 1_800_000]))
SCORED_TERMS = st.builds(_scored, TERMS | MASKED_TERMS, st.sampled_from(["loss", "accuracy"]))
BUFFERED_TERMS = st.builds(_buffered, TERMS, st.integers(1, 50), st.integers(0, 3))
UNPAID_TERMS = TERMS | MASKED_TERMS | SCORED_TERMS | BUFFERED_TERMS
COSTS = (Cost(1.1, 100, 0.01), Cost(9.0, 1, 1.0))
BUDGETS = st.none() | st.builds(
    Budget, st.sampled_from(["records", "others"]), st.just("record"), st.just(COSTS), st.booleans()
)
ANY_TERMS = st.builds(lambda terms, budget: replace(terms, budget=budget), UNPAID_TERMS, BUDGETS)


class Coordinator(RuleBasedStateMachine):
    """One federation; `twin` is folded from the encoded facts alone."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.twin = Federation(), Federation()
        self.records: list[bytes] = []
        self.now_ms = 1_000_000
        self.rng = Random(0)
        self.accounts = 0  # facts of all accounts together

    # ---- one input ------------------------------------------------------------------

    def give(self, item: i.Input) -> None:
        try:
            facts = decide(self.state, item)
            written = [encode(fact) for fact in facts]
        except (Refusal, CodecError, RestoredBackupError):
            written = []
        assert self.state == self.twin, f"deciding {item} changed the state"
        for record in written:
            fact = decode(record)
            assert is_legal(self.state, fact), f"{item} led to {fact}"
            evolve(self.state, fact)
            evolve(self.twin, decode(record))
        self.records += written

    def some(self, seats: Any, share: float) -> list[Seat]:
        pool = list(seats)
        return self.rng.sample(pool, round(share * len(pool)))

    @property
    def number(self) -> int:
        return self.state.last_number

    # ---- the beginning --------------------------------------------------------------

    @initialize(
        terms=ANY_TERMS,
        real=st.integers(0, 250),
        simulated=st.integers(0, 150),
        seed=st.integers(0),
    )
    def found(self, terms: Terms, real: int, simulated: int, seed: int) -> None:
        self.rng = Random(seed)
        self.give(i.Found("f", self.now_ms))
        self._adopt(terms)
        self.give(i.InstallModel(digest("m0"), self.now_ms))
        for number in range(max(real, 100 - simulated)):
            self.give(i.Admit(SiteId(f"s{number}"), b"", self.now_ms))
            if number % 3:
                report = (("battery", number % 7 / 7), ("region", f"r{number % 5}"))
                self.give(i.Report(Seat(self.state.roster.next_seat - 1), report, self.now_ms))
        if simulated:
            self.give(i.AdmitCohort(simulated, self.now_ms))

    def _adopt(self, terms: Terms) -> None:
        plan = digest(repr(terms))
        self.give(i.AdoptPlan(plan, digest("task"), digest("layout"), terms, self.now_ms))

    # ---- what moves rounds on -------------------------------------------------------

    @rule(share=SHARES, is_odd=st.booleans(), outcome=OUTCOMES, loss=st.floats(0.001, 10))
    def go_on(self, share: float, is_odd: bool, outcome: Outcome, loss: float) -> None:
        """Whatever the present step calls for; a `share` of the sites does its part."""
        self._pay(share)
        one = self.state.round
        if one is None:
            self.give(i.OpenRound(self.now_ms))
        elif one.step is Step.INITIALIZED:
            self.give(i.Drawn(self.number, self.rng.randbytes(32), self.now_ms))
        elif one.step in (Step.KEYING, Step.SHARING, Step.AGREEING, Step.UNMASKING):
            self._exchange(one, share, is_odd)
        elif one.step is Step.TRAINING:
            self._train(one, share, is_odd)
        elif one.step is Step.EVALUATING:
            self._evaluate(one, share, loss)
        else:
            self._perform(outcome, share)

    def _pay(self, share: float) -> None:
        """What is owed to the account, and by it."""
        for duty in owed(self.state):
            if isinstance(duty, d.Settle):
                self.give(i.AccountTold(duty.round, self.now_ms))
            elif isinstance(duty, d.Reserve) and (share or self.rng.random() < 0.9):
                self.accounts += self.rng.randrange(1, 4)
                self.give(i.Granted(duty.round, self.accounts, self.now_ms))
            elif isinstance(duty, d.Reserve):
                frees = self.rng.choice([None, 0, self.now_ms + 10**6])
                self.give(i.Denied(duty.round, frees, self.now_ms))

    def _exchange(self, one: Round, share: float, is_odd: bool) -> None:
        """Keys, shares, signatures and answers; some sites say that they cannot go on."""
        step, number = one.step, one.number
        seats = one.members if step in (Step.AGREEING, Step.UNMASKING) else one.waiting
        for seat in self.some(seats, share):
            if is_odd and self.rng.random() < 0.05:
                self.give(i.Fail(number, seat, Failure.RESOURCES, None, self.now_ms))
            elif step is Step.KEYING:
                self.give(keys_of(number, seat, self.now_ms))
            elif step is Step.SHARING:
                told = digest(f"shares {number} {seat}")
                self.give(i.GiveShares(number, seat, told, None, self.now_ms))
            elif step is Step.AGREEING:
                told = digest(f"signature {number} {seat}")
                self.give(i.GiveConsent(number, seat, 2 * told, self.now_ms))
            else:
                told = digest(f"answer {number} {seat}")
                self.give(i.GiveAnswer(number, seat, told, None, self.now_ms))

    def _train(self, one: Round, share: float, is_odd: bool) -> None:
        assert self.state.terms is not None
        terms = self.state.terms
        is_single = terms.is_screened or terms.is_buffered or terms.is_masked
        is_simulated = self.state.roster.is_simulated
        chosen = self.some(one.waiting, share)
        cohort = tuple(sorted(seat for seat in chosen if is_simulated(seat)))
        for seat in chosen:
            number = one.number_of(seat)
            update = digest(f"{number} {seat}")
            if is_single or not is_simulated(seat):
                self.give(i.Submit(number, seat, update, None, self.now_ms))
        for duty in owed(self.state):
            if isinstance(duty, d.Check) and self.rng.random() < max(share, 0.5):
                fault = Fault.FORMAT if is_odd and self.rng.random() < 0.2 else None
                norm = 500.0 if is_odd and self.rng.random() < 0.1 else 1 + self.rng.random()
                self.give(
                    i.Checked(duty.round, duty.seat, duty.update, fault, 1.0, norm, self.now_ms)
                )
        self.give(i.TrainedCohort(self.number, cohort, 1.0, digest(f"{cohort}"), self.now_ms))

    def _evaluate(self, one: Round, share: float, loss: float) -> None:
        assert one.model is not None
        sums = ((0.5, loss), (0.4, loss * 1.1))
        is_simulated = self.state.roster.is_simulated
        cohort = tuple(sorted(seat for seat in one.unheard if is_simulated(seat)))
        self.give(i.ScoredCohort(one.number, cohort, one.model, 9, *sums, self.now_ms))
        for seat in self.some(one.unheard, share):
            number = one.number_of(seat)
            self.give(i.Score(number, seat, one.model, 3, *sums, None, self.now_ms))

    def _perform(self, outcome: Outcome, share: float) -> None:
        """The coordinator's own duties."""
        number = self.number
        for duty in owed(self.state):
            if isinstance(duty, d.Screen):
                self._screen(duty, share)
            elif isinstance(duty, d.Aggregate):
                self._sum(duty)
            elif isinstance(duty, d.Judge):
                self.give(i.Verdict(number, duty.model, outcome, self.now_ms))
            elif isinstance(duty, d.Release):
                self.give(i.Released(number, duty.model, self.now_ms))
            elif isinstance(duty, d.WakeAt):
                self.now_ms = max(self.now_ms, duty.at_ms)
                self.give(i.Tick(self.now_ms))

    def _screen(self, duty: d.Screen, share: float) -> None:
        assert [rank for _, rank, _ in duty.updates] == sorted(rank for _, rank, _ in duty.updates)
        assert len(duty.updates) == duty.count, "somebody is not screened"
        seats = sorted(self.some([seat for seat, _, _ in duty.updates], share / 4))
        excluded = tuple((seat, self.rng.choice(sorted(ANOMALIES))) for seat in seats)
        self.give(i.Screened(duty.round, duty.count, excluded, self.now_ms))

    def _sum(self, duty: d.Aggregate) -> None:
        assert self.state.round is not None
        in_cohorts = sum(len(seats) for seats, _, _ in self.state.round.partials)
        assert len(duty.updates) + in_cohorts == duty.count, "somebody is summed twice or not"
        model = digest(f"m {duty.round} {duty.count}")
        scores: tuple[int, tuple[float, ...]] = 0, ()
        if self.state.terms is not None and self.state.terms.has_scored_sums:
            samples = self.rng.choice((0, 10))
            scores = samples, (self.rng.random() * samples, self.rng.random() * samples)
        self.give(i.Summed(duty.round, duty.count, model, None, self.now_ms, *scores))

    # ---- what disturbs them ---------------------------------------------------------

    @rule(minutes=st.sampled_from([0, 1, 20, 61, 100, 1500, -90]))
    def wait(self, minutes: int) -> None:
        self.now_ms += minutes * 60_000
        self.give(i.Tick(self.now_ms))

    @rule(share=st.sampled_from([0.01, 0.05, 0.3]), what=st.sampled_from("fdrha"), terms=ANY_TERMS)
    def disturb(self, share: float, what: str, terms: Terms) -> None:
        members, one = self.state.roster.members, self.state.round
        if what == "f" and one is not None:
            for seat in self.some([*one.waiting, *one.unheard], share):
                self.give(i.Fail(one.number_of(seat), seat, Failure.TRAINING, None, self.now_ms))
        elif what == "d":
            for seat in self.some(members, share):
                self.give(i.Dismiss(seat, Departure.REVOKED, self.now_ms))
        elif what == "r":
            for seat in self.some(members, share):
                self.give(i.Report(seat, (("battery", self.rng.random()),), self.now_ms))
        elif what == "h":
            self.give(i.Resume(self.now_ms) if self.state.is_held else i.Hold(self.now_ms))
        else:
            self._adopt(terms)

    # ---- nonsense -------------------------------------------------------------------

    # Plans are checked before they come here, and a cohort of a million is slow to test.
    @rule(
        data=st.data(),
        kind=st.sampled_from([cls for cls in INPUTS if cls not in (i.AdoptPlan, i.AdmitCohort)]),
    )
    def nonsense(self, data: st.DataObject, kind: type[Any]) -> None:
        self.give(data.draw(values_of(kind)))

    @rule(
        kind=st.sampled_from([cls for cls in INPUTS if cls not in (i.Stop, i.CancelRound)]),
        wild=st.integers(0),
    )
    def plausible_nonsense(self, kind: type[Any], wild: int) -> None:
        """The right round, seats and models, but nothing fits together."""
        rng = Random(wild)
        number = self.number + rng.choice([0, 0, 0, -1, 1])
        seats = tuple(
            Seat(rng.randrange(self.state.roster.next_seat + 2)) for _ in range(rng.randrange(4))
        )
        one = self.state.round or self.state.ended
        models = [digest("m0"), one.model if one and one.model else digest("x")]
        wild_values: dict[str, Any] = {
            "round": number,
            "seat": seats[0] if seats else Seat(1),
            "seats": seats,
            "excluded": tuple((seat, rng.choice(list(Fault))) for seat in seats),
            "model": rng.choice(models),
            "update": digest(f"{number} {rng.choice([*seats, 1])}"),
            "count": rng.randrange(3),
            "version": rng.randrange(4),
            "samples": rng.choice([-1, 0, 3, 2**63]),
            "candidate": rng.choice([(), (0.5, 1.0), (float("nan"), 1.0), (1e308, -1e308)]),
            "base": (0.5, 1.0),
            "scores": rng.choice([(), (0.5, 1.0), (float("inf"), 1.0), (0.5,)]),
            "seed": rng.randbytes(rng.choice([0, 32])),
            "fault": rng.choice([None, *Fault]),
            "failure": rng.choice(list(Failure)),
            "outcome": rng.choice(list(Outcome)),
            "reason": rng.choice([RoundEnd.NOT_FINITE, RoundEnd.AGGREGATION]),
            "norm": rng.choice([None, 0.0, 1e300, float("inf")]),
            "weight": rng.choice([None, 1.0]),
            "envelope": None,
            "server_state": None,
            "partial": digest("p"),
            "report": (("battery", rng.choice([True, "no", 7])),),
            "departure": Departure.LEFT,
            "site": SiteId(f"s{rng.randrange(300)}"),
            "key": b"",
            "federation": "f",
            "plan": digest("p"),
            "task": digest("t"),
            "layout": digest(rng.choice(["layout", "another"])),
            "terms": self.state.terms,
            "now_ms": self.now_ms + rng.choice([0, 0, 10**7, -(10**7)]),
            "mask_key": digest(f"mask {rng.choice([*seats, 1])}"),
            "seal_key": digest(f"seal {rng.choice([*seats, 1])}"),
            "commitment": rng.choice([bytes(32), bytes(31)]),
            "signature": bytes(64),
            "shares": digest(f"shares {number} {rng.choice([*seats, 1])}"),
            "answer": digest(f"answer {number} {rng.choice([*seats, 1])}"),
            "awake_ms": rng.choice([0, self.now_ms]),
            "position": self.accounts + rng.choice([1, 0, -1]),
            "frees_ms": rng.choice([None, 0, self.now_ms + 10**6]),
        }
        self.give(kind(**{name: wild_values[name] for name in kind.__dataclass_fields__}))

    # ---- after every rule -----------------------------------------------------------

    @invariant()
    def holds_together(self) -> None:
        check_state(self.state)
        assert self.state.clone() == self.state
        duties = owed(self.state)
        one = self.state.round
        assert bool(duties) or one is None, "an open round owes something"
        for seat in range(self.state.roster.next_seat + 1):
            duty = owed_by(self.state, Seat(seat))
            assert duty is None or seat in self.state.roster
            receipt(self.state, self.number, Seat(seat))

    def teardown(self) -> None:
        assert replay([decode(record) for record in self.records]) == self.state
        assert [encode(decode(record)) for record in self.records] == self.records


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# ---- the checker itself -------------------------------------------------------------


def _break_place(state: Federation) -> None:
    assert state.round is not None
    state.round.fallen[Seat(1)] = Failure.TRAINING  # and it is still somewhere else


def _break_quorum(state: Federation) -> None:
    assert state.round is not None
    state.round.members.clear()


def _break_roster(state: Federation) -> None:
    state.roster.seat_of.clear()


def _break_norms(state: Federation) -> None:
    assert state.round is not None
    state.round.norms.append(-1.0)


def _revoke_silently(state: Federation) -> None:
    member = state.roster.members.pop(Seat(1))
    del state.roster.seat_of[member.site]


def _deaf(state: Federation) -> None:
    assert state.round is not None
    state.round.unheard.clear()


def _forget_keys(state: Federation) -> None:
    assert state.round is not None
    del state.round.keys[Seat(1)]


def _share_without_keys(state: Federation) -> None:
    assert state.round is not None
    state.round.shares[Seat(9)] = digest("shares")


def _count_a_stranger(state: Federation) -> None:
    assert state.round is not None
    del state.round.sharers[Seat(1)]


@pytest.mark.parametrize(
    ("make", "spoil"),
    [
        (unmasking, _forget_keys),
        (sharing, _share_without_keys),
        (unmasking, _count_a_stranger),
        (unmasking, _revoke_silently),
        (training, _break_place),
        (summing, _break_quorum),
        (training, _break_roster),
        (summing, _break_norms),
        (training, _revoke_silently),
        (evaluating, _deaf),
    ],
)
def test_invariants_notice_a_planted_fault(make: Any, spoil: Any) -> None:
    state = make().state
    check_state(state)
    spoil(state)
    with pytest.raises(AssertionError):
        check_state(state)
