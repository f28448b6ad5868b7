"""A round whose sum is secret: who is asked for what, and that nobody is asked for both halves."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import secagg_facts as m
from consortium.core.answers import Status, may_send, receipt
from consortium.core.codec import encode
from consortium.core.federation import decide, is_legal, owed, owed_by
from consortium.core.ids import Seat
from consortium.core.names import session_name, sharing_name, split_name
from consortium.core.owing import answered_in, awaited_in, has_answered
from consortium.core.secagg import FULL_UP_TO, answers_needed, quorum_of, two_thirds
from consortium.core.tables import Step
from consortium.core.terms import LEAST_MASKED, Close, Masking, Metric, Terms
from consortium.crypto.secure_sum import graph
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    InvalidInputError,
    NotNeededError,
    Refusal,
    UnauthorizedClientError,
    WrongPhaseError,
    WrongRoundError,
)

from .small import (
    MASKED,
    PHASE_MS,
    START_MS,
    TERMS,
    World,
    agreeing,
    digest,
    keying,
    keys_of,
    masked_summing,
    masked_training,
    ready,
    sharing,
    training,
    unmasking,
)

LATE_MS = START_MS + PHASE_MS + 1
SEED = b"s" * 32
# Of five sites four are a quorum.
FIVE = replace(MASKED, target=5)


def kinds(facts: tuple[Any, ...]) -> list[type[Any]]:
    return [type(fact) for fact in facts]


def asked(world: World) -> dict[int, type[Any]]:
    """Who is asked for what."""
    found = {int(seat): owed_by(world.state, seat) for seat in world.state.roster.members}
    return {seat: type(duty) for seat, duty in found.items() if duty is not None}


def five(make: Any) -> World:
    world: World = make(5, FIVE)
    return world


# ---- the whole of it ----------------------------------------------------------------


def test_round_goes_through_keys_shares_updates_signatures_and_answers() -> None:
    world = keying()
    assert world.round.step is Step.KEYING and world.round.deadline_ms == START_MS + PHASE_MS
    assert kinds(world.keys(1, 2, 3)) == [m.KeysReceived] * 3
    assert kinds(world.keys(4)) == [m.KeysReceived, m.KeysClosed]
    assert world.round.step is Step.SHARING and world.round.quorum == 3
    assert kinds(world.share(1, 2, 3, 4))[-2:] == [m.SharesReceived, m.SharesClosed]
    assert world.round.deadline_ms == START_MS + MASKED.duration_ms
    world.send(1, 2, 3)
    assert kinds(world.send(4)) == [f.UpdateReceived, f.UpdateAccepted, f.RoundClosed]
    assert world.round.step is Step.AGREEING
    assert kinds(world.agree(1, 2)) == [m.ConsentReceived] * 2
    assert kinds(world.agree(4)) == [m.ConsentReceived, m.ConsentsClosed]
    assert world.round.step is Step.UNMASKING and list(world.round.agreed) == [1, 2, 4]
    assert kinds(world.answer(1, 2)) == [m.AnswerReceived] * 2
    assert kinds(world.answer(3)) == [m.AnswerReceived, m.AnswersClosed]
    assert world.round.step is Step.SUMMING
    world.finish_round()
    assert world.state.round is None and world.state.current == 1
    assert world.replayed() == world.state


def test_who_is_waited_for_is_told_step_by_step() -> None:
    world = five(keying)
    told = []

    def tell() -> None:
        told.append((answered_in(world.round), awaited_in(world.round)))

    world.keys(1, 2)
    tell()
    world.keys(3, 4, 5)
    world.share(2)
    tell()
    world.share(1, 3, 4, 5)
    world.send(5)
    tell()
    world.send(1, 2, 3, 4)
    world.agree(2)
    tell()
    world.agree(3, 4, 5)
    world.answer(3)
    tell()
    assert told == [
        ([1, 2], [3, 4, 5]),
        ([2], [1, 3, 4, 5]),
        ([5], [1, 2, 3, 4]),
        ([2], [1, 3, 4, 5]),
        ([3], [1, 2, 4, 5]),
    ]


def test_sum_is_lifted_by_what_is_on_record() -> None:
    world = five(masked_training)
    world.dismiss(2)  # others masked with it
    world.send(1, 3, 4, 5)
    world.agree()
    world.answer(1, 3, 4, 5)
    (duty,) = owed(world.state)
    assert isinstance(duty, d.Aggregate) and duty.lifting is not None
    lifting = duty.lifting
    assert [site for site, _ in lifting.keys] == ["s1", "s2", "s3", "s4", "s5"]
    assert all(keys == world.round.keys[keys.seat] for _, keys in lifting.keys)
    assert lifting.sharers == ("s1", "s2", "s3", "s4", "s5")
    assert lifting.members == ("s1", "s3", "s4", "s5")
    assert lifting.answers == tuple((f"s{seat}", digest(f"answer {seat}")) for seat in (1, 3, 4, 5))
    assert (lifting.federation, lifting.seed, lifting.quorum) == ("f1", world.round.seed, 4)


def test_plain_sum_has_nothing_to_lift() -> None:
    world = training()
    world.send(1, 2, 3)
    (duty,) = owed(world.state)
    assert isinstance(duty, d.Aggregate) and duty.lifting is None


# ---- terms and plans ----------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"quorum": 2},
        {"norm_factor": 10},
        {"is_screened": True},
        {"close": Close.QUORUM},
        {"metrics": (Metric("loss", False),), "judged_by": "loss"},
        {"buffer": 4, "max_staleness": 1},
        {"masking": Masking(0)},
    ],
)
def test_terms_that_look_at_single_updates_cannot_be_masked(change: dict[str, Any]) -> None:
    assert MASKED.are_sound()
    assert not replace(MASKED, **change).are_sound()


def test_masking_is_told_by_a_fact_of_its_own() -> None:
    world = ready(terms=MASKED)
    assert world.state.terms == MASKED and MASKED.is_masked
    assert MASKED.as_adopted().masking is None
    adopted = m.MaskingAdopted(PHASE_MS, START_MS)
    assert not is_legal(world.state, adopted), "once a plan"
    world = ready()  # whose terms look at single updates
    assert not is_legal(world.state, adopted)
    world = ready(terms=MASKED.as_adopted())
    assert is_legal(world.state, adopted)
    assert not is_legal(world.state, m.MaskingAdopted(0, START_MS))
    world.state.terms = None
    assert not is_legal(world.state, adopted)


def test_federation_whose_sums_are_secret_stays_so() -> None:
    world = ready(terms=MASKED)
    with pytest.raises(WrongPhaseError):
        world.adopt(TERMS, "plain")
    assert world.adopt(replace(MASKED, rounds=200), "longer")
    other = ready()
    assert other.adopt(MASKED, "masked"), "more protection can come at any time"
    fresh = World()
    fresh.give(i.Found("f1", START_MS))
    fresh.adopt(MASKED)
    assert fresh.adopt(TERMS, "plain"), "nobody has trained anything yet"


# ---- how many -----------------------------------------------------------------------


def test_quorum_is_two_thirds_and_never_less_than_the_plan_says() -> None:
    assert [two_thirds(sites) for sites in range(3, 10)] == [2, 3, 4, 4, 5, 6, 6]
    assert [quorum_of(MASKED, sites) for sites in (3, 4, 5, 6, 9)] == [3, 3, 4, 4, 6]
    assert quorum_of(replace(MASKED, quorum=5), 6) == 5
    assert quorum_of(replace(MASKED, quorum=1), 3) == LEAST_MASKED


def test_numbers_are_those_of_the_arithmetic() -> None:
    assert FULL_UP_TO == graph.FULL_UP_TO
    for sites in range(3, 200):
        assert two_thirds(sites) == graph.threshold_for(sites)


def test_among_many_sites_everybody_is_waited_for() -> None:
    world = unmasking()
    assert answers_needed(world.round) == 3
    many = world.round.clone()
    many.keys = dict.fromkeys(map(Seat, range(1, FULL_UP_TO + 2)), next(iter(many.keys.values())))
    assert answers_needed(many) == len(many.members) == 4


# ---- names --------------------------------------------------------------------------


def test_names_are_digests_of_the_facts_that_they_stand_for() -> None:
    world = five(keying)
    world.keys(3, 1, 5, 2)
    received = world.round.keys.copy()
    closed = world.keys(4)[-1]
    received = {**received, Seat(4): world.round.keys[Seat(4)]}
    in_order = [received[seat] for seat in sorted(received)]
    seed = world.round.seed
    raw = seed + b"".join(encode(fact) for fact in (*in_order, closed))
    assert world.round.session == sha256(raw).digest() == session_name(seed, in_order, closed)
    assert list(world.round.keys) == [1, 2, 3, 4, 5]
    closed = world.share(1, 2, 3, 4, 5)[-1]
    assert world.round.sharing == sha256(encode(closed)).digest() == sharing_name(closed)
    closed = world.send(1, 2, 3, 4, 5)[-1]
    assert world.round.split == sha256(encode(closed)).digest() == split_name(closed)


def test_other_keys_sharers_or_members_have_other_names() -> None:
    keys = [world.round.keys[Seat(seat)] for world in [sharing()] for seat in (1, 2, 3)]
    closed = m.KeysClosed(1, (Seat(1), Seat(2), Seat(3)), 3, 9, 5)
    names = {
        session_name(SEED, keys, closed),
        session_name(bytes(32), keys, closed),
        session_name(SEED, keys[:2], closed),
        session_name(SEED, [*keys[:2], replace(keys[2], mask_key=keys[2].seal_key)], closed),
        session_name(SEED, keys, replace(closed, quorum=2)),
        sharing_name(m.SharesClosed(1, (Seat(1), Seat(2)), 9, 5)),
        sharing_name(m.SharesClosed(1, (Seat(1), Seat(3)), 9, 5)),
        split_name(f.RoundClosed(1, (Seat(1), Seat(2)), 5)),
        split_name(f.RoundClosed(1, (Seat(1), Seat(3)), 5)),
        split_name(f.RoundClosed(2, (Seat(1), Seat(3)), 5)),
    }
    assert len(names) == 10


# ---- keys ---------------------------------------------------------------------------


def test_the_same_keys_again_are_old_news_and_others_are_refused() -> None:
    world = five(keying)
    world.keys(1)
    assert world.keys(1) == ()
    with pytest.raises(AlreadySubmittedError):
        world.keys(1, name="others")
    world.keys(2, 3, 4, 5)
    assert world.keys(1) == (), "its reply was lost, and meanwhile the keys were closed"
    with pytest.raises(AlreadySubmittedError):
        world.keys(1, name="others")


@pytest.mark.parametrize("part", ["mask_key", "seal_key", "commitment", "signature"])
def test_keys_of_another_length_are_refused(part: str) -> None:
    world = keying()
    with pytest.raises(InvalidInputError):
        world.give(replace(keys_of(1, 1, START_MS), **{part: bytes(31)}))


def test_no_two_keys_are_the_same() -> None:
    world = keying()
    world.keys(1)
    first, second = keys_of(1, 1, START_MS), keys_of(1, 2, START_MS)
    for copied in (
        replace(second, mask_key=second.seal_key),
        replace(second, mask_key=first.mask_key),
        replace(second, mask_key=first.seal_key),
        replace(second, seal_key=first.mask_key),
        replace(second, seal_key=first.seal_key),
    ):
        with pytest.raises(InvalidInputError):
            world.give(copied)
    assert kinds(world.give(second)) == [m.KeysReceived]


def test_keys_count_in_one_round_alone() -> None:
    world = keying()
    world.keys(1, 2)
    world.give(i.CancelRound(1, START_MS))
    world.now_ms += MASKED.retry_ms
    world.open()
    assert not world.round.keys and not world.round.named
    with pytest.raises(DeadlineExpiredError):
        world.give(keys_of(1, 3, world.now_ms))
    assert world.give(keys_of(1, 1, world.now_ms)) == (), "old news about the ended round"
    with pytest.raises(WrongRoundError):
        world.give(keys_of(3, 1, world.now_ms))
    assert not world.round.keys


def test_keys_of_strangers_are_refused() -> None:
    world = ready(sites=5, terms=replace(MASKED, target=4))
    world.open()
    (outsider,) = world.state.roster.members.keys() - world.round.invited.keys()
    for seat in (int(outsider), 9):
        with pytest.raises(UnauthorizedClientError):
            world.keys(seat)
    world.dismiss(next(iter(world.round.invited)))
    gone = next(iter(world.round.fallen))
    with pytest.raises(UnauthorizedClientError):
        world.keys(int(gone))


def test_keys_are_taken_while_they_are_asked_for() -> None:
    with pytest.raises(DeadlineExpiredError):
        training().keys(1)
    world = five(keying)
    world.keys(1, 2, 3, 4)
    world.tick(LATE_MS)
    assert world.round.step is Step.SHARING
    with pytest.raises(DeadlineExpiredError):
        world.keys(5)
    assert world.round.fallen == {5: f.Failure.ABSENT}


def test_simulated_sites_have_no_keys_and_no_cohort_is_masked() -> None:
    world = ready(sites=0, terms=MASKED)
    world.give(i.AdmitCohort(4, START_MS))
    world.open()
    with pytest.raises(InvalidInputError):
        world.keys(1)
    given = keys_of(1, 1, START_MS)
    forged = m.KeysReceived(
        1, Seat(1), given.mask_key, given.seal_key, given.commitment, given.signature, START_MS
    )
    assert not is_legal(world.state, forged)
    world = masked_training()
    cohort = (Seat(1), Seat(2))
    with pytest.raises(InvalidInputError):
        world.give(i.TrainedCohort(1, cohort, 1.0, digest("partial"), START_MS))
    assert not is_legal(world.state, f.CohortTrained(1, cohort, 1.0, digest("partial"), START_MS))


# ---- shares -------------------------------------------------------------------------


def test_the_same_shares_again_are_old_news_and_others_are_refused() -> None:
    world = five(sharing)
    world.share(1)
    assert world.share(1) == ()
    with pytest.raises(AlreadySubmittedError):
        world.share(1, name="others")
    world.share(2, 3, 4, 5)
    assert world.share(1) == ()


def test_shares_are_taken_while_they_are_asked_for() -> None:
    world = five(keying)
    with pytest.raises(DeadlineExpiredError):
        world.share(1)
    world.keys(1, 2, 3, 4, 5)
    world.share(1, 2, 3, 4)
    world.tick(LATE_MS)
    assert world.round.step is Step.TRAINING
    with pytest.raises(DeadlineExpiredError):
        world.share(5)
    assert list(world.round.sharers) == [1, 2, 3, 4]
    assert world.round.keys.keys() == {1, 2, 3, 4, 5}, "the session stays what it was"
    with pytest.raises(UnauthorizedClientError):
        world.share(9)


def test_who_did_not_share_cannot_send() -> None:
    world = five(sharing)
    world.share(1, 2, 3, 4)
    world.tick(LATE_MS)
    with pytest.raises(AlreadySubmittedError):
        world.submit(5)
    assert not may_send(world.state, Seat(5))
    assert may_send(world.state, Seat(4))


# ---- the split ----------------------------------------------------------------------


def test_nothing_is_asked_before_the_split_is_on_record_and_signed() -> None:
    world = five(keying)
    for step in (world.keys, world.share, world.send):
        step(1, 2, 3, 4)
        assert d.Unmask not in asked(world).values() and world.round.split is None
        step(5)
    assert asked(world) == dict.fromkeys((1, 2, 3, 4, 5), d.Agree)
    split = world.round.split
    assert split is not None
    assert owed_by(world.state, Seat(1)) == d.Agree(1, Seat(1), split, START_MS + PHASE_MS)
    world.agree(1, 2, 3)
    assert asked(world) == dict.fromkeys((4, 5), d.Agree), "three of five are too few"
    world.agree(4)
    assert asked(world) == dict.fromkeys((1, 2, 3, 4, 5), d.Unmask), "also of who has not signed"
    duties = [owed_by(world.state, Seat(seat)) for seat in (1, 2)]
    assert duties[0] == d.Unmask(1, Seat(1), world.round.split, START_MS + PHASE_MS)  # type: ignore[arg-type]
    assert duties[1] is not None and duties[1].deadline_ms == START_MS + PHASE_MS


def test_late_update_is_in_no_sum_and_changes_no_split() -> None:
    world = five(masked_training)
    world.send(1, 2, 3, 4)
    world.tick(START_MS + FIVE.duration_ms + 1)
    assert world.round.step is Step.AGREEING
    split = world.round.split
    for make in (world.submit, world.agree, world.answer):
        with pytest.raises(Refusal):
            make(5)
    world.agree()
    world.answer(1, 2, 3)
    world.answer(4)
    assert world.round.split == split and list(world.round.members) == [1, 2, 3, 4]
    assert not is_legal(world.state, f.RoundClosed(1, (Seat(1),), START_MS))


def test_update_received_and_not_checked_in_time_is_dropped() -> None:
    world = five(masked_training)
    world.send(1, 2, 3, 4)
    world.submit(5)
    world.tick(START_MS + FIVE.duration_ms + FIVE.grace_ms + 1)
    assert world.round.step is Step.AGREEING and list(world.round.members) == [1, 2, 3, 4]
    world.check(5)
    assert list(world.round.members) == [1, 2, 3, 4]
    found = receipt(world.state, 1, Seat(5))
    assert found is not None and found.status is Status.NOT_COUNTED


def test_round_closes_with_the_sessions_quorum_and_not_with_the_plans() -> None:
    world = five(masked_training)
    assert world.round.quorum == 4
    world.send(1, 2, 3)
    late_ms = START_MS + FIVE.duration_ms + 1
    (extended,) = world.tick(late_ms)
    assert isinstance(extended, f.DeadlineExtended), "three of five are too few"
    failed = world.tick(extended.deadline_ms + 1)
    assert kinds(failed) == [f.RoundFailed]
    assert failed[0].reason is f.RoundEnd.NO_QUORUM


def test_site_that_fails_while_it_trains_is_dropped_and_no_backup_comes() -> None:
    terms = replace(MASKED, target=4, wait_for=4)
    world = ready(sites=6, terms=terms)
    world.open()
    world.keys(*world.round.invited)
    world.share(*world.round.invited)
    first, second, *rest = world.round.invited
    assert kinds(world.fail(first)) == [f.SiteDropped]
    assert first in world.round.sharers and first in world.round.keys
    facts = world.fail(second)
    assert kinds(facts) == [f.SiteDropped, f.RoundFailed], "two of four are too few"
    assert len(rest) == 2


# ---- signatures ---------------------------------------------------------------------


def test_the_same_signature_again_is_old_news_and_another_is_refused() -> None:
    world = agreeing()
    world.agree(1)
    assert world.agree(1) == ()
    with pytest.raises(AlreadySubmittedError):
        world.agree(1, name="others")
    world.agree(2, 3)
    assert world.agree(1) == ()
    assert list(world.round.agreed) == [1, 2, 3]


def test_who_signs_after_enough_others_is_not_turned_away_and_answers() -> None:
    """A site that is refused leaves the round, and then there may be too few to answer."""
    world = agreeing()
    world.agree(1, 2, 3)
    assert world.agree(4) == () and 4 not in world.round.consents
    assert isinstance(owed_by(world.state, Seat(4)), d.Unmask)
    world.answer(4, 1, 2)
    with pytest.raises(NotNeededError):
        world.agree(4)


def test_only_members_sign_and_with_a_whole_signature() -> None:
    world = five(masked_training)
    with pytest.raises(DeadlineExpiredError):
        world.agree(1)
    world.fail(5)
    world.send(1, 2, 3, 4)
    for seat in (5, 9):
        with pytest.raises(UnauthorizedClientError):
            world.agree(seat)
    with pytest.raises(InvalidInputError):
        world.give(i.GiveConsent(1, Seat(1), bytes(63), START_MS))


def test_round_fails_when_members_do_not_sign_the_same() -> None:
    world = five(agreeing)
    world.agree(1, 2, 3)
    assert world.tick(START_MS + PHASE_MS) == ()
    assert world.tick(LATE_MS)[0].reason is f.RoundEnd.NOT_AGREED, "three of five are too few"


def test_forged_signatures_are_not_legal() -> None:
    world = five(agreeing)
    world.agree(1, 2, 3)
    fine = m.ConsentReceived(1, Seat(4), bytes(64), START_MS)
    assert is_legal(world.state, fine)
    assert not is_legal(world.state, replace(fine, seat=Seat(1)))
    assert not is_legal(world.state, replace(fine, seat=Seat(9)))
    closed = m.ConsentsClosed(1, seats(1, 2, 3), LATE_MS, START_MS)
    assert not is_legal(world.state, closed), "three of five are too few"
    four = world.state.clone()
    assert four.round is not None
    four.round.consents[Seat(4)] = fine
    assert is_legal(four, replace(closed, seats=seats(1, 2, 3, 4)))
    assert not is_legal(four, closed), "all who signed are in it"


# ---- answers ------------------------------------------------------------------------


def test_the_same_answer_again_is_old_news_and_another_is_refused() -> None:
    world = unmasking()
    world.answer(1)
    assert world.answer(1) == ()
    with pytest.raises(AlreadySubmittedError):
        world.answer(1, name="others")
    world.answer(2, 3)
    assert world.round.step is Step.SUMMING
    assert world.answer(1) == ()
    with pytest.raises(NotNeededError):
        world.answer(4)
    assert list(world.round.lifters) == [1, 2, 3]


def test_only_members_answer() -> None:
    world = five(masked_training)
    with pytest.raises(DeadlineExpiredError):
        world.answer(1)
    world.fail(5)
    world.send(1, 2, 3, 4)
    for seat in (5, 9):
        with pytest.raises(UnauthorizedClientError):
            world.answer(seat)
        assert owed_by(world.state, Seat(seat)) is None


def test_members_who_do_not_answer_are_not_waited_for_longer_than_a_phase() -> None:
    world = five(unmasking)
    world.answer(1, 2, 3)
    assert world.tick(START_MS + PHASE_MS) == ()
    failed = world.tick(LATE_MS)
    assert failed[0].reason is f.RoundEnd.NOT_ANSWERED, "three of five cannot give a seed back"


def test_among_many_sites_enough_answers_close_at_the_deadline() -> None:
    world = five(unmasking)
    fact = next(iter(world.round.keys.values()))
    world.answer(1, 2, 3)
    # As if they were the answers of two thirds of many.
    world.round.keys = dict.fromkeys(map(Seat, range(1, 5)), fact)
    (closed,) = decide(world.state, i.Tick(LATE_MS))
    assert closed == m.AnswersClosed(1, (Seat(1), Seat(2), Seat(3)), LATE_MS)


# ---- time ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [keying, sharing, agreeing, unmasking])
def test_phase_ends_after_its_deadline_and_not_at_it(make: Any) -> None:
    world = five(make)
    assert owed(world.state) == (d.WakeAt(LATE_MS),)
    assert world.tick(START_MS + PHASE_MS) == ()
    (failed,) = world.tick(LATE_MS)
    later = {agreeing: f.RoundEnd.NOT_AGREED, unmasking: f.RoundEnd.NOT_ANSWERED}
    assert failed.reason is later.get(make, f.RoundEnd.NO_QUORUM)


@pytest.mark.parametrize("make", [keying, sharing, agreeing, unmasking])
def test_sites_have_the_whole_of_a_phase_after_the_coordinator_was_down(make: Any) -> None:
    world = five(make)
    awake_ms = LATE_MS + 10 * PHASE_MS
    assert world.give(i.Tick(awake_ms, awake_ms)) == ()
    assert world.give(i.Tick(awake_ms + PHASE_MS, awake_ms)) == ()
    world.now_ms = awake_ms + PHASE_MS
    gives = {keying: world.keys, sharing: world.share, agreeing: world.agree}
    give = gives.get(make, world.answer)
    needed = (1, 2, 3, 4) if make in (agreeing, unmasking) else (1, 2, 3, 4, 5)
    closings = (m.KeysClosed, m.SharesClosed, m.ConsentsClosed, m.AnswersClosed)
    assert kinds(give(*needed))[-1] in closings
    other = five(make)
    assert kinds(other.give(i.Tick(awake_ms + PHASE_MS + 1, awake_ms))) == [f.RoundFailed]


# ---- who falls out ------------------------------------------------------------------


@pytest.mark.parametrize("leave", [World.fail, World.dismiss])
def test_site_that_falls_out_with_its_keys_is_not_in_the_session(leave: Any) -> None:
    world = five(keying)
    world.keys(1, 2, 3)
    leave(world, 2)
    assert world.round.keys.keys() == {1, 3} and 2 not in world.round.waiting
    assert kinds(world.keys(4)) == [m.KeysReceived]
    assert kinds(world.keys(5)) == [m.KeysReceived, m.KeysClosed]
    assert world.round.keys.keys() == {1, 3, 4, 5} and world.round.quorum == 3


@pytest.mark.parametrize("leave", [World.fail, World.dismiss])
def test_last_site_without_keys_falls_out_and_the_others_go_on(leave: Any) -> None:
    world = five(keying)
    world.keys(1, 2, 3, 4)
    assert kinds(leave(world, 5))[-1] is m.KeysClosed
    assert world.round.step is Step.SHARING


@pytest.mark.parametrize("leave", [World.fail, World.dismiss])
def test_site_that_falls_out_while_sharing_stays_part_of_the_session(leave: Any) -> None:
    world = five(sharing)
    world.share(1, 2)
    leave(world, 2)
    assert world.round.keys.keys() == {1, 2, 3, 4, 5}
    assert world.round.shares.keys() == {1}
    assert kinds(world.share(3, 4, 5))[-1] is m.SharesClosed
    assert list(world.round.sharers) == [1, 3, 4, 5]
    assert world.round.named[Seat(2)] == "s2"


@pytest.mark.parametrize("leave", [World.fail, World.dismiss])
def test_last_site_without_shares_falls_out_and_the_others_train(leave: Any) -> None:
    world = five(sharing)
    world.share(1, 2, 3, 4)
    assert kinds(leave(world, 5))[-1] is m.SharesClosed
    assert world.round.step is Step.TRAINING


@pytest.mark.parametrize("leave", [World.fail, World.dismiss])
@pytest.mark.parametrize("make", [keying, sharing])
def test_round_fails_when_a_quorum_cannot_come_any_more(make: Any, leave: Any) -> None:
    world = make(3)
    facts = leave(world, 1)
    assert facts[-1].reason is f.RoundEnd.NO_QUORUM


@pytest.mark.parametrize("make", [keying, sharing])
def test_who_has_fallen_out_is_heard_no_more(make: Any) -> None:
    world = five(make)
    world.fail(1)
    assert world.fail(1) == ()
    world.dismiss(2)
    with pytest.raises(UnauthorizedClientError):
        world.fail(2)
    assert owed_by(world.state, Seat(1)) is None
    assert kinds(world.dismiss(1)) == [f.SiteDeparted], "it is not waited for: nothing follows"


def test_site_is_revoked_while_it_trains_and_its_update_is_not_in_the_sum() -> None:
    world = five(masked_training)
    world.send(1, 2)
    world.dismiss(2)
    world.send(3, 4, 5)
    assert list(world.round.members) == [1, 3, 4, 5]
    assert 2 in world.round.sharers, "its masks are in what others sent"


@pytest.mark.parametrize("make", [agreeing, unmasking, masked_summing])
def test_member_revoked_after_the_split_ends_the_round(make: Any) -> None:
    world = make()
    split, members = world.round.split, list(world.round.members)
    facts = world.dismiss(2)
    assert kinds(facts) == [f.SiteDeparted, f.RoundFailed]
    assert facts[-1].reason is f.RoundEnd.MEMBER_REVOKED
    ended = world.state.ended
    assert ended is not None and (ended.split, list(ended.members)) == (split, members)


@pytest.mark.parametrize("has_answers", [False, True])
def test_dropped_site_revoked_after_the_split_changes_nothing(has_answers: bool) -> None:
    world = five(masked_training)
    world.fail(5)
    world.send(1, 2, 3, 4)
    world.agree()
    if has_answers:
        world.answer(1, 2, 3, 4)
    split = world.round.split
    assert kinds(world.dismiss(5)) == [f.SiteDeparted]
    assert world.round.split == split
    if not has_answers:
        world.answer(1, 2, 3, 4)
    world.finish_round()
    assert world.state.current == 1


def test_failure_after_the_split_is_not_heard() -> None:
    world = unmasking()
    assert world.fail(1) == ()
    assert list(world.round.members) == [1, 2, 3, 4]


# ---- who is asked, and has answered -------------------------------------------------


def test_sites_are_asked_for_what_is_open() -> None:
    world = keying()
    assert asked(world) == dict.fromkeys((1, 2, 3, 4), d.JoinSum)
    join = owed_by(world.state, Seat(1))
    plan, task = digest("plan"), digest("task")
    base = digest("model 0")
    assert join == d.JoinSum(1, Seat(1), base, None, plan, task, START_MS + PHASE_MS)
    world.keys(1)
    assert asked(world) == dict.fromkeys((2, 3, 4), d.JoinSum)
    world.keys(2, 3, 4)
    assert asked(world) == dict.fromkeys((1, 2, 3, 4), d.Share)
    assert world.round.session is not None
    share = owed_by(world.state, Seat(2))
    assert share == d.Share(1, Seat(2), world.round.session, START_MS + PHASE_MS)
    world.share(2, 3, 4)
    assert asked(world) == {1: d.Share}
    world.share(1)
    assert asked(world) == dict.fromkeys((1, 2, 3, 4), d.Train)
    train = owed_by(world.state, Seat(3))
    assert isinstance(train, d.Train) and train.sharing == world.round.sharing
    assert not train.is_urgent and train.deadline_ms == START_MS + MASKED.duration_ms
    world.send(1, 2, 3, 4)
    world.agree(2)
    assert asked(world) == dict.fromkeys((1, 3, 4), d.Agree)
    world.agree(1, 4)
    world.answer(2)
    assert asked(world) == dict.fromkeys((1, 3, 4), d.Unmask)
    world.answer(1, 3)
    assert asked(world) == {}


def test_plain_invitation_names_nobody_who_masks() -> None:
    train = owed_by(training().state, Seat(1))
    assert isinstance(train, d.Train) and train.sharing is None


def test_site_has_answered_once_it_gave_what_the_step_asks_for() -> None:
    world = five(keying)
    seat, outsider = Seat(1), Seat(9)
    for step in (world.keys, world.share):
        assert not has_answered(world.state, seat)
        step(1)
        assert has_answered(world.state, seat) and not has_answered(world.state, Seat(2))
        assert not has_answered(world.state, outsider)
        step(2, 3, 4, 5)
    assert not has_answered(world.state, seat)
    world.send(1)
    assert has_answered(world.state, seat)
    world.fail(5)
    world.send(2, 3, 4)
    assert not has_answered(world.state, seat)
    world.agree(1)
    assert has_answered(world.state, seat) and not has_answered(world.state, Seat(2))
    world.agree(2, 3, 4)
    assert not has_answered(world.state, seat)
    world.answer(1)
    assert has_answered(world.state, seat) and not has_answered(world.state, Seat(5))
    world.answer(2, 3, 4)
    assert has_answered(world.state, seat)


def test_updates_are_sent_while_sites_train() -> None:
    for make, is_open in ((keying, False), (sharing, False), (unmasking, False)):
        assert may_send(make().state, Seat(1)) is is_open
    assert may_send(masked_training().state, Seat(1))


# ---- what a verifier refuses --------------------------------------------------------


def _keys_fact(number: int = 1, seat: int = 1, name: str = "") -> m.KeysReceived:
    given = keys_of(number, seat, START_MS, name)
    parts = given.mask_key, given.seal_key, given.commitment, given.signature
    return m.KeysReceived(number, Seat(seat), *parts, START_MS)


def test_forged_keys_are_not_legal() -> None:
    world = five(keying)
    world.keys(1)
    fine = _keys_fact(seat=2)
    assert is_legal(world.state, fine)
    for forged in (
        _keys_fact(seat=1, name="again"),
        _keys_fact(seat=9),
        replace(fine, seal_key=fine.mask_key),
        replace(fine, mask_key=world.round.keys[Seat(1)].seal_key),
    ):
        assert not is_legal(world.state, forged)


def seats(*numbers: int) -> tuple[Seat, ...]:
    return tuple(map(Seat, numbers))


def test_session_of_others_than_gave_keys_or_with_a_low_quorum_is_not_legal() -> None:
    world = five(keying)
    world.keys(1, 2, 3, 4)
    fine = m.KeysClosed(1, seats(1, 2, 3, 4), 3, LATE_MS, START_MS)
    assert is_legal(world.state, fine)
    for forged in (
        replace(fine, seats=seats(1, 2, 3)),
        replace(fine, seats=seats(1, 2, 3, 4, 5)),
        replace(fine, quorum=2),
        replace(fine, quorum=5),
    ):
        assert not is_legal(world.state, forged)
    strict = training(5, replace(FIVE, quorum=4, wait_for=4))
    strict.keys(1, 2, 3, 4)
    assert not is_legal(strict.state, fine), "the plan's own quorum is four"
    six = training(6, replace(MASKED, target=6))
    six.keys(1, 2, 3, 4, 5)
    assert not is_legal(six.state, replace(fine, seats=seats(1, 2, 3, 4, 5), quorum=2))
    six.round.keys[Seat(6)] = _keys_fact(seat=6)
    assert not is_legal(six.state, replace(fine, seats=seats(1, 2, 3, 4, 5, 6))), "half of them"


def test_forged_shares_and_lists_of_sharers_are_not_legal() -> None:
    world = five(sharing)
    world.share(1, 2, 3, 4)
    fine = m.SharesReceived(1, Seat(5), digest("x"), None, START_MS)
    assert is_legal(world.state, fine)
    assert not is_legal(world.state, replace(fine, seat=Seat(1)))
    assert not is_legal(world.state, replace(fine, seat=Seat(9)))
    closed = m.SharesClosed(1, seats(1, 2, 3, 4), LATE_MS, START_MS)
    assert is_legal(world.state, closed)
    assert not is_legal(world.state, replace(closed, seats=seats(1, 2, 3)))
    few = five(sharing)
    few.share(1, 2, 3)
    assert not is_legal(few.state, replace(closed, seats=seats(1, 2, 3))), "four are a quorum"


def test_forged_answers_are_not_legal() -> None:
    world = five(unmasking)
    world.answer(1, 2)
    fine = m.AnswerReceived(1, Seat(3), digest("x"), None, START_MS)
    assert is_legal(world.state, fine)
    assert not is_legal(world.state, replace(fine, seat=Seat(1)))
    assert not is_legal(world.state, replace(fine, seat=Seat(9)))
    assert not is_legal(world.state, m.AnswersClosed(1, seats(1, 2), START_MS)), "two of five"
    world.answer(3)
    assert not is_legal(world.state, m.AnswersClosed(1, seats(1, 2, 3), START_MS)), "three of five"
    four = world.state.clone()
    assert four.round is not None
    four.round.answers[Seat(4)] = digest("x")
    assert is_legal(four, m.AnswersClosed(1, seats(1, 2, 3, 4), START_MS))
    assert not is_legal(four, m.AnswersClosed(1, seats(1, 2, 3), START_MS))


def test_second_closing_is_not_legal() -> None:
    world = unmasking()
    for members in (seats(1, 2, 3), seats(1, 2, 3, 4)):
        assert not is_legal(world.state, f.RoundClosed(1, members, START_MS))
    assert not is_legal(world.state, f.MemberRemoved(1, Seat(1), START_MS))


def test_every_site_may_have_the_smallest_session() -> None:
    terms: Terms = replace(MASKED, target=3)
    world = unmasking(3, terms)
    assert world.round.quorum == 3 and answers_needed(world.round) == 2
    world.answer(1, 2)
    world.finish_round()
    assert world.state.current == 1
