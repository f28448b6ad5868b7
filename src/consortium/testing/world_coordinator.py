"""A coordinator in a `World`: the real `Coordinator` and hands on a disk that fails.

The player only carries messages: it stores the bytes of an update, stamps the time of its
own clock, feeds the driver and replies. Whatever is decided is decided in the core.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.answers import receipt
from consortium.core.codec import decode
from consortium.core.ending import Facts
from consortium.core.facts import Departure, UpdateReceived
from consortium.core.federation import owed_by
from consortium.core.ids import Seat, Secret
from consortium.core.tables import Step
from consortium.crypto.recipes import SigningKey
from consortium.drive.coordinate import Coordinator
from consortium.drive.driver import Hands
from consortium.drive.rounds import RoundIndex
from consortium.errors import Refusal, StoreError, UnauthorizedClientError
from consortium.ledger.note import Signer, Verifier
from consortium.store.memory import MemoryCache
from consortium.testing.world_faults import (
    CRASH_ON_ARRIVAL,
    RACE,
    Crash,
    FaultyBlobs,
    FaultyLog,
    NodeClock,
)
from consortium.testing.world_masks import masked_input, sheet_for, why_not
from consortium.testing.world_wire import (
    About,
    Answers,
    Ask,
    Consents,
    Failing,
    Keys,
    Reply,
    Request,
    Scores,
    Send,
    Shares,
)

if TYPE_CHECKING:
    from consortium.testing.world import Site, World

STREAM = "f"


class Keyring:
    """The log's signing keys, which survive every crash."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.signers: list[Signer] = []

    def new_signer(self) -> Signer:
        text = f"consortium/testing/world log key {self._seed} {len(self.signers)}"
        secret = Secret(sha256(text.encode()).digest())
        self.signers.append(Signer("coordinator", SigningKey.from_secret(secret)))
        return self.signers[-1]

    def verifiers(self) -> list[Verifier]:
        """The public keys, as the lead hands them to the sites."""
        return [signer.verifier for signer in self.signers]


class MemoryDirectory:
    """What a `DataDirectory` has, in memory, on the world's faulty disk."""

    def __init__(self, log: FaultyLog, keyring: Keyring) -> None:
        self.log, self.cache = log, MemoryCache()
        self._keyring = keyring

    def signers(self) -> list[Signer]:
        return list(self._keyring.signers)

    def new_signer(self) -> Signer:
        return self._keyring.new_signer()

    def keep_newest(self, stream: str, note: bytes) -> None:
        """The world's own rules see every checkpoint; there is no other place to keep it."""


class RacingHands:
    """The real hands, and the other coordinator is sometimes faster."""

    def __init__(self, hands: Hands, player: CoordinatorPlayer) -> None:
        self._hands, self._player = hands, player

    def perform(self, duty: d.Duty) -> i.Input:
        world = self._player.world
        if isinstance(duty, d.Reserve):
            world.trouble.oversleep(self._player)
        done = self._hands.perform(duty)
        if isinstance(duty, d.Aggregate) and world.faults.chance(3 * RACE):
            world.pace.dismiss_a_member(self._player)
        if isinstance(duty, d.Reserve) and world.faults.chance(RACE):
            world.trouble.change_plans(self._player)
        world.meanwhile(self._player)
        return done


class CoordinatorPlayer:
    """One process that comes and goes; its memory goes with it."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.clock = NodeClock(lambda: world.now_ms)
        self.blobs = FaultyBlobs(world.blobs, world.faults)
        self.log = FaultyLog(world.log, world, self)
        self.is_paused = False
        self.awake_ms = 0  # when it was started, by its own clock
        self.running: Coordinator | None = None
        self.hands: Hands | None = None

    @property
    def is_up(self) -> bool:
        return self.running is not None and not self.is_paused

    def start(self) -> None:
        """Recovery: fold the log, and nothing else."""
        world = self.world
        directory = MemoryDirectory(self.log, world.keyring)
        self.awake_ms = self.clock.now_ms()
        self.running = Coordinator(directory, STREAM, self.clock)
        self.hands = RacingHands(world.hands_of(self), self)

    def crash(self) -> None:
        self.running, self.hands, self.is_paused = None, None, False

    def coordinator(self) -> Coordinator:
        assert self.running is not None, "a process that is gone was asked something"
        return self.running

    # ---- requests -------------------------------------------------------------------

    def receive(self, request: Request, sender: Site) -> None:
        """Answer, or do not: whoever has lost a reply asks again."""
        if self.world.faults.strikes("coordinator crash before a commit", CRASH_ON_ARRIVAL):
            raise Crash(self)
        try:
            reply = self.answer(request)
        except StoreError:
            return  # over HTTP: 503, try again
        self.world.reply(self, sender, reply)

    def answer(self, request: Request) -> Reply:
        item: i.Input | None = None
        try:
            self.authenticate(request)
            if isinstance(request.body, Ask):
                return self._what_to_do(request, request.body)
            ill = why_not(self, request)
            if ill:
                return Reply(request.id, ill)
            item = self.as_input(request)
            facts = self.take(item)
        except Refusal as refusal:
            self.world.watch.refused(self, request, item)
            return Reply(request.id, refusal.code)
        self.world.watch.taken(self, item, facts)
        return self.acknowledge(request, item)

    def authenticate(self, request: Request) -> None:
        """Identity is the signature; a key that is not on the roster is nobody's."""
        driver = self.coordinator().driver
        if not self._knows(request) and (not driver.catch_up() or not self._knows(request)):
            raise UnauthorizedClientError("this site is not on the roster")

    def _knows(self, request: Request) -> bool:
        member = self.coordinator().driver.state.roster.members.get(request.seat)
        return member is not None and member.key == request.key

    def as_input(self, request: Request) -> i.Input:
        """What the core is told: the request, stamped with the coordinator's own time."""
        body, seat, now_ms = request.body, request.seat, self.stamp(request)
        match body:
            case Send():
                return i.Submit(body.round, seat, self.blobs.put(body.data), None, now_ms)
            case Failing():
                return i.Fail(body.round, seat, body.failure, None, now_ms)
            case About():
                return i.Report(seat, body.report, now_ms)
            case Scores(score):
                return i.Score(
                    score.round,
                    seat,
                    score.model,
                    score.samples,
                    score.candidate,
                    score.base,
                    None,
                    now_ms,
                )
            case Keys() | Shares() | Consents() | Answers():
                return masked_input(self, request, now_ms)
            case Ask():
                raise AssertionError("asking brings no facts about")

    def stamp(self, request: Request) -> int:
        return self.clock.now_ms()

    def take(self, item: i.Input) -> Facts:
        return self.coordinator().feed(item)

    def acknowledge(self, request: Request, item: i.Input) -> Reply:
        """The reply to what was taken; for an update, with the receipt and its proof."""
        if not isinstance(item, i.Submit):
            return Reply(request.id)
        coordinator = self.coordinator()
        state = coordinator.driver.state
        index = self._index_of(item.round, item.seat)
        proof = None if index is None else coordinator.proof(index)
        return Reply(request.id, receipt=receipt(state, item.round, item.seat), proof=proof)

    def _index_of(self, number: int, seat: Seat) -> int | None:
        """Where the log says that this update was received."""
        for index, record in enumerate(self.log.read(STREAM)):
            if record[0] == UpdateReceived.KIND:
                fact = decode(record)
                if (fact.round, fact.seat) == (number, seat):
                    return index
        return None

    def _what_to_do(self, request: Request, body: Ask) -> Reply:
        coordinator = self.coordinator()
        offer = coordinator.offer(body.since)
        state = coordinator.driver.state
        version = state.versions[state.current]
        return Reply(
            request.id,
            duty=owed_by(state, request.seat),
            offer=offer,
            settled=self._settled(body.unsettled, request.seat),
            model=(state.current, version.model),
            sheet=sheet_for(self, request.seat),
        )

    def _settled(self, number: int, seat: Seat) -> tuple[int, bool] | None:
        counted = RoundIndex(self.log, STREAM).is_counted(number, seat) if number else None
        return None if counted is None else (number, counted)

    # ---- duties ---------------------------------------------------------------------

    def work(self) -> bool:
        """Perform the first duty that is due; whether it brought anything new."""
        assert self.hands is not None
        driver = self.coordinator().driver
        before = driver.position
        try:
            facts = self.coordinator().work(self.hands)
        except StoreError:
            return False
        except Refusal as refusal:  # whoever is behind asks an account for what is over
            self.world.watch.is_behind(self, refusal)
            return False
        if driver.position == before:
            self.world.watch.rests(self)
        return bool(facts)

    def order(self, item: i.Input) -> bool:
        """The lead's order; whether it was taken."""
        self.world.trace(f"the lead → {self.name}: {type(item).__name__}")
        try:
            self.take(item)
        except (Refusal, StoreError):
            return False
        return True

    def rotate(self) -> None:
        self.world.trace(f"the lead → {self.name}: a new log key")
        try:
            self.coordinator().rotate_key()
        except StoreError:
            return

    def a_member(self) -> i.Dismiss | None:
        """An order against a member whose update is about to be summed, if there is one."""
        open_round = self.coordinator().driver.state.round
        if open_round is None or open_round.step is not Step.SUMMING:
            return None
        if len(open_round.members) <= open_round.quorum and self.world.rng.random() < 0.7:
            return None  # seldom: the round could only fail
        seat = self.world.rng.choice(sorted(open_round.members))
        return i.Dismiss(seat, Departure.REVOKED, self.clock.now_ms())
