"""Doing a coordinator's work again from what it left behind, to see that it did it right."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

from consortium.checks import check_update
from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import owed
from consortium.core.ids import Digest, Seat
from consortium.core.state import Federation
from consortium.core.terms import Terms
from consortium.drive.clock import ManualClock
from consortium.drive.hands import CoordinatorHands, hands_for
from consortium.drive.released import noise_complaint
from consortium.errors import ConsortiumError
from consortium.gate import judge
from consortium.model import Layout, digest_of
from consortium.plan.values import Plan
from consortium.store.memory import MemoryBlobs
from consortium.store.ports import Blobs, BlobWriter
from consortium.stored import check_model

Owed = TypeVar("Owed", d.Aggregate, d.Judge, d.Screen)


class Redo:
    """Checks and sums of one federation, done again with the plan that was in force."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._hands: CoordinatorHands | None = None
        self._terms: Terms | None = None  # the plan's
        # What the screen of the open round finds, and the log has not said yet.
        self._strange: dict[Seat, f.Fault] | None = None
        self._summed: tuple[d.Aggregate, i.Input] | None = None  # the last sum that was redone

    def complaint(self, state: Federation, fact: f.Fact) -> str | None:
        """What is wrong with the work that `fact` reports; None when it is right."""
        try:
            match fact:
                case f.PlanAdopted():
                    return self._adopt(fact)
                case f.RoundOpened():
                    return self._open(state)
                case f.ModelInstalled() | f.ModelPublished():
                    check_model(self._blobs, self._present_hands().layout, fact.model)
                case f.UpdateAccepted() | f.UpdateRejected():
                    return self._check(state, fact)
                case f.RoundClosed():
                    self._strange = None  # also of a round that its screen left without a quorum
                case f.UpdateExcluded() if fact.fault in f.ANOMALIES:
                    return self._exclude(state, fact)
                case f.UpdatesScreened():
                    return self._screened(state)
                case f.BaseScored():
                    return self._scored(state, fact)
                case f.Aggregated():
                    return self._sum(state, fact)
                case f.Judged():
                    return self._judge(state, fact)
                case _:
                    return None
        except ConsortiumError as error:
            return error.message
        return None

    def _adopt(self, fact: f.PlanAdopted) -> str | None:
        plan = Plan.from_canonical(self._blobs.get(fact.plan))
        layout = Layout.from_canonical(self._blobs.get(fact.layout))
        blobs = _Forgetful(self._blobs)
        self._hands = hands_for(
            plan, layout, blobs, ManualClock(), lambda _: b"", metrics=fact.terms.metrics
        )
        self._summed = None
        self._terms = plan.terms(fact.terms.metrics)
        if self._terms.as_adopted() != fact.terms:
            return "its terms are not those of the plan that it names"
        return None

    def _open(self, state: Federation) -> str | None:
        """What is told apart from the adoption, such as a buffer, is known by now. Simulated sites,
        which have no keys, leave out masks that would cancel."""
        assert self._terms is not None, "a legal log adopts a plan before it opens a round"
        is_real = any(member.key for member in state.roster.members.values())
        allowed = [self._terms] if is_real else [self._terms, replace(self._terms, masking=None)]
        return None if state.terms in allowed else "the terms in force are not the plan's"

    def _present_hands(self) -> CoordinatorHands:
        assert self._hands is not None, "a legal log adopts a plan before it has a model"
        return self._hands

    def _check(self, state: Federation, fact: f.UpdateAccepted | f.UpdateRejected) -> str | None:
        hands, open_round = self._present_hands(), state.round
        assert open_round is not None
        expected = hands.expected(open_round.number, open_round.base_of(fact.seat))
        update = open_round.submitted[fact.seat]
        self._blobs.check(update)
        found = check_update(self._blobs, update, expected)
        if isinstance(fact, f.UpdateRejected):
            seen_here = (f.Fault.FORMAT, f.Fault.DIMENSIONS, f.Fault.MAGNITUDE, f.Fault.STALENESS)
            is_right = fact.fault not in seen_here or found.fault is fact.fault
            return (
                None if is_right else "the update does not have the fault that it is said to have"
            )
        if found.fault is not None:
            return f"the update fails the check of its {found.fault.name.lower()}"
        if (found.weight, found.norm) != (fact.weight, fact.norm):
            return "the update has another weight or norm than the log says"
        return None

    def _judge(self, state: Federation, fact: f.Judged) -> str | None:
        duty = _owed(state, d.Judge)
        outcome = judge(duty).outcome
        return None if outcome is fact.outcome else f"the gate says {outcome.name}"

    def _screen(self, state: Federation) -> dict[Seat, f.Fault]:
        """What stands out, found before the first exclusion takes a member away."""
        if self._strange is None:
            duty = _owed(state, d.Screen)
            result = self._present_hands().perform(duty)
            assert isinstance(result, i.Screened)
            self._strange = dict(result.excluded)
        return self._strange

    def _exclude(self, state: Federation, fact: f.UpdateExcluded) -> str | None:
        found = self._screen(state).pop(fact.seat, None)
        return None if found is fact.fault else "the update does not stand out in that way"

    def _screened(self, state: Federation) -> str | None:
        left, self._strange = self._screen(state), None
        return None if not left else "an update that stands out was not excluded"

    def _sum(self, state: Federation, fact: f.Aggregated) -> str | None:
        duty = _owed(state, d.Aggregate)
        hands = self._present_hands()
        release = hands.release(duty.round)
        if release is not None:
            return noise_complaint(hands, release, duty, fact)
        result = self._redone(duty)
        if not isinstance(result, i.Summed) or result.model != fact.model:
            return "the members' updates give another model"
        if result.server_state != fact.server_state:
            return "the members' updates give another state of the server"
        return None

    def _scored(self, state: Federation, fact: f.BaseScored) -> str | None:
        """The scores are those in the sum, which is redone for its model too, if that can be."""
        duty, hands = _owed(state, d.Aggregate), self._present_hands()
        if hands.release(duty.round) is not None:  # noise makes another model of it
            found = hands.base_scores(duty)
        else:
            result = self._redone(duty)
            found = (result.samples, result.scores) if isinstance(result, i.Summed) else (0, ())
        is_right = found == (fact.samples, fact.sums)
        return None if is_right else "the members' updates give other scores"

    def _redone(self, duty: d.Aggregate) -> i.Input:
        if self._summed is None or self._summed[0] != duty:
            self._summed = duty, self._present_hands().perform(duty)
        return self._summed[1]


def _owed(state: Federation, kind: type[Owed]) -> Owed:
    """The duty of this kind: an account may be told of an earlier round at the same time."""
    return next(duty for duty in owed(state) if isinstance(duty, kind))


class _Forgetful:
    """Reads from a store and writes nowhere: an audit changes nothing."""

    def __init__(self, blobs: Blobs) -> None:
        self.get, self.has, self.size, self.check = blobs.get, blobs.has, blobs.size, blobs.check

    def put(self, data: bytes) -> Digest:
        return digest_of(data)

    def writer(self) -> AbstractContextManager[BlobWriter]:
        return MemoryBlobs().writer()  # all that is asked of it is a digest

    def drop(self, digest: Digest) -> None:
        """Nothing is dropped either."""
