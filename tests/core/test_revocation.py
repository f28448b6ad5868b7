"""A site is revoked in every step of a round: it is never in an aggregate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import owed, owed_by
from consortium.core.ids import Seat
from consortium.core.tables import Step
from consortium.errors import UnauthorizedClientError

from .small import (
    JUDGED,
    SEED,
    START_MS,
    TERMS,
    World,
    digest,
    evaluating,
    ready,
    summing,
    training,
)

FIVE = replace(TERMS, target=5)
FOUR_JUDGED = replace(JUDGED, target=4)


def kinds(facts: tuple[Any, ...]) -> list[type[Any]]:
    return [type(fact) for fact in facts]


def test_revoked_between_rounds_is_not_invited() -> None:
    world = ready(sites=4)
    world.dismiss(2)
    world.open()
    assert set(world.round.invited) == {1, 3, 4}


def test_revoked_before_the_plan_is_adopted() -> None:
    world = World()
    world.give(i.Found("f", START_MS))
    world.give(i.Admit("s1", b"", START_MS))  # type: ignore[arg-type]
    assert kinds(world.dismiss(1)) == [f.SiteDeparted]


def test_revoked_while_the_seed_is_drawn_is_not_invited() -> None:
    world = ready(sites=4)
    world.give(i.OpenRound(START_MS))
    assert kinds(world.dismiss(2)) == [f.SiteDeparted]
    world.give(i.Drawn(1, SEED, START_MS))
    assert set(world.round.invited) == {1, 3, 4}


def test_revoked_while_selecting() -> None:
    world = ready(sites=3)
    world.give(i.OpenRound(START_MS))
    world.dismiss(1)
    world.give(i.Drawn(1, SEED, START_MS))
    assert world.round.step is Step.SELECTING
    assert kinds(world.dismiss(2)) == [f.SiteDeparted]


@pytest.mark.parametrize("stage", ["waiting", "unchecked", "accepted"])
def test_revoked_while_training_falls_out_of_the_round(stage: str) -> None:
    world = training(sites=5, terms=FIVE)
    if stage != "waiting":
        world.submit(1)
    if stage == "accepted":
        world.check(1)
    assert kinds(world.dismiss(1)) == [f.SiteDeparted]
    assert world.round.fallen == {1: f.Failure.REVOKED}
    assert world.check(1) == ()
    with pytest.raises(UnauthorizedClientError):
        world.submit(1)
    with pytest.raises(UnauthorizedClientError):
        world.fail(1)
    assert owed_by(world.state, Seat(1)) is None
    world.send(2, 3, 4, 5)
    assert set(world.round.members) == {2, 3, 4, 5}


def test_revoked_site_whose_norm_is_hidden_falls_out_too() -> None:
    world = training(sites=5, terms=FIVE)
    world.send(1, 2, norm=None)
    world.dismiss(1)
    assert world.round.fallen == {1: f.Failure.REVOKED}
    assert set(world.round.accepted) == {2}


def test_revoked_bystander_changes_nothing_for_the_round() -> None:
    world = training(sites=6)
    stranger = next(seat for seat in range(1, 7) if seat not in world.round.invited)
    assert kinds(world.dismiss(stranger)) == [f.SiteDeparted]
    assert not world.round.fallen


def test_revoked_after_it_fell_keeps_its_first_reason() -> None:
    world = training(sites=5, terms=FIVE)
    world.fail(1, f.Failure.DATA_QUALITY)
    assert kinds(world.dismiss(1)) == [f.SiteDeparted]
    assert world.round.fallen == {1: f.Failure.DATA_QUALITY}


def test_revoking_the_last_one_waited_for_closes_the_round() -> None:
    world = training(sites=4, terms=replace(TERMS, target=4))
    world.send(1, 2, 3)
    facts = world.dismiss(4)
    assert facts[-1] == f.RoundClosed(1, (1, 2, 3), START_MS)


def test_revoked_site_is_out_of_the_closing_that_its_revocation_brings_about() -> None:
    world = training(sites=5, terms=FIVE)
    world.send(1, 2, norm=1.0)
    world.send(3, norm=400.0)
    world.send(4, norm=2.0)
    world.fail(5)
    assert world.round.step is Step.SUMMING  # 3 is excluded, the rest is a quorum
    world = training(sites=5, terms=FIVE)
    world.send(1, norm=1.0)
    world.send(2, norm=1.0)
    world.send(3, norm=400.0)
    world.send(4, norm=2.0)
    facts = world.dismiss(5)
    assert kinds(facts) == [f.SiteDeparted, f.UpdateExcluded, f.RoundClosed]
    assert facts[-1].members == (1, 2, 4)


def test_norm_of_the_revoked_does_not_shape_the_median() -> None:
    # With site 1 the median is 3 and 25 is fine; without it the median is 2: too loud.
    world = training(sites=6, terms=replace(TERMS, target=6))
    for seat, norm in ((1, 4.0), (2, 2.0), (3, 2.0), (4, 4.0), (5, 25.0)):
        world.send(seat, norm=norm)
    world.submit(6)
    world.dismiss(1)
    assert world.round.norms == [2.0, 2.0, 4.0, 25.0]
    facts = world.check(6, fault=f.Fault.FORMAT)
    assert facts[-1].members == (2, 3, 4, 5)  # the median is 3


def test_revoking_an_accepted_site_closes_without_its_norm() -> None:
    world = training(sites=5, terms=replace(TERMS, target=5, quorum=2))
    for seat, norm in ((1, 30.0), (2, 1.0), (3, 30.0)):
        world.send(seat, norm=norm)
    world.fail(4)
    world.submit(5)
    world.now_ms = world.round.deadline_ms + TERMS.grace_ms + 1
    world.dismiss(1)  # 1 and 30 are left: two norms exclude nobody
    facts = world.tick()  # and the check that still runs has had its grace
    assert facts[-1] == f.RoundClosed(1, (2, 3), world.now_ms)


def test_revoked_below_the_quorum_calls_a_backup() -> None:
    world = training(sites=6)
    first = next(iter(world.round.invited))
    world.send(first)
    facts = world.dismiss(first)
    assert kinds(facts) == [f.SiteDeparted, f.BackupsInvited]
    assert first not in facts[1].seats


def test_revoked_between_closing_and_sum_is_not_in_the_sum() -> None:
    world = summing(sites=5, terms=FIVE)
    facts = world.dismiss(2)
    assert kinds(facts) == [f.SiteDeparted, f.MemberRemoved]
    (duty,) = owed(world.state)
    assert duty.count == 4
    assert digest("update 2") not in [update for _, update in duty.updates]
    stale = i.Summed(1, 5, digest("with the revoked"), None, START_MS)
    assert world.give(stale) == ()
    world.sum()
    assert world.round.model == digest("model 1")


def test_revocation_that_breaks_the_quorum_after_closing_fails_the_round() -> None:
    world = summing()
    facts = world.dismiss(2)
    assert kinds(facts) == [f.SiteDeparted, f.RoundFailed]
    assert facts[1].reason is f.RoundEnd.MEMBER_REVOKED


def test_revoked_after_closing_without_being_a_member_changes_nothing() -> None:
    world = training(sites=5, terms=FIVE)
    world.fail(1)
    world.send(2, 3, 4, 5)
    assert kinds(world.dismiss(1)) == [f.SiteDeparted]


def test_revoked_while_evaluating_is_not_waited_for() -> None:
    world = evaluating(sites=4, terms=FOUR_JUDGED)
    world.score(1)
    assert kinds(world.dismiss(2)) == [f.SiteDeparted]
    with pytest.raises(UnauthorizedClientError):
        world.score(2)
    world.score(3)
    facts = world.dismiss(4)
    assert kinds(facts) == [f.SiteDeparted, f.EvaluationClosed]
    assert facts[1].evaluations == 2


def test_score_of_a_site_revoked_while_evaluating_is_not_weighed() -> None:
    world = evaluating(sites=4, terms=FOUR_JUDGED)
    world.score(1, (0.0, 999.0))
    assert kinds(world.dismiss(1)) == [f.SiteDeparted]
    for seat in (2, 3, 4):
        world.score(seat)
    (duty,) = owed(world.state)
    assert (duty.evaluations, duty.candidate) == (3, (0.8, 0.2))


def test_revoked_while_judging_leaves_the_evidence_as_the_gate_saw_it() -> None:
    world = evaluating()
    for seat in (1, 2, 3):
        world.score(seat)
    before = owed(world.state)
    assert kinds(world.dismiss(1)) == [f.SiteDeparted]
    assert owed(world.state) == before
    assert world.judge()[0].samples == 300
    assert kinds(world.dismiss(2)) == [f.SiteDeparted]  # while releasing
    assert kinds(world.release()) == [f.ModelPublished, f.RoundCompleted]
