"""What must hold of every change: a state, the input, its facts and the state that follows.

As in `rules`, everything is worked out again from the requirements, not taken from the
core. When a fact of one kind may be written at all is in `causes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import secagg_facts as m
from consortium.core.answers import Status, receipt
from consortium.core.ids import Seat
from consortium.core.roster import meets
from consortium.core.state import Federation, Round
from consortium.core.tables import Phase, Step
from consortium.core.terms import Terms
from consortium.testing.rules import loud_among


@dataclass(frozen=True, slots=True)
class Change:
    """One edge: `item` arrived at `before`, was answered with `facts`, and led to `after`."""

    before: Federation
    item: i.Input
    facts: tuple[f.Fact, ...]
    after: Federation

    @property
    def terms(self) -> Terms:
        assert self.before.terms is not None, "only federations with a plan are explored"
        return self.before.terms

    @property
    def was(self) -> Round:
        """The round before; asked of facts about an open round only."""
        assert self.before.round is not None, "a fact about a round, and none was open"
        return self.before.round

    @property
    def became(self) -> Round:
        """The same round afterwards, open or ended."""
        found = self.after.round or self.after.ended
        assert found is not None, "a round has vanished"
        return found

    @property
    def is_late(self) -> bool:
        return self.item.now_ms > self.was.deadline_ms

    def names(self, *kinds: type[Any]) -> set[Seat]:
        """The seats that facts of these kinds speak of."""
        return {getattr(fact, "seat", Seat(0)) for fact in self.facts if isinstance(fact, kinds)}


ChangeRule = Callable[[Change], bool]


# ---- what never changes -------------------------------------------------------------


def facts_carry_the_time_of_their_input(change: Change) -> bool:
    """Every fact is stamped with the time at which its input arrived."""
    return all(fact.at_ms == change.item.now_ms for fact in change.facts)


def an_input_brings_only_its_own_facts(change: Change) -> bool:
    """A message causes the kinds of facts that its own arrival allows."""
    allowed = _ALLOWED[type(change.item)]
    return all(type(fact) in allowed for fact in change.facts)


def a_site_speaks_for_itself(change: Change) -> bool:
    """The first fact that a site's message brings about is about that site."""
    seat = getattr(change.item, "seat", None)
    return seat is None or getattr(change.facts[0], "seat", None) == seat


def a_round_ends_once(change: Change) -> bool:
    """A round that has ended stays as it was until the next one ends."""
    before, after = change.before, change.after
    if before.round is None:
        return before.ended == after.ended
    if after.round is None:
        return after.ended is not None and after.ended.number == before.round.number
    return before.ended == after.ended and before.round.number == after.round.number


def phases_go_forwards(change: Change) -> bool:
    """A round moves along its phases, never back; it may fail from any."""
    if change.before.round is None:
        return True
    was, became = change.was.step, change.became.step
    if became is Step.FAILED:
        return True
    return _PHASES.index(became.phase) - _PHASES.index(was.phase) in (0, 1, _DRAWN_AND_INVITED)


def the_ground_of_a_round_is_fixed(change: Change) -> bool:
    """Base, version, quorum and opening time of a round never change; nor does its seed. The
    quorum of a secret sum is known when its sites are, and is no less than that of the plan."""
    if change.before.round is None:
        return True
    was, became = change.was, change.became
    is_same_seed = not was.seed or was.seed == became.seed
    is_keyed = any(isinstance(fact, m.KeysClosed) for fact in change.facts)
    is_same_quorum = was.quorum == became.quorum or (is_keyed and was.quorum < became.quorum)
    return is_same_seed and is_same_quorum and _ground(was) == _ground(became)


def _ground(known: Round) -> tuple[object, ...]:
    return known.base, known.server_state, known.version, known.opened_ms


def one_model_a_round(change: Change) -> bool:
    """The first sum of a round stands for ever."""
    if change.before.round is None or change.was.model is None:
        return True
    return change.was.model == change.became.model


def what_was_received_stays(change: Change) -> bool:
    """Invitations, updates and the reasons of the fallen are never taken back or swapped."""
    if change.before.round is None:
        return True
    was, became = change.was, change.became
    return (
        was.invited.items() <= became.invited.items()
        and was.submitted.items() <= became.submitted.items()
        and was.fallen.items() <= became.fallen.items()
    )


def accepted_stays_accepted(change: Change) -> bool:
    """An accepted update stays so unless a fact about that very seat says why not."""
    if change.before.round is None:
        return True
    lost = change.was.accepted.keys() - change.became.accepted.keys()
    return lost <= change.names(f.SiteDeparted, f.UpdateExcluded, f.MemberRemoved)


def deadlines_move_by_facts(change: Change) -> bool:
    """The deadline in force moves only with invitations, an extension, or the next step of a
    secret sum."""
    if change.before.round is None or change.was.deadline_ms == change.became.deadline_ms:
        return True
    kinds: tuple[type[Any], ...] = (f.SitesInvited, f.DeadlineExtended)
    if change.terms.is_masked:
        kinds += (m.KeysClosed, m.SharesClosed, f.RoundClosed, m.ConsentsClosed)
    return any(isinstance(fact, kinds) for fact in change.facts)


def a_screened_round_is_summed_after_its_screen(change: Change) -> bool:
    """A screen leads from the closing to the sum: always if the plan asks for it, else never."""
    if change.before.round is None:
        return True
    was, became = change.was.step, change.became.step
    is_screened = any(isinstance(fact, f.UpdatesScreened) for fact in change.facts)
    if not change.terms.is_screened:
        return not is_screened and became is not Step.SCREENING
    return is_screened == (was in _UNSUMMED and became not in (*_UNSUMMED, Step.FAILED))


def evidence_is_fixed_once_closed(change: Change) -> bool:
    """From the end of the evaluation on, nothing is added to or taken from the evidence."""
    if change.before.round is None or change.was.step not in (Step.JUDGING, Step.RELEASING):
        return True
    return change.was.evaluations == change.became.evaluations


def versions_stay(change: Change) -> bool:
    """A version is for ever; another is current only by a fact that says so."""
    before, after = change.before, change.after
    if not before.versions.items() <= after.versions.items():
        return False
    if any(isinstance(x, f.ModelPublished | f.RolledBack | f.ModelInstalled) for x in change.facts):
        return True
    return (before.versions, before.current) == (after.versions, after.current)


def seats_empty_by_departure(change: Change) -> bool:
    """Only a departure takes a site off the roster, and only that site."""
    gone = change.before.roster.members.keys() - change.after.roster.members.keys()
    return gone == change.names(f.SiteDeparted)


def receipts_go_forwards(change: Change) -> bool:
    """A receipt names the same update for ever, and what is final in it stays."""
    if change.before.round is None:
        return True
    was, is_over = change.was, change.after.round is None
    for seat in was.submitted:
        number = was.number_of(seat)
        old, new = receipt(change.before, number, seat), receipt(change.after, number, seat)
        if old is None or new is None or old.update != new.update:
            return False
        # It was accepted in a round that failed: the next one checks it again.
        is_back = is_over and seat in change.after.passing and new.status is Status.RECEIVED
        if new.status not in _NEXT_STATUS[old.status] and not is_back:
            return False
    return True


def who_is_left_passes_on(change: Change) -> bool:
    """Without a barrier, whoever trains still or was not summed goes on when a round ends; with
    one nobody does. A federation that finishes lets all of them go."""
    if change.before.round is None or change.after.round is not None:
        return True
    became, after = change.became, change.after
    left = {*became.waiting, *became.unchecked}
    left |= set() if became.members else became.accepted.keys()
    expected = {seat for seat in left if seat in after.roster} if change.terms.is_buffered else {}
    is_finished = any(isinstance(fact, f.FederationFinished) for fact in change.facts)
    return after.passing.keys() == (set() if is_finished else set(expected))


def another_model_withdraws_what_passes(change: Change) -> bool:
    """Once another model or plan is in force, nobody goes on from the last."""
    kinds = (f.RolledBack, f.ModelInstalled, f.PlanAdopted, f.FederationFinished)
    is_other = any(isinstance(fact, kinds) for fact in change.facts)
    return not is_other or not change.after.passing


def what_passes_stays_the_same(change: Change) -> bool:
    """An invitation that passes on keeps its round, model and deadline, and what was sent by it."""
    old, new = change.before.passing, change.after
    kept = new.round.kept if new.round is not None else {}
    for seat, made in old.items():
        if seat not in new.roster:
            continue
        now = new.passing.get(seat) or kept.get(seat) or new.lapsed.get(seat)
        if now is None or replace(now, update=None) != replace(made, update=None):
            return False
        if made.update not in (None, now.update):
            return False
    return True


def a_shortage_calls_backups(change: Change) -> bool:
    """Who is missing for the quorum is replaced, as far as eligible sites are there."""
    if change.before.round is None or change.was.step is not Step.TRAINING:
        return True
    was, became = change.was, change.became
    called = len(became.invited) - len(was.invited)
    missing = max(0, was.quorum - _in_sight(change))
    # Into a secret sum nobody can come later.
    ready = 0 if change.terms.is_masked else len(spares(change))
    if became.step is Step.FAILED:
        is_over = change.is_late and was.extensions >= change.terms.max_extensions
        is_short = became.reason is f.RoundEnd.NO_QUORUM and not is_over
        return not is_short or ready < missing
    is_decided = became.deadline_ms != was.deadline_ms
    is_lost = len(became.fallen) > len(was.fallen) and not change.is_late
    if became.step is Step.TRAINING and (is_decided or is_lost):
        return called == min(missing, ready)
    return called <= missing  # late, and the checks of what came in time are still running


def the_quorum_is_in_reach(change: Change) -> bool:
    """After a loss before the deadline, training goes on only while a quorum can still come."""
    if change.before.round is None or change.became.step is not Step.TRAINING:
        return True
    was, became = change.was, change.became
    is_lost = len(became.fallen) > len(was.fallen) and not change.is_late
    return not is_lost or became.remaining >= became.quorum


def _in_sight(change: Change) -> int:
    """The updates that count now, and while it is not late those that may still come."""
    became, called = change.became, len(change.became.invited) - len(change.was.invited)
    count = len(became.accepted) - len(loud_among(became.accepted, change.terms.norm_factor))
    if change.is_late:
        return count
    return count + len(became.waiting) + len(became.unchecked) - called


def spares(change: Change) -> set[Seat]:
    """The sites that could be called: eligible now, and not invited before."""
    return ready_among(change, change.after.roster.members) - change.was.invited.keys()


def ready_among(change: Change, seats: Iterable[Seat]) -> set[Seat]:
    """Those of the seats that are eligible now."""
    terms, members, now_ms = change.terms, change.after.roster.members, change.item.now_ms
    return {
        seat
        for seat in seats
        if seat in members
        and now_ms - members[seat].seen_ms <= terms.seen_within_ms
        and meets(members[seat], terms.conditions)
    }


def is_exchanging(state: Federation, number: int, seat: Seat) -> bool:
    """Whether the seat's keys or shares for a secret sum are waited for, or are there and can
    still fall out of it."""
    present = state.round
    if present is None or present.step not in (Step.KEYING, Step.SHARING):
        return False
    return present.number == number and seat in present.waiting


def awaited_until_ms(state: Federation, number: int, seat: Seat) -> int | None:
    """The time up to which the seat's update is taken that it trains by its invitation of round
    `number`; None if it is not waited for. Without a barrier it is, whatever the round does."""
    present, terms, made = state.round, state.terms, state.passing.get(seat)
    if present is None:
        is_due = made is not None and made.round == number and made.update is None
        return made.deadline_ms if made is not None and is_due else None
    is_training = present.step is Step.TRAINING or (terms is not None and terms.is_buffered)
    if not is_training or seat not in present.waiting or present.number_of(seat) != number:
        return None
    kept = present.kept.get(seat)
    return present.deadline_ms if kept is None else kept.deadline_ms


# ---- tables -------------------------------------------------------------------------

_PHASES = tuple(Phase)
_UNSUMMED = (Step.INITIALIZED, Step.SELECTING, Step.TRAINING, Step.SCREENING)
_DRAWN_AND_INVITED = 2  # with enough sites, INITIALIZED leads to TRAINING in one commit

_NEXT_STATUS: dict[Status, tuple[Status, ...]] = {
    Status.RECEIVED: (Status.RECEIVED, Status.ACCEPTED, Status.NOT_COUNTED),
    Status.ACCEPTED: (Status.ACCEPTED, Status.COUNTED, Status.NOT_COUNTED),
    Status.COUNTED: (Status.COUNTED,),
    Status.NOT_COUNTED: (Status.NOT_COUNTED,),
}

_ENDS = (f.RoundFailed, f.FederationFinished)
_EXCHANGED = (m.KeysClosed, m.SharesClosed)
_SETTLES = (
    f.UpdateExcluded,
    f.RoundClosed,
    f.BudgetCharged,
    f.BackupsInvited,
    f.DeadlineExtended,
    *_ENDS,
)
_ALLOWED: dict[type[Any], tuple[type[Any], ...]] = {
    i.OpenRound: (f.RoundOpened, f.InvitationsKept, f.BudgetAsked),
    i.Granted: (f.BudgetReserved, f.RoundOpened, f.InvitationsKept),
    i.Denied: (f.BudgetRefused, f.FederationFinished),
    i.AccountTold: (f.BudgetSettled,),
    i.CancelRound: _ENDS,
    i.AdoptPlan: (f.PlanAdopted, f.BudgetAdopted),
    i.Dismiss: (f.SiteDeparted, f.MemberRemoved, f.EvaluationClosed, *_EXCHANGED, *_SETTLES),
    i.GiveKeys: (m.KeysReceived, m.KeysClosed),
    i.GiveShares: (m.SharesReceived, m.SharesClosed),
    i.GiveConsent: (m.ConsentReceived, m.ConsentsClosed),
    i.GiveAnswer: (m.AnswerReceived, m.AnswersClosed),
    i.RollBack: (f.RolledBack,),
    i.InstallModel: (f.ModelInstalled,),
    i.Hold: (f.FederationHeld,),
    i.Resume: (f.FederationResumed,),
    i.Stop: (f.FederationFinished,),
    i.Report: (f.SiteReported, f.SitesInvited, f.BudgetCharged, *_ENDS),
    i.Submit: (f.UpdateReceived,),
    i.Fail: (f.SiteDropped, f.EvaluationClosed, *_EXCHANGED, *_SETTLES),
    i.Score: (f.Evaluated, f.EvaluationClosed),
    i.Tick: (
        f.RoundOpened,
        f.InvitationsKept,
        f.BudgetAsked,
        f.SitesInvited,
        f.EvaluationClosed,
        m.AnswersClosed,
        *_EXCHANGED,
        *_SETTLES,
    ),
    i.Drawn: (f.SelectionStarted, f.SitesInvited, f.BudgetCharged),
    i.Checked: (f.UpdateAccepted, f.UpdateRejected, *_SETTLES),
    i.Screened: (f.UpdateExcluded, f.UpdatesScreened, *_ENDS),
    i.Summed: (f.BaseScored, f.Aggregated, f.EvaluationClosed),
    i.NotSummed: _ENDS,
    i.Verdict: (f.Judged, f.RoundCompleted, f.FederationFinished),
    i.Released: (f.ModelPublished, f.RoundCompleted, f.FederationFinished),
}

CHANGE_RULES: tuple[ChangeRule, ...] = (
    facts_carry_the_time_of_their_input,
    an_input_brings_only_its_own_facts,
    a_site_speaks_for_itself,
    a_round_ends_once,
    phases_go_forwards,
    the_ground_of_a_round_is_fixed,
    one_model_a_round,
    what_was_received_stays,
    accepted_stays_accepted,
    deadlines_move_by_facts,
    a_screened_round_is_summed_after_its_screen,
    evidence_is_fixed_once_closed,
    versions_stay,
    seats_empty_by_departure,
    receipts_go_forwards,
    a_shortage_calls_backups,
    the_quorum_is_in_reach,
    who_is_left_passes_on,
    another_model_withdraws_what_passes,
    what_passes_stays_the_same,
)
