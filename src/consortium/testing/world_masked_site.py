"""A site of a `World` in secret sums: the real arithmetic, on what it has verified and kept.

Beside its log a site has the seeds of one round, sealed, and the lists that it was shown: they
survive a crash. Seeds are durable before the keys that follow from them leave; a pin is in the
log before anything leaves by it; and what leaves is spooled, so that a retry says the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.core.ids import Seat, Secret, SiteId
from consortium.core.names import session_name, sharing_name, split_name
from consortium.core.tables import Stage
from consortium.core.terms import HOUR_MS, SECOND_MS
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum.keys import SEED_BYTES, Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Split
from consortium.crypto.secure_sum.site import Site
from consortium.drive import secret_sum
from consortium.errors import CorruptStoreError, InvalidInputError
from consortium.model import Update, save_update
from consortium.testing.world_masks import (
    SessionSheet,
    SharingSheet,
    Sheet,
    SplitSheet,
    key_of,
    signed,
)
from consortium.testing.world_site import SitePlayer
from consortium.testing.world_violation import must
from consortium.testing.world_wire import Answers, Body, Consents, Keys, Reply, Shares

if TYPE_CHECKING:
    from consortium.testing.world import World

_KEY = 32
_FORGETS_SECRETS = 0.5  # of old backups: of the whole home, else of the log alone


@dataclass(frozen=True, slots=True)
class Agreed:
    """A session as a site has verified it."""

    session: Session
    sites: dict[Seat, SiteId]

    def named(self, seats: tuple[Seat, ...]) -> frozenset[SiteId]:
        return frozenset(self.sites[seat] for seat in seats)


class Secrets:
    """What a site keeps beside its log: of one round at a time."""

    def __init__(self) -> None:
        self.seeds: dict[int, Seeds] = {}
        self.sheets: dict[tuple[int, type[Any]], Any] = {}

    def forget(self, *, but: int = 0) -> None:
        self.seeds = {number: one for number, one in self.seeds.items() if number == but}
        self.sheets = {key: one for key, one in self.sheets.items() if key[0] == but}

    def of(self, number: int) -> Seeds:
        if number not in self.seeds:
            raise CorruptStoreError(f"the seeds of round {number} are not here any more")
        return self.seeds[number]

    def sheet(self, number: int, kind: type[Any]) -> Any:
        if (number, kind) not in self.sheets:
            raise CorruptStoreError(f"what round {number} was agreed on is not here any more")
        return self.sheets[number, kind]


class MaskedSitePlayer(SitePlayer):
    """One honest site where sums are secret."""

    def __init__(self, seat: Seat, world: World) -> None:
        self.secrets = Secrets()
        self._old: dict[int, Seeds] = {}  # what an old backup of the whole home would have
        self._sheet: Sheet | None = None
        super().__init__(seat, world)
        self.me = SiteId(f"site-{seat}")

    def restore(self, length: int, *, with_account: bool = True) -> None:
        """An old backup: of the log alone, or of the secrets too."""
        super().restore(length, with_account=with_account)
        if self.world.rng.random() < _FORGETS_SECRETS:
            number = self.state.round
            self.secrets.seeds = {n: one for n, one in self._old.items() if n == number}
            self.secrets.forget(but=number)

    @property
    def longest_pause_ms(self) -> int:
        """It is asked several times a round, and each is short; but what a clock has put off for
        a day needs nobody's patience."""
        truth = self.world.watch.past.state
        next_ms = truth.due_ms if truth.round is None else truth.round.deadline_ms
        is_far = next_ms > self.world.now_ms + HOUR_MS or truth.finished is not None
        return super().longest_pause_ms if is_far else 40 * SECOND_MS

    def may_differ(self, number: int) -> bool:
        """Whether it has forgotten what it did in this round: an old backup was put back."""
        return self.forgot_since is not None and number >= self.forgot_since

    # ---- persist, then act ----------------------------------------------------------

    def feed(self, item: p.SiteInput) -> p.SiteFacts:
        facts = super().feed(item)
        for fact in facts:
            if isinstance(fact, s.SumJoined | s.InvitationTaken):
                self.secrets.forget(but=fact.round)
            elif isinstance(fact, s.AnswerTold):
                self.secrets.forget()
        return facts

    def make_seeds(self, number: int) -> Seeds:
        """Those that are there, or new ones, durable when it returns."""
        if number not in self.secrets.seeds:
            self.may_crash("before its seeds are durable")
            raw = self.world.veil_rng.randbytes(4 * SEED_BYTES)
            self.secrets.seeds[number] = self._old[number] = Seeds.from_secret(Secret(raw))
            self.may_crash("after its seeds are durable")
        return self.secrets.of(number)

    def _act(self) -> None:
        work = p.owed(self.state)
        try:
            match work:
                case p.SendKeys():
                    self._give(work, self._keys_note, self._as_keys)
                case p.SendShares():
                    self._give(work, self._shares_note, self._as_shares)
                case p.SendConsent():
                    self._give(work, self._consent_note, self._as_consents)
                case p.SendAnswer():
                    self._give(work, self._answer_note, self._as_answers)
                case _:
                    super()._act()
        except CorruptStoreError:
            self.feed(p.Broke(self.state.round, Failure.RESOURCES, self.clock.now_ms()))

    def _give(
        self, work: p.SiteWork, make: Callable[[], bytes], body: Callable[[bytes], Body]
    ) -> None:
        """What was spooled in this step, or is made now."""
        if self.state.note is None:
            note = make()
            now_ms = self.clock.now_ms()
            self.feed(p.Spool(self.state.round, self.spool.put(note), len(note), now_ms))
        assert self.state.note is not None
        self.send(body(self.spool.get(self.state.note)), work)

    # ---- what leaves ----------------------------------------------------------------

    def _name(self, number: int) -> RoundName:
        return RoundName(self.world.watch.past.state.id, number)

    def _keys_note(self) -> bytes:
        number = self.state.round
        advert = make_keys(self._name(number), self.me, self.make_seeds(number))
        return advert.mask_key + advert.seal_key + advert.commitment

    def _as_keys(self, note: bytes) -> Body:
        parts = [note[at : at + _KEY] for at in range(0, 3 * _KEY, _KEY)]
        self._veil.keys_leave(self, self.state.round, parts[0])
        return Keys(self.state.round, *parts)

    def _shares_note(self) -> bytes:
        agreed, site = self._half()
        return secret_sum.shares_file(agreed.session, self.me, site.make_shares())

    def _as_shares(self, note: bytes) -> Body:
        session = self.state.session
        assert session is not None
        self._veil.shares_leave(self, self.state.round, session)
        return Shares(self.state.round, session, note)

    def made(self, work: p.TrainHere) -> bytes:
        """The update on the ring, under the masks of this round."""
        agreed, site = self._half()
        assert self.world.numbers is not None
        step, weight = self.world.one_hot(self.seat), self.seat / self.world.setting.sites
        row = self.world.numbers.row(step, weight, self.seat)
        sharers = self._sharers(agreed)
        masked = self.mask(site, row, sharers)
        self._veil.masked(self, agreed.session, sharers, row, masked)
        update = Update(masked, 1.0, work.base)  # type: ignore[arg-type]  # whole numbers
        data = save_update(update, self.world.numbers.form)
        self._veil.kept(data, row)
        return data

    def _trained(self, work: p.TrainHere, life: int) -> None:
        try:
            super()._trained(work, life)
        except CorruptStoreError:
            self.feed(p.Broke(work.round, Failure.RESOURCES, self.clock.now_ms()))

    def mask(self, site: Site, row: U32, sharers: frozenset[SiteId]) -> U32:
        return site.mask(row, sharers)

    def _consent_note(self) -> bytes:
        return signed(self.key, self._agreed().session, self.split())

    def _as_consents(self, note: bytes) -> Body:
        split = self.state.split
        assert split is not None
        self._veil.consent_leaves(self, self.state.round, split)
        return Consents(self.state.round, split, note)

    def _answer_note(self) -> bytes:
        agreed, site = self._half()
        split = self.split()
        sheet: SharingSheet = self.secrets.sheet(self.state.round, SharingSheet)
        try:
            held = site.open_shares(dict(sheet.sealed))
            answer = site.answer(split, held)
        except InvalidInputError:  # somebody sealed what nobody can open
            raise CorruptStoreError("what others shared cannot be opened") from None
        self._veil.answers(self, self.state.round, agreed.session, answer)
        return secret_sum.answer_file(answer)

    def split(self) -> Split:
        """The one that this site agreed to."""
        agreed = self._agreed()
        closed = self.secrets.sheet(self.state.round, SplitSheet).closed
        return secret_sum.split_of(self._sharers(agreed), agreed.named(closed.members))

    def _as_answers(self, note: bytes) -> Body:
        split = self.state.split
        assert split is not None
        self._veil.answer_leaves(self, self.state.round, split)
        return Answers(self.state.round, split, note)

    def sites_in_session(self) -> dict[Seat, SiteId]:
        """Who gave keys in the session that this site agreed to."""
        return self._agreed().sites

    def _half(self) -> tuple[Agreed, Site]:
        agreed = self._agreed()
        return agreed, Site(agreed.session, self.me, self.secrets.of(self.state.round))

    def _agreed(self) -> Agreed:
        sheet: SessionSheet = self.secrets.sheet(self.state.round, SessionSheet)
        federation = self.world.watch.past.state.id
        made = secret_sum.make_session(federation, sheet.seed, sheet.closed.quorum, sheet.keys)
        return Agreed(made, {fact.seat: site for site, fact in sheet.keys})

    def _sharers(self, agreed: Agreed) -> frozenset[SiteId]:
        sheet: SharingSheet = self.secrets.sheet(self.state.round, SharingSheet)
        return agreed.named(sheet.closed.seats)

    @property
    def _veil(self) -> Any:
        assert self.world.veil is not None
        return self.world.veil

    # ---- what is believed -----------------------------------------------------------

    def _asked(self, reply: Reply) -> None:
        self._sheet = reply.sheet
        super()._asked(reply)

    def _take_on(self, duty: d.SiteDuty) -> p.SiteFacts:
        """What is to be agreed to is seen first, and kept. A list by another name is a lie."""
        if not self._is_pinned(duty) and duty.round == self.state.round:
            self._look_at(duty)
            if isinstance(duty, d.Unmask):
                self._count_consents()
        facts = super()._take_on(duty)
        for fact in facts:
            self._veil.pinned(self, fact)
        return facts

    def _is_pinned(self, duty: d.SiteDuty) -> bool:
        match duty:
            case d.Share():
                return self.state.session is not None
            case d.Train():
                return self.state.sharing is not None
            case d.Agree():
                return self.state.split is not None
            case d.Unmask():
                is_to_answer = self.state.stage in (Stage.AGREEING, Stage.AGREED)
                return self.state.split not in (None, duty.split) or (
                    self.state.split is not None and not is_to_answer
                )
            case _:
                return True

    def _look_at(self, duty: d.SiteDuty) -> None:
        sheet = self._sheet
        match duty, sheet:
            case d.Share(), SessionSheet():
                keys = [fact for _, fact in sheet.keys]
                is_named = session_name(sheet.seed, keys, sheet.closed) == duty.session
            case d.Train(), SharingSheet():
                is_named = sharing_name(sheet.closed) == duty.sharing
            case d.Agree() | d.Unmask(), SplitSheet():
                is_named = split_name(sheet.closed) == duty.split
            case _:
                is_named = False
        must(is_named, "I-X1", f"seat {self.seat} is shown another list than it is told of")
        self.may_crash("before a list is kept")
        self.secrets.sheets[duty.round, type(sheet)] = sheet

    def _count_consents(self) -> None:
        """Two thirds of all must have signed what this site was told."""
        agreed, split = self._agreed(), self.split()
        sheet: SplitSheet = self.secrets.sheet(self.state.round, SplitSheet)
        valid = {
            fact.seat
            for fact in sheet.consents
            if fact.signature == signed(key_of(fact.seat), agreed.session, split)
        }
        is_enough = 3 * len(valid) >= 2 * len(agreed.sites)
        must(is_enough, "I-X1", f"seat {self.seat} is asked, and {len(valid)} have signed")
