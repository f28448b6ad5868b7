"""Federations without a barrier: invitations that outlive their round, and what they bring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import snapshot
from consortium.core.answers import Settlement, Status, may_send, receipt, settlement
from consortium.core.codec import encode
from consortium.core.duties import Aggregate, Check, Evaluate, Train
from consortium.core.facts import Failure, Fault, RoundEnd
from consortium.core.federation import is_legal, owed, owed_by
from consortium.core.ids import Seat
from consortium.core.legal import why_illegal
from consortium.core.owing import has_answered
from consortium.core.tables import Step
from consortium.core.terms import MINUTE_MS, PPM, Close, Terms
from consortium.errors import (
    AlreadySubmittedError,
    CodecError,
    DeadlineExpiredError,
    InvalidInputError,
    TooStaleError,
    UnauthorizedClientError,
    WrongRoundError,
)

from .invariants import check_state
from .small import JUDGED, TERMS, World, digest, ready

# Four sites train at a time, two updates move the model.
BUFFERED = replace(
    TERMS,
    quorum=1,
    wait_for=1,
    target=4,
    buffer=2,
    max_staleness=2,
    discount_ppm=PPM // 2,
    retry_ms=0,
)
EVALUATED = replace(JUDGED, **{name: getattr(BUFFERED, name) for name in (
    "quorum", "wait_for", "target", "buffer", "max_staleness", "discount_ppm", "retry_ms",
)}, evaluation_quorum=1)  # fmt: skip


def opened(terms: Terms = BUFFERED, sites: int = 4) -> World:
    world = ready(sites, terms)
    world.open()
    return world


def flush(world: World, *seats: int) -> tuple[Any, ...]:
    """These send by their newest invitation, and the model moves."""
    for seat in seats:
        send(world, seat)
    return world.finish_round()


def send(world: World, seat: int) -> None:
    submit(world, seat)
    world.check(seat, name=_name(world, seat))


def submit(world: World, seat: int) -> tuple[Any, ...]:
    duty = owed_by(world.state, Seat(seat))
    assert isinstance(duty, Train)
    return world.submit(seat, f"{duty.round} of {seat}", duty.round)


def _name(world: World, seat: int) -> str:
    return f"{world.round.number_of(Seat(seat))} of {seat}"


def after_one_flush() -> World:
    """Round 1 summed 1 and 2; 3 and 4 train still, from the first model."""
    world = opened()
    flush(world, 1, 2)
    return world


# ---- the terms ------------------------------------------------------------------------


def test_buffering_is_told_by_a_fact_of_its_own() -> None:
    world = opened()
    assert world.state.terms == BUFFERED
    kinds = [record[0] for record in world.records[:3]]
    assert kinds == [f.FederationFounded.KIND, f.PlanAdopted.KIND, f.BufferingAdopted.KIND]
    assert world.replayed() == world.state


def test_plan_with_a_barrier_is_adopted_as_ever() -> None:
    world = ready()
    (adopted,) = world.adopt(replace(TERMS, rounds=7), "other")
    assert type(adopted) is f.PlanAdopted and not world.state.terms.is_buffered  # type: ignore[union-attr]


def test_terms_with_a_buffer_are_never_written_into_the_adoption() -> None:
    adopted = f.PlanAdopted(digest("p"), digest("t"), digest("l"), BUFFERED, 1)
    with pytest.raises(CodecError, match="another fact tells"):
        encode(adopted)


@pytest.mark.parametrize(
    "changes",
    [
        {"quorum": 3, "wait_for": 3},
        {"target": 1},
        {"is_screened": True},
        {"overselect_ppm": 2 * PPM},
        {"close": Close.QUORUM},
        {"buffer": 0},
    ],
)
def test_terms_that_a_buffer_cannot_have_are_refused(changes: dict[str, Any]) -> None:
    assert BUFFERED.are_sound()
    with pytest.raises(InvalidInputError):
        ready(terms=replace(BUFFERED, **changes))


def test_buffering_is_legal_once_and_where_the_plan_allows_it() -> None:
    world = ready()
    for fact, expected in (
        (f.BufferingAdopted(3, 2, 0, 1), True),
        (f.BufferingAdopted(0, 2, 0, 1), False),
        (f.BufferingAdopted(9, 2, 0, 1), False),  # three train at a time
    ):
        assert is_legal(world.state, fact) is expected
    assert not is_legal(ready(terms=BUFFERED).state, f.BufferingAdopted(2, 2, 0, 1))
    assert not is_legal(World().state, f.BufferingAdopted(2, 2, 0, 1))


# ---- passing on -----------------------------------------------------------------------


def test_a_round_closes_with_the_buffer_and_the_others_pass_on() -> None:
    world = opened()
    assert list(world.round.invited) == [1, 2, 3, 4]
    flush(world, 1, 2)
    assert list(world.state.passing) == [3, 4]
    facts = world.open()
    assert f.InvitationsKept(2, (Seat(3), Seat(4)), world.now_ms) in facts
    assert world.round.invited == {3: 0, 4: 1, 1: 2, 2: 3}
    assert [world.round.number_of(Seat(seat)) for seat in (3, 4, 1, 2)] == [1, 1, 2, 2]
    check_state(world.state)


def test_a_site_trains_on_from_its_own_model_through_every_step() -> None:
    world = opened()
    asked = owed_by(world.state, Seat(3))
    assert isinstance(asked, Train) and asked.base == digest("model 0")
    send(world, 1)
    send(world, 2)
    assert world.round.step is Step.SUMMING and owed_by(world.state, Seat(3)) == asked
    world.finish_round()
    assert owed_by(world.state, Seat(3)) == asked  # between rounds
    world.give(i.OpenRound(world.now_ms))
    assert owed_by(world.state, Seat(3)) == asked
    world.give(i.Drawn(2, bytes(32), world.now_ms))
    assert owed_by(world.state, Seat(3)) == asked
    newer = owed_by(world.state, Seat(1))
    assert isinstance(newer, Train) and (newer.round, newer.base) == (2, digest("model 1"))


def test_a_site_has_answered_when_it_has_sent_wherever_its_invitation_is() -> None:
    world = opened()
    assert not has_answered(world.state, Seat(1))
    submit(world, 1)
    assert has_answered(world.state, Seat(1)) and not has_answered(world.state, Seat(2))
    world.check(1, name=_name(world, 1))
    assert has_answered(world.state, Seat(1))
    send(world, 2)
    world.finish_round()
    assert not has_answered(world.state, Seat(1))  # no round, nothing asked
    assert not has_answered(world.state, Seat(3))
    submit(world, 3)  # between rounds
    assert has_answered(world.state, Seat(3)) and not has_answered(world.state, Seat(4))


def test_an_old_update_is_checked_against_its_own_base_and_scaled_by_its_age() -> None:
    world = after_one_flush()
    world.open()
    submit(world, 3)
    check = next(duty for duty in owed(world.state) if isinstance(duty, Check))
    assert (check.round, check.seat, check.base) == (2, 3, digest("model 0"))
    world.check(3, name=_name(world, 3))
    send(world, 1)
    (duty,) = owed(world.state)
    assert isinstance(duty, Aggregate)
    assert [rank for rank, _ in duty.updates] == [0, 2]
    assert (duty.staleness, duty.discount_ppm) == ((1, 0), PPM // 2)


def test_with_a_barrier_a_sum_knows_no_age() -> None:
    world = opened(replace(TERMS, target=3), 3)
    world.send(1, 2, 3)
    (duty,) = owed(world.state)
    assert isinstance(duty, Aggregate) and duty.staleness == ()


@pytest.mark.parametrize("steps", range(4))
def test_an_update_is_received_in_every_step_and_counts_in_the_next_round(steps: int) -> None:
    world = opened()
    send(world, 1)
    send(world, 2)
    acts = (world.sum, world.judge, world.release)
    for act in acts[:steps]:
        act()
    (received,) = submit(world, 3)
    assert received.round == 1
    for act in acts[steps:]:
        act()
    assert receipt(world.state, 1, Seat(3)) is not None
    world.open()
    assert list(world.round.unchecked) == [3]
    world.check(3, name="1 of 3")
    send(world, 4)
    world.finish_round()
    found = receipt(world.state, 1, Seat(3))
    assert found is not None and found.status is Status.COUNTED
    assert 3 not in world.state.passing


def test_an_update_counts_once() -> None:
    world = after_one_flush()
    world.open()
    flush(world, 3, 4)
    world.open()
    assert world.round.kept.keys() == {1, 2}
    assert not world.round.submitted
    with pytest.raises(AlreadySubmittedError):
        world.submit(3, "another", 1)


def test_nobody_is_invited_while_as_many_train_as_the_target_says() -> None:
    world = opened(replace(BUFFERED, target=2), sites=4)
    first = list(world.round.invited)
    assert len(first) == 2
    flush(world, *first)
    world.open()
    assert len(world.round.waiting) == 2 and not world.round.kept


def test_a_round_of_those_alone_that_passed_on_invites_nobody() -> None:
    world = opened(replace(BUFFERED, target=3, buffer=1), sites=3)
    submit(world, 1)
    submit(world, 2)
    world.check(1, name="1 of 1")
    world.dismiss(1)
    world.finish_round() if world.state.round is not None else None
    world.open()
    invited = [record for record in world.records if record[0] == f.SitesInvited.KIND]
    assert len(invited) == 2 and not world.round.waiting.keys() - {3}
    check_state(world.state)


# ---- failing --------------------------------------------------------------------------


def test_what_a_failed_round_received_passes_on() -> None:
    world = opened(replace(BUFFERED, quorum=2, wait_for=2, max_extensions=0))
    send(world, 1)
    submit(world, 2)
    world.now_ms = world.round.deadline_ms
    world.tick(world.now_ms + 2 * MINUTE_MS)
    ended = world.state.ended
    assert ended is not None and ended.reason is RoundEnd.NO_QUORUM
    assert world.state.passing.keys() == {1, 2, 3, 4}
    world.open()
    assert world.round.unchecked.keys() == {1, 2}  # in time; 3 and 4 are too late
    assert world.round.waiting.keys() == {3, 4} and not world.round.kept.keys() & {3, 4}
    world.check(1, name="1 of 1")
    world.check(2, name="1 of 2")
    assert world.round.step is Step.SUMMING and world.round.members.keys() == {1, 2}


def test_members_of_a_closed_round_do_not_pass_on_when_it_fails() -> None:
    world = opened()
    send(world, 1)
    send(world, 2)
    world.give(i.NotSummed(1, 2, RoundEnd.NOT_FINITE, world.now_ms))
    assert world.state.passing.keys() == {3, 4}
    assert settlement(world.state, 1, Seat(1)) is Settlement.NOT_COUNTED


def test_who_falls_does_not_pass_on() -> None:
    world = opened()
    submit(world, 3)
    world.check(3, Fault.FORMAT, name="1 of 3")
    world.fail(4)
    flush(world, 1, 2)
    assert not world.state.passing
    world.open()
    assert not world.round.kept and world.round.waiting.keys() == {1, 2, 3, 4}


def test_a_site_may_give_up_in_any_step_and_between_rounds() -> None:
    world = opened()
    send(world, 1)
    send(world, 2)
    (dropped,) = world.fail(3)
    assert type(dropped) is f.SiteDropped and world.round.fallen[Seat(3)] is Failure.TRAINING
    world.finish_round()
    (dropped,) = world.give(i.Fail(1, Seat(4), Failure.DATA_QUALITY, None, world.now_ms))
    assert not world.state.passing and world.state.lapsed.keys() == {4}
    assert world.give(i.Fail(1, Seat(4), Failure.DATA_QUALITY, None, world.now_ms)) == ()
    assert owed_by(world.state, Seat(4)) is None


# ---- too old, too late, withdrawn -----------------------------------------------------


def stale() -> World:
    """Seat 4 trains from a model that is three versions old, and two are allowed."""
    world = after_one_flush()
    for first, second in ((1, 2), (1, 2)):
        world.open()
        flush(world, first, second)
    return world


def test_an_update_of_a_model_that_is_too_old_is_refused() -> None:
    world = stale()
    assert world.state.current == 3
    assert owed_by(world.state, Seat(4)) is None
    with pytest.raises(TooStaleError, match="3 versions old"):
        world.submit(4, "late", 1)
    world.open()
    assert world.round.kept == {} and 4 in world.round.waiting  # it is invited again
    with pytest.raises(TooStaleError, match="3 versions old"):
        world.submit(4, "late", 1)
    assert submit(world, 4)


def test_an_update_that_is_too_old_is_refused_while_a_round_is_open() -> None:
    world = stale()
    assert world.state.terms is not None
    world.state.terms = replace(world.state.terms, target=2)
    world.open()
    out = next(seat for seat in (3, 4) if seat not in world.round.invited)
    assert world.state.lapsed.keys() == {3, 4}
    with pytest.raises(TooStaleError):
        world.submit(out, "late", 1)
    assert settlement(world.state, 1, Seat(out)) is Settlement.NOT_COUNTED
    assert may_send(world.state, Seat(out)) is False


def test_an_update_just_young_enough_counts() -> None:
    world = after_one_flush()
    world.open()
    flush(world, 1, 2)
    world.open()
    send(world, 4)
    send(world, 1)
    (duty,) = owed(world.state)
    assert isinstance(duty, Aggregate) and max(duty.staleness) == 2


def test_what_was_received_and_grew_too_old_is_not_counted() -> None:
    world = after_one_flush()
    submit(world, 4)
    world.state.terms = replace(world.state.terms, max_staleness=0)  # type: ignore[type-var]
    world.open()
    found = receipt(world.state, 1, Seat(4))
    assert found is None or found.status is Status.NOT_COUNTED
    assert not world.round.kept


def test_an_invitation_has_its_own_deadline() -> None:
    world = after_one_flush()
    deadline_ms = world.state.passing[Seat(3)].deadline_ms
    world.now_ms += 5 * MINUTE_MS
    world.open()
    assert world.round.deadline_ms == deadline_ms + 5 * MINUTE_MS
    world.now_ms = deadline_ms + 1
    with pytest.raises(DeadlineExpiredError):
        submit(world, 3)
    world.now_ms = deadline_ms
    assert submit(world, 3)


def test_late_between_rounds_is_refused_and_not_kept() -> None:
    world = after_one_flush()
    world.now_ms = world.state.passing[Seat(3)].deadline_ms
    submit(world, 3)
    world.now_ms += 1
    with pytest.raises(DeadlineExpiredError):
        world.submit(4, "late", 1)
    world.open()
    assert world.round.kept.keys() == {3} and world.round.unchecked.keys() == {3}


@pytest.mark.parametrize("what", ["roll back", "install", "plan", "stop"])
def test_another_model_plan_or_the_end_withdraws_the_invitations(what: str) -> None:
    world = after_one_flush()
    submit(world, 3)
    match what:
        case "roll back":
            world.give(i.RollBack(0, world.now_ms))
        case "install":
            world.give(i.InstallModel(digest("other"), world.now_ms))
        case "plan":
            world.adopt(replace(BUFFERED, rounds=50), "plan 2")
        case _:
            world.give(i.Stop(world.now_ms))
    assert not world.state.passing and world.state.lapsed.keys() == {3, 4}
    assert owed_by(world.state, Seat(4)) is None
    with pytest.raises(WrongRoundError, match="withdrawn"):
        world.submit(4, "late", 1)
    assert world.submit(3, "1 of 3", 1) == ()
    with pytest.raises(AlreadySubmittedError):
        world.submit(3, "another", 1)
    found = receipt(world.state, 1, Seat(3))
    assert found is not None and found.status is Status.NOT_COUNTED
    assert receipt(world.state, 1, Seat(4)) is None
    assert settlement(world.state, 1, Seat(3)) is Settlement.NOT_COUNTED


# ---- revocation -----------------------------------------------------------------------


def test_a_revoked_site_does_not_pass_on() -> None:
    world = opened()
    send(world, 1)
    send(world, 2)
    submit(world, 3)
    world.dismiss(3)
    assert world.round.fallen[Seat(3)] is Failure.REVOKED
    world.finish_round()
    world.dismiss(4)
    assert not world.state.passing
    with pytest.raises(UnauthorizedClientError):
        world.submit(4, "late", 1)


def test_a_site_that_is_revoked_before_the_selection_is_not_counted() -> None:
    world = after_one_flush()
    submit(world, 3)
    world.give(i.OpenRound(world.now_ms))
    world.dismiss(3)
    world.dismiss(4)
    world.give(i.Drawn(2, bytes(32), world.now_ms))
    assert world.round.fallen.keys() == {3, 4} and world.round.waiting.keys() == {1, 2}
    check_state(world.state)


def test_a_round_waits_for_sites_that_could_fill_it() -> None:
    world = opened(replace(BUFFERED, quorum=2, wait_for=2), sites=2)
    submit(world, 1)
    world.give(i.CancelRound(1, world.now_ms))
    world.give(i.OpenRound(world.now_ms))
    world.give(i.Fail(1, Seat(2), Failure.TRAINING, None, world.now_ms))
    world.give(i.Drawn(2, bytes(32), world.now_ms))
    assert world.round.step is Step.SELECTING  # one update and nobody to ask: no quorum in sight
    world.tick(world.round.deadline_ms + 1)
    assert world.state.ended is not None
    assert world.state.ended.reason is RoundEnd.NO_ELIGIBLE_SITES
    assert world.state.passing.keys() == {1}


# ---- evaluation, receipts, settlements ------------------------------------------------


def test_members_evaluate_under_the_number_that_they_know() -> None:
    world = opened(EVALUATED)
    send(world, 1)
    send(world, 2)
    world.sum()
    world.score(1)
    world.score(2)
    world.judge()
    world.release()
    world.open()
    send(world, 3)
    send(world, 1)
    world.sum()
    assert world.round.model is not None
    asked = owed_by(world.state, Seat(3))
    assert isinstance(asked, Evaluate) and asked.round == 1
    sums = (9.0, 1.0), (8.0, 2.0)
    scored = i.Score(1, Seat(3), world.round.model, 10, *sums, None, world.now_ms)
    (evaluated,) = world.give(scored)
    assert evaluated.round == 1 and world.give(scored) == ()
    submit(world, 4)  # in the middle of the evaluation
    facts = world.give(i.Fail(2, Seat(1), Failure.NO_TEST_DATA, None, world.now_ms))
    assert [type(fact) for fact in facts] == [f.SiteDropped, f.EvaluationClosed]
    assert world.round.step is Step.JUDGING
    check_state(world.state)


def test_a_receipt_and_a_settlement_follow_the_update_wherever_it_goes() -> None:
    world = opened()
    three = Seat(3)
    assert settlement(world.state, 1, three) is Settlement.OPEN
    submit(world, 3)
    send(world, 1)
    send(world, 2)
    status = [receipt(world.state, 1, seat).status for seat in (three, Seat(1))]  # type: ignore[union-attr]
    assert status == [Status.RECEIVED, Status.ACCEPTED]
    world.finish_round()
    assert settlement(world.state, 1, Seat(1)) is Settlement.COUNTED
    assert settlement(world.state, 1, three) is Settlement.OPEN
    assert may_send(world.state, three) and not may_send(world.state, Seat(1))
    world.open()
    assert receipt(world.state, 1, three).status is Status.RECEIVED  # type: ignore[union-attr]
    assert settlement(world.state, 1, three) is Settlement.OPEN
    assert may_send(world.state, three) and may_send(world.state, Seat(1))
    world.check(3, name="1 of 3")
    send(world, 4)
    world.finish_round()
    assert settlement(world.state, 1, three) is Settlement.COUNTED
    assert settlement(world.state, 9, three) is Settlement.FORGOTTEN
    assert receipt(world.state, 9, three) is None


def test_nobody_may_send_before_there_is_a_plan() -> None:
    assert not may_send(World().state, Seat(1))


def test_a_kept_round_settles_nobody() -> None:
    world = opened(EVALUATED)
    send(world, 1)
    send(world, 2)
    world.sum()
    world.score(1)
    world.score(2)
    world.judge(f.Outcome.KEPT)
    assert settlement(world.state, 1, Seat(1)) is Settlement.NOT_COUNTED
    assert settlement(world.state, 1, Seat(3)) is Settlement.OPEN


def test_sums_of_many_are_refused() -> None:
    world = ready(1, BUFFERED)
    world.give(i.AdmitCohort(3, world.now_ms))
    world.open()
    seats = (Seat(2), Seat(3))
    with pytest.raises(InvalidInputError):
        world.give(i.TrainedCohort(1, seats, 1.0, digest("sum"), world.now_ms))
    assert not is_legal(world.state, f.CohortTrained(1, seats, 1.0, digest("sum"), 1))


def test_a_snapshot_keeps_what_passes_on() -> None:
    for world in (opened(), after_one_flush(), stale()):
        saved = snapshot.save(world.state, b"last", b"code")
        assert snapshot.load(saved, b"last", b"code") == world.state
        assert world.state.clone() == world.state


# ---- what a verifier refuses ----------------------------------------------------------


def test_verifier_refuses_what_no_honest_coordinator_writes() -> None:
    world = after_one_flush()
    at_ms, late_ms = world.now_ms, world.state.passing[Seat(3)].deadline_ms + 1
    between = f.UpdateReceived(1, Seat(3), digest("x"), None, at_ms)
    assert is_legal(world.state, between)
    for fact in (
        replace(between, round=2),
        replace(between, seat=Seat(1)),
        replace(between, at_ms=late_ms),
        f.SiteDropped(2, Seat(3), Failure.TRAINING, None, at_ms),
    ):
        assert not is_legal(world.state, fact)
    assert is_legal(world.state, f.SiteDropped(1, Seat(3), Failure.TRAINING, None, late_ms))
    submit(world, 3)
    assert not is_legal(world.state, between)  # it is there already
    world.give(i.OpenRound(world.now_ms))
    again = f.InvitationsKept(2, (Seat(4),), at_ms)
    assert not is_legal(world.state, again)  # nobody is passing any more
    assert not is_legal(world.state, f.UpdateReceived(2, Seat(4), digest("x"), None, at_ms))
    assert is_legal(world.state, f.UpdateReceived(1, Seat(4), digest("x"), None, at_ms))
    assert not is_legal(world.state, f.UpdateReceived(1, Seat(4), digest("x"), None, late_ms))


def test_verifier_refuses_a_round_that_forgets_who_is_passing() -> None:
    world = after_one_flush()
    version = world.state.versions[1]
    fact = f.RoundOpened(2, 1, version.model, version.server_state, 1, 4, 10**9, 1)
    assert is_legal(world.state, fact)
    from consortium.core.federation import evolve

    evolve(world.state, fact)
    assert not is_legal(world.state, f.SelectionStarted(2, bytes(32), 1))
    assert is_legal(world.state, f.InvitationsKept(2, (Seat(3),), 1))
    assert is_legal(world.state, f.InvitationsKept(2, (), 1))
    late_ms = world.state.passing[Seat(3)].deadline_ms + 1
    assert not is_legal(world.state, f.InvitationsKept(2, (Seat(3),), late_ms))
    assert why_illegal(world.state, f.InvitationsKept(2, (Seat(1),), 1)) is not None
    world.state.round.version = 4  # type: ignore[union-attr]
    assert not is_legal(world.state, f.InvitationsKept(2, (Seat(3),), 1))


def test_verifier_refuses_an_invitation_of_nobody() -> None:
    world = ready(4, BUFFERED)
    world.give(i.OpenRound(world.now_ms))
    world.give(i.Drawn(1, bytes(32), world.now_ms))
    fresh = ready(4, BUFFERED)
    fresh.give(i.OpenRound(fresh.now_ms))
    from consortium.core.federation import evolve

    evolve(fresh.state, f.SelectionStarted(1, bytes(32), 1))
    assert not is_legal(fresh.state, f.SitesInvited(1, (), 4, 4, 10**9, 1))
    assert is_legal(fresh.state, f.SitesInvited(1, (Seat(1),), 4, 4, 10**9, 1))
