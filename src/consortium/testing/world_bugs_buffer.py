"""Planted bugs of federations without a barrier: what passes on, how old it may be, and how
much of itself it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from consortium.aggregate.columns import Source
from consortium.core import buffer
from consortium.core import evolve as records
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.state import Federation, Invitation
from consortium.core.terms import Terms
from consortium.drive import hands, rounds
from consortium.drive.fate import Fate
from consortium.errors import DeadlineExpiredError
from consortium.testing.patches import Facts, Patches, Plant

Original = Any


# ---- what passes on -----------------------------------------------------------------


def _members_pass_on(patches: Patches) -> None:
    def end(original: Original, state: Federation) -> None:
        over = records._open(state)
        original(state)
        counted = {seat: over.invitation(seat) for seat in over.members if seat in state.roster}
        state.passing |= counted

    patches.attribute(records, "_end", end)


def _received_is_lost(patches: Patches) -> None:
    def end(original: Original, state: Federation) -> None:
        original(state)
        state.passing = {x: made for x, made in state.passing.items() if made.update is None}

    patches.attribute(records, "_end", end)


def _lost_by_failure(patches: Patches) -> None:
    def end(original: Original, state: Federation) -> None:
        original(state)
        if state.ended is not None and state.ended.reason is not None:
            state.passing = {}

    patches.attribute(records, "_end", end)


def _late_between_rounds(patches: Patches) -> None:
    def submit(original: Original, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        try:
            return original(state, terms, item)  # type: ignore[no-any-return]
        except DeadlineExpiredError:
            made = state.passing.get(item.seat)
            if made is None or made.round != item.round or made.update is not None:
                raise
        return (f.UpdateReceived(item.round, item.seat, item.update, item.envelope, item.now_ms),)

    patches.rule(i.Submit, submit)


def _settled_with_its_round(patches: Patches) -> None:
    """A site is told how its round ended, though its invitation has passed on."""

    def fate(original: Original, facts: Any, number: int, seat: Any) -> Fate:
        found: Fate = original(facts, number, seat)
        return replace(found, is_over=True)

    patches.attribute(rounds, "fate", fate)


# ---- how old, and how much ----------------------------------------------------------


def _never_too_old(patches: Patches) -> None:
    def is_fresh(original: Original, state: Federation, made: Invitation) -> bool:
        return True

    patches.attribute(buffer, "is_fresh", is_fresh)


def _no_discount(patches: Patches) -> None:
    patches.attribute(hands, "discounted", lambda original, rows, factors: rows)


def _discount_in_the_weight(patches: Patches) -> None:
    """The mean divides by what it was multiplied with."""

    def weighted(original: Original, rows: list[Source], factors: Sequence[float]) -> list[Source]:
        pairs = zip(rows, factors, strict=True)
        return [replace(row, weight=row.weight * factor) for row, factor in pairs]

    patches.attribute(hands, "discounted", weighted)


PLANTS: tuple[tuple[str, Plant], ...] = (
    ("a member passes on after it was counted", _members_pass_on),
    ("what was received and not counted is lost", _received_is_lost),
    ("a failed round loses what was received", _lost_by_failure),
    ("a late update is taken between rounds", _late_between_rounds),
    ("a site is settled while its update passes on", _settled_with_its_round),
    ("no update is too old", _never_too_old),
    ("old updates are not discounted", _no_discount),
    ("the discount is normalised away", _discount_in_the_weight),
)
