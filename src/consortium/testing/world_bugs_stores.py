"""Planted bugs about disks and races: what is durable when, and who was first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from consortium.core import inputs as i
from consortium.core.codec import encode
from consortium.core.federation import decide, evolve
from consortium.core.state import Federation
from consortium.core.terms import Terms
from consortium.drive.coordinate import Coordinator
from consortium.drive.driver import Driver
from consortium.errors import (
    ConflictError,
    StoreError,
    StoreFailedError,
)
from consortium.ledger.notary import Notary, origin_of
from consortium.ledger.tree import Tree
from consortium.ledger.witness import Offer
from consortium.model import digest_of
from consortium.store.memory import MemoryCache
from consortium.testing.patches import Facts, Patches, Plant
from consortium.testing.world_coordinator import STREAM, CoordinatorPlayer
from consortium.testing.world_faults import Durable, FaultyLog
from consortium.testing.world_wire import Request, Send

# Planted functions take the original first and then whatever the original takes.
Original = Any


# ---- durability ---------------------------------------------------------------------


def _commit_after_reply(patches: Patches) -> None:
    """What a request brings about waits in memory until the reply is on its way."""
    late: dict[FaultyLog, list[tuple[str, int, Sequence[bytes]]]] = {}
    commit = FaultyLog.append

    def append(_: Original, log: FaultyLog, stream: str, at: int, new: Sequence[bytes]) -> int:
        if log not in late:
            return commit(log, stream, at, new)
        late[log].append((stream, at, new))
        return at + len(new)

    def read(
        original: Original, log: FaultyLog, stream: str, start: int = 0, stop: int | None = None
    ) -> Iterator[bytes]:
        waiting = [one for name, _, new in late.get(log, ()) if name == stream for one in new]
        return iter([*original(log, stream), *waiting][start:stop])

    def receive(original: Original, player: CoordinatorPlayer, *rest: Any) -> None:
        late[player.log] = []
        try:
            original(player, *rest)
        finally:
            entries = late.pop(player.log)
        for entry in entries:
            commit(player.log, *entry)

    patches.attribute(FaultyLog, "append", append)
    patches.attribute(FaultyLog, "read", read)
    patches.attribute(CoordinatorPlayer, "receive", receive)


def _recorded_before_commit(patches: Patches) -> None:
    """The state, and so the receipt, has what the disk may still refuse."""

    def feed(original: Original, driver: Driver, item: i.Input) -> Facts:
        facts = decide(driver.state, item)
        try:
            return original(driver, item)  # type: ignore[no-any-return]
        except StoreFailedError:
            for fact in facts:
                evolve(driver.state, fact)
            raise

    patches.attribute(Driver, "feed", feed)


def _swallowed(patches: Patches) -> None:
    def take(original: Original, player: CoordinatorPlayer, item: i.Input) -> Facts:
        try:
            return original(player, item)  # type: ignore[no-any-return]
        except StoreError:
            return ()

    patches.attribute(CoordinatorPlayer, "take", take)


def _blob_after_fact(patches: Patches) -> None:
    def as_input(original: Original, player: CoordinatorPlayer, request: Request) -> i.Input:
        body = request.body
        if not isinstance(body, Send):
            return original(player, request)  # type: ignore[no-any-return]
        now_ms = player.clock.now_ms()
        return i.Submit(body.round, request.seat, digest_of(body.data), None, now_ms)

    def acknowledge(
        original: Original, player: CoordinatorPlayer, request: Request, *item: Any
    ) -> Any:
        if isinstance(request.body, Send):
            player.blobs.put(request.body.data)
        return original(player, request, *item)

    patches.attribute(CoordinatorPlayer, "as_input", as_input)
    patches.attribute(CoordinatorPlayer, "acknowledge", acknowledge)


def _early_checkpoint(patches: Patches) -> None:
    """Signed while the commit is still under way."""
    early: dict[int, list[bytes]] = {}

    def append(
        original: Original, log: FaultyLog, stream: str, at: int, new: Sequence[bytes]
    ) -> int:
        if stream == STREAM:
            early[id(log)] = [*log.read(stream), *new]
        return original(log, stream, at, new)  # type: ignore[no-any-return]

    def offer(original: Original, coordinator: Coordinator, since: int) -> Offer:
        held = early.get(id(coordinator._directory.log), [])
        if len(held) <= max(since, coordinator.driver.position):
            return original(coordinator, since)  # type: ignore[no-any-return]
        ahead = Durable()
        ahead.append(STREAM, 0, held)
        signers, cache = coordinator._directory.signers(), MemoryCache()
        notary = Notary(ahead, STREAM, cache, origin_of(STREAM), signers)
        note = notary.checkpoint(len(held), signers[-1].key.public)
        tree = Tree(ahead, STREAM, cache)
        return Offer(since, tree.consistency_proof(since, len(held)) if since else (), note)

    patches.attribute(FaultyLog, "append", append)
    patches.attribute(Coordinator, "offer", offer)


# ---- two coordinators ---------------------------------------------------------------


def _no_fence(patches: Patches) -> None:
    def append(original: Original, log: Durable, stream: str, at: int, new: Sequence[bytes]) -> int:
        return original(log, stream, len(log.records(stream)), new)  # type: ignore[no-any-return]

    patches.attribute(Durable, "append", append)


def _blind_after_conflict(driver: Driver, facts: Facts) -> Facts:
    """Append what was decided before, wherever the log ends now."""
    driver.catch_up()
    new = [encode(fact) for fact in facts]
    driver._position = driver._log.append(driver._stream, driver._position, new)
    for fact in facts:
        evolve(driver.state, fact)
    return facts


def _both_publish(patches: Patches) -> None:
    def feed(original: Original, driver: Driver, item: i.Input) -> Facts:
        if not isinstance(item, i.Released):
            return original(driver, item)  # type: ignore[no-any-return]
        facts = decide(driver.state, item)
        if not facts:
            return ()
        try:
            new = [encode(fact) for fact in facts]
            driver._position = driver._log.append(driver._stream, driver._position, new)
        except ConflictError:
            return _blind_after_conflict(driver, facts)
        for fact in facts:
            evolve(driver.state, fact)
        return facts

    patches.attribute(Driver, "feed", feed)


def _unknown_is_failed(patches: Patches) -> None:
    def feed(original: Original, driver: Driver, item: i.Input) -> Facts:
        facts = decide(driver.state, item)
        try:
            return original(driver, item)  # type: ignore[no-any-return]
        except StoreFailedError:
            return _blind_after_conflict(driver, facts)

    patches.attribute(Driver, "feed", feed)


def _answers_from_the_past(patches: Patches) -> None:
    def feed(original: Original, driver: Driver, item: i.Input) -> Facts:
        return original(driver, item) if decide(driver.state, item) else ()

    patches.attribute(Driver, "feed", feed)


def _shows_less(patches: Patches) -> None:
    def offer(original: Original, coordinator: Coordinator, since: int) -> Offer:
        note = coordinator.checkpoint()
        return coordinator._notary.offer(since, coordinator._note[0], note)

    patches.attribute(Coordinator, "offer", offer)


def _unknown_key(patches: Patches) -> None:
    patches.attribute(Notary, "has_key", lambda original, notary, key: True)


def _new_key_alone(patches: Patches) -> None:
    patches.attribute(Coordinator, "_is_rotating", lambda original, coordinator: False)


def _stale_sum(patches: Patches) -> None:
    def summed(original: Original, state: Federation, terms: Terms, item: i.Summed) -> Facts:
        count = len(state.round.members) if state.round else item.count
        return original(state, terms, replace(item, count=count))  # type: ignore[no-any-return]

    patches.rule(i.Summed, summed)


PLANTS: tuple[tuple[str, Plant], ...] = (
    ("the reply leaves before the commit", _commit_after_reply),
    ("a receipt is given for what is not committed", _recorded_before_commit),
    ("a full disk is swallowed and acknowledged", _swallowed),
    ("a fact names a blob before it is stored", _blob_after_fact),
    ("a checkpoint is signed before the commit", _early_checkpoint),
    ("no fence: an append ignores the expected position", _no_fence),
    ("two coordinators both publish", _both_publish),
    ("an unknown commit is taken for failed and repeated", _unknown_is_failed),
    ("answers without facts come from an old state", _answers_from_the_past),
    ("a coordinator that is behind shows a shorter log", _shows_less),
    ("a coordinator does not learn of a new log key", _unknown_key),
    ("a new log key is not vouched for by the old one", _new_key_alone),
    ("a sum over members of the past is published", _stale_sum),
)
