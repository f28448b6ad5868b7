"""A round from its invitations to its closing: submissions, checks, dropouts, deadlines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import owed, owed_by
from consortium.core.ids import Seat
from consortium.core.tables import Phase, Step
from consortium.core.terms import Close
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    InvalidInputError,
    UnauthorizedClientError,
    WrongRoundError,
)

from .small import START_MS, TERMS, World, digest, ready, summing, training

FIVE = replace(TERMS, target=5)  # quorum 3


def kinds(facts: tuple[Any, ...]) -> list[type[Any]]:
    return [type(fact) for fact in facts]


# ---- submission (R6) ----------------------------------------------------------------


def test_update_is_received_then_checked_then_accepted() -> None:
    world = training()
    assert kinds(world.submit(1)) == [f.UpdateReceived]
    assert d.Check(1, Seat(1), digest("update 1"), digest("model 0")) in owed(world.state)
    assert kinds(world.check(1)) == [f.UpdateAccepted]
    assert owed(world.state) == (d.WakeAt(world.round.deadline_ms + 1),)


def test_same_submission_again_changes_nothing_whenever_it_comes() -> None:
    world = training()
    world.submit(1)
    assert world.submit(1) == ()
    world.check(1)
    assert world.submit(1) == ()
    world.send(2, 3)
    assert world.submit(1) == ()  # closed
    world.finish_round()
    assert world.submit(1) == ()  # ended
    world.open()
    assert world.submit(1, number=1) == ()  # and the next is open


def test_second_submission_with_other_digest_is_refused() -> None:
    world = training()
    world.submit(1)
    with pytest.raises(AlreadySubmittedError):
        world.submit(1, "another update")
    assert world.round.submitted[Seat(1)] == digest("update 1")


def test_rejected_update_may_be_repeated_but_not_replaced() -> None:
    world = training(sites=5, terms=FIVE)
    world.submit(1)
    world.check(1, fault=f.Fault.FORMAT)
    assert world.submit(1) == ()
    with pytest.raises(AlreadySubmittedError):
        world.submit(1, "a better one")


def test_site_that_said_it_failed_cannot_submit_after_all() -> None:
    world = training(sites=5, terms=FIVE)
    world.fail(1)
    with pytest.raises(AlreadySubmittedError):
        world.submit(1)


def test_update_in_the_last_millisecond_is_taken_and_a_later_one_refused() -> None:
    world = training()
    world.now_ms = world.round.deadline_ms
    world.submit(1)
    world.now_ms += 1
    with pytest.raises(DeadlineExpiredError):
        world.submit(2)


def test_update_for_a_closed_or_ended_round_is_refused() -> None:
    world = training(sites=5, terms=replace(FIVE, close=Close.QUORUM))
    world.send(1, 2, 3)
    assert world.round.step is Step.SUMMING
    with pytest.raises(DeadlineExpiredError):
        world.submit(4)
    world.finish_round()
    with pytest.raises(DeadlineExpiredError):
        world.submit(4)


def test_update_of_a_site_that_was_not_invited_is_refused() -> None:
    world = training(sites=6)
    stranger = next(seat for seat in range(1, 7) if seat not in world.round.invited)
    with pytest.raises(UnauthorizedClientError, match="not invited"):
        world.submit(stranger)
    with pytest.raises(UnauthorizedClientError, match="roster"):
        world.submit(99)


@pytest.mark.parametrize("number", [2, 99])
def test_update_for_a_round_that_is_not_there_is_refused(number: int) -> None:
    with pytest.raises(WrongRoundError):
        training().submit(1, number=number)


def test_update_for_a_round_before_the_last_is_refused() -> None:
    world = summing()
    for _ in range(2):
        world.finish_round()
        world.open()
        world.send(1, 2, 3)
    with pytest.raises(WrongRoundError):
        world.submit(1, number=1)


# ---- checks -------------------------------------------------------------------------


def test_verdict_on_an_update_is_taken_once() -> None:
    world = training()
    world.send(1)
    assert world.check(1) == ()
    assert world.check(1, fault=f.Fault.FORMAT) == ()


def test_verdict_on_something_else_is_old_news() -> None:
    world = training()
    assert world.check(1) == ()  # nothing was submitted
    world.submit(1)
    assert world.check(1, name="another update") == ()
    wrong = i.Checked(2, Seat(1), digest("update 1"), None, 1.0, 1.0, START_MS)
    assert world.give(wrong) == ()
    world.give(i.CancelRound(1, START_MS))
    assert world.check(1) == ()


def test_verdict_after_the_closing_is_old_news() -> None:
    world = training(sites=5, terms=replace(FIVE, close=Close.QUORUM))
    world.submit(5)
    world.send(1, 2, 3)
    assert world.check(5) == ()
    assert set(world.round.members) == {1, 2, 3}


@pytest.mark.parametrize("fault", f.Fault)
def test_rejected_update_does_not_count(fault: f.Fault) -> None:
    world = training(sites=5, terms=FIVE)
    world.submit(1)
    assert kinds(world.check(1, fault=fault)) == [f.UpdateRejected]
    world.send(2, 3, 4, 5)
    assert set(world.round.members) == {2, 3, 4, 5}
    assert world.round.fallen == {1: fault}


# ---- closing ------------------------------------------------------------------------


def test_round_closes_when_all_have_answered() -> None:
    world = training(sites=5, terms=FIVE)
    world.send(1, 2, 3)
    assert kinds(world.fail(4)) == [f.SiteDropped]
    facts = world.fail(5)
    assert kinds(facts) == [f.SiteDropped, f.RoundClosed]
    assert facts[1].members == (1, 2, 3)
    assert world.round.step.phase is Phase.AGGREGATING


def test_round_closes_when_the_target_is_reached_without_the_over_selected() -> None:
    world = training(sites=5, terms=replace(TERMS, overselect_ppm=1_500_000))
    assert (len(world.round.invited), world.round.target) == (5, 3)
    facts = world.send(2, 4, 5)
    assert facts[-1] == f.RoundClosed(1, (2, 4, 5), START_MS)


def test_round_closes_at_the_quorum_if_the_plan_says_so() -> None:
    world = training(sites=5, terms=replace(FIVE, close=Close.QUORUM))
    assert kinds(world.send(1, 2))[-1] is f.UpdateAccepted
    assert kinds(world.send(3))[-1] is f.RoundClosed


def test_deadline_with_a_quorum_closes_the_round() -> None:
    world = training(sites=5, terms=FIVE)
    world.send(1, 2, 3)
    deadline_ms = world.round.deadline_ms
    assert world.tick(deadline_ms) == ()
    assert world.tick(deadline_ms + 1) == (f.RoundClosed(1, (1, 2, 3), deadline_ms + 1),)


def test_updates_that_came_in_time_are_checked_before_the_round_closes() -> None:
    world = training(sites=5, terms=FIVE)
    world.send(1, 2, 3)
    world.submit(4)
    deadline_ms = world.round.deadline_ms
    assert world.tick(deadline_ms + 1) == ()
    assert owed(world.state) == (
        d.Check(1, Seat(4), digest("update 4"), digest("model 0")),
        d.WakeAt(deadline_ms + 1),
        d.WakeAt(deadline_ms + TERMS.grace_ms + 1),
    )
    facts = world.check(4)
    assert facts[-1].members == (1, 2, 3, 4)


def test_checks_that_outlast_the_grace_are_not_waited_for() -> None:
    world = training(sites=5, terms=FIVE)
    world.send(1, 2, 3)
    world.submit(4)
    end_ms = world.round.deadline_ms + TERMS.grace_ms
    assert world.tick(end_ms) == ()
    (closed,) = world.tick(end_ms + 1)
    assert closed.members == (1, 2, 3)


def test_checks_without_a_quorum_have_their_grace_too() -> None:
    world = training(sites=3)
    world.send(1, 2)
    world.submit(3)
    deadline_ms = world.round.deadline_ms
    assert world.tick(deadline_ms + 1) == ()
    assert kinds(world.tick(deadline_ms + TERMS.grace_ms + 1)) == [f.DeadlineExtended]
    assert kinds(world.check(3)) == [f.UpdateAccepted, f.RoundClosed]


# ---- the sum that is owed -----------------------------------------------------------


def test_sum_is_owed_over_members_in_the_order_of_invitation() -> None:
    world = training(sites=6, terms=TERMS)
    first = list(world.round.invited)
    for seat in first[1:]:
        world.send(seat)
    (dropped, backups) = world.fail(first[0])
    assert kinds((dropped, backups)) == [f.SiteDropped, f.BackupsInvited]
    world.send(*backups.seats)
    (duty,) = owed(world.state)
    ranks = world.round.invited
    assert duty.updates == tuple(
        (ranks[seat], digest(f"update {seat}")) for seat in (*first[1:], *backups.seats)
    )
    assert (duty.count, duty.base, duty.partials) == (3, digest("model 0"), ())


# ---- magnitude ----------------------------------------------------------------------


def test_update_louder_than_ten_times_the_median_is_excluded_at_closing() -> None:
    world = training(sites=5, terms=FIVE)
    world.send(1, 2, norm=1.0)
    world.send(3, norm=10.5)
    world.send(4, norm=10.0)
    facts = world.send(5, norm=1.0)
    assert facts[-2:] == (
        f.UpdateExcluded(1, Seat(3), f.Fault.MAGNITUDE, START_MS),
        f.RoundClosed(1, (1, 2, 4, 5), START_MS),
    )
    assert world.round.norms == [1.0, 1.0, 1.0, 10.0]


def test_loud_update_does_not_make_the_quorum() -> None:
    world = training(sites=4, terms=replace(TERMS, target=4))
    world.send(1, 2, norm=1.0)
    world.fail(3)
    facts = world.send(4, norm=99.0)
    assert facts[-1].reason is f.RoundEnd.NO_QUORUM


def test_backup_is_called_for_a_loud_update() -> None:
    world = training(sites=6, terms=TERMS)
    one, two, three = world.round.invited
    world.send(one, two, norm=1.0)
    *_, accepted, backups = world.send(three, norm=99.0)
    assert kinds((accepted, backups)) == [f.UpdateAccepted, f.BackupsInvited]
    facts = world.send(*backups.seats, norm=1.0)
    assert kinds(facts)[-2:] == [f.UpdateExcluded, f.RoundClosed]


def test_when_most_updates_are_zero_the_others_count() -> None:
    world = training()
    world.send(1, norm=0.0)
    world.send(2, norm=0.0)
    assert f.UpdateExcluded not in kinds(world.send(3, norm=5.0))


def test_median_of_an_even_number_is_the_middle_of_the_two() -> None:
    four = replace(TERMS, target=4)
    for norm, is_loud in ((15.0, False), (15.1, True)):
        world = training(sites=4, terms=four)
        world.send(1, norm=1.0)
        world.send(2, norm=1.0)
        world.send(3, norm=2.0)  # the median of 1, 1, 2, 15 is 1.5
        assert (f.UpdateExcluded in kinds(world.send(4, norm=norm))) is is_loud


def test_two_norms_make_no_majority() -> None:
    world = training(sites=3, terms=replace(TERMS, quorum=2, target=2))
    one, two = world.round.invited
    world.send(one, norm=1.0)
    assert kinds(world.send(two, norm=1000.0))[-1] is f.RoundClosed
    assert len(world.round.members) == 2


def test_no_norm_is_judged_where_a_clip_bounds_or_masks_hide_it() -> None:
    clipped = training(terms=replace(TERMS, norm_factor=0))
    clipped.send(1, 2, norm=1.0)
    clipped.send(3, norm=1000.0)
    assert len(clipped.round.members) == 3
    masked = training()
    masked.send(1, 2, 3, norm=None)
    assert len(masked.round.members) == 3
    assert masked.round.norms == []


# ---- dropout (R7, R9) ---------------------------------------------------------------


def test_failure_code_is_written_once() -> None:
    world = training(sites=5, terms=FIVE)
    assert world.fail(1, f.Failure.RESOURCES)[0].failure is f.Failure.RESOURCES
    assert world.fail(1, f.Failure.TRAINING) == ()
    assert world.round.fallen == {1: f.Failure.RESOURCES}


def test_failure_after_an_update_is_old_news() -> None:
    world = training()
    world.submit(1)
    assert world.fail(1) == ()
    assert Seat(1) in world.round.unchecked


def test_failure_after_the_closing_and_the_end_is_old_news() -> None:
    world = training(sites=5, terms=replace(FIVE, close=Close.QUORUM))
    world.send(1, 2, 3)
    assert world.fail(4) == ()
    world.finish_round()
    assert world.fail(4) == ()


def test_urgent_backups_come_when_the_minimum_is_out_of_reach() -> None:
    world = training(sites=6, terms=TERMS)
    first = list(world.round.invited)
    _, backups = world.fail(first[0])
    assert len(backups.seats) == 1
    (backup,) = backups.seats
    assert backup not in first
    duty = owed_by(world.state, backup)
    assert isinstance(duty, d.Train) and duty.is_urgent
    assert not owed_by(world.state, first[1]).is_urgent  # type: ignore[union-attr]


def test_backups_are_drawn_afresh_and_never_from_the_invited() -> None:
    world = training(sites=8, terms=TERMS)
    for _ in range(5):
        waiting = next(iter(world.round.waiting))
        before = set(world.round.invited)
        _, backups = world.fail(waiting)
        assert not before & set(backups.seats)
    assert world.round.backup_calls == 5
    assert world.fail(next(iter(world.round.waiting)))[-1].reason is f.RoundEnd.NO_QUORUM


def test_no_backup_while_the_minimum_can_be_had() -> None:
    world = training(sites=8, terms=FIVE)
    for seat in list(world.round.invited)[:2]:
        assert kinds(world.fail(seat)) == [f.SiteDropped]


def test_deadline_is_extended_once_when_less_than_half_the_target_is_left() -> None:
    world = training(sites=8, terms=replace(TERMS, target=8))
    deadline_ms = world.round.deadline_ms
    for seat in (1, 2, 3, 4):
        assert kinds(world.fail(seat)) == [f.SiteDropped]  # 4 of 8 is half: not below
    _, extended = world.fail(5)
    assert extended == f.DeadlineExtended(1, deadline_ms + TERMS.extension_ms, START_MS)
    assert world.round.deadline_ms == deadline_ms + TERMS.extension_ms
    world.send(6, 7)
    assert kinds(world.fail(8))[-1] is f.RoundFailed


def test_dropout_after_the_extension_extends_no_more() -> None:
    world = training(sites=12, terms=replace(TERMS, target=12))
    facts = [world.fail(seat) for seat in range(1, 10)]
    assert sum(f.DeadlineExtended in kinds(some) for some in facts) == 1
    assert kinds(facts[-1]) == [f.SiteDropped]


def test_deadline_without_a_quorum_calls_backups_and_extends() -> None:
    world = training(sites=6, terms=TERMS)
    world.send(next(iter(world.round.invited)))
    late_ms = world.round.deadline_ms + 5000
    backups, extended = world.tick(late_ms)
    assert len(backups.seats) == 2
    assert extended.deadline_ms == late_ms + TERMS.extension_ms


def test_deadline_without_a_quorum_fails_once_extensions_are_used_up() -> None:
    world = training()
    world.send(1)
    assert kinds(world.tick(world.round.deadline_ms + 1)) == [f.DeadlineExtended]
    world.send(2)
    (failed,) = world.tick(world.round.deadline_ms + 1)
    assert failed.reason is f.RoundEnd.NO_QUORUM
    assert world.state.ended is not None and world.state.ended.step is Step.FAILED


def test_plan_without_extensions_fails_at_the_deadline() -> None:
    world = training(terms=replace(TERMS, max_extensions=0))
    assert kinds(world.tick(world.round.deadline_ms + 1)) == [f.RoundFailed]


def test_round_that_cannot_reach_its_quorum_fails_at_once() -> None:
    world = training()
    assert kinds(world.fail(1)) == [f.SiteDropped, f.RoundFailed]


def test_late_update_counts_within_the_extension() -> None:
    world = training()
    world.send(1, 2)
    world.tick(world.round.deadline_ms + 1)
    world.send(3)
    assert world.round.step is Step.SUMMING


# ---- simulated cohorts --------------------------------------------------------------

FULL = replace(TERMS, target=6)


def _cohort(real: int = 0, size: int = 6) -> World:
    world = ready(sites=real, terms=FULL)
    world.give(i.AdmitCohort(size, START_MS))
    world.open()
    return world


def _trained(world: World, *seats: int, number: int = 1) -> tuple[Any, ...]:
    named = tuple(Seat(seat) for seat in seats)
    partial = digest(f"partial {seats}")
    return world.give(i.TrainedCohort(number, named, float(len(seats)), partial, world.now_ms))


def test_cohort_answers_in_blocks_and_the_round_closes() -> None:
    world = _cohort()
    assert kinds(_trained(world, 1, 2, 3, 4)) == [f.CohortTrained]
    facts = _trained(world, 5, 6)
    assert kinds(facts) == [f.CohortTrained, f.RoundClosed]
    (duty,) = owed(world.state)
    assert duty.updates == ()
    assert [(rank, weight) for rank, weight, _ in duty.partials] == [(0, 4.0), (4, 2.0)]


def test_partial_sums_are_in_fixed_order_whatever_came_first() -> None:
    world = _cohort()
    _trained(world, 4, 5, 6)
    _trained(world, 1, 2, 3)
    (duty,) = owed(world.state)
    assert [rank for rank, _, _ in duty.partials] == [0, 3]


def test_real_and_simulated_sites_share_a_round() -> None:
    world = _cohort(real=2, size=4)
    world.send(1, 2)
    _trained(world, 3, 4, 5, 6)
    (duty,) = owed(world.state)
    assert (len(duty.updates), len(duty.partials), duty.count) == (2, 1, 6)


def test_cohort_that_trained_already_changes_nothing() -> None:
    world = _cohort()
    _trained(world, 1, 2, 3)
    assert _trained(world, 1, 2, 3) == ()
    assert _trained(world, 1, 2, 3, number=7) == ()
    _trained(world, 4, 5, 6)
    assert _trained(world, 4, 5, 6) == ()
    world.finish_round()
    assert _trained(world, 4, 5, 6) == ()


@pytest.mark.parametrize("seats", [(), (3, 4), (7, 8), (2, 3), (99,)])
def test_cohort_of_others_than_waiting_simulated_sites_is_refused(seats: tuple[int, ...]) -> None:
    world = _cohort(real=2, size=4)
    _trained(world, 3)
    with pytest.raises(InvalidInputError):
        _trained(world, *seats)


def test_cohort_that_trained_until_after_the_deadline_is_refused() -> None:
    world = _cohort()
    world.now_ms = world.round.deadline_ms
    _trained(world, 1)
    world.now_ms += 1
    with pytest.raises(DeadlineExpiredError):
        _trained(world, 2)


# ---- checks that outlive the deadline -----------------------------------------------


def test_updates_in_time_are_counted_though_the_coordinator_was_down() -> None:
    world = training(sites=5, terms=FIVE)
    for seat in (1, 2, 3, 4):
        world.submit(seat)
    back_ms = world.round.deadline_ms + 10 * TERMS.grace_ms
    assert world.give(i.Tick(back_ms, awake_ms=back_ms)) == ()
    world.now_ms = back_ms + 1
    for seat in (1, 2, 3):
        assert kinds(world.check(seat)) == [f.UpdateAccepted]
    assert world.check(4)[-1] == f.RoundClosed(1, (1, 2, 3, 4), world.now_ms)
