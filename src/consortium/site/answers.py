"""A site's answers to an invitation: its update, its score, or the code of a failure.

Each is one request with one nonce, sent until the coordinator has heard it or will never take
it. What leaves was made durable before: nothing is made again for the sake of sending it.
"""

from __future__ import annotations

from collections.abc import Callable

from consortium.core import participant as p
from consortium.core.codec import decode
from consortium.core.facts import UpdateReceived
from consortium.drive.directory import SIGNER_NAME
from consortium.errors import (
    OnHoldError,
    ProofError,
    Refusal,
    TooLargeError,
    UnreachableError,
    UpdateError,
    WitnessError,
)
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Verifier
from consortium.ledger.proof import read_proof, verify_proof
from consortium.site.events import Event, Kind
from consortium.site.tools import Tools
from consortium.site.transport import Request
from consortium.wire.messages import FailureNote, ReceiptReply, ScoreNote, Submission, Taken

Given = p.SendUpdate | p.SendScore | p.TellFailure
_FINAL = (Refusal, UpdateError, TooLargeError)  # what the coordinator will never take


class Answers:
    """Gives answers, one at a time. `on_way` is called whenever some of it has arrived."""

    def __init__(self, tools: Tools, on_way: Callable[[], None]) -> None:
        self._tools, self._on_way = tools, on_way
        self._request: tuple[Given, Request] | None = None
        self._seen_size = 0  # of the coordinator's log, when the request was made

    def give(self, work: Given) -> None:
        """Send what is owed. An error that is not final leaves everything as it was."""
        machine, clock, is_lost = self._tools.machine, self._tools.clock, False
        try:
            event = self._sent(work)
        except UnreachableError:
            is_lost = True  # the same request again is answered as this one would have been
            raise
        except _FINAL as error:
            if machine.feed(p.TurnedAway(work, clock.now_ms())):
                self._tools.tell(Event.of(Kind.TURNED_AWAY, error, round=machine.state.round))
        else:
            if machine.feed(p.Heard(work, clock.now_ms())):
                self._tools.tell(event)
        finally:
            if not is_lost:
                self._request = None

    def _sent(self, work: Given) -> Event:
        match work:
            case p.SendUpdate():
                return self._send_update(work)
            case p.SendScore():
                return self._send_score(work)
            case p.TellFailure():
                return self._tell_failure(work)

    def _send_update(self, work: p.SendUpdate) -> Event:
        tools, number = self._tools, work.round
        path, update = tools.home.blobs.path(work.update), work.update
        size = tools.transfer.send(path, update, round=number, on_progress=self._on_sent(work))
        body = Submission(update=work.update.hex(), size_bytes=size)
        request = self._once(work, f"/v1/rounds/{number}/update", body, number)
        self._keep_receipt(work, tools.client.send(request, ReceiptReply))
        text = f"round {number}: sent {size:,} bytes; the receipt is kept"
        return Event(Kind.SENT, text, number)

    def _keep_receipt(self, work: p.SendUpdate, reply: ReceiptReply) -> None:
        """The proof must lead from our update to a root that the log's key has signed."""
        held, proof = self._tools.home.enrolment, read_proof(reply.proof)
        log_key = Verifier(SIGNER_NAME, bytes.fromhex(held.log_key))
        checkpoint = verify_proof(proof, origin_of(held.federation), [log_key])
        if checkpoint.size < self._seen_size:
            raise WitnessError("the receipt is of a shorter log than the one that was seen here")
        fact = decode(proof.record)
        told = isinstance(fact, UpdateReceived) and (fact.round, fact.update)
        if told != (work.round, work.update):
            raise ProofError("the receipt is for another update")
        self._tools.home.keep_receipt(work.round, reply.proof)

    def _make_up_for_a_lost_receipt(self, number: int) -> None:
        """Who is asked to try the candidate is in it: the log has the update, whether its
        receipt arrived here or not."""
        tools, update = self._tools, self._tools.machine.state.update
        if update is not None and tools.home.receipt(number) is None:
            path = f"/v1/rounds/{number}/receipt"
            self._seen_size = tools.machine.state.seen_size
            reply = tools.client.call("GET", path, reply=ReceiptReply, round=number)
            self._keep_receipt(p.SendUpdate(number, update), reply)

    def _send_score(self, work: p.SendScore) -> Event:
        score = work.score
        self._make_up_for_a_lost_receipt(score.round)
        body = ScoreNote(
            model=score.model.hex(),
            samples=score.samples,
            candidate=list(score.candidate),
            base=list(score.base),
        )
        request = self._once(work, f"/v1/rounds/{score.round}/score", body, score.round)
        self._tools.client.send(request, Taken)
        text = f"round {score.round}: told how the new model does here"
        return Event(Kind.SCORED, text, score.round)

    def _tell_failure(self, work: p.TellFailure) -> Event:
        body = FailureNote(failure=work.failure.name)
        request = self._once(work, f"/v1/rounds/{work.round}/failure", body, work.round)
        self._tools.client.send(request, Taken)
        text = f"round {work.round}: told the code {work.failure.name}"
        return Event(Kind.FAILED, text, work.round)

    def _once(
        self, work: Given, path: str, body: Submission | ScoreNote | FailureNote, number: int
    ) -> Request:
        """The one request for this answer: the same when it must be sent again."""
        if self._request is None or self._request[0] != work:
            request = self._tools.client.prepare("POST", path, body, round=number)
            self._request = (work, request)
            self._seen_size = self._tools.machine.state.seen_size
        return self._request[1]

    def _on_sent(self, work: p.SendUpdate) -> Callable[[int, int], None]:
        """Between two chunks: a hold stops an upload, too."""
        what = f"sending the update of round {work.round}"

        def note(done: int, total: int) -> None:
            if self._tools.machine.owed() != work:
                raise OnHoldError("the update is not to be sent any more")
            self._on_way()
            self._tools.progress(what, done, total)

        return note
