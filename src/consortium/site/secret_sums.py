"""A site's half of secret sums: it believes what it can verify, agrees to each thing once, and
gives what follows from that.

Before the machine is told of a session, of those who shared, or of a split, the list is fetched,
compared with the name that the coordinator signed, and looked at; then it is kept. What leaves is
computed from what is kept alone, so it is the same after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from consortium.core import duties as d
from consortium.core.codec import decode
from consortium.core.facts import RoundClosed
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.names import session_name, sharing_name, split_name
from consortium.core.secagg import two_thirds
from consortium.core.secagg_facts import ConsentReceived, KeysClosed, KeysReceived, SharesClosed
from consortium.crypto.recipes import verify
from consortium.crypto.secure_sum.consent import check_consents
from consortium.crypto.secure_sum.keys import make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Split
from consortium.crypto.secure_sum.site import Site
from consortium.drive.secret_sum import answer_file, make_session, shares_file, split_of
from consortium.errors import (
    CodecError,
    CorruptStoreError,
    InsufficientParticipantsError,
    PolicyError,
    VerificationError,
)
from consortium.model import Form, read_update_header
from consortium.plan.security import most_sites
from consortium.plan.values import Plan
from consortium.site.home import SiteHome
from consortium.site.members import Members
from consortium.site.policy import Policy, read_policy
from consortium.site.round_secrets import CONSENTS, MASKED, SESSION, SHARING, SPLIT, RoundSecrets
from consortium.site.transport import Client
from consortium.wire.messages import read_body
from consortium.wire.secret_sum import (
    AnswerNote,
    ConsentNote,
    ConsentSheet,
    KeysNote,
    SessionSheet,
    SharesNote,
    SharingSheet,
    SplitSheet,
    packed,
    unpacked,
)

Sheet = TypeVar("Sheet", bound=BaseModel)
Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True)
class Agreed:
    """A session as this site has verified it."""

    name: Digest
    session: Session
    seats: dict[Seat, SiteId]

    def sites(self, seats: tuple[Seat, ...]) -> frozenset[SiteId]:
        """Who sits there; refuses a seat that gave no keys."""
        strangers = set(seats) - self.seats.keys()
        if strangers:
            raise VerificationError("a site is named that gave no keys for this round")
        return frozenset(self.seats[seat] for seat in seats)


class SecretSums:
    """Of one site. What it makes is for one thread at a time."""

    def __init__(self, home: SiteHome, client: Client) -> None:
        self._home, self._client = home, client
        self._secrets = RoundSecrets(home.path / "secrets", home.key)
        self._me = SiteId(home.enrolment.site)
        self._agreed: Agreed | None = None

    def forget(self, *, but: int = 0) -> None:
        """The round is over for this site, or another one has begun."""
        self._secrets.forget(but=but)
        self._agreed = None

    # ---- what is believed -----------------------------------------------------------

    def look_at(self, duty: d.SiteDuty, plan: Plan) -> None:
        """Fetch and verify what the machine is about to be told of, and keep it. Raises a
        `PolicyError` where this site's people would not have it."""
        match duty:
            case d.Share():
                self._take_session(duty, plan)
            case d.Train() if duty.sharing is not None:
                self._take_sharing(duty)
            case d.Agree():
                self._take_split(duty)
            case d.Unmask():
                self._take_split(duty)
                self._look_at_consents(duty.round)
            case _:
                pass  # there is nothing to verify beyond the plan

    def _take_session(self, duty: d.Share, plan: Plan) -> None:
        sheet = self._fetched(duty.round, SESSION, SessionSheet)
        agreed = self._verified(duty.round, sheet)
        _check_name(agreed.name, duty.session, "session")
        advert = make_keys(agreed.session.name, self._me, self._secrets.seeds(duty.round))
        if agreed.session.advert(self._me) != advert:
            raise VerificationError("others were told keys that are not this site's")
        policy = read_policy(self._home.policy_file)
        _check_policy(policy, agreed.session, plan)
        Members(self._home.path).meet(
            {one.site: one.key for one in sheet.sites}, self._me, policy.known, policy.min_known
        )
        self._keep(duty.round, SESSION, sheet)

    def _verified(self, number: int, sheet: SessionSheet) -> Agreed:
        """The session of a sheet, if every key in it was signed by its site for this round."""
        closed = _record(sheet.closed, KeysClosed)
        keys = [_record(text, KeysReceived) for text in sheet.keys]
        who = {Seat(one.seat): one for one in sheet.sites}
        is_whole = tuple(who) == tuple(fact.seat for fact in keys) == closed.seats
        rounds = {closed.round, *(fact.round for fact in keys)}
        keys_of = {one.key for one in sheet.sites}
        is_single = len(who) == len(keys_of) == len(sheet.sites)  # a site sits on one seat
        if not is_whole or rounds != {number} or not is_single:
            raise VerificationError("the session's keys are not those of the sites that it names")
        named = [(SiteId(who[fact.seat].site), fact) for fact in keys]
        held = self._home.enrolment
        seed = bytes.fromhex(sheet.seed)
        session = make_session(held.federation, seed, closed.quorum, named)
        for site, fact in named:
            told = session.advert(site).to_sign(session.name)
            verify(bytes.fromhex(who[fact.seat].key), told, fact.signature)
        name = session_name(seed, keys, closed)
        return Agreed(name, session, {fact.seat: site for site, fact in named})

    def _take_sharing(self, duty: d.Train) -> None:
        sheet = self._fetched(duty.round, SHARING, SharingSheet)
        closed = _record(sheet.closed, SharesClosed)
        assert duty.sharing is not None
        _check_name(sharing_name(closed), duty.sharing, "list of those who shared")
        _check_round(closed.round, duty.round)
        sharers = self._agreed_in(duty.round).sites(closed.seats)
        self._agreed_in(duty.round).session.check_enough(sharers)
        self._keep(duty.round, SHARING, sheet)

    def _take_split(self, duty: d.Agree | d.Unmask) -> None:
        sheet = self._fetched(duty.round, SPLIT, SplitSheet)
        closed = _record(sheet.closed, RoundClosed)
        _check_name(split_name(closed), duty.split, "split")
        _check_round(closed.round, duty.round)
        agreed = self._agreed_in(duty.round)
        members = agreed.sites(closed.members)
        if self._me not in members:
            raise VerificationError("the split counts this site out")
        shared = _record(self._kept(duty.round, SHARING, SharingSheet).closed, SharesClosed)
        if not members <= agreed.sites(shared.seats):
            raise VerificationError("the split names a member that did not share its seeds")
        agreed.session.check_enough(members)
        policy = read_policy(self._home.policy_file)
        keys = {one.site: one.key for one in self._session_sheet(duty.round).sites}
        inside = {str(site): keys[site] for site in members}
        Members(self._home.path).meet(inside, self._me, policy.known, policy.min_known)
        self._keep(duty.round, SPLIT, sheet)

    def _look_at_consents(self, number: int) -> None:
        """Enough others must have signed the split that this site was told."""
        sheet = self._fetched(number, CONSENTS, ConsentSheet)
        facts = [_record(text, ConsentReceived) for text in sheet.consents]
        agreed = self._agreed_in(number)
        for fact in facts:
            _check_round(fact.round, number)
            agreed.sites((fact.seat,))
        signatures = {agreed.seats[fact.seat]: fact.signature for fact in facts}
        sites = self._session_sheet(number).sites
        identities = {SiteId(one.site): bytes.fromhex(one.key) for one in sites}
        try:
            check_consents(agreed.session, self._split_in(number), signatures, identities)
        except InsufficientParticipantsError as error:
            raise VerificationError(error.message) from None

    def _split_in(self, number: int) -> Split:
        """Who is in the sum and who dropped out, as this site was told."""
        agreed = self._agreed_in(number)
        shared = _record(self._kept(number, SHARING, SharingSheet).closed, SharesClosed)
        closed = _record(self._kept(number, SPLIT, SplitSheet).closed, RoundClosed)
        return split_of(agreed.sites(shared.seats), agreed.sites(closed.members))

    # ---- what leaves ----------------------------------------------------------------

    def keys(self, number: int) -> KeysNote:
        """This site's keys of a round, signed. The seeds are durable when it returns."""
        seeds = self._secrets.make_seeds(number)
        name = RoundName(self._home.enrolment.federation, number)
        advert = make_keys(name, self._me, seeds)
        return KeysNote(
            mask_key=advert.mask_key.hex(),
            seal_key=advert.seal_key.hex(),
            commitment=advert.commitment.hex(),
            signature=self._home.key.sign(advert.to_sign(name)).hex(),
        )

    def shares(self, number: int, session: Digest) -> SharesNote:
        agreed, site = self._half(number, session)
        data = shares_file(agreed.session, self._me, site.make_shares())
        return SharesNote(session=session.hex(), sealed=packed(data))

    def masked(self, number: int, sharing: Digest, update: Digest, form: Form) -> Digest:
        """The update's file under this round's masks, as a blob; the file without them is gone.
        Two files under one mask tell their difference, so it is the first one that was made, also
        for a site that has trained again because it was killed, or its log was put back."""
        blobs = self._home.blobs
        first = self._secrets.kept(number, MASKED)
        if first is not None:
            blobs.drop(update)
            if not blobs.has(Digest(first)):
                raise CorruptStoreError(f"the masked update of round {number} is gone")
            return Digest(first)
        agreed, site = self._half(number)
        sheet = self._kept(number, SHARING, SharingSheet)
        closed = _record(sheet.closed, SharesClosed)
        _check_name(sharing_name(closed), sharing, "list of those who shared")
        data = blobs.get(update)
        _, _, start = read_update_header(data, form)
        vector = np.frombuffer(data, np.uint32, form.size, start)
        masked = site.mask(vector, agreed.sites(closed.seats))
        made = blobs.put(data[:start] + masked.tobytes())
        self._secrets.keep(number, MASKED, made)
        blobs.drop(update)
        return made

    def consent(self, number: int, split: Digest) -> ConsentNote:
        """This site's signature on the one split that it agreed to."""
        self._check_split(number, split)
        told = self._split_in(number).to_sign(self._agreed_in(number).session)
        return ConsentNote(split=split.hex(), signature=self._home.key.sign(told).hex())

    def answer(self, number: int, split: Digest) -> AnswerNote:
        """This site's shares of the others, by the same split."""
        self._check_split(number, split)
        _, site = self._half(number)
        sheet = self._kept(number, SHARING, SharingSheet)
        held = site.open_shares({SiteId(one.site): unpacked(one.shares) for one in sheet.sealed})
        told = site.answer(self._split_in(number), held)
        return AnswerNote(split=split.hex(), shares=packed(answer_file(told)))

    def _check_split(self, number: int, split: Digest) -> None:
        closed = _record(self._kept(number, SPLIT, SplitSheet).closed, RoundClosed)
        _check_name(split_name(closed), split, "split")

    # ---- what is kept ---------------------------------------------------------------

    def _half(self, number: int, session: Digest | None = None) -> tuple[Agreed, Site]:
        agreed = self._agreed_in(number)
        _check_name(agreed.name, session or agreed.name, "session")
        return agreed, Site(agreed.session, self._me, self._secrets.seeds(number))

    def _agreed_in(self, number: int) -> Agreed:
        agreed = self._agreed
        if agreed is None or agreed.session.name.round != number:
            agreed = self._agreed = self._verified(number, self._session_sheet(number))
        return agreed

    def _session_sheet(self, number: int) -> SessionSheet:
        return self._kept(number, SESSION, SessionSheet)

    def _fetched(self, number: int, what: str, kind: type[Sheet]) -> Sheet:
        path = f"/v1/rounds/{number}/{what}"
        return self._client.call("GET", path, reply=kind, round=number)

    def _keep(self, number: int, what: str, sheet: BaseModel) -> None:
        self._secrets.keep(number, what, sheet.model_dump_json().encode())
        if what == SESSION:
            self._agreed = None

    def _kept(self, number: int, what: str, kind: type[Sheet]) -> Sheet:
        data = self._secrets.kept(number, what)
        if data is None:
            raise CorruptStoreError(f"what round {number} was agreed on is not here any more")
        return read_body(kind, data)


def _record(text: str, kind: type[Fact]) -> Fact:
    """A record of the coordinator's log that is of this kind."""
    try:
        fact: Any = decode(bytes.fromhex(text))
    except CodecError as error:
        raise VerificationError(f"not a record of a log: {error.message}") from None
    if not isinstance(fact, kind):
        raise VerificationError(f"a record is not that of {kind.__name__}")
    return fact


def _check_name(ours: Digest, theirs: Digest, what: str) -> None:
    if ours != theirs:
        raise VerificationError(f"the {what} is not the one that the coordinator has signed")


def _check_round(ours: int, theirs: int) -> None:
    if ours != theirs:
        raise VerificationError("a record is of another round")


def _check_policy(policy: Policy, session: Session, plan: Plan) -> None:
    """Neither fewer than this site wants, nor fewer than the plan says, nor a minority; nor more
    than the plan says, because what masks stand and how much a sum can hold follows from that."""
    quorum, sites, most = session.terms.quorum, len(session.sites), most_sites(plan)
    if most is not None and sites > most:
        raise VerificationError("the session has more sites than the plan's sums have room for")
    if quorum < max(plan.federation.quorum, two_thirds(sites)):
        raise VerificationError("the session would sum fewer sites than the plan says")
    if quorum < policy.min_sites:
        raise PolicyError(f"a sum of {quorum} sites; {policy.min_sites} are the fewest here")
