"""Who did not answer in a secret sum is told by name, with what was lacking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from consortium.core import inputs as i
from consortium.core.codec import decode
from consortium.drive.history import History, RoundRecord
from tests.core.small import (
    MASKED,
    PHASE_MS,
    START_MS,
    World,
    agreeing,
    keying,
    masked_training,
    ready,
    sharing,
    unmasking,
)

FIVE = replace(MASKED, target=5)  # of five sites four are a quorum
LATE_MS = START_MS + PHASE_MS + 1


def last_round(world: World) -> RoundRecord:
    history = History(lambda seat: f"s{seat}")
    for record in world.records:
        history.add(decode(record))
    return history.rounds[-1]


def let_time_pass(world: World) -> None:
    """Until the round is over, with its deadline moved as often as the plan allows."""
    for _ in range(20):
        if world.state.round is not None:
            world.tick(world.round.deadline_ms + FIVE.grace_ms + 1)


def too_few_keys() -> World:
    world = keying(5, FIVE)
    world.keys(1, 4)
    world.tick(LATE_MS)
    return world


def too_few_shares() -> World:
    world = sharing(5, FIVE)
    world.share(2, 3)
    world.tick(LATE_MS)
    return world


def too_few_updates() -> World:
    world = masked_training(5, FIVE)
    world.send(1, 2, 3)
    let_time_pass(world)
    return world


def too_few_signatures() -> World:
    world = agreeing(5, FIVE)
    world.agree(5)
    world.tick(LATE_MS)
    return world


def too_few_answers() -> World:
    world = unmasking(5, FIVE)
    world.answer(1, 2)
    world.tick(LATE_MS)
    return world


@pytest.mark.parametrize(
    ("story", "reason", "lost"),
    [
        (too_few_keys, "no_quorum", [(seat, "no keys in time") for seat in (2, 3, 5)]),
        (too_few_shares, "no_quorum", [(seat, "no shares in time") for seat in (1, 4, 5)]),
        (too_few_updates, "no_quorum", [(seat, "no update in time") for seat in (4, 5)]),
        (too_few_signatures, "not_agreed", [(s, "no signature in time") for s in (1, 2, 3, 4)]),
        (too_few_answers, "not_answered", [(seat, "no answer in time") for seat in (3, 4, 5)]),
    ],
)
def test_a_round_that_fails_for_silence_names_the_silent(
    story: Callable[[], World], reason: str, lost: list[tuple[int, str]]
) -> None:
    record = last_round(story())
    assert (record.outcome, record.reason) == ("failed", reason)
    assert record.lost == [(f"s{seat}", why) for seat, why in lost]


def test_who_falls_out_on_the_way_is_named_with_the_phase() -> None:
    """And who has given what is asked for is not, nor who comes when others are enough."""
    terms = replace(MASKED, target=7)  # five are enough
    world = keying(7, terms)
    world.keys(1, 2, 3, 4, 5, 6)
    world.tick(LATE_MS)
    world.share(1, 2, 3, 4, 5)
    world.tick(world.round.deadline_ms + 1)
    world.send(1, 2, 3, 4, 5)
    world.agree(1, 2, 3, 4)
    world.answer(2, 3, 4, 5)
    world.finish_round()
    record = last_round(world)
    assert record.outcome != "failed" and record.counted == 5
    assert record.lost == [("s7", "no keys in time"), ("s6", "no shares in time")]


def test_who_says_why_or_is_revoked_is_told_once() -> None:
    world = keying(5, FIVE)
    world.keys(1, 2)
    world.fail(3)
    world.dismiss(4)
    let_time_pass(world)
    record = last_round(world)
    assert record.outcome == "failed"
    assert record.lost == [("s3", "training"), ("s5", "no keys in time")]


def test_a_round_that_is_cancelled_blames_nobody() -> None:
    world = keying(5, FIVE)
    world.keys(1)
    world.give(i.CancelRound(world.state.last_number, world.now_ms))
    record = last_round(world)
    assert (record.reason, record.lost) == ("cancelled", [])


def test_without_masks_nobody_is_named_for_silence() -> None:
    """With more invited than are needed, silence is no fault."""
    world = ready(4)
    world.open()
    world.send(1)
    let_time_pass(world)
    record = last_round(world)
    assert record.outcome == "failed" and record.lost == []
