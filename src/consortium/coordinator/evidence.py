"""The signed requests behind a log's facts, checked again by whoever audits it.

A fact that a real site answered names an envelope: the line that the site signed. The body
that it signed is not kept, because the fact says all that was in it: it is made again from
the fact, and must have the digest that was signed. So a coordinator can neither invent an
answer nor put another in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core import facts as f
from consortium.core import secagg_facts as m
from consortium.core.ids import Digest
from consortium.core.roster import Member
from consortium.core.state import Federation
from consortium.crypto.recipes import verify
from consortium.crypto.secure_sum.session import Advert, RoundName
from consortium.drive.secret_sum import make_session, split_of
from consortium.errors import ConsortiumError
from consortium.model import digest_of
from consortium.store.files import FileBlobs
from consortium.wire.messages import FailureNote, Message, ScoreNote, Submission
from consortium.wire.secret_sum import AnswerNote, SharesNote, packed
from consortium.wire.signing import RequestLine, read_envelope

_Answer = f.UpdateReceived | f.SiteDropped | f.Evaluated | m.SharesReceived | m.AnswerReceived
_ROUTES = {
    f.UpdateReceived: "update",
    f.SiteDropped: "failure",
    f.Evaluated: "score",
    m.SharesReceived: "shares",
    m.AnswerReceived: "answer",
}


@dataclass(slots=True)
class Tally:
    """How many signed requests were found right."""

    count: int = 0


class Evidence:
    """The envelopes of one log, in its order."""

    def __init__(self, blobs: FileBlobs, tally: Tally) -> None:
        self._blobs, self._tally = blobs, tally
        self._audience: str | None = None  # the coordinator's own id: one in a whole log
        self._used: set[tuple[str, str]] = set()  # (site, nonce) of every request so far
        self._split: tuple[Digest, bytes] | None = None  # the last one, and what is signed of it

    def complaint(self, state: Federation, fact: f.Fact) -> str | None:
        """What is wrong with the request that `fact` rests on; None when it is right, or when
        the fact needs none. `state` is the one before the fact."""
        if isinstance(fact, m.KeysReceived):
            return self._about_keys(state, fact)
        if isinstance(fact, m.ConsentReceived):
            return self._about_consent(state, fact)
        if not isinstance(fact, _Answer):
            return None
        member = state.roster.members.get(fact.seat)
        if member is None or not member.key:
            return None  # a simulated site signs nothing
        if fact.envelope is None:
            return "no signed request stands behind it"
        try:
            signed = read_envelope(self._blobs.get(fact.envelope))
            signed.verify(member.key, self._audience or signed.line.audience)
        except ConsortiumError as error:
            return f"its envelope does not hold: {error.message}"
        self._audience = signed.line.audience
        return self._complaint(state, fact, member, signed.line)

    def _complaint(
        self, state: Federation, fact: _Answer, member: Member, line: RequestLine
    ) -> str | None:
        route = f"/v1/rounds/{fact.round}/{_ROUTES[type(fact)]}"
        if line.site != member.site:
            return "its envelope is in another site's name"
        if (line.method, line.path, line.round) != ("POST", route, fact.round):
            return "its envelope is of another request"
        body = self._body(state, fact).model_dump_json().encode()
        if line.digest != digest_of(body).hex():
            return "the site signed something else than the fact says"
        if (line.site, line.nonce) in self._used:
            return "its envelope stands behind another fact already"
        self._used.add((line.site, line.nonce))
        self._tally.count += 1
        return None

    def _about_keys(self, state: Federation, fact: m.KeysReceived) -> str | None:
        """Keys carry their signature with them: everybody who masks with the site has seen it."""
        member = state.roster.members[fact.seat]
        advert = Advert(member.site, fact.mask_key, fact.seal_key, fact.commitment)
        try:
            verify(member.key, advert.to_sign(RoundName(state.id, fact.round)), fact.signature)
        except ConsortiumError:
            return "the site did not sign these keys"
        self._tally.count += 1
        return None

    def _about_consent(self, state: Federation, fact: m.ConsentReceived) -> str | None:
        """As keys: every member has seen it, and answered because of it."""
        try:
            verify(state.roster.members[fact.seat].key, self._signed(state), fact.signature)
        except ConsortiumError:
            return "the site did not sign this split"
        self._tally.count += 1
        return None

    def _signed(self, state: Federation) -> bytes:
        """What all members of the open round sign: made once, because it looks at every key."""
        known = state.round
        assert known is not None and known.split is not None, "a legal fact of a round has both"
        if self._split is None or self._split[0] != known.split:
            named = known.named
            keys = [(named[seat], given) for seat, given in known.keys.items()]
            session = make_session(state.id, known.seed, known.quorum, keys)
            members = (named[seat] for seat in known.members)
            split = split_of({named[seat] for seat in known.sharers}, members)
            self._split = known.split, split.to_sign(session)
        return self._split[1]

    def _body(self, state: Federation, fact: _Answer) -> Message:
        """What the site must have sent, if the fact is true."""
        match fact:
            case f.UpdateReceived():
                size = self._blobs.size(fact.update)
                return Submission(update=fact.update.hex(), size_bytes=size)
            case f.SiteDropped():
                return FailureNote(failure=fact.failure.name)
            case f.Evaluated():
                return ScoreNote(
                    model=_candidate(state).hex(),
                    samples=fact.samples,
                    candidate=list(fact.candidate),
                    base=list(fact.base),
                )
            case m.SharesReceived():
                sealed = packed(self._blobs.get(fact.shares))
                return SharesNote(session=_name(state, "session"), sealed=sealed)
            case m.AnswerReceived():
                shares = packed(self._blobs.get(fact.answer))
                return AnswerNote(split=_name(state, "split"), shares=shares)


def _name(state: Federation, what: str) -> str:
    """Of the open round's session or split: what a legal fact rests on is there."""
    assert state.round is not None
    named = getattr(state.round, what)
    assert isinstance(named, bytes)
    return named.hex()


def _candidate(state: Federation) -> Digest:
    """What the members of the open round evaluate. The audit has asked before whether the
    fact is legal here, so there is one."""
    assert state.round is not None and state.round.model is not None
    return state.round.model
