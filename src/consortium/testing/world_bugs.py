"""Bugs that a `World` must find, each planted into the running code and taken out again.

They are the mistakes that distributed systems are made with: a reply before its commit, a
race without a fence, memory in place of a disk, a clock or a signature taken on trust. Bugs
of single rules, which need no faults to show, are the explorer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from consortium.checks import Findings
from consortium.core import evolve as records
from consortium.core import facts as f
from consortium.core import federation
from consortium.core import inputs as i
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.codec import encode
from consortium.core.federation import decide, evolve
from consortium.core.state import Federation
from consortium.core.tables import Step
from consortium.core.terms import Terms
from consortium.drive import hands
from consortium.drive.coordinate import Coordinator
from consortium.drive.driver import Driver
from consortium.errors import (
    AlreadySubmittedError,
    ConflictError,
    DeadlineExpiredError,
    StoreError,
    StoreFailedError,
    UnauthorizedClientError,
)
from consortium.ledger.notary import Notary, origin_of
from consortium.ledger.tree import Tree
from consortium.ledger.witness import Offer
from consortium.model import digest_of
from consortium.store.memory import MemoryCache
from consortium.testing.patches import Facts, Patches, Plant, nothing
from consortium.testing.world_coordinator import STREAM, CoordinatorPlayer
from consortium.testing.world_faults import Durable, FaultyLog
from consortium.testing.world_site import SitePlayer, fold
from consortium.testing.world_wire import Request, Send

# Planted functions take the original first and then whatever the original takes.
Original = Any


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug."""

    name: str
    plant: Plant


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The code with this bug in it."""
    patches = Patches()
    try:
        bug.plant(patches)
        yield
    finally:
        for undo in reversed(patches.undo):
            undo()


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


def _stale_sum(patches: Patches) -> None:
    def summed(original: Original, state: Federation, terms: Terms, item: i.Summed) -> Facts:
        count = len(state.round.members) if state.round else item.count
        return original(state, terms, replace(item, count=count))  # type: ignore[no-any-return]

    patches.rule(i.Summed, summed)


# ---- repetition and time ------------------------------------------------------------


def _replay_set_in_memory(patches: Patches) -> None:
    """Each process remembers by itself what it has taken."""
    taken: dict[int, tuple[Federation, set[tuple[int, int]]]] = {}

    def submit(original: Original, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        facts: Facts = original(state, terms, item)
        _, known = taken.setdefault(id(state), (state, set()))
        is_known = (item.round, item.seat) in known
        known.add((item.round, item.seat))
        if facts or is_known:
            return facts
        return (f.UpdateReceived(item.round, item.seat, item.update, item.envelope, item.now_ms),)

    patches.rule(i.Submit, submit)


def _late_update(patches: Patches) -> None:
    def submit(original: Original, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        try:
            return original(state, terms, item)  # type: ignore[no-any-return]
        except DeadlineExpiredError:
            if state.round is None or item.seat not in state.round.waiting:
                raise
        return (f.UpdateReceived(item.round, item.seat, item.update, item.envelope, item.now_ms),)

    patches.rule(i.Submit, submit)


def _other_digest(patches: Patches) -> None:
    def submit(original: Original, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        try:
            return original(state, terms, item)  # type: ignore[no-any-return]
        except AlreadySubmittedError:
            return ()

    patches.rule(i.Submit, submit)


def _their_clock(patches: Patches) -> None:
    patches.attribute(CoordinatorPlayer, "stamp", lambda original, player, request: request.sent_ms)


def _endless_extensions(patches: Patches) -> None:
    def tick(original: Original, state: Federation, item: i.Tick) -> Facts:
        ahead = state.clone()
        if ahead.terms is not None:
            ahead.terms = replace(ahead.terms, max_extensions=1000)
        return original(ahead, item)  # type: ignore[no-any-return]

    patches.rule(i.Tick, tick)


def _no_alarm_clock(patches: Patches) -> None:
    def tick(original: Original, state: Federation, item: i.Tick) -> Facts:
        return original(state, item) if state.round is None else ()

    patches.rule(i.Tick, tick)


# ---- who counts ---------------------------------------------------------------------


def _revoked_counts(patches: Patches) -> None:
    def departed(original: Original, state: Federation, fact: f.SiteDeparted) -> None:
        member = state.roster.members.pop(fact.seat)
        del state.roster.seat_of[member.site]

    patches.move(records._RECORD, f.SiteDeparted, lambda *args: departed(None, *args))
    patches.attribute(federation, "_after_departure", nothing)


def _counted_twice(patches: Patches) -> None:
    def updates(original: Original, self: Any, duty: Any) -> Iterator[Any]:
        for number, (rank, step, weight) in enumerate(original(self, duty)):
            yield rank, step if number else 2 * step, weight

    patches.attribute(hands.CoordinatorHands, "_updates", updates)


def _anybody_evaluates(patches: Patches) -> None:
    def score(original: Original, state: Federation, terms: Terms, item: i.Score) -> Facts:
        try:
            return original(state, terms, item)  # type: ignore[no-any-return]
        except UnauthorizedClientError:
            now = state.round
            if now is None or now.step is not Step.EVALUATING or item.round != now.number:
                raise
        given = item.samples, item.candidate, item.base
        return (f.Evaluated(item.round, item.seat, *given, item.envelope, item.now_ms),)

    patches.rule(i.Score, score)


def _nobody_signs(patches: Patches) -> None:
    patches.attribute(CoordinatorPlayer, "authenticate", nothing)


def _unchecked(patches: Patches) -> None:
    patches.attribute(hands, "check_update", lambda *_: Findings(None, 1.0, 1.0))


# ---- sites --------------------------------------------------------------------------


def _no_spool(patches: Patches) -> None:
    def persist(original: Original, site: SitePlayer, facts: p.SiteFacts) -> None:
        original(site, tuple(x for x in facts if not isinstance(x, s.UpdateSpooled)))

    patches.attribute(SitePlayer, "persist", persist)


def _forgetful_site(patches: Patches) -> None:
    def recover(original: Original, site: SitePlayer) -> p.Participant:
        return p.Participant(approved=fold(site.records).approved)

    patches.attribute(SitePlayer, "recover", recover)


def _credulous_witness(patches: Patches) -> None:
    def shown(state: p.Participant, item: p.Shown) -> p.SiteFacts:
        if (item.size, item.root) == (state.seen_size, state.seen_root):
            return ()
        return (s.CheckpointWitnessed(item.size, item.root, item.now_ms),)

    patches.move(p._RULES, p.Shown, shown)


BUGS = (
    Bug("the reply leaves before the commit", _commit_after_reply),
    Bug("a receipt is given for what is not committed", _recorded_before_commit),
    Bug("a full disk is swallowed and acknowledged", _swallowed),
    Bug("a fact names a blob before it is stored", _blob_after_fact),
    Bug("a checkpoint is signed before the commit", _early_checkpoint),
    Bug("no fence: an append ignores the expected position", _no_fence),
    Bug("two coordinators both publish", _both_publish),
    Bug("an unknown commit is taken for failed and repeated", _unknown_is_failed),
    Bug("answers without facts come from an old state", _answers_from_the_past),
    Bug("a coordinator that is behind shows a shorter log", _shows_less),
    Bug("a coordinator does not learn of a new log key", _unknown_key),
    Bug("a sum over members of the past is published", _stale_sum),
    Bug("the replay set is in memory only", _replay_set_in_memory),
    Bug("a late update is counted", _late_update),
    Bug("another digest after the first is acknowledged", _other_digest),
    Bug("the site's clock is trusted", _their_clock),
    Bug("deadlines are extended without bound", _endless_extensions),
    Bug("nobody looks at the clock while a round is open", _no_alarm_clock),
    Bug("a revoked site is counted", _revoked_counts),
    Bug("an update is counted twice in the sum", _counted_twice),
    Bug("an evaluation by a non-member is taken", _anybody_evaluates),
    Bug("signatures are not checked", _nobody_signs),
    Bug("updates are not checked", _unchecked),
    Bug("no spool: a restarted site trains again", _no_spool),
    Bug("a site's log is not replayed", _forgetful_site),
    Bug("a site accepts a log that shrank", _credulous_witness),
)
