"""Planted bugs of secret sums, at the coordinator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import owing, secagg
from consortium.core import round as rounds
from consortium.core import secagg_facts as m
from consortium.core.ids import Seat
from consortium.core.names import sharing_name, split_name
from consortium.core.roster import eligible
from consortium.core.secagg import two_thirds
from consortium.core.state import Federation, Round
from consortium.core.tables import MASKED_ROUND, Step
from consortium.core.terms import Terms
from consortium.errors import DeadlineExpiredError, UnauthorizedClientError
from consortium.testing import rules_of_masking
from consortium.testing.federations import MASKED, MASKED_TWICE, SHARED, SHORT_MASKED
from consortium.testing.patches import Bug, Facts, Patches, Wrapper, believing, nothing

# ---- the split ----------------------------------------------------------------------


def _readmit_late(patches: Patches) -> None:
    """The classic leak: a late update comes in after the split, which is made again."""

    def submit(real: Wrapper, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        try:
            return real(state, terms, item)  # type: ignore[no-any-return]
        except DeadlineExpiredError:
            present = state.round
            is_late = present is not None and present.step is Step.UNMASKING
            if present is None or not is_late or item.seat not in present.waiting:
                raise
        number, members = item.round, tuple(sorted({*present.members, item.seat}))
        received = f.UpdateReceived(number, item.seat, item.update, None, item.now_ms)
        accepted = f.UpdateAccepted(number, item.seat, None, None, item.now_ms)
        return (received, accepted, f.RoundClosed(number, members, item.now_ms))

    patches.rule(i.Submit, submit)
    for kind in (f.UpdateReceived, f.UpdateAccepted, f.RoundClosed):
        patches.move(MASKED_ROUND, (Step.UNMASKING, kind), Step.UNMASKING)


def _split_again(patches: Patches) -> None:
    """A member does not answer: those who did are taken for the members."""

    def tick(real: Wrapper, state: Federation, item: i.Tick) -> Facts:
        present = state.round
        facts: Facts = real(state, item)
        is_late = present is not None and present.step is Step.UNMASKING and bool(facts)
        if present is None or not is_late or not 1 < len(present.answers) < len(present.members):
            return facts
        return (f.RoundClosed(present.number, tuple(sorted(present.answers)), item.now_ms),)

    patches.rule(i.Tick, tick)
    patches.move(MASKED_ROUND, (Step.UNMASKING, f.RoundClosed), Step.UNMASKING)


def _accept_after_the_split(patches: Patches) -> None:
    """An update that came in time is found good when the split is on record, and let in."""

    def check(real: Wrapper, state: Federation, terms: Terms, item: i.Checked) -> Facts:
        present = state.round
        is_late = present is not None and present.step is Step.UNMASKING
        if present is None or not is_late or item.seat not in present.unchecked:
            return real(state, terms, item)  # type: ignore[no-any-return]
        members = tuple(sorted({*present.members, item.seat}))
        accepted = f.UpdateAccepted(item.round, item.seat, item.weight, item.norm, item.now_ms)
        return (accepted, f.RoundClosed(item.round, members, item.now_ms))

    patches.rule(i.Checked, check)
    for kind in (f.UpdateAccepted, f.RoundClosed):
        patches.move(MASKED_ROUND, (Step.UNMASKING, kind), Step.UNMASKING)


def _rename_the_split(patches: Patches) -> None:
    """Every answer makes the split anew, by the time of day."""

    def record(real: Wrapper, state: Federation, fact: m.AnswerReceived) -> None:
        real(state, fact)
        one = state.round
        assert one is not None
        one.split = split_name(f.RoundClosed(one.number, tuple(one.members), fact.at_ms))

    patches.record(m.AnswerReceived, record)


def _take_revoked_member_out(patches: Patches) -> None:
    """As in a plain round: the others are summed without it."""

    def depart(real: Wrapper, terms: Terms, open_round: Round, seat: Seat, now_ms: int) -> Facts:
        is_enough = len(open_round.members) > open_round.quorum
        is_asked = open_round.step is not Step.AGREEING
        if seat in open_round.members and is_enough and is_asked:
            return (f.MemberRemoved(open_round.number, seat, now_ms),)
        facts: Facts = real(terms, open_round, seat, now_ms)
        return facts

    patches.attribute(secagg, "depart_member", depart)
    for step in (Step.UNMASKING, Step.SUMMING):
        patches.move(MASKED_ROUND, (step, f.MemberRemoved), step)


def _forget_revoked_member(patches: Patches) -> None:
    patches.attribute(secagg, "depart_member", nothing)


def _count_dropped(patches: Patches) -> None:
    """Everybody who shared is a member, whether its update came or not."""

    def record(real: Wrapper, state: Federation, fact: f.RoundClosed) -> None:
        real(state, fact)
        one = state.round
        if one is not None and one.split is not None:
            one.members = dict.fromkeys(sorted(one.sharers))

    patches.record(f.RoundClosed, record)


def _close_below_quorum(patches: Patches) -> None:
    """At the deadline, with whoever has answered."""

    def tick(real: Wrapper, state: Federation, item: i.Tick) -> Any:
        is_training = state.round is not None and state.round.step is Step.TRAINING
        return real(believing(state, quorum=2) if is_training else state, item)

    patches.rule(i.Tick, tick)


def _ask_before_the_split(patches: Patches) -> None:
    """Whoever has sent its update is asked at once, by those who are accepted so far."""

    def unmask(real: Wrapper, state: Federation, seat: Seat) -> Any:
        one = state.round
        is_early = one is not None and one.step is Step.TRAINING and seat in one.accepted
        if one is None or not is_early or len(one.accepted) < one.quorum:
            return real(state, seat)
        early = believing(state, step=Step.UNMASKING, members=one.accepted.copy())
        assert early.round is not None
        closed = f.RoundClosed(one.number, tuple(sorted(one.accepted)), 0)
        early.round.split = split_name(closed)
        return real(early, seat)

    patches.attribute(rules_of_masking, "owed_by", unmask)


# ---- keys and shares ----------------------------------------------------------------


def _reuse_keys(patches: Patches) -> None:
    """Keys of the last round are still there when the next one opens."""

    def record(real: Wrapper, state: Federation, fact: f.RoundOpened) -> None:
        real(state, fact)
        if state.ended is not None and state.round is not None:
            state.round.keys = state.ended.keys.copy()
            state.round.named = state.ended.named.copy()

    patches.record(f.RoundOpened, record)


def _take_keys_of_another_round(patches: Patches) -> None:
    def give(real: Wrapper, state: Federation, terms: Terms, item: i.GiveKeys) -> Any:
        number = state.round.number if state.round else item.round
        return real(state, terms, replace(item, round=number))

    patches.rule(i.GiveKeys, give)


def _take_copied_keys(patches: Patches) -> None:
    patches.attribute(secagg, "_keys_of", lambda real, asked: set())


def _swap_keys(patches: Patches) -> None:
    """Whoever gives other keys is believed."""

    def give(real: Wrapper, state: Federation, terms: Terms, item: i.GiveKeys) -> Any:
        one = state.round
        held = one.keys.get(item.seat) if one is not None else None
        if one is None or held is None or one.step is not Step.KEYING:
            return real(state, terms, item)
        if held.mask_key == item.mask_key:
            return ()
        keys = {seat: kept for seat, kept in one.keys.items() if seat != item.seat}
        return real(believing(state, keys=keys), terms, item)

    patches.rule(i.GiveKeys, give)


def _invite_backups(patches: Patches) -> None:
    """As in a plain round: who is missing is replaced, by somebody without keys."""

    def backups(
        real: Wrapper, state: Federation, terms: Terms, open_round: Round, missing: int, now_ms: int
    ) -> Any:
        pool = [x for x in eligible(state.roster, terms, now_ms) if x not in open_round.invited]
        if missing <= 0 or not pool:
            return None
        return f.BackupsInvited(open_round.number, tuple(pool[:missing]), now_ms)

    patches.attribute(rounds, "_backups", backups)
    patches.move(MASKED_ROUND, (Step.TRAINING, f.BackupsInvited), Step.TRAINING)


def _change_sharers(patches: Patches) -> None:
    """Who falls out while it trains is taken off the list that others masked by."""

    def fall(real: Wrapper, one: Round, seat: Seat, why: Any) -> None:
        real(one, seat, why)
        if one.sharing is not None and one.split is None:
            one.sharers.pop(seat, None)
            closed = m.SharesClosed(one.number, tuple(sorted(one.sharers)), one.deadline_ms, 0)
            one.sharing = sharing_name(closed)

    patches.attribute(Round, "fall", fall)


def _forget_keys_of_the_fallen(patches: Patches) -> None:
    """Whoever falls out while sharing is taken out of the session too."""

    def fall(real: Wrapper, one: Round, seat: Seat, why: Any) -> None:
        real(one, seat, why)
        if one.step is Step.SHARING:
            one.keys.pop(seat, None)

    patches.attribute(Round, "fall", fall)


def _go_on_without_shares(patches: Patches) -> None:
    """The next step begins with whoever gave something, be it too few."""

    def close(real: Wrapper, terms: Terms, asked: Round, seats: set[Seat], now_ms: int) -> Any:
        few = asked.clone()
        few.quorum = 2
        return real(terms, few, seats, now_ms)

    patches.attribute(secagg, "_close_shares", close)


# ---- answers and time ---------------------------------------------------------------


def _let_anybody_sign(patches: Patches) -> None:
    """Whoever was invited counts among those who signed."""

    def give(real: Wrapper, state: Federation, terms: Terms, item: i.GiveConsent) -> Any:
        one = state.round
        if one is None or one.step is not Step.AGREEING or item.seat not in one.invited:
            return real(state, terms, item)
        members = {**one.members, item.seat: None}
        return real(believing(state, members=members), terms, item)

    patches.rule(i.GiveConsent, give)


def _ask_with_few_signatures(patches: Patches) -> None:
    """Half of the members are enough to go on: others may have been told something else."""

    def give(real: Wrapper, state: Federation, terms: Terms, item: i.GiveConsent) -> Any:
        one = state.round
        if one is None or one.step is not Step.AGREEING:
            return real(state, terms, item)
        keys = dict(list(one.keys.items())[: len(one.keys) - 2])
        return real(believing(state, keys=keys), terms, item)

    patches.rule(i.GiveConsent, give)


def _skip_the_signatures(patches: Patches) -> None:
    """Members are asked as soon as the split is on record."""
    patches.move(MASKED_ROUND, (Step.TRAINING, f.RoundClosed), Step.UNMASKING)


def _replace_signature(patches: Patches) -> None:
    def give(real: Wrapper, state: Federation, terms: Terms, item: i.GiveConsent) -> Any:
        one = state.round
        held = one.consents.get(item.seat) if one is not None else None
        if one is None or held is None or one.step is not Step.AGREEING:
            return real(state, terms, item)
        if held.signature == item.signature:
            return ()
        consents = {seat: kept for seat, kept in one.consents.items() if seat != item.seat}
        return real(believing(state, consents=consents), terms, item)

    patches.rule(i.GiveConsent, give)


def _refuse_late_signature(patches: Patches) -> None:
    """Whoever signs when enough others have is turned away, and answers for nobody."""

    def give(real: Wrapper, state: Federation, terms: Terms, item: i.GiveConsent) -> Any:
        one, facts = state.round, real(state, terms, item)
        is_late = one is not None and one.step is Step.UNMASKING and not facts
        if one is not None and is_late and item.seat not in one.consents:
            raise DeadlineExpiredError("this round does not wait for this any more")
        return facts

    patches.rule(i.GiveConsent, give)


def _go_on_without_agreement(patches: Patches) -> None:
    """When time is over, members are asked with as many signatures as there are."""

    def tick(real: Wrapper, terms: Terms, open_round: Round, item: i.Tick) -> Any:
        facts = real(terms, open_round, item)
        if open_round.step is not Step.AGREEING or not facts or not open_round.consents:
            return facts
        seats, by_ms = tuple(sorted(open_round.consents)), item.now_ms + terms.duration_ms
        return (m.ConsentsClosed(open_round.number, seats, by_ms, item.now_ms),)

    patches.attribute(secagg, "tick", tick)


def _let_anybody_answer(patches: Patches) -> None:
    def give(real: Wrapper, state: Federation, terms: Terms, item: i.GiveAnswer) -> Any:
        one = state.round
        if one is None or one.step is not Step.UNMASKING or item.seat not in one.invited:
            return real(state, terms, item)
        try:
            return real(state, terms, item)
        except UnauthorizedClientError:
            members = {**one.members, item.seat: None}
            return real(believing(state, members=members), terms, item)

    patches.rule(i.GiveAnswer, give)


def _take_second_answer(patches: Patches) -> None:
    def give(real: Wrapper, state: Federation, terms: Terms, item: i.GiveAnswer) -> Any:
        one = state.round
        held = one.answers.get(item.seat) if one is not None else None
        if one is None or held in (None, item.answer) or one.step is not Step.UNMASKING:
            return real(state, terms, item)
        answers = {seat: kept for seat, kept in one.answers.items() if seat != item.seat}
        return real(believing(state, answers=answers), terms, item)

    patches.rule(i.GiveAnswer, give)


def _sum_with_few_answers(patches: Patches) -> None:
    def needed(real: Wrapper, open_round: Round) -> int:
        return two_thirds(len(open_round.keys)) - 1

    patches.attribute(secagg, "answers_needed", needed)


def _wait_for_ever(patches: Patches) -> None:
    patches.attribute(secagg, "tick", nothing)


def _close_at_the_deadline(patches: Patches) -> None:
    def tick(real: Wrapper, terms: Terms, open_round: Round, item: i.Tick) -> Any:
        return real(terms, open_round, replace(item, now_ms=item.now_ms + 1))

    patches.attribute(secagg, "tick", tick)


def _unmask_plainly(patches: Patches) -> None:
    """The sum is made as soon as the round has closed, masks and all."""
    patches.move(MASKED_ROUND, (Step.TRAINING, f.RoundClosed), Step.SUMMING)


def _lift_by_members(patches: Patches) -> None:
    """Whoever dropped out is forgotten, though others masked with it."""

    def lifting(real: Wrapper, state: Federation, open_round: Round, members: Any) -> Any:
        made = real(state, open_round, members)
        return replace(made, sharers=made.members)

    patches.attribute(owing, "_lifting", lifting)


BUGS = (
    Bug("a late update is let in after the split", SHARED, _readmit_late),
    Bug("an update is accepted after the split", SHARED, _accept_after_the_split),
    Bug("the split has another name after a restart", SHARED, _rename_the_split),
    Bug("the split is made again when a member does not answer", SHARED, _split_again),
    Bug("a revoked member is taken out of the split", SHARED, _take_revoked_member_out),
    Bug("a member revoked after the split is summed", SHARED, _forget_revoked_member),
    Bug("a site that dropped out counts as a member", SHARED, _count_dropped),
    Bug("a secret sum is closed below its quorum", SHARED, _close_below_quorum),
    Bug("members are asked before the split is on record", SHARED, _ask_before_the_split),
    Bug("keys of the last round are used again", MASKED_TWICE, _reuse_keys),
    Bug("keys of another round are taken", MASKED_TWICE, _take_keys_of_another_round),
    Bug("two sites have the same keys", SHORT_MASKED, _take_copied_keys),
    Bug("other keys replace the first", SHORT_MASKED, _swap_keys),
    Bug("backups are invited to a secret sum", SHORT_MASKED, _invite_backups),
    Bug("the list of sharers changes after sharing", SHARED, _change_sharers),
    Bug("the session changes while seeds are shared", MASKED, _forget_keys_of_the_fallen),
    Bug("sites train though too few have shared", MASKED, _go_on_without_shares),
    Bug("the signature of a site that is no member counts", SHARED, _let_anybody_sign),
    Bug("members are asked when too few have signed the split", SHARED, _ask_with_few_signatures),
    Bug("members are asked before anybody has signed", SHARED, _skip_the_signatures),
    Bug("a second signature replaces the first", SHARED, _replace_signature),
    Bug("who signs after enough others is turned away", SHARED, _refuse_late_signature),
    Bug("members are asked at the deadline, agreed or not", SHARED, _go_on_without_agreement),
    Bug("the answer of a site that is no member counts", SHARED, _let_anybody_answer),
    Bug("a second answer replaces the first", SHARED, _take_second_answer),
    Bug("a secret sum is made with too few answers", SHARED, _sum_with_few_answers),
    Bug("silent sites are waited for for ever", SHORT_MASKED, _wait_for_ever),
    Bug("a phase is over at its deadline (>= for >)", SHORT_MASKED, _close_at_the_deadline),
    Bug("a secret sum is made before anybody has answered", SHARED, _unmask_plainly),
    Bug("who dropped out is forgotten when masks are lifted", SHARED, _lift_by_members),
)
