"""What must hold in every state.

Rules are written a second time here, from the requirements and not from the code of the
core, so that a slip in the one is not repeated in the other. A rule returns whether it
holds; its docstring is the sentence that is printed when it does not. Rules about changes
are in `transitions`, rules about refusals and silence in `replies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from consortium.core import duties as d
from consortium.core.facts import RoundEnd
from consortium.core.federation import owed, owed_by
from consortium.core.ids import Digest, Seat
from consortium.core.state import Federation, Round
from consortium.core.tables import Standing, Step
from consortium.core.terms import Close, Terms
from consortium.testing.alphabet import STRANGER

StateRule = Callable[[Federation], bool]

_MIN_NORMS = 3
_CLOSED = (Step.SCREENING, Step.AGREEING, Step.UNMASKING, Step.SUMMING)
_EXCHANGING = (Step.KEYING, Step.SHARING)
_BEFORE_SUM = (Step.INITIALIZED, Step.SELECTING, *_EXCHANGING, Step.TRAINING, *_CLOSED)
_AFTER_CLOSING = (*_CLOSED, Step.EVALUATING, Step.JUDGING, Step.RELEASING, Step.COMPLETED)


def loud_among(norms: dict[Seat, float | None], factor: int) -> set[Seat]:
    """The seats whose norm is more than `factor` times the median of all norms."""
    known = sorted(norm for norm in norms.values() if norm is not None)
    if factor == 0 or len(known) < _MIN_NORMS:
        return set()
    middle = len(known) // 2
    median = known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2
    return {seat for seat, norm in norms.items() if norm is not None and norm > factor * median}


def _rounds(state: Federation) -> Iterable[Round]:
    return [known for known in (state.round, state.ended) if known is not None]


def _terms(state: Federation) -> Terms:
    assert state.terms is not None, "only federations with a plan are explored"
    return state.terms


# ---- states -------------------------------------------------------------------------


def every_invited_seat_has_one_place(state: Federation) -> bool:
    """An invited seat is in exactly one of waiting, unchecked, accepted and fallen."""
    for known in _rounds(state):
        placed = [*known.waiting, *known.unchecked, *known.accepted, *known.fallen]
        if len(placed) != len(known.invited) or set(placed) != known.invited.keys():
            return False
    return True


def ranks_are_the_order_of_invitation(state: Federation) -> bool:
    """The ranks of the invited are 0, 1, 2 and so on, the backups last."""
    for known in _rounds(state):
        if sorted(known.invited.values()) != list(range(len(known.invited))):
            return False
        if known.first_backup > len(known.invited):
            return False
    return True


def norms_are_those_of_the_accepted(state: Federation) -> bool:
    """The sorted norms of a round are the norms of its accepted updates."""
    return all(
        known.norms == sorted(norm for norm in known.accepted.values() if norm is not None)
        for known in _rounds(state)
    )


def answered_seats_sent_an_update(state: Federation) -> bool:
    """Whoever is unchecked, accepted or a member has an update on record."""
    for known in _rounds(state):
        if not known.submitted.keys() >= known.unchecked.keys() | known.members.keys():
            return False
        if not known.submitted.keys() >= known.accepted.keys():
            return False
    return True


def members_are_accepted(state: Federation) -> bool:
    """Only accepted updates are in the sum."""
    return all(known.members.keys() <= known.accepted.keys() for known in _rounds(state))


def members_reach_the_quorum(state: Federation) -> bool:
    """A closed round has members, and no fewer than its quorum, or it has failed for that."""
    return all(
        len(known.members) >= known.quorum
        for known in _rounds(state)
        if known.step in _AFTER_CLOSING
        or (known.members and known.reason is not RoundEnd.NO_QUORUM)
    )


def nobody_excluded_is_in_the_sum(state: Federation) -> bool:
    """Whoever was left out of a round for any reason is no member of it."""
    return all(not known.members.keys() & known.fallen.keys() for known in _rounds(state))


def members_are_on_the_roster_until_the_sum(state: Federation) -> bool:
    """Nobody who was revoked before the sum is in it."""
    present = state.round
    if present is None or present.step not in _CLOSED:
        return True
    return all(seat in state.roster for seat in present.members)


def a_model_exists_once_it_is_summed(state: Federation) -> bool:
    """A round has a candidate exactly from its sum on."""
    return all(
        (known.model is None) == (known.step in _BEFORE_SUM)
        for known in _rounds(state)
        if known.step is not Step.FAILED
    )


def a_seed_exists_once_it_is_drawn(state: Federation) -> bool:
    """A round has a seed from its selection on."""
    present = state.round
    return present is None or bool(present.seed) == (present.step is not Step.INITIALIZED)


def only_members_evaluate(state: Federation) -> bool:
    """Only members are asked for an evaluation or have given one, and nobody is both."""
    for known in _rounds(state):
        if not known.members.keys() >= known.unheard.keys() | known.evaluations.keys():
            return False
        if known.unheard.keys() & known.evaluations.keys():
            return False
    return True


def a_verdict_follows_the_evaluation(state: Federation) -> bool:
    """A round is judged exactly when it releases or has completed."""
    for known in _rounds(state):
        is_past = known.step in (Step.RELEASING, Step.COMPLETED)
        if known.step is not Step.FAILED and (known.judged is not None) != is_past:
            return False
    return True


def extensions_are_limited(state: Federation) -> bool:
    """The deadline of a round is extended as often as the terms allow, and no oftener."""
    limit = _terms(state).max_extensions
    return all(known.extensions <= limit for known in _rounds(state))


def no_closing_is_overdue(state: Federation) -> bool:
    """A round that has all it waits for does not go on training."""
    present, terms = state.round, _terms(state)
    if present is None or present.step is not Step.TRAINING:
        return True
    count = len(present.accepted) - len(loud_among(present.accepted, terms.norm_factor))
    has_enough = terms.close is Close.QUORUM or count >= (terms.buffer or present.target)
    is_answered = not present.waiting and not present.unchecked
    return count < present.quorum or not (has_enough or is_answered)


def standing_fits_the_rounds(state: Federation) -> bool:
    """A federation is RUNNING while a round is open, FINISHED once it has a reason."""
    is_running = state.standing is Standing.RUNNING
    is_finished = state.standing is Standing.FINISHED
    return is_running == (state.round is not None) and is_finished == (state.finished is not None)


def round_numbers_are_counted(state: Federation) -> bool:
    """The open round is the last one counted, and within the plan."""
    newest = state.round or state.ended
    number = newest.number if newest is not None else 0
    return number == state.last_number <= _terms(state).rounds


def versions_are_counted(state: Federation) -> bool:
    """Versions are 0, 1, 2 and so on; the current one exists."""
    return list(state.versions) == list(range(len(state.versions))) and (
        state.current in state.versions
    )


def a_completed_round_published_what_was_accepted(state: Federation) -> bool:
    """An accepted candidate is the one version of its round; no other round has one."""
    known = state.ended
    if known is None:
        return True
    found = [v.model for v in state.versions.values() if v.round == known.number]
    is_accepted = known.judged is not None and known.judged.outcome.name == "ACCEPTED"
    if known.step is Step.COMPLETED and is_accepted:
        return found == [known.model]
    return not found


def an_open_round_owes_its_step(state: Federation) -> bool:
    """What is owed is the work of the round's step, no more and no less."""
    duties, present, terms = _work(state), state.round, _terms(state)
    if present is None:
        return state.finished is None or not duties
    kinds = [type(duty) for duty in duties]
    if present.step is Step.TRAINING:
        checks = {(x.seat, x.update, x.base) for x in duties if isinstance(x, d.Check)}
        expected = {
            (seat, present.submitted[seat], _trained_from(present, seat))
            for seat in present.unchecked
        }
        return checks == expected and d.WakeAt(present.deadline_ms + 1) in duties
    if present.step is Step.EVALUATING:
        return duties == (d.WakeAt(present.evaluate_by_ms + 1),)
    if present.step in (*_EXCHANGING, Step.AGREEING, Step.UNMASKING):
        return duties == (d.WakeAt(present.deadline_ms + 1),)
    if present.step is Step.JUDGING and terms.has_evaluation:
        first = duties[0] if duties else None
        return isinstance(first, d.Judge) and first.evaluations == present.evaluation_count
    return kinds == [_DUTY_OF[present.step]]


def _work(state: Federation) -> tuple[d.Duty, ...]:
    """What is owed, but for news to accounts: those are owed in any step."""
    return tuple(duty for duty in owed(state) if not isinstance(duty, d.Settle))


def _trained_from(known: Round, seat: Seat) -> Digest:
    """The model that the seat was given with its invitation."""
    return known.kept[seat].base if seat in known.kept else known.base


_DUTY_OF: dict[Step, type[d.Duty]] = {
    Step.INITIALIZED: d.Draw,
    Step.SELECTING: d.WakeAt,
    Step.SCREENING: d.Screen,
    Step.SUMMING: d.Aggregate,
    Step.JUDGING: d.Judge,
    Step.RELEASING: d.Release,
}


def every_member_is_summed_once(state: Federation) -> bool:
    """The sum that is owed has each member's own update once, by rank."""
    present = state.round
    if present is None or present.step is not Step.SUMMING:
        return True
    in_order = sorted(present.members, key=lambda seat: present.invited[seat])
    ranked = [(present.invited[seat], present.submitted[seat]) for seat in in_order]
    ages = [
        present.version - present.kept[seat].version if seat in present.kept else 0
        for seat in in_order
    ]
    told = ages if _terms(state).is_buffered else []
    return all(
        list(duty.updates) == ranked and duty.count == len(ranked) and list(duty.staleness) == told
        for duty in owed(state)
        if isinstance(duty, d.Aggregate)
    )


def every_member_is_screened_once(state: Federation) -> bool:
    """The screen that is owed has each member's own update once, by rank."""
    present = state.round
    if present is None or present.step is not Step.SCREENING:
        return True
    (duty,) = _work(state)
    ranked = sorted((rank, seat) for seat, rank in present.invited.items())
    expected = [(s, rank, present.submitted[s]) for rank, s in ranked if s in present.members]
    return isinstance(duty, d.Screen) and (duty.count, list(duty.updates)) == (
        len(present.members),
        expected,
    )


def sites_are_asked_for_what_is_open(state: Federation) -> bool:
    """A site is asked to train while it is waited for, to evaluate while it is unheard."""
    present, terms = state.round, _terms(state)
    if terms.is_masked:
        return True  # `rules_of_masking` says what is asked when
    asked = [*(present.invited if present else ()), *state.roster.members, STRANGER]
    for seat in set(asked):
        kind: type[d.SiteDuty] | None = None
        if present is not None and seat in state.roster:
            is_training = present.step is Step.TRAINING or terms.is_buffered
            if is_training and seat in present.waiting:
                kind = d.Train
            elif present.step is Step.EVALUATING and seat in present.unheard:
                kind = d.Evaluate
        elif seat in state.passing and state.passing[seat].update is None:
            is_fresh = state.current - state.passing[seat].version <= terms.max_staleness
            kind = d.Train if is_fresh else None
        duty = owed_by(state, seat)
        if (type(duty) if duty is not None else None) is not kind:
            return False
    return True


def who_passes_on_was_not_counted(state: Federation) -> bool:
    """Who passes on is on the roster, waits between rounds, and is in no sum that was made."""
    if not state.passing:
        return True
    over = state.ended
    is_between = state.round is None and over is not None and _terms(state).is_buffered
    return is_between and all(
        seat in state.roster and (over is None or seat not in over.members)
        for seat in state.passing
    )


def what_is_summed_is_young_enough(state: Federation) -> bool:
    """No member's model is older than the plan allows; with a barrier, none is older at all."""
    terms = _terms(state)
    return all(
        0 <= known.version - known.kept[seat].version <= terms.max_staleness
        for known in _rounds(state)
        for seat in known.kept
    )


STATE_RULES: tuple[StateRule, ...] = (
    every_invited_seat_has_one_place,
    ranks_are_the_order_of_invitation,
    norms_are_those_of_the_accepted,
    answered_seats_sent_an_update,
    nobody_excluded_is_in_the_sum,
    members_are_accepted,
    members_reach_the_quorum,
    members_are_on_the_roster_until_the_sum,
    a_model_exists_once_it_is_summed,
    a_seed_exists_once_it_is_drawn,
    only_members_evaluate,
    a_verdict_follows_the_evaluation,
    extensions_are_limited,
    no_closing_is_overdue,
    standing_fits_the_rounds,
    round_numbers_are_counted,
    versions_are_counted,
    a_completed_round_published_what_was_accepted,
    an_open_round_owes_its_step,
    every_member_is_screened_once,
    every_member_is_summed_once,
    sites_are_asked_for_what_is_open,
    who_passes_on_was_not_counted,
    what_is_summed_is_young_enough,
)
