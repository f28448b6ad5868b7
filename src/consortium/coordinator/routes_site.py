"""The routes of sites: every request signed, those with effects performed once."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from consortium.coordinator.access import Action
from consortium.coordinator.auth import Caller
from consortium.coordinator.bodies import length_of, take_pieces, until_gone
from consortium.coordinator.described import declared
from consortium.coordinator.edge import Edge, edge_of, told
from consortium.coordinator.files import Download, OpenFile, missing, open_file
from consortium.coordinator.gate import GuardedRoute
from consortium.core.ids import Digest
from consortium.errors import TooLargeError, UnauthorizedClientError
from consortium.wire.messages import (
    MAX_CHUNKS_BYTES,
    Answer,
    Ask,
    FailureNote,
    ReceiptReply,
    Renew,
    Renewed,
    Report,
    ScoreNote,
    StudySheet,
    Submission,
    Taken,
    UploadState,
)

routes = APIRouter(prefix="/v1", tags=["site"], route_class=GuardedRoute)

DigestPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 in hexadecimal")]
RoundPath = Annotated[int, Path(ge=0, lt=1 << 62, description="the round's number")]
Offset = Annotated[int, Query(ge=0, lt=1 << 62, description="where the chunk starts")]


# ---- asking -------------------------------------------------------------------------


@routes.post("/ask", **declared(Action.TAKE_PART, Ask, Answer))
async def ask(request: Request) -> Response:
    """What is there to do? Answered when there is news, else when `wait_ms` is over."""
    edge = edge_of(request)
    caller, asked = await edge.signed(request, Ask)
    answer = await edge.threads.read(lambda: _news(caller, asked))
    if answer is None:
        await _wait(edge, caller, asked, request)
        answer = await edge.threads.read(lambda: _answer_now(edge, caller, asked))
    return told(answer)


def _news(caller: Caller, asked: Ask) -> Answer | None:
    """The answer, unless the site is to wait for one."""
    if asked.wait_ms and not caller.desk.has_news(caller.site, asked):
        caller.desk.hear(caller.site, asked)
        return None
    return caller.desk.answer(caller.site, asked)


async def _wait(edge: Edge, caller: Caller, asked: Ask, request: Request) -> None:
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        await edge.polls.wait(caller.desk, caller.site, asked, gone)
    finally:
        gone.cancel()


def _answer_now(edge: Edge, caller: Caller, asked: Ask) -> Answer:
    """After the wait: the site may have been revoked meanwhile."""
    return caller.desk.answer(edge.office.site(caller.site.id), asked)


@routes.get("/study", **declared(Action.TAKE_PART, None, StudySheet))
async def study(request: Request) -> Response:
    """Which blobs a site needs to review the study."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    return told(await edge.threads.read(caller.desk.study))


@routes.post("/report", **declared(Action.TAKE_PART, Report, Taken))
async def report(request: Request) -> Response:
    """What a site says of its records and its machine: counts, never records."""
    edge = edge_of(request)
    caller, body = await edge.signed(request, Report)
    return await edge.once(caller, lambda: caller.desk.report(caller.site, body))


@routes.post("/renew", **declared(Action.TAKE_PART, Renew, Renewed))
async def renew(request: Request) -> Response:
    """A new certificate for the same key."""
    edge = edge_of(request)
    caller, body = await edge.signed(request, Renew)
    return await edge.once(caller, lambda: edge.office.renew(caller.site, body))


@routes.post("/leave", **declared(Action.LEAVE, None, Taken))
async def leave(request: Request) -> Response:
    """Out of the federation, for good."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    return await edge.once(caller, lambda: caller.desk.leave(caller.site))


# ---- files --------------------------------------------------------------------------


@routes.head("/blobs/{digest}", **declared(Action.TAKE_PART, None, "file"))
@routes.get("/blobs/{digest}", **declared(Action.TAKE_PART, None, "file"))
async def blob(request: Request, digest: DigestPath) -> Response:
    """A file that this site may read: the study, published models, its part of a round."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    wanted = Digest(bytes.fromhex(digest))
    return Download(await edge.threads.read(lambda: _opened(caller, wanted)))


def _opened(caller: Caller, digest: Digest) -> OpenFile:
    if not caller.desk.may_read(caller.site, digest):
        raise missing(digest)
    return open_file(caller.desk.blobs.path(digest), digest)


@routes.get("/uploads/{digest}", **declared(Action.UPLOAD, None, UploadState))
async def upload(request: Request, digest: DigestPath) -> Response:
    """How much of this site's upload is here."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    wanted = Digest(bytes.fromhex(digest))
    return told(await edge.threads.read(lambda: _upload_state(edge, caller, wanted)))


def _upload_state(edge: Edge, caller: Caller, digest: Digest) -> UploadState:
    uploads = edge.office.uploads
    is_complete = uploads.is_done(caller.site.id, digest) and caller.desk.blobs.has(digest)
    return UploadState(offset=uploads.offset(caller.site.id, digest), is_complete=is_complete)


@routes.patch("/uploads/{digest}", **declared(Action.UPLOAD, "bytes", UploadState))
async def send_chunks(request: Request, digest: DigestPath, offset: Offset) -> Response:
    """Add chunks at the end of an upload. Those that are there already are answered as before."""
    edge = edge_of(request)
    size = length_of(request, MAX_CHUNKS_BYTES)
    wanted = Digest(bytes.fromhex(digest))
    caller, state = await edge.threads.read(
        lambda: _before_chunks(edge, request, wanted, (offset, size))
    )
    if state is None:
        state = UploadState(offset=await _take_chunks(edge, request, caller, wanted, offset))
    return told(state)


def _before_chunks(
    edge: Edge, request: Request, digest: Digest, place: tuple[int, int]
) -> tuple[Caller, UploadState | None]:
    """Who sends, and the answer if the chunks need not be read: everything is here already."""
    caller, (offset, size) = edge.admit(request, Action.UPLOAD), place
    site, uploads = caller.site.id, edge.office.uploads
    is_next = 0 < offset == uploads.offset(site, digest)  # mostly; then it is neither of these
    if not is_next and _upload_state(edge, caller, digest).is_complete:
        return caller, UploadState(offset=offset + size, is_complete=True)
    limit = caller.desk.upload_limit(caller.site)
    if limit == 0:
        raise UnauthorizedClientError("this site is not asked for an update now")
    if offset + size > limit:
        raise TooLargeError(f"an update has at most {limit} bytes here")
    uploads.check_room(2 * limit)  # it is copied into the model, which is kept
    # No bytes are nowhere yet: there need not be a file to compare them with.
    if size and not is_next and uploads.holds(site, digest, offset, caller.body, size):
        return caller, UploadState(offset=offset + size)
    return caller, None


async def _take_chunks(
    edge: Edge, request: Request, caller: Caller, digest: Digest, offset: int
) -> int:
    """Hashing and writing are done in the event loop: both are faster than the line."""
    incoming = edge.office.uploads.receive(caller.site.id, digest, offset)
    try:
        await take_pieces(request, incoming.write)
        return incoming.commit(caller.body)
    finally:
        incoming.abandon()


# ---- a round ------------------------------------------------------------------------


@routes.post("/rounds/{number}/update", **declared(Action.TAKE_PART, Submission, ReceiptReply))
async def update(request: Request, number: RoundPath) -> Response:
    """The upload is complete: count it."""
    edge = edge_of(request)
    caller, body = await edge.answered(request, Submission)
    caller.in_round(number, "update")
    envelope = caller.signed.envelope()
    return await edge.once(caller, lambda: caller.desk.submit(caller.site, number, body, envelope))


@routes.get("/rounds/{number}/receipt", **declared(Action.TAKE_PART, None, ReceiptReply))
async def receipt(request: Request, number: RoundPath) -> Response:
    """That the log has this site's update, proven in the newest checkpoint."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    return told(await edge.threads.read(lambda: caller.desk.receipt(caller.site, number)))


@routes.post("/rounds/{number}/failure", **declared(Action.TAKE_PART, FailureNote, Taken))
async def failure(request: Request, number: RoundPath) -> Response:
    """This site will not answer in this round, and why."""
    edge = edge_of(request)
    caller, body = await edge.answered(request, FailureNote)
    caller.in_round(number, "failure")
    envelope = caller.signed.envelope()
    return await edge.once(caller, lambda: caller.desk.fail(caller.site, number, body, envelope))


@routes.post("/rounds/{number}/score", **declared(Action.TAKE_PART, ScoreNote, Taken))
async def score(request: Request, number: RoundPath) -> Response:
    """How candidate and base do on this site's own test records: sums and counts."""
    edge = edge_of(request)
    caller, body = await edge.answered(request, ScoreNote)
    caller.in_round(number, "score")
    envelope = caller.signed.envelope()
    return await edge.once(caller, lambda: caller.desk.score(caller.site, number, body, envelope))
