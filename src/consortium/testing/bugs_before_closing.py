"""Planted bugs from the draw to the closing of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import round as rounds
from consortium.core import selection
from consortium.core.ids import Digest
from consortium.core.state import Federation, Round
from consortium.core.tables import ROUND, Step
from consortium.core.terms import Close, Terms
from consortium.testing.federations import SELECTION, TRAINING
from consortium.testing.patches import Bug, Facts, Patches, Plant, Wrapper, believing, nothing

# ---- updates ------------------------------------------------------------------------


def _refuse_at_deadline(patches: Patches) -> None:
    def submit(real: Wrapper, state: Federation, terms: Terms, item: i.Submit) -> Any:
        real(state, terms, replace(item, now_ms=item.now_ms + 1))
        return real(state, terms, item)

    patches.rule(i.Submit, submit)


def _take_late(patches: Patches) -> None:
    def submit(real: Wrapper, state: Federation, terms: Terms, item: i.Submit) -> Any:
        return real(believing(state, deadline_ms=item.now_ms), terms, item)

    patches.rule(i.Submit, submit)


def _take_uninvited(patches: Patches) -> None:
    def submit(real: Wrapper, state: Federation, terms: Terms, item: i.Submit) -> Any:
        present = state.round
        if present is None or present.step is not Step.TRAINING:
            return real(state, terms, item)
        invited = {item.seat: 9, **present.invited}
        return real(believing(state, invited=invited), terms, item)

    patches.rule(i.Submit, submit)
    patches.record(f.UpdateReceived, _record_anyway)


def _take_second(patches: Patches) -> None:
    def submit(real: Wrapper, state: Federation, terms: Terms, item: i.Submit) -> Any:
        held = state.round.submitted.get(item.seat) if state.round else None
        is_same = held == item.update
        return real(state if is_same else believing(state, submitted={}), terms, item)

    patches.rule(i.Submit, submit)
    patches.record(f.UpdateReceived, _record_anyway)


def _record_anyway(real: Wrapper, state: Federation, fact: f.UpdateReceived) -> None:
    assert state.round is not None
    state.round.waiting.setdefault(fact.seat)
    real(state, fact)


def _refuse_retry(patches: Patches) -> None:
    def submit(real: Wrapper, state: Federation, terms: Terms, item: i.Submit) -> Any:
        other = replace(item, update=Digest(item.update[::-1]))
        is_held = any(x and item.seat in x.submitted for x in (state.round, state.ended))
        return real(state, terms, other if is_held else item)

    patches.rule(i.Submit, submit)


def _ignore_fault(patches: Patches) -> None:
    def check(real: Wrapper, state: Federation, terms: Terms, item: i.Checked) -> Any:
        return real(state, terms, replace(item, fault=None))

    patches.rule(i.Checked, check)


def _believe_other_check(patches: Patches) -> None:
    def check(real: Wrapper, state: Federation, terms: Terms, item: i.Checked) -> Any:
        submitted = {item.seat: item.update}
        return real(believing(state, submitted=submitted), terms, item)

    patches.rule(i.Checked, check)


def _give_no_grace(patches: Patches) -> None:
    def tick(real: Wrapper, state: Federation, terms: Terms, *rest: Any) -> Any:
        return real(state, replace(terms, grace_ms=0), *rest)

    patches.attribute(rounds, "tick", tick)


def _ignore_norms(patches: Patches) -> None:
    patches.attribute(rounds._Tally, "limit", lambda *_: None)


# ---- dropout and closing ------------------------------------------------------------


def _settle_by(other: Callable[[Terms], Terms]) -> Plant:
    """Settle under other terms than were agreed."""

    def settle(real: Wrapper, state: Any, terms: Terms, *args: Any, **options: Any) -> Any:
        return real(state, other(terms), *args, **options)

    return lambda patches: patches.attribute(rounds, "_settle", settle)


def _ignore_quorum(patches: Patches) -> None:
    def settle(
        real: Wrapper, state: Any, terms: Terms, tally: Any, now_ms: int, **options: Any
    ) -> Any:
        facts: Facts = real(state, terms, tally, now_ms, **options)
        is_failed = any(isinstance(fact, f.RoundFailed) for fact in facts)
        return rounds._close(terms, tally, now_ms) if is_failed and tally.accepted else facts

    patches.attribute(rounds, "_settle", settle)


def _tick_early(patches: Patches) -> None:
    def tick(real: Wrapper, state: Any, terms: Terms, open_round: Round, now_ms: int) -> Any:
        early = open_round.clone()
        early.deadline_ms -= 1
        return real(state, terms, early, now_ms)

    patches.attribute(rounds, "tick", tick)


def _never_end(patches: Patches) -> None:
    patches.attribute(rounds, "tick", nothing)


def _call_nobody(patches: Patches) -> None:
    patches.attribute(rounds, "_backups", lambda *_: None)


def _call_anybody(patches: Patches) -> None:
    def backups(real: Wrapper, state: Federation, terms: Terms, *args: Any) -> Any:
        return real(state, replace(terms, conditions=()), *args)

    patches.attribute(rounds, "_backups", backups)


def _invite_anybody(patches: Patches) -> None:
    patches.attribute(selection, "eligible", lambda _, roster, *__: sorted(roster.members))


def _extend_from_now(patches: Patches) -> None:
    def settle(
        real: Wrapper, state: Any, terms: Terms, tally: Any, now_ms: int, **options: Any
    ) -> Any:
        facts: Facts = real(state, terms, tally, now_ms, **options)
        until_ms = now_ms + terms.extension_ms - 1
        return tuple(
            replace(fact, deadline_ms=until_ms) if isinstance(fact, f.DeadlineExtended) else fact
            for fact in facts
        )

    patches.attribute(rounds, "_settle", settle)


def _keep_dropped(patches: Patches) -> None:
    patches.record(f.SiteDropped, nothing)


def _keep_revoked(patches: Patches) -> None:
    def record(_: Wrapper, state: Federation, fact: f.SiteDeparted) -> None:
        del state.roster.seat_of[state.roster.members.pop(fact.seat).site]

    patches.record(f.SiteDeparted, record)


def _overlook_closing(patches: Patches) -> None:
    patches.attribute(rounds, "_may_close", lambda *_: False)


def _leave_out_last(patches: Patches) -> None:
    def close(real: Wrapper, terms: Terms, tally: Any, now_ms: int) -> Any:
        return real(terms, replace(tally, newly=()), now_ms)

    patches.attribute(rounds, "_close", close)


def _draw_again(patches: Patches) -> None:
    def draw(real: Wrapper, state: Federation, terms: Terms, item: i.Drawn) -> Any:
        present = state.round
        is_drawn = present is not None and present.step is Step.SELECTING
        is_other = present is not None and present.seed != item.seed
        changed = believing(state, step=Step.INITIALIZED) if is_drawn and is_other else state
        return real(changed, terms, item)

    patches.rule(i.Drawn, draw)
    patches.move(ROUND, (Step.SELECTING, f.SelectionStarted), Step.SELECTING)


def _mutate(patches: Patches) -> None:
    def tick(real: Wrapper, state: Federation, item: i.Tick) -> Any:
        if state.round is not None:
            state.roster.taken_part.setdefault(next(iter(state.roster.members)), 0)
        return real(state, item)

    patches.rule(i.Tick, tick)


BUGS = (
    Bug("an update at the deadline is refused (>= for >)", TRAINING, _refuse_at_deadline),
    Bug("a late update is counted", TRAINING, _take_late),
    Bug("an uninvited site is admitted", TRAINING, _take_uninvited),
    Bug("a second update replaces the first", TRAINING, _take_second),
    Bug("the same update again is refused", TRAINING, _refuse_retry),
    Bug("an update that failed its checks is counted", TRAINING, _ignore_fault),
    Bug("a check of other bytes is believed", TRAINING, _believe_other_check),
    Bug("a loud update is counted", TRAINING, _ignore_norms),
    Bug(
        "there is one extension too many",
        TRAINING,
        _settle_by(lambda terms: replace(terms, max_extensions=terms.max_extensions + 1)),
    ),
    Bug(
        "extensions are unbounded",
        TRAINING,
        _settle_by(lambda terms: replace(terms, max_extensions=99)),
    ),
    Bug(
        "checks that run at the deadline are thrown away",
        TRAINING,
        _give_no_grace,
    ),
    Bug(
        "a round closes at its quorum though all are waited for",
        TRAINING,
        _settle_by(lambda terms: replace(terms, close=Close.QUORUM)),
    ),
    Bug("the quorum is ignored at closing", TRAINING, _ignore_quorum),
    Bug("a tick at the deadline counts as late (>= for >)", TRAINING, _tick_early),
    Bug("the round never ends", TRAINING, _never_end),
    Bug("backups are not invited", TRAINING, _call_nobody),
    Bug("backups need not be eligible", SELECTION, _call_anybody),
    Bug("the invited need not be eligible", SELECTION, _invite_anybody),
    Bug("an extension shortens the deadline", TRAINING, _extend_from_now),
    Bug("a site that dropped out is still waited for", TRAINING, _keep_dropped),
    Bug("a site that was revoked is still waited for", TRAINING, _keep_revoked),
    Bug("nobody notices that all have answered", TRAINING, _overlook_closing),
    Bug("the update that closes the round is left out", TRAINING, _leave_out_last),
    Bug("the seed is drawn again", SELECTION, _draw_again),
    Bug("a decision changes the state", TRAINING, _mutate),
)
