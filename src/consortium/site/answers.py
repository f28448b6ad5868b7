"""A site's answers to an invitation: its update, its score, the code of a failure, and what it
gives for a secret sum.

Each is one request with one nonce, sent until the coordinator has heard it or will never take
it. What leaves was made durable before: nothing is made again for the sake of sending it.
"""

from __future__ import annotations

from collections.abc import Callable

from consortium.core import participant as p
from consortium.core.facts import Failure
from consortium.errors import (
    ConsortiumError,
    CorruptStoreError,
    MissingBlobError,
    NotNeededError,
    OnHoldError,
    Refusal,
    StoreFailedError,
    TooLargeError,
    UnreachableError,
    UpdateError,
)
from consortium.model import digest_of
from consortium.site.events import Event, Kind
from consortium.site.tools import Tools
from consortium.site.transport import Request
from consortium.wire.messages import (
    FailureNote,
    Message,
    ReceiptReply,
    ScoreNote,
    Submission,
    Taken,
)

_InSecret = p.SendKeys | p.SendShares | p.SendConsent | p.SendAnswer
Given = p.SendUpdate | p.SendScore | p.TellFailure | _InSecret
_FINAL = (Refusal, UpdateError, TooLargeError)  # what the coordinator will never take


def _turned_away(error: ConsortiumError, number: int) -> Event:
    """That others were quicker is nobody's fault, and no error."""
    if isinstance(error, NotNeededError):
        text = f"round {number}: not needed any more: enough others answered"
        return Event(Kind.NOT_NEEDED, text, number)
    return Event.of(Kind.TURNED_AWAY, error, round=number)


class Answers:
    """Gives answers, one at a time. `on_way` is called whenever some of it has arrived."""

    def __init__(self, tools: Tools, on_way: Callable[[], None]) -> None:
        self._tools, self._on_way = tools, on_way
        self._request: tuple[Given, Request] | None = None
        self._seen_size = 0  # of the coordinator's log, when the request was made

    def give(self, work: Given) -> None:
        """Send what is owed. An error that is not final leaves everything as it was."""
        is_lost = False
        try:
            event = self._sent(work)
        except UnreachableError:
            is_lost = True  # the same request again is answered as this one would have been
            raise
        except OnHoldError:
            if self._tools.machine.owed() == work:
                raise  # it is to be sent after all, or the federation is on hold: try again
        except _FINAL as error:
            self._end_without_an_answer(work, error)
        except MissingBlobError as error:
            if not self._is_gone(work):
                raise  # the coordinator misses something
            self._end_without_an_answer(work, error)
        except CorruptStoreError as error:
            if not isinstance(work, _InSecret):
                raise
            self._broke(work.round, error)  # without its seeds it cannot go on in this round
        else:
            self._heard(work, event)
        finally:
            if not is_lost:
                self._request = None

    def _heard(self, work: Given, event: Event) -> None:
        if self._tools.machine.feed(p.Heard(work, self._tools.clock.now_ms())):
            self._tools.tell(event)
            if isinstance(work, p.SendAnswer | p.TellFailure):
                self._tools.secrets.forget()  # of no further use in this round

    def _end_without_an_answer(self, work: Given, error: ConsortiumError) -> None:
        """It will never be taken, or is not here any more; unless it was taken already."""
        tools, now_ms = self._tools, self._tools.clock.now_ms()
        if isinstance(work, p.SendUpdate) and self._has_receipt(work):
            text = f"round {work.round}: it had arrived; the receipt is kept"
            self._heard(work, Event(Kind.SENT, text, work.round))
        elif isinstance(error, MissingBlobError):
            assert isinstance(work, p.SendUpdate)
            self._broke(work.round, error)
        elif tools.machine.feed(p.TurnedAway(work, now_ms)):
            tools.secrets.forget()  # of no use: the round goes on, or is over, without this site
            tools.tell(_turned_away(error, tools.machine.state.round))

    def _broke(self, number: int, error: ConsortiumError) -> None:
        tools = self._tools
        if tools.machine.feed(p.Broke(number, Failure.RESOURCES, tools.clock.now_ms())):
            tools.tell(Event.of(Kind.FAILED, error, round=number))

    def _is_gone(self, work: Given) -> bool:
        return isinstance(work, p.SendUpdate) and not self._tools.home.blobs.has(work.update)

    def _has_receipt(self, work: p.SendUpdate) -> bool:
        """A coordinator that was killed may have the update, and refuse it the second time."""
        try:
            self._tools.receipts.fetch(work.round, work.update)
        except (UnreachableError, StoreFailedError):
            raise
        except ConsortiumError:
            return False
        return True

    def _sent(self, work: Given) -> Event:
        match work:
            case p.SendUpdate():
                return self._send_update(work)
            case p.SendScore():
                return self._send_score(work)
            case p.TellFailure():
                return self._tell_failure(work)
            case p.SendKeys() | p.SendShares() | p.SendConsent() | p.SendAnswer():
                return self._give_in_secret(work)

    def _send_update(self, work: p.SendUpdate) -> Event:
        tools, number = self._tools, work.round
        path, update = tools.home.blobs.path(work.update), work.update
        size = tools.transfer.send(
            path, update, round=number, on_progress=self._on_sent(work), on_arrival=self._on_way
        )
        body = Submission(update=work.update.hex(), size_bytes=size)
        request = self._once(work, f"/v1/rounds/{number}/update", body, number)
        reply = tools.client.send(request, ReceiptReply)
        tools.receipts.keep(number, update, reply, self._seen_size)
        text = f"round {number}: sent {size:,} bytes; the receipt is kept"
        return Event(Kind.SENT, text, number)

    def _send_score(self, work: p.SendScore) -> Event:
        score = work.score
        # Who is asked to try the candidate is in it, so the log has the update.
        self._tools.receipts.make_up_for_a_lost_one(score.round)
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

    def _give_in_secret(self, work: _InSecret) -> Event:
        """Keys, shares, a signature, or an answer for the others: with it the round's seeds go."""
        number, secrets = work.round, self._tools.secrets
        body: Message
        match work:
            case p.SendKeys():
                route, body, what = "keys", secrets.keys(number), "its keys"
            case p.SendShares():
                route, what = "shares", "its seeds in shares, sealed for the others"
                body = secrets.shares(number, work.session)
            case p.SendConsent():
                self._tools.receipts.make_up_for_a_lost_one(number)
                route, what = "consent", "its signature on who is in the sum"
                body = secrets.consent(number, work.split)
            case p.SendAnswer():
                self._tools.receipts.make_up_for_a_lost_one(number)
                route, what = "answer", "its shares of the others: the sum can be read"
                body = secrets.answer(number, work.split)
        data = body.model_dump_json().encode()
        spooled = p.Spool(number, digest_of(data), len(data), self._tools.clock.now_ms())
        self._tools.machine.feed(spooled)  # before it leaves
        if self._tools.machine.owed() != work:
            raise OnHoldError("this is not to be given any more")
        request = self._once(work, f"/v1/rounds/{number}/{route}", body, number)
        self._tools.client.send(request, Taken)
        return Event(Kind.SENT, f"round {number}: gave {what}", number)

    def _once(self, work: Given, path: str, body: Message, number: int) -> Request:
        """The one request for this answer: the same when it must be sent again."""
        if self._request is None or self._request[0] != work:
            request = self._tools.client.prepare("POST", path, body, round=number)
            self._request = (work, request)
            self._seen_size = self._tools.machine.state.seen_size
        return self._request[1]

    def _on_sent(self, work: p.SendUpdate) -> Callable[[int, int], None]:
        """Between two pieces: a hold stops an upload, too."""
        what = f"sending the update of round {work.round}"

        def note(done: int, total: int) -> None:
            if self._tools.machine.owed() != work:
                raise OnHoldError("the update is not to be sent any more")
            self._tools.progress(what, done, total)

        return note
