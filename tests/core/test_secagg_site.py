"""The site's half of a secret sum: one session, one list of sharers, one split a round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.core.ids import Seat
from consortium.core.tables import Stage
from consortium.errors import AlreadySubmittedError, NotApprovedError, WrongRoundError

from .small import digest
from .test_participant import NOW, TRAIN, Site, approved

JOIN = d.JoinSum(1, Seat(4), digest("base"), None, digest("plan"), digest("task"), 5000)
SHARE = d.Share(1, Seat(4), digest("session"), 5000)
MASK = replace(TRAIN, sharing=digest("sharing"))
AGREE = d.Agree(1, Seat(4), digest("split"), 5000)
UNMASK = d.Unmask(1, Seat(4), digest("split"), 5000)
LATE = 6000  # later than any of them


def hear(site: Site) -> tuple[Any, ...]:
    assert site.work is not None
    return site.give(p.Heard(site.work, NOW))


def keying() -> Site:
    site = approved()
    site.give(p.Asked(JOIN, NOW))
    return site


def keyed() -> Site:
    site = keying()
    hear(site)
    return site


def sharing() -> Site:
    site = keyed()
    site.give(p.Asked(SHARE, NOW))
    return site


def shared() -> Site:
    site = sharing()
    hear(site)
    return site


def masking() -> Site:
    site = shared()
    site.give(p.Asked(MASK, NOW))
    return site


def sending() -> Site:
    site = masking()
    site.give(p.Trained(1, digest("update"), None, 64, NOW))
    return site


def sent() -> Site:
    site = sending()
    hear(site)
    return site


def agreeing() -> Site:
    site = sent()
    site.give(p.Asked(AGREE, NOW))
    return site


def agreed() -> Site:
    site = agreeing()
    hear(site)
    return site


def unmasking() -> Site:
    site = agreed()
    site.give(p.Asked(UNMASK, NOW))
    return site


def answered() -> Site:
    site = unmasking()
    hear(site)
    return site


STAGES = {
    keying: Stage.KEYING,
    keyed: Stage.KEYED,
    sharing: Stage.SHARING,
    shared: Stage.SHARED,
    masking: Stage.TRAINING,
    sending: Stage.SENDING,
    sent: Stage.SENT,
    agreeing: Stage.AGREEING,
    agreed: Stage.AGREED,
    unmasking: Stage.UNMASKING,
    answered: Stage.SENT,
}
EXCHANGING = [keying, keyed, sharing, shared]


# ---- the whole of it ----------------------------------------------------------------


def test_site_goes_from_keys_to_its_answer() -> None:
    for make, stage in STAGES.items():
        assert make().state.stage is stage
    assert keying().work == p.SendKeys(1)
    assert sharing().work == p.SendShares(1, digest("session"))
    assert masking().work == p.TrainHere(1, digest("base"), None)
    assert sending().work == p.SendUpdate(1, digest("update"))
    assert agreeing().work == p.SendConsent(1, digest("split"))
    assert unmasking().work == p.SendAnswer(1, digest("split"))
    for make in (keyed, shared, sent, agreed, answered):
        assert make().work is None
    done = answered().state
    pins = (done.session, done.sharing, done.split)
    assert pins == (digest("session"), digest("sharing"), digest("split"))


def test_facts_are_those_of_each_step() -> None:
    site = approved()
    (joined,) = site.give(p.Asked(JOIN, NOW))
    assert joined == s.SumJoined(1, digest("base"), digest("task"), digest("plan"), 5000, NOW)
    assert hear(site) == (s.KeysTold(1, NOW),)
    assert site.give(p.Asked(SHARE, NOW)) == (s.SessionPinned(1, digest("session"), NOW),)
    assert hear(site) == (s.SharesTold(1, NOW),)
    (pinned,) = site.give(p.Asked(MASK, NOW))
    assert pinned == s.SharersPinned(1, digest("sharing"), MASK.deadline_ms, NOW)
    site.give(p.Trained(1, digest("update"), None, 64, NOW))
    hear(site)
    assert site.give(p.Asked(AGREE, NOW)) == (s.SplitPinned(1, digest("split"), NOW),)
    assert hear(site) == (s.ConsentTold(1, NOW),)
    assert site.give(p.Asked(UNMASK, NOW)) == (s.AgreementSeen(1, NOW),)
    assert hear(site) == (s.AnswerTold(1, NOW),)


def test_site_that_was_not_there_to_sign_answers_all_the_same() -> None:
    """Enough others have signed: it agrees to their split now, and to no other."""
    for make in (sending, sent):
        site = make()
        facts = site.give(p.Asked(UNMASK, NOW))
        assert facts == (s.SplitPinned(1, digest("split"), NOW), s.AgreementSeen(1, NOW))
        assert site.work == p.SendAnswer(1, digest("split"))
        with pytest.raises(AlreadySubmittedError):
            site.give(p.Asked(replace(AGREE, split=digest("another")), NOW))


def test_lost_replies_do_not_stop_a_site() -> None:
    """That it is asked for the next step says that the last one was heard."""
    site = keying()
    site.give(p.Asked(SHARE, NOW))
    site.give(p.Asked(MASK, NOW))
    site.give(p.Trained(1, digest("update"), None, 64, NOW))
    site.give(p.Asked(AGREE, NOW))
    site.give(p.Asked(UNMASK, NOW))
    assert site.state.stage is Stage.UNMASKING


# ---- once a round -------------------------------------------------------------------


@pytest.mark.parametrize("make", STAGES)
def test_the_same_again_is_old_news(make: Any) -> None:
    site = make()
    for duty in (JOIN, SHARE, MASK, AGREE, UNMASK):
        other = make()
        if other.give(p.Asked(duty, NOW)):
            assert other.give(p.Asked(duty, NOW)) == ()
    reached = list(STAGES).index(make)
    known = [JOIN, *[SHARE] * (reached >= 2), *[MASK] * (reached >= 4)]
    known += [*[AGREE] * (reached >= 7), *[UNMASK] * (reached >= 9)]
    for duty in known:
        assert site.give(p.Asked(duty, NOW)) == ()


@pytest.mark.parametrize(
    "make", [sharing, shared, masking, sending, sent, agreed, unmasking, answered]
)
def test_second_session_is_refused(make: Any) -> None:
    with pytest.raises(AlreadySubmittedError):
        make().give(p.Asked(replace(SHARE, session=digest("another")), NOW))


@pytest.mark.parametrize("make", [masking, sending, sent, agreeing, unmasking, answered])
def test_second_list_of_sharers_is_refused(make: Any) -> None:
    with pytest.raises(AlreadySubmittedError):
        make().give(p.Asked(replace(MASK, sharing=digest("another")), NOW))


@pytest.mark.parametrize("make", [agreeing, agreed, unmasking, answered])
def test_second_split_is_refused(make: Any) -> None:
    for duty in (AGREE, UNMASK):
        with pytest.raises(AlreadySubmittedError):
            make().give(p.Asked(replace(duty, split=digest("another")), NOW))


def test_nothing_is_pinned_before_its_time() -> None:
    for make, duties in (
        (keying, (MASK, AGREE, UNMASK)),
        (keyed, (MASK, AGREE, UNMASK)),
        (sharing, (AGREE, UNMASK)),
        (shared, (AGREE, UNMASK)),
        (masking, (AGREE, UNMASK)),
    ):
        for duty in duties:
            assert make().give(p.Asked(duty, NOW)) == ()


def test_plain_round_is_neither_masked_nor_unmasked() -> None:
    site = approved()
    site.give(p.Asked(TRAIN, NOW))
    assert site.give(p.Asked(JOIN, NOW)) == ()
    assert site.give(p.Asked(SHARE, NOW)) == ()
    assert site.give(p.Asked(MASK, NOW)) == ()
    site.give(p.Trained(1, digest("update"), None, 64, NOW))
    assert site.give(p.Asked(AGREE, NOW)) == ()
    assert site.give(p.Asked(UNMASK, NOW)) == ()
    assert site.state.session is None and site.state.split is None


@pytest.mark.parametrize("make", STAGES)
def test_secret_round_is_never_trained_as_a_plain_one(make: Any) -> None:
    site = make()
    if make is masking:
        with pytest.raises(AlreadySubmittedError):
            site.give(p.Asked(TRAIN, NOW))
    else:
        assert site.give(p.Asked(TRAIN, NOW)) == ()
    assert site.state.sharing == make().state.sharing


@pytest.mark.parametrize("duty", [SHARE, MASK, AGREE, UNMASK])
def test_other_rounds_are_refused(duty: Any) -> None:
    for number in (0, 2):
        with pytest.raises(WrongRoundError):
            unmasking().give(p.Asked(replace(duty, round=number), NOW))
    with pytest.raises(WrongRoundError):
        approved().give(p.Asked(duty, NOW))


@pytest.mark.parametrize("make", STAGES)
def test_newer_round_is_joined_from_any_stage_with_nothing_pinned(make: Any) -> None:
    site = make()
    site.give(p.Settled(1, False, NOW))
    assert len(site.give(p.Asked(replace(JOIN, round=2), NOW))) == 1
    fresh = site.state
    assert (fresh.stage, fresh.round) == (Stage.KEYING, 2)
    assert (fresh.session, fresh.sharing, fresh.split, fresh.update) == (None,) * 4
    with pytest.raises(WrongRoundError):
        site.give(p.Asked(SHARE, NOW))


@pytest.mark.parametrize("part", ["task", "plan", "base"])
def test_secret_round_goes_on_with_what_it_was_begun_with(part: str) -> None:
    changed = {part: digest("other")}
    with pytest.raises(AlreadySubmittedError):
        keying().give(p.Asked(replace(JOIN, **changed), NOW))  # type: ignore[arg-type]
    with pytest.raises(AlreadySubmittedError):
        shared().give(p.Asked(replace(MASK, **changed), NOW))  # type: ignore[arg-type]


def test_end_of_the_last_round_is_known_before_the_next_is_joined() -> None:
    with pytest.raises(WrongRoundError):
        answered().give(p.Asked(replace(JOIN, round=2), NOW))


# ---- time ---------------------------------------------------------------------------


def test_keys_shares_and_answers_leave_whatever_the_site_thinks_is_the_time() -> None:
    """A phase is short and clocks differ; a coordinator that was down gives it time anew."""
    site = approved()
    assert site.give(p.Asked(JOIN, LATE))
    assert site.give(p.Asked(SHARE, LATE))
    assert sent().give(p.Asked(AGREE, LATE))
    assert agreed().give(p.Asked(UNMASK, LATE))


def test_deadline_of_the_training_moves() -> None:
    site = masking()
    assert site.give(p.Asked(replace(JOIN, deadline_ms=7000), NOW)) == ()
    (moved,) = site.give(p.Asked(replace(MASK, deadline_ms=7000), NOW))
    assert moved == s.DeadlineMoved(1, 7000, NOW)
    assert sending().give(p.Asked(replace(MASK, deadline_ms=7000), NOW)) == ()
    assert keying().give(p.Asked(replace(JOIN, deadline_ms=7000), NOW)) == ()


# ---- the site's own will ------------------------------------------------------------


def test_sum_that_nobody_approved_is_not_joined() -> None:
    with pytest.raises(NotApprovedError):
        Site().give(p.Asked(JOIN, NOW))


def test_held_site_declines_a_secret_sum() -> None:
    site = approved()
    site.give(p.HoldSite(NOW))
    site.give(p.Asked(JOIN, NOW))
    assert site.work == p.TellFailure(1, Failure.POLICY)
    site = approved()
    assert site.give(p.Decline(JOIN, Failure.BUDGET, NOW))
    assert site.give(p.Decline(JOIN, Failure.BUDGET, NOW)) == ()
    assert site.give(p.Asked(JOIN, NOW)) == ()


@pytest.mark.parametrize("make", [*EXCHANGING, masking])
def test_hold_and_withdrawal_give_up_what_is_under_way(make: Any) -> None:
    for item in (p.HoldSite(NOW), p.Withdraw(digest("task"), digest("plan"), NOW)):
        site = make()
        assert len(site.give(item)) == 2
        assert site.work == p.TellFailure(1, Failure.POLICY)
        hear(site)
        assert site.state.stage is Stage.IDLE
        for duty in (JOIN, SHARE, MASK, AGREE, UNMASK):
            fresh = list(STAGES).index(make)
            if (duty is SHARE and fresh >= 2) or (duty is MASK and fresh >= 4):
                assert site.give(p.Asked(duty, NOW)) == ()
                continue
            assert site.give(p.Asked(duty, NOW)) == ()


@pytest.mark.parametrize("make", [sending, agreeing, unmasking])
def test_nothing_leaves_while_the_site_is_on_hold(make: Any) -> None:
    site = make()
    owed_before = site.work
    site.give(p.HoldSite(NOW))
    assert site.work is None
    site.give(p.ResumeSite(NOW))
    assert site.work == owed_before


@pytest.mark.parametrize("make", [sending, sent])
def test_answer_needs_the_approval_too(make: Any) -> None:
    for item in (p.HoldSite(NOW), p.Withdraw(digest("task"), digest("plan"), NOW)):
        site = make()
        site.give(item)
        for duty in (AGREE, UNMASK):
            (failed,) = p.decide(site.state, p.Asked(duty, NOW))
            assert failed == s.WorkFailed(1, Failure.POLICY, NOW)


@pytest.mark.parametrize("make", [agreeing, agreed])
def test_who_signed_and_is_on_hold_since_does_not_answer(make: Any) -> None:
    site = make()
    site.give(p.HoldSite(NOW))
    assert site.give(p.Asked(UNMASK, NOW)) == (s.WorkFailed(1, Failure.POLICY, NOW),)


@pytest.mark.parametrize("make", [keying, sharing])
def test_held_site_pins_nothing(make: Any) -> None:
    site = make()
    site.records.clear()
    held = replace(site.state, is_held=True)
    duty = SHARE if make is keying else MASK
    assert p.decide(held, p.Asked(duty, NOW)) == (s.WorkFailed(1, Failure.POLICY, NOW),)


@pytest.mark.parametrize("make", [*EXCHANGING, masking, sending, agreeing, agreed, unmasking])
def test_site_whose_seeds_are_lost_says_so(make: Any) -> None:
    site = make()
    assert site.give(p.Broke(1, Failure.RESOURCES, NOW))
    assert site.work == p.TellFailure(1, Failure.RESOURCES)
    assert site.give(p.Asked(UNMASK, NOW)) == ()


@pytest.mark.parametrize("make", [keying, sharing, agreeing, unmasking])
def test_site_that_is_turned_away_leaves_the_sum(make: Any) -> None:
    site = make()
    work = site.work
    assert site.give(p.TurnedAway(p.SendKeys(2), NOW)) == ()
    assert site.give(p.TurnedAway(work, NOW)) == (s.RoundLeft(1, NOW),)
    assert site.work is None
    for duty in (JOIN, SHARE, MASK, AGREE, UNMASK):
        if (duty is SHARE and site.state.session) or (duty is UNMASK and site.state.split):
            continue
        assert site.give(p.Asked(duty, NOW)) == ()


# ---- what leaves is written down first ----------------------------------------------


@pytest.mark.parametrize("make", [keying, sharing, agreeing, unmasking])
def test_note_of_a_step_is_spooled_once(make: Any) -> None:
    site = make()
    work, note = site.work, digest("note")
    assert site.give(p.Spool(1, note, 99, NOW)) == (s.NoteSpooled(1, note, 99, NOW),)
    assert site.state.note == note and site.work == work
    assert site.give(p.Spool(1, note, 99, NOW)) == ()
    with pytest.raises(AlreadySubmittedError):
        site.give(p.Spool(1, digest("another note"), 99, NOW))
    assert site.give(p.Spool(2, note, 99, NOW)) == ()


@pytest.mark.parametrize("make", [keyed, shared, masking, sending, sent, agreed, answered])
def test_no_note_is_spooled_where_none_is_asked_for(make: Any) -> None:
    assert make().give(p.Spool(1, digest("note"), 99, NOW)) == ()


def test_every_step_has_a_note_of_its_own() -> None:
    site = keying()
    for duty in (SHARE, AGREE, UNMASK):
        assert site.give(p.Spool(1, digest(f"before {duty}"), 99, NOW))
        if duty is AGREE:
            site.give(p.Asked(MASK, NOW))
            site.give(p.Trained(1, digest("update"), None, 64, NOW))
        site.give(p.Asked(duty, NOW))
        assert site.state.note is None
    assert site.give(p.Spool(1, digest("answer"), 99, NOW))
    site.give(p.Settled(1, False, NOW))
    site.give(p.Asked(replace(JOIN, round=2), NOW))
    assert site.state.note is None
