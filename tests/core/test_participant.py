"""The site's half: approve, take an invitation, train once, send until heard, evaluate."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.codec import encode
from consortium.core.facts import Failure
from consortium.core.ids import Seat
from consortium.core.tables import Stage
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    NotApprovedError,
    WitnessError,
    WrongRoundError,
)

from .fact_text import read
from .small import digest

NOW = 1000
TRAIN = d.Train(1, Seat(4), digest("base"), None, digest("plan"), digest("task"), 5000, False)
EVALUATE = d.Evaluate(1, Seat(4), digest("candidate"), digest("base"), 0, 9000)


@dataclass
class Site:
    """A participant with its encoded log."""

    state: p.Participant = field(default_factory=p.Participant)
    records: list[bytes] = field(default_factory=list)

    def give(self, item: p.SiteInput) -> tuple[Any, ...]:
        before = deepcopy(self.state)
        try:
            facts = p.decide(self.state, item)
        finally:
            assert self.state == before
        self.records += [encode(fact) for fact in facts]
        for fact in facts:
            p.evolve(self.state, fact)
        assert self.replayed() == self.state
        return facts

    def replayed(self) -> p.Participant:
        state = p.Participant()
        for record in self.records:
            p.evolve(state, read(record))
        return state

    @property
    def work(self) -> p.SiteWork | None:
        return p.owed(self.state)


def approved() -> Site:
    site = Site()
    site.give(p.Approve(digest("task"), digest("plan"), NOW))
    return site


def invited() -> Site:
    site = approved()
    site.give(p.Asked(TRAIN, NOW))
    return site


def sending() -> Site:
    site = invited()
    site.give(p.Trained(1, digest("update"), digest("private"), 64, NOW))
    return site


def evaluating() -> Site:
    site = sending()
    site.give(p.Heard(site.work, NOW))  # type: ignore[arg-type]  # it owes something
    site.give(p.Asked(EVALUATE, NOW))
    return site


def scoring() -> Site:
    site = evaluating()
    site.give(p.Scored(1, 50, (1.0,), (2.0,), NOW))
    return site


# ---- approval and hold --------------------------------------------------------------


def test_site_runs_nothing_that_nobody_approved() -> None:
    with pytest.raises(NotApprovedError):
        Site().give(p.Asked(TRAIN, NOW))


@pytest.mark.parametrize("change", [{"task": digest("new task")}, {"plan": digest("new plan")}])
def test_changed_task_or_plan_needs_a_new_approval(change: dict[str, Any]) -> None:
    with pytest.raises(NotApprovedError):
        approved().give(p.Asked(replace(TRAIN, **change), NOW))


def test_approval_is_written_once_and_can_be_withdrawn() -> None:
    site = approved()
    assert site.give(p.Approve(digest("task"), digest("plan"), NOW)) == ()
    assert len(site.give(p.Withdraw(digest("task"), digest("plan"), NOW))) == 1
    assert site.give(p.Withdraw(digest("task"), digest("plan"), NOW)) == ()
    with pytest.raises(NotApprovedError):
        site.give(p.Asked(TRAIN, NOW))


def test_held_site_declines_with_a_code_until_it_is_resumed() -> None:
    site = approved()
    assert len(site.give(p.HoldSite(NOW))) == 1
    assert site.give(p.HoldSite(NOW)) == ()
    site.give(p.Asked(TRAIN, NOW))
    assert site.work == p.TellFailure(1, Failure.POLICY)
    assert site.give(p.Asked(TRAIN, NOW)) == ()
    assert len(site.give(p.ResumeSite(NOW))) == 1
    assert site.give(p.ResumeSite(NOW)) == ()
    site.give(p.Heard(site.work, NOW))  # type: ignore[arg-type]  # it owes something
    assert site.work is None
    site.give(p.Asked(replace(TRAIN, round=2), NOW))
    assert site.state.stage is Stage.TRAINING


# ---- training -----------------------------------------------------------------------


def test_site_waits_until_it_is_asked() -> None:
    assert Site().work is None
    assert approved().work is None


def test_invited_site_trains_from_the_base_with_its_private_state() -> None:
    assert invited().work == p.TrainHere(1, digest("base"), None)
    site = sending()
    site.give(p.Settled(1, True, NOW))
    site.give(p.Asked(replace(TRAIN, round=2, base=digest("base 2")), NOW))
    assert site.work == p.TrainHere(2, digest("base 2"), digest("private"))


def test_state_of_a_round_that_did_not_count_is_forgotten() -> None:
    site = sending()
    assert site.state.unsettled == 1
    assert len(site.give(p.Settled(1, False, NOW))) == 1
    assert site.give(p.Settled(1, True, NOW)) == ()
    site.give(p.Asked(replace(TRAIN, round=2), NOW))
    assert site.work == p.TrainHere(2, digest("base"), None)


def test_no_round_is_begun_before_the_end_of_the_last_one_is_known() -> None:
    site = sending()
    with pytest.raises(WrongRoundError):
        site.give(p.Asked(replace(TRAIN, round=2), NOW))
    assert site.give(p.Settled(2, True, NOW)) == ()


def test_round_that_keeps_nothing_leaves_what_was_kept_before() -> None:
    site = sending()
    site.give(p.Settled(1, True, NOW))
    site.give(p.Asked(replace(TRAIN, round=2), NOW))
    site.give(p.Trained(2, digest("update 2"), None, 64, NOW))
    site.give(p.Settled(2, True, NOW))
    assert site.state.private_state == digest("private")


def test_what_a_site_says_of_itself_is_written_when_it_is_news() -> None:
    site = Site()
    assert len(site.give(p.Describe((("cpus", 2),), NOW))) == 1
    assert site.give(p.Describe((("cpus", 2),), NOW)) == ()
    assert len(site.give(p.Describe((("cpus", 2.0),), NOW))) == 1
    assert site.state.report == (("cpus", 2.0),)


def test_policy_declines_a_round_once_and_with_a_code() -> None:
    site = approved()
    assert len(site.give(p.Decline(TRAIN, Failure.POLICY, NOW))) == 1
    assert site.work == p.TellFailure(1, Failure.POLICY)
    assert site.give(p.Decline(TRAIN, Failure.POLICY, NOW)) == ()
    assert site.give(p.Asked(TRAIN, NOW)) == ()


def test_invitation_whose_deadline_is_over_is_refused() -> None:
    site = approved()
    with pytest.raises(DeadlineExpiredError):
        site.give(p.Asked(TRAIN, TRAIN.deadline_ms + 1))
    site.give(p.Asked(TRAIN, TRAIN.deadline_ms))


def test_same_invitation_again_changes_nothing_and_a_new_deadline_is_noted() -> None:
    site = invited()
    assert site.give(p.Asked(TRAIN, NOW)) == ()
    (moved,) = site.give(p.Asked(replace(TRAIN, deadline_ms=7000), NOW))
    assert moved == s.DeadlineMoved(1, 7000, NOW)
    assert site.state.deadline_ms == 7000
    assert site.state.stage is Stage.TRAINING


@pytest.mark.parametrize("part", ["task", "plan", "base"])
@pytest.mark.parametrize("deadline_ms", [5000, 7000])
def test_round_goes_on_with_what_it_was_begun_with(part: str, deadline_ms: int) -> None:
    site = invited()
    site.give(p.Approve(digest("other"), digest("plan"), NOW))
    other = replace(TRAIN, deadline_ms=deadline_ms, **{part: digest("other")})
    with pytest.raises(AlreadySubmittedError):
        site.give(p.Asked(other, NOW))
    assert site.state.deadline_ms == 5000
    assert site.work == p.TrainHere(1, digest("base"), None)


def test_round_is_trained_once() -> None:
    site = sending()
    assert site.give(p.Asked(TRAIN, NOW)) == ()
    assert site.give(p.Trained(1, digest("another update"), None, 64, NOW)) == ()
    assert site.work == p.SendUpdate(1, digest("update"))
    site.give(p.Heard(site.work, NOW))  # type: ignore[arg-type]  # it owes something
    assert site.give(p.Asked(TRAIN, NOW)) == ()
    assert site.work is None


def test_older_round_is_old_news() -> None:
    site = approved()
    site.give(p.Asked(replace(TRAIN, round=5), NOW))
    assert site.give(p.Asked(replace(TRAIN, round=4), NOW)) == ()
    assert site.give(p.Trained(4, digest("u"), None, 1, NOW)) == ()
    assert site.state.round == 5


@pytest.mark.parametrize("make", [invited, sending, evaluating, scoring])
def test_newer_round_is_taken_from_any_stage(make: Any) -> None:
    site = make()
    site.give(p.Settled(1, False, NOW))
    site.give(p.Asked(replace(TRAIN, round=2), NOW))
    assert site.state.stage is Stage.TRAINING
    fresh = site.state
    assert (fresh.update, fresh.model, fresh.score, fresh.failure) == (None, None, None, None)


def test_failure_leaves_as_a_code_and_until_it_was_heard() -> None:
    site = invited()
    site.give(p.Broke(1, Failure.DATA_QUALITY, NOW))
    assert site.work == p.TellFailure(1, Failure.DATA_QUALITY)
    assert site.give(p.Broke(1, Failure.TRAINING, NOW)) == ()
    site.give(p.Heard(site.work, NOW))  # type: ignore[arg-type]  # it owes something
    assert site.work is None


# ---- sending ------------------------------------------------------------------------


def test_update_that_got_lost_is_told_as_a_failure() -> None:
    site = sending()
    site.give(p.Broke(1, Failure.RESOURCES, NOW))
    assert site.work == p.TellFailure(1, Failure.RESOURCES)
    assert site.state.unsettled == 1  # the coordinator says how the round ended


def test_update_is_sent_until_the_receipt_is_kept() -> None:
    site = sending()
    sent = p.SendUpdate(1, digest("update"))
    assert site.give(p.Heard(p.SendUpdate(2, digest("update")), NOW)) == ()
    assert site.work == sent
    assert site.give(p.Heard(sent, NOW)) == (s.ReceiptKept(1, digest("update"), NOW),)
    assert site.work is None
    assert site.give(p.Heard(sent, NOW)) == ()


def test_late_copy_of_the_receipt_does_not_acknowledge_the_score() -> None:
    site = scoring()
    assert site.give(p.Heard(p.SendUpdate(1, digest("update")), NOW)) == ()
    assert isinstance(site.work, p.SendScore)


def test_nobody_acknowledges_or_refuses_work_that_stays_at_the_site() -> None:
    site = invited()
    assert site.work is not None
    assert site.give(p.Heard(site.work, NOW)) == ()
    assert site.give(p.TurnedAway(site.work, NOW)) == ()


@pytest.mark.parametrize("make", [sending, scoring])
def test_site_that_is_turned_away_leaves_the_round(make: Any) -> None:
    site = make()
    sent = site.work
    assert site.give(p.TurnedAway(p.SendUpdate(2, digest("update")), NOW)) == ()
    assert site.give(p.TurnedAway(sent, NOW)) == (s.RoundLeft(1, NOW),)
    assert site.work is None
    assert site.give(p.TurnedAway(sent, NOW)) == ()


def test_failure_that_nobody_wants_to_hear_is_dropped() -> None:
    site = invited()
    site.give(p.Broke(1, Failure.TRAINING, NOW))
    site.give(p.TurnedAway(site.work, NOW))  # type: ignore[arg-type]  # it owes something
    assert site.work is None


# ---- evaluation ---------------------------------------------------------------------


def test_member_evaluates_and_sends_the_sums_until_heard() -> None:
    site = evaluating()
    assert site.work == p.EvaluateHere(1, digest("candidate"), digest("base"))
    assert site.give(p.Asked(EVALUATE, NOW)) == ()
    (spooled,) = site.give(p.Scored(1, 50, (1.0,), (2.0,), NOW))
    assert spooled == s.ScoreSpooled(1, digest("candidate"), 50, (1.0,), (2.0,), NOW)
    assert site.work == p.SendScore(spooled)
    assert site.give(p.Scored(1, 99, (1.0,), (2.0,), NOW)) == ()
    assert site.give(p.Asked(EVALUATE, NOW)) == ()
    assert site.give(p.Heard(p.SendScore(spooled), NOW)) == (s.ScoreTold(1, NOW),)
    assert site.work is None
    assert site.give(p.Asked(EVALUATE, NOW)) == ()  # this candidate is dealt with
    other = replace(EVALUATE, model=digest("another candidate"))
    assert site.give(p.Asked(other, NOW)) == ()  # a round has one


def test_request_to_evaluate_says_that_the_update_arrived() -> None:
    site = sending()  # its receipt was lost
    site.give(p.Asked(EVALUATE, NOW))
    assert site.state.stage is Stage.EVALUATING


def test_evaluation_of_a_round_without_this_site_is_refused() -> None:
    with pytest.raises(WrongRoundError):
        sending().give(p.Asked(replace(EVALUATE, round=2), NOW))
    with pytest.raises(DeadlineExpiredError):
        sending().give(p.Asked(EVALUATE, EVALUATE.deadline_ms + 1))


def test_site_without_an_update_does_not_evaluate() -> None:
    assert invited().give(p.Asked(EVALUATE, NOW)) == ()


def test_site_that_cannot_evaluate_says_so() -> None:
    site = evaluating()
    site.give(p.Broke(1, Failure.NO_TEST_DATA, NOW))
    assert site.work == p.TellFailure(1, Failure.NO_TEST_DATA)
    assert site.give(p.Asked(EVALUATE, NOW)) == ()
    site.give(p.Heard(site.work, NOW))  # type: ignore[arg-type]  # it owes something
    assert site.state.stage is Stage.IDLE


def test_site_that_is_idle_has_nothing_to_break_or_to_hear() -> None:
    site = approved()
    assert site.give(p.Broke(0, Failure.TRAINING, NOW)) == ()
    assert site.give(p.Heard(p.SendUpdate(0, digest("update")), NOW)) == ()
    assert site.give(p.Scored(0, 1, (), (), NOW)) == ()


# ---- the coordinator's log ----------------------------------------------------------


def shown(since: int, size: int, root: str, *, is_consistent: bool = True) -> p.Shown:
    return p.Shown(since, size, digest(root), is_consistent, NOW)


def test_site_follows_a_log_that_grows_and_refuses_any_other() -> None:
    site = approved()
    assert site.give(shown(0, 5, "five")) == (s.CheckpointWitnessed(5, digest("five"), NOW),)
    assert site.give(shown(5, 5, "five")) == ()
    site.give(shown(5, 9, "nine"))
    assert (site.state.seen_size, site.state.seen_root) == (9, digest("nine"))
    for offer, error in (
        (shown(9, 8, "eight"), WitnessError),
        (shown(9, 9, "other nine"), WitnessError),
        (shown(9, 12, "twelve", is_consistent=False), WitnessError),
        (shown(5, 12, "twelve"), WrongRoundError),
    ):
        with pytest.raises(error):
            site.give(offer)


# ---- nothing leaves against the site's will -----------------------------------------


@pytest.mark.parametrize("make", [invited, evaluating])
def test_hold_gives_up_the_work_under_way(make: Any) -> None:
    site = make()
    assert len(site.give(p.HoldSite(NOW))) == 2
    assert site.work == p.TellFailure(1, Failure.POLICY)
    assert site.give(p.Trained(1, digest("update"), None, 64, NOW)) == ()


@pytest.mark.parametrize("make", [sending, scoring])
def test_nothing_is_sent_while_the_site_is_on_hold(make: Any) -> None:
    site = make()
    owed_before = site.work
    assert len(site.give(p.HoldSite(NOW))) == 1
    assert site.work is None
    site.give(p.ResumeSite(NOW))
    assert site.work == owed_before


def test_withdrawal_gives_up_the_work_under_that_approval_alone() -> None:
    site = invited()
    site.give(p.Approve(digest("other"), digest("plan"), NOW))
    site.give(p.Withdraw(digest("other"), digest("plan"), NOW))
    assert site.state.stage is Stage.TRAINING
    site.give(p.Withdraw(digest("task"), digest("plan"), NOW))
    assert site.work == p.TellFailure(1, Failure.POLICY)


def test_evaluation_needs_the_approval_too() -> None:
    site = sending()
    site.give(p.Withdraw(digest("task"), digest("plan"), NOW))
    site.give(p.Asked(EVALUATE, NOW))
    assert site.work == p.TellFailure(1, Failure.POLICY)


def test_what_a_round_costs_is_held_while_it_is_trained() -> None:
    site = approved()
    assert site.give(p.Reserved(1, 7, NOW)) == ()  # no round was taken
    site.give(p.Asked(TRAIN, NOW))
    assert site.give(p.Reserved(2, 7, NOW)) == ()
    assert site.give(p.Reserved(1, 7, NOW)) == (s.SpendingHeld(1, 7, NOW),)
    assert site.state.account_position == 7
    assert site.work == p.TrainHere(1, digest("base"), None)
    for older in (6, 7):
        assert site.give(p.Reserved(1, older, NOW)) == ()
    assert len(site.give(p.Reserved(1, 8, NOW))) == 1  # once more, when it is spent
    site.give(p.Trained(1, digest("update"), None, 9, NOW))
    assert site.give(p.Reserved(1, 9, NOW)) == ()
    assert site.state.account_position == 8
