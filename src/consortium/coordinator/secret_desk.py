"""The coordinator's half of secret sums: what sites give and are told in a round of one.

What is told are records of the log. What is given is looked at before it becomes a fact: a site
that lies about its own keys or shares is refused, because the sum of all would fail for it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from consortium.coordinator.registry import Registry
from consortium.coordinator.rows import SiteRow
from consortium.core import inputs as i
from consortium.core.codec import encode
from consortium.core.federation import decide
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.state import Round
from consortium.crypto.hazmat.agreement import check_public_key
from consortium.crypto.recipes import verify
from consortium.crypto.secure_sum.session import Advert, RoundName, Session, Split
from consortium.drive.secret_sum import (
    check_shares_file,
    make_session,
    read_answer,
    sealed_for,
    split_of,
)
from consortium.errors import UnauthorizedClientError, WireError, WrongRoundError
from consortium.model import digest_of
from consortium.wire.messages import Taken
from consortium.wire.secret_sum import (
    AnswerNote,
    ConsentNote,
    ConsentSheet,
    Identity,
    KeysNote,
    Sealed,
    SessionSheet,
    SharesNote,
    SharingSheet,
    SplitSheet,
    packed,
    unpacked,
)

if TYPE_CHECKING:
    from consortium.coordinator.desk import Desk


class SecretDesk:
    """Of one federation. Methods may be called from several threads."""

    def __init__(self, desk: Desk, registry: Registry) -> None:
        self._desk, self._registry = desk, registry
        self._made: tuple[Digest, Session] | None = None  # of the open round

    # ---- what sites give ------------------------------------------------------------

    def keys(self, site: SiteRow, number: int, body: KeysNote) -> Taken:
        """A site's keys, if its identity signed them and nothing is weak about them."""
        desk = self._desk
        parts = (body.mask_key, body.seal_key, body.commitment, body.signature)
        mask_key, seal_key, commitment, signature = (bytes.fromhex(part) for part in parts)
        for key in (mask_key, seal_key):
            check_public_key(key)
        advert = Advert(SiteId(site.id), mask_key, seal_key, commitment)
        verify(site.key, advert.to_sign(RoundName(desk.id, number)), signature)
        with desk.lock:
            seat = desk.seat(site)
        given = (mask_key, seal_key, commitment, signature)
        desk.feed(i.GiveKeys(number, seat, *given, desk.clock.now_ms()))
        return Taken()

    def shares(self, site: SiteRow, number: int, body: SharesNote, envelope: bytes) -> Taken:
        desk, data = self._desk, unpacked(body.sealed)
        with desk.lock:
            seat, asked = desk.seat(site), self._asked(number)
            _check_named(asked.session, body.session, "session")
            _check_among(seat, asked.keys)
            session = self._session(asked)
        check_shares_file(session, SiteId(site.id), data)
        self._take(i.GiveShares(number, seat, digest_of(data), None, self._now()), data, envelope)
        return Taken()

    def consent(self, site: SiteRow, number: int, body: ConsentNote) -> Taken:
        """A member's signature on the split, if it is one: others will look at it."""
        desk, signature = self._desk, bytes.fromhex(body.signature)
        with desk.lock:
            seat, asked = desk.seat(site), self._asked(number)
            _check_named(asked.split, body.split, "split")
            _check_among(seat, asked.members)
            session, split = self._session(asked), _split(asked)
        verify(site.key, split.to_sign(session), signature)
        desk.feed(i.GiveConsent(number, seat, signature, self._now()))
        return Taken()

    def answer(self, site: SiteRow, number: int, body: AnswerNote, envelope: bytes) -> Taken:
        """A member's answer for the others. What it says is kept; whether it is right shows when
        the masks are taken off."""
        desk, data = self._desk, unpacked(body.shares)
        with desk.lock:
            seat, asked = desk.seat(site), self._asked(number)
            _check_named(asked.split, body.split, "split")
            _check_among(seat, asked.members)
            session, split = self._session(asked), _split(asked)
        read_answer(session, SiteId(site.id), split, data)
        self._take(i.GiveAnswer(number, seat, digest_of(data), None, self._now()), data, envelope)
        return Taken()

    def _take(self, item: i.GiveShares | i.GiveAnswer, data: bytes, envelope: bytes) -> None:
        """Make the bytes durable before the fact that names them; and only if there will be one."""
        desk = self._desk
        with desk.lock:
            is_new = bool(decide(desk.state, item))
        if is_new:
            desk.blobs.put(data)
            desk.take(item, envelope)

    def _now(self) -> int:
        return self._desk.clock.now_ms()

    # ---- what sites are told --------------------------------------------------------

    def session(self, site: SiteRow, number: int) -> SessionSheet:
        """Those who mask with each other, for one of them."""
        desk = self._desk
        with desk.lock:
            seat, asked = desk.seat(site), self._asked(number)
            if asked.keyed is None or seat not in asked.keys:
                raise UnauthorizedClientError("this site is in no session of this round")
            keys, closed, seed = list(asked.keys.values()), asked.keyed, asked.seed
            named = [(one, asked.named[one]) for one in asked.keys]
        return SessionSheet(
            seed=seed.hex(),
            sites=[self._identity(*one) for one in named],
            keys=[encode(fact).hex() for fact in keys],
            closed=encode(closed).hex(),
        )

    def _identity(self, seat: Seat, site: SiteId) -> Identity:
        """Also of a site that has left meanwhile: others were told of its keys."""
        return Identity(seat=int(seat), site=site, key=self._registry.site(site).key.hex())

    def sharing(self, site: SiteRow, number: int) -> SharingSheet:
        """Whose shares are with their holders, and those that this site holds."""
        desk = self._desk
        with desk.lock:
            seat, asked = desk.seat(site), self._asked(number)
            if asked.shared is None or seat not in asked.sharers:
                raise UnauthorizedClientError("this site did not share in this round")
            session, closed = self._session(asked), asked.shared
            files = {asked.named[one]: asked.shares[one] for one in asked.sharers}
        found = sealed_for(session, SiteId(site.id), desk.blobs, files)
        sealed = [Sealed(site=owner, shares=packed(data)) for owner, data in found.items()]
        return SharingSheet(closed=encode(closed).hex(), sealed=sealed)

    def split(self, site: SiteRow, number: int) -> SplitSheet:
        """Who is in the sum, for a member."""
        desk = self._desk
        with desk.lock:
            seat, asked = desk.seat(site), self._asked(number)
            if asked.closed is None or seat not in asked.members:
                raise UnauthorizedClientError("this site is no member of this round")
            return SplitSheet(closed=encode(asked.closed).hex())

    def consents(self, site: SiteRow, number: int) -> ConsentSheet:
        """Who has signed the split, for a member."""
        desk = self._desk
        with desk.lock:
            seat, asked = desk.seat(site), self._asked(number)
            if not asked.agreed or seat not in asked.members:
                raise UnauthorizedClientError("this site is not asked to answer in this round")
            found = [asked.consents[one] for one in asked.agreed]
        return ConsentSheet(consents=[encode(fact).hex() for fact in found])

    def _asked(self, number: int) -> Round:
        """The round that a site speaks of, open or just ended. Another coordinator may have gone
        further than this one: sites may have heard it from there."""
        self._desk.coordinator.driver.catch_up()
        for one in (self._desk.state.round, self._desk.state.ended):
            if one is not None and one.number == number:
                return one
        raise WrongRoundError(f"round {number} is not open")

    def _session(self, asked: Round) -> Session:
        """Made once a round: it looks at every key."""
        assert asked.session is not None, "its name was compared"
        if self._made is None or self._made[0] != asked.session:
            keys = [(asked.named[seat], fact) for seat, fact in asked.keys.items()]
            made = make_session(self._desk.id, asked.seed, asked.quorum, keys)
            self._made = asked.session, made
        return self._made[1]


def _split(asked: Round) -> Split:
    named = asked.named
    return split_of({named[one] for one in asked.sharers}, (named[one] for one in asked.members))


def _check_among(seat: Seat, seats: Container[Seat]) -> None:
    if seat not in seats:
        raise UnauthorizedClientError("this site has no part in this step of the round")


def _check_named(ours: Digest | None, theirs: str, what: str) -> None:
    if ours is None or ours.hex() != theirs:
        raise WireError(f"this is of another {what} than the round's")
