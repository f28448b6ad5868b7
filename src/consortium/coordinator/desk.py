"""One federation at a coordinator: what its sites ask and send, and the worker that does
what is owed.

Nothing is decided here: requests become inputs of the core, and answers are read from its
state. All methods may be called from several threads; `driver.lock` is held while something
is fed or read together, and never while a duty is performed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from consortium.coordinator.heard import Heard, verified_cosignature
from consortium.coordinator.loop import Loop, OnTrouble
from consortium.coordinator.news import News
from consortium.coordinator.registry import Registry
from consortium.coordinator.rows import SiteNote, SiteRow
from consortium.coordinator.secret_desk import SecretDesk
from consortium.coordinator.study import Study, adopted_study
from consortium.coordinator.uploads import Uploads
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.answers import Settlement, Status, may_send, receipt, settlement
from consortium.core.buffer import why_over
from consortium.core.ending import Facts
from consortium.core.facts import (
    Departure,
    Failure,
    FederationFinished,
    RoundCompleted,
    RoundFailed,
    SitesInvited,
)
from consortium.core.federation import decide, owed_by
from consortium.core.ids import Digest, Seat
from consortium.core.owing import has_answered
from consortium.core.roster import Member
from consortium.core.state import Federation
from consortium.drive.accounts import Accounts
from consortium.drive.clock import Clock
from consortium.drive.coordinate import Coordinator
from consortium.drive.directory import SIGNER_NAME, DataDirectory
from consortium.drive.hands import CoordinatorHands, hands_for
from consortium.drive.rng import seed_bytes
from consortium.drive.rounds import RoundIndex
from consortium.errors import (
    CorruptBlobError,
    NoModelError,
    UnauthorizedClientError,
    WireError,
    WrongRoundError,
)
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Verifier
from consortium.ledger.proof import Proof
from consortium.wire.invitation import sign_duty
from consortium.wire.messages import (
    Answer,
    Ask,
    ClientRegister,
    ClientRegistered,
    FailureNote,
    ReceiptReply,
    Report,
    ScoreNote,
    SettledRound,
    Signature,
    StudySheet,
    Submission,
    Taken,
    WireOffer,
)

_TOGETHER_S = 0.05  # from a round's end to the next one's invitation, if they are told together
_ENDS = (RoundCompleted, RoundFailed, FederationFinished)
_HEADER_BYTES = 64 << 10  # of an update's file, beside its numbers
_PATIENCE_S = 1.0  # the longest that the worker sleeps without a look at the log
_Answered = i.Fail | i.Score | i.GiveShares | i.GiveAnswer


def _has(facts: Facts, kinds: tuple[type, ...]) -> bool:
    return any(isinstance(fact, kinds) for fact in facts)


class Desk:
    """One federation. `start` begins to work; until then it only answers."""

    def __init__(
        self,
        directory: DataDirectory,
        registry: Registry,
        federation: tuple[str, str],
        *,
        clock: Clock,
        uploads: Uploads,
        accounts: Accounts,
        seed: int | None = None,
    ) -> None:
        self.id, self.name = federation
        self.blobs, self.accounts = directory.blobs, accounts
        self.index = RoundIndex(directory.log, self.id)
        self.coordinator = Coordinator(directory, self.id, clock)
        self._directory, self._registry = directory, registry
        self.clock, self._uploads, self._seed = clock, uploads, seed
        self._driver = self.coordinator.driver
        self._study: Study | None = None
        self._watchers: list[Callable[[], None]] = []
        self._signed: dict[tuple[str, d.SiteDuty], Signature] = {}
        self.heard, self.secret = Heard(registry, self.id), SecretDesk(self, registry)
        self._loop = Loop(self._turn, self._rest_s)
        self._written_s = time.monotonic()
        self._has_ended = True  # a checkpoint is due: the last one may not have been kept
        self._untold_s: float | None = None  # since when who waits was not told of an end

    @property
    def state(self) -> Federation:
        """The folded state: read it under `lock`."""
        return self._driver.state

    @property
    def lock(self) -> threading.RLock:
        return self._driver.lock

    @property
    def size(self) -> int:
        """Facts in the log."""
        return self._driver.position

    @property
    def is_finished(self) -> bool:
        return self.state.finished is not None

    def study_of_plan(self) -> Study:
        """The plan, layout and bundle that the federation has adopted."""
        with self.lock:
            study, state = self._study, self.state
            if study is None or (study.digest, study.task) != (state.plan, state.task):
                study = self._study = adopted_study(self.id, state, self._registry, self.blobs)
            return study

    def open_account(self) -> None:
        """Let the account that rounds are paid from know the plan's limits."""
        if self.state.terms is not None and self.state.terms.budget is not None:
            self.accounts.open(self.state.terms.budget, self.study_of_plan().plan.privacy.limits)

    # ---- the worker -----------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback`, in whatever thread, after facts were appended."""
        self._watchers.append(callback)

    def start(self, on_trouble: OnTrouble) -> None:
        """Do what is owed, from now on, in a thread of its own."""
        self._loop.start(f"desk-{self.name}", on_trouble)

    def close(self) -> None:
        """Stop working. What is owed stays owed."""
        if not self._loop.close():
            return  # it sums: the log is as good without us, and the process may end
        self.heard.write()
        if self.size:
            self.coordinator.keep_checkpoint()

    def feed(self, item: i.Input) -> Facts:
        """What somebody asks or reports; durable when it returns."""
        facts = self.coordinator.feed(item)
        self._tell(facts)
        return facts

    @property
    def is_working(self) -> bool:
        """Whether somebody is there to do what is owed."""
        return self._loop.is_running

    def _turn(self) -> bool:
        """Do one thing that is due; whether there may be more."""
        if time.monotonic() - self._written_s > _PATIENCE_S:
            self.heard.write()
            self._written_s = time.monotonic()
        facts: Facts = ()
        try:
            if self._has_ended:
                self._keep_checkpoint()
            facts = self._step()
        finally:  # also of what came before a failure
            self._tell_together(facts)
        return bool(facts)

    def _tell_together(self, facts: Facts) -> None:
        """After a round's end comes the next one's invitation: who waits for one is told of both
        at once, unless that takes longer than anybody should wait."""
        now_s = time.monotonic()
        if _has(facts, _ENDS):
            self._on_end()
        if _has(facts, (RoundCompleted,)) and not _has(facts, (FederationFinished,)):
            self._untold_s = now_s
        untold_s = self._untold_s
        if untold_s is not None and facts and not _has(facts, (SitesInvited,)):
            if now_s - untold_s <= _TOGETHER_S:
                return  # the invitation is next
        self._untold_s = None
        if facts or untold_s is not None:
            self._notify()

    def _keep_checkpoint(self) -> None:
        self._has_ended = False  # before: another round may end meanwhile
        try:
            with self.lock:
                self.coordinator.keep_checkpoint()
        except BaseException:
            self._has_ended = True  # it is due still
            raise

    def _step(self) -> Facts:
        before = self._driver.position
        self._driver.catch_up()  # another process may have appended
        if self.state.terms is None:
            return ()
        facts = self.coordinator.work(self._hands())
        if not facts and self._driver.position != before:
            self._notify()
        return facts

    def _rest_s(self) -> float:
        with self.lock:
            wakes_ms = self._driver.wakes_at_ms()
        if wakes_ms is None:
            return _PATIENCE_S
        return min(max(wakes_ms - self.clock.now_ms(), 1) / 1000, _PATIENCE_S)

    def _hands(self) -> CoordinatorHands:
        study = self.study_of_plan()
        rules = study.plan, study.layout, self.blobs, self.clock, self._draw
        return hands_for(*rules, metrics=study.metrics, accounts=self.accounts)

    def _draw(self, number: int) -> bytes:
        if self._seed is None:
            return secrets.token_bytes(32)
        return seed_bytes(self._seed, "selection", number)

    def _tell(self, facts: Facts) -> None:
        """Wake everybody whom these facts may concern. Never fails: they are durable."""
        if not facts:
            return
        if _has(facts, _ENDS):
            self._on_end()
        self._notify()

    def _on_end(self) -> None:
        self._signed.clear()
        self._has_ended = True

    def _notify(self) -> None:
        self._loop.wake()
        for callback in self._watchers:
            callback()

    # ---- asking ---------------------------------------------------------------------

    def has_news(self, site: SiteRow, ask: Ask) -> bool:
        """Whether `answer` would say something else than what the site has. Cheap."""
        with self.lock:
            seat = self.seat(site)
            news = self._news(seat, ask)
            return not news.is_known(ask.have, has_answered=has_answered(self.state, seat))

    def answer(self, site: SiteRow, ask: Ask) -> Answer:
        """What a site is told now. Never waits."""
        with self.lock:
            note = self.hear(site, ask)
            news = self._news(self.seat(site), ask)
            offer = self.coordinator.offer(ask.seen_size)
            state = self.state
            open_round = state.round.number if state.round else 0
            present = state.versions.get(state.current)
            invitation = None if news.duty is None else self._invitation(site, news.duty)
        settled = None
        if news.settled is not None:
            number, is_counted = news.settled
            settled = SettledRound(round=number, is_counted=is_counted)
        return Answer(
            mark=news.mark,
            now_ms=self.clock.now_ms(),
            offer=WireOffer(
                since=offer.since, path=[part.hex() for part in offer.path], note=offer.note
            ),
            invitation=invitation,
            settled=settled,
            own_size=note.own_size,
            is_finished=news.is_finished,
            round=open_round,
            version=state.current,
            model=None if present is None else present.model.hex(),
        )

    def hear(self, site: SiteRow, ask: Ask) -> SiteNote:
        """Note what a site says of itself when it asks; what is known of it now."""
        keys = [Verifier(SIGNER_NAME, key) for key in self.state.log_keys]
        cosigned = verified_cosignature(ask.cosignature, site, origin_of(self.id), keys)
        return self.heard.take(site, ask, cosigned, self.clock.now_ms())

    def _news(self, seat: Seat, ask: Ask) -> News:
        state, number = self.state, ask.unsettled
        is_counted = self._is_counted(number, seat) if number else None
        settled = None if is_counted is None else (number, is_counted)
        return News(owed_by(state, seat), settled, state.current, state.finished is not None)

    def _is_counted(self, number: int, seat: Seat) -> bool | None:
        """How an invitation ended for a seat; the newest one is known without the log."""
        known = settlement(self.state, number, seat)
        if known is Settlement.FORGOTTEN:
            return self.index.is_counted(number, seat)
        return None if known is Settlement.OPEN else known is Settlement.COUNTED

    def _invitation(self, site: SiteRow, duty: d.SiteDuty) -> Signature:
        signed = self._signed.get((site.id, duty))
        if signed is None:
            plan, key = self.study_of_plan().plan, self.coordinator.signing_key()
            signed = sign_duty(self.id, site.id, duty, plan, key)
            self._signed[site.id, duty] = signed
        return signed

    def seat(self, site: SiteRow) -> Seat:
        if site.seat is None or self._member(site) is None:
            raise UnauthorizedClientError("this site is not on the roster")
        return Seat(site.seat)

    def has_member(self, site: SiteRow) -> bool:
        """Whether the site is on the roster with this key."""
        with self.lock:
            return site.seat is not None and self._member(site) is not None

    def _member(self, site: SiteRow) -> Member | None:
        member = self.state.roster.members.get(Seat(site.seat or 0))
        return member if member is not None and member.key == site.key else None

    # ---- what sites may fetch and send ----------------------------------------------

    def study(self) -> StudySheet:
        """Which blobs a site needs to look at the study."""
        with self.lock:
            if self.state.plan is None:
                raise NoModelError("this federation has no plan yet")
        return self.study_of_plan().sheet

    def may_read(self, site: SiteRow, digest: Digest) -> bool:
        """Whether this blob is for this site: the study, published models, what its own part of
        the open round needs. Never another site's update."""
        with self.lock:
            state, seat = self.state, self.seat(site)
            sheet = self.study_of_plan().sheet
            if digest.hex() in (sheet.plan, sheet.layout, sheet.bundle, sheet.lock):
                return True
            if any(version.model == digest for version in state.versions.values()):
                return True
            open_round, passing = state.round, state.passing.get(seat)
            if passing is not None and digest == passing.server_state:
                return True
            if open_round is None or seat not in open_round.invited:
                return False
            has_candidate = seat in open_round.members and digest == open_round.model
            asked = open_round.invitation(seat)
            return has_candidate or digest in (open_round.base, asked.base, asked.server_state)

    def upload_limit(self, site: SiteRow) -> int:
        """The most bytes that this site may upload now; nothing unless it is to answer."""
        with self.lock:
            state, seat = self.state, self.seat(site)
            if not may_send(state, seat):
                made = state.lapsed.get(seat)
                over = made and why_over(state, seat, made, self.clock.now_ms())
                if over:
                    raise over  # the site learns why before it has sent anything
                return 0
        study = self.study_of_plan()
        return study.plan.form(study.layout, 0, study.metrics).size_bytes + _HEADER_BYTES

    def report(self, site: SiteRow, body: Report) -> Taken:
        with self.lock:
            seat = self.seat(site)
        self.feed(i.Report(seat, tuple(sorted(body.report.items())), self.clock.now_ms()))
        return Taken()

    def register(self, site: SiteRow, body: ClientRegister) -> ClientRegistered:
        """The seed's own way to say that a site is there."""
        if body.location_id not in (site.name, site.name.partition(".")[2]):
            raise UnauthorizedClientError("this key is another location's")
        entry = self.study_of_plan().plan.task.entry
        if body.model_type not in (entry, entry.partition(":")[2]):
            raise WireError(f"this federation's task is `{entry}`", hint="use it as model_type")
        with self.lock:
            told = self.state.roster.attributes(self.seat(site))
        self.report(site, Report(report=told))  # what it said of itself before stays
        return ClientRegistered(client_id=self.client_id(site), registered=True)

    def client_id(self, site: SiteRow) -> str:
        """`tenant.location`."""
        return site.name if "." in site.name else f"{self.name}.{site.name}"

    def submit(self, site: SiteRow, number: int, body: Submission, envelope: bytes) -> ReceiptReply:
        """Take a finished upload over and count it, once. Whether the site may still answer is
        asked before its bytes become a blob, and again when the fact is made."""
        digest = Digest(bytes.fromhex(body.update))
        with self.lock:
            seat = self.seat(site)
            is_new = bool(decide(self.state, self._submission(number, seat, digest, None)))
        if is_new:
            self._adopt(site, digest, body.size_bytes)
            kept = self.blobs.put(envelope)
            self.feed(self._submission(number, seat, digest, kept))
        return self.receipt(site, number)

    def _submission(
        self, number: int, seat: Seat, digest: Digest, envelope: Digest | None
    ) -> i.Submit:
        return i.Submit(number, seat, digest, envelope, self.clock.now_ms())

    def _adopt(self, site: SiteRow, digest: Digest, size_bytes: int) -> None:
        uploads = self._uploads
        with uploads.turn(site.id):
            if uploads.is_done(site.id, digest) and self.blobs.has(digest):
                if self.blobs.size(digest) != size_bytes:
                    raise WireError("the update has another size than it is said to have")
                return
            try:
                whole, is_compared = uploads.take(site.id, digest, size_bytes)
                self.blobs.adopt(whole, digest, is_compared=is_compared)
            except CorruptBlobError:
                uploads.forget(site.id, digest)
                raise WireError(
                    "the upload does not have the digest that it was sent under",
                    hint="send it again from the beginning",
                ) from None
            # Before the fact: killed in between, the site need not send it again.
            uploads.mark_done(site.id, digest)

    def fail(self, site: SiteRow, number: int, body: FailureNote, envelope: bytes) -> Taken:
        if body.failure not in Failure.__members__:
            raise WireError("there is no failure of that name")
        with self.lock:
            seat = self.seat(site)
        failed = i.Fail(number, seat, Failure[body.failure], None, self.clock.now_ms())
        self.take(failed, envelope)
        return Taken()

    def score(self, site: SiteRow, number: int, body: ScoreNote, envelope: bytes) -> Taken:
        with self.lock:
            seat = self.seat(site)
        scored = i.Score(
            number,
            seat,
            Digest(bytes.fromhex(body.model)),
            body.samples,
            tuple(body.candidate),
            tuple(body.base),
            None,
            self.clock.now_ms(),
        )
        self.take(scored, envelope)
        return Taken()

    def take(self, item: _Answered, envelope: bytes) -> None:
        """Feed it with its envelope, which is kept only if something follows from it."""
        with self.lock:
            is_new = bool(decide(self.state, item))
        if is_new:
            self.feed(replace(item, envelope=self.blobs.put(envelope)))

    def leave(self, site: SiteRow) -> Taken:
        with self.lock:
            seat = self.seat(site)
        self.feed(i.Dismiss(seat, Departure.LEFT, self.clock.now_ms()))
        self._registry.revoke(site.id, self.clock.now_ms())  # its name is free again
        return Taken()

    # ---- receipts -------------------------------------------------------------------

    def receipt(self, site: SiteRow, number: int) -> ReceiptReply:
        """That the log has this site's update, in the newest checkpoint."""
        with self.lock:
            seat = self.seat(site)
            position = self.index.received_at(number, seat)
            if position is None:
                raise WrongRoundError(f"this site has sent nothing to round {number}")
            proof = self.coordinator.proof(position)
            update, status, why = self._standing(number, seat, proof)
        return ReceiptReply(update_id=update, status=status, why=why, proof=proof.text())

    def _standing(self, number: int, seat: Seat, proof: Proof) -> tuple[str, str, str | None]:
        found = receipt(self.state, number, seat)
        if found is not None:
            why = None if found.why is None else found.why.name
            return found.update.hex(), found.status.value, why
        status = Status.COUNTED if self.index.was_summed(number, seat) else Status.NOT_COUNTED
        return self.index.update_at(proof.index).hex(), status.value, None
