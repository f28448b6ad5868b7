"""The coordinator of a campaign: a real office behind a real HTTP application, one request
and one thread at a time."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from fastapi import FastAPI

from consortium.coordinator import uploads
from consortium.coordinator.app import make_app
from consortium.coordinator.office import Office
from consortium.coordinator.protocol import CERTIFICATE, EXTENSION
from consortium.coordinator.serve import Identity
from consortium.coordinator.threads import Threads
from consortium.drive.clock import ManualClock
from consortium.errors import ConsortiumError, InternalError
from consortium.testing.crash_network.line import GoneError, Words, hear, say
from consortium.testing.crash_network.study import CHUNK_BYTES
from consortium.testing.crash_network.turns import Wake, turn_of

URL = "https://localhost:8443"
NAME = "counting"
_HOST = "localhost"

Result = TypeVar("Result")


class _NoThreads:
    """In the place of `Threads`: whatever is asked for is done at once."""

    async def read(self, work: Callable[[], Result]) -> Result:
        return work()

    async def write(self, work: Callable[[], Result]) -> Result:
        return work()

    def close(self) -> None:
        pass


class Coordinator:
    """Opens, or makes, a coordinator's folder, as `consortium serve` does."""

    def __init__(self, folder: Path, plan: Path, now_ms: int) -> None:
        self._clock = ManualClock(now_ms)
        self._office = Office(folder, self._clock, seed=1, url=URL)
        self._desk = self._office.host(plan)
        self._desk._loop._wake = Wake()
        self._desk._loop._on_trouble = self._note
        self._office.write_operator_file()
        self._identity = Identity(self._office, (_HOST,))  # for the files that it makes
        self._app: FastAPI = make_app(self._office)
        self._app.state.edge.threads = cast(Threads, _NoThreads())
        self._loop = asyncio.new_event_loop()
        self._unexpected: list[str] = []
        setattr(uploads, "CHUNK_BYTES", CHUNK_BYTES)  # noqa: B010

    def _note(self, error: ConsortiumError) -> None:
        if isinstance(error, InternalError):
            self._unexpected.append(error.message)

    # ---- what it is told ------------------------------------------------------------

    def handle(self, words: Words) -> Words:
        """Do what is said; what came of it."""
        self._clock.advance_to(words["now_ms"])
        match words["do"]:
            case "invite":
                return {"token": self._office.invite(NAME, words["invited"])[0]}
            case "turn":
                self._desk._written_s = 0.0  # what was heard is written at every turn
                turn_of(self._desk._loop._run)
            case "close":
                self._office.close()
        unexpected, self._unexpected = self._unexpected, []
        return {
            "size": self._desk.size,
            "is_over": self._desk.is_finished,
            "unexpected": unexpected,
        }

    # ---- what it is asked -----------------------------------------------------------

    def answer(self, words: Words, body: bytes) -> tuple[Words, bytes]:
        """The answer to one HTTP request."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if pieces:
                return {"type": "http.request", "body": pieces.pop(), "more_body": False}
            await asyncio.get_running_loop().create_future()  # it hangs up after the answer
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        pieces = [body]
        self._loop.run_until_complete(self._app(_scope(words), receive, send))
        told = b"".join(message.get("body", b"") for message in sent[1:])
        headers = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        if sent[0]["status"] == 500:
            self._unexpected.append(f"{words['method']} {words['path']}: {told.decode()[:200]}")
        return {"status": sent[0]["status"], "headers": headers}, told


def _scope(words: Words) -> dict[str, Any]:
    path, _, query = words["path"].partition("?")
    shown = bytes.fromhex(words["certificate"])
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": words["method"],
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [
            (name.lower().encode(), value.encode()) for name, value in words["headers"].items()
        ],
        "client": ("127.0.0.1", 1),
        "server": (_HOST, 8443),
        "extensions": {EXTENSION: {CERTIFICATE: shown or None}},
    }


def serve(make: Callable[[], Coordinator], told: socket.socket, asked: socket.socket) -> None:
    """Do what is said at `told` and answer what comes to `asked`, until it is closed."""
    part: Coordinator | None = None
    while True:
        for source in select.select([told, asked], [], [])[0]:
            if source is told:
                words, _ = hear(told)
                part = part or make()
                say(told, part.handle(words))
                if words["do"] == "close":
                    return
            else:
                _serve_one(part, asked.accept()[0])


def _serve_one(part: Coordinator | None, line: socket.socket) -> None:
    with line:
        try:
            words, body = hear(line)
            if part is not None:
                say(line, *part.answer(words, body))
        except GoneError:
            pass  # it has been killed, or its disk has failed
