"""A site of a campaign: the real agent, its turns taken from outside, its task within it, its
requests over a line without TLS. Whatever it writes, the real code writes."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from consortium.core.participant import Approve
from consortium.drive.clock import SystemClock
from consortium.errors import ConsortiumError
from consortium.model import digest_of
from consortium.site import enrol, listener, scratch, transfer, transport, workshop
from consortium.site import jobs as j
from consortium.site.agent import INCOMING, Agent
from consortium.site.bench import Bench, open_bench
from consortium.site.clock import Patience
from consortium.site.connections import Body, Connection, FilePart
from consortium.site.events import Event
from consortium.site.home import SiteHome
from consortium.site.machine import Machine
from consortium.site.process import ChildProcess
from consortium.site.serving import _done, _failed
from consortium.site.studies import Studies
from consortium.site.transfer import Transfer
from consortium.store.files import write_durably
from consortium.testing.crash_network.line import GoneError, Notes, Words, hear, request, say
from consortium.testing.crash_network.study import CHUNK_BYTES
from consortium.testing.crash_network.turns import MOVED, Impatience, Wake, turn_of
from consortium.wire.token import read_token

_POLICY = b"min_sites = 1\n"  # else a site refuses a plan with so small a quorum
_MOST_STEPS = 20  # of the worker, in one turn


# ---- the way to the coordinator -----------------------------------------------------


class LineConnection:
    """In the place of a `Connection`: one request and its answer, noted on both ways."""

    is_cut = False

    def __init__(self, line: Path, notes: Notes, name: str, certificate: bytes) -> None:
        self._line, self._notes, self._name = line, notes, name
        self._certificate = certificate

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], sent: Body, read_s: float
    ) -> HTTPResponse:
        body = b"".join(sent.pieces()) if isinstance(sent, FilePart) else sent
        words = {
            "method": method,
            "path": path,
            "headers": {**headers, "Content-Length": str(len(body))},
            "certificate": self._certificate.hex(),
        }
        has_effects = method == "POST" and path != "/v1/ask"
        noted = {"request": words, "body": body.hex()} if has_effects else {"request": None}
        about = {"site": self._name, "method": method, "path": path}
        self._notes.add(what="sent", digest=digest_of(body).hex(), **about)
        told, data = request(self._line, words, body)
        if told["status"] < 300 and (has_effects or method == "PATCH" or path == "/v1/ask"):
            self._notes.add(what="answered", reply=data.decode(), **noted, **about)
        return _parsed(told, data, method)

    def is_alive(self) -> bool:
        return False

    def cut(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Answer(io.BytesIO):
    """What `HTTPResponse` takes for a socket."""

    def makefile(self, *_: Any) -> io.BytesIO:
        return self


def _parsed(told: Words, data: bytes, method: str) -> HTTPResponse:
    lines = [
        f"HTTP/1.1 {told['status']} -",
        *(f"{name}: {value}" for name, value in told["headers"]),
    ]
    raw = "\r\n".join(lines).encode() + b"\r\n\r\n" + data
    response = HTTPResponse(cast(socket.socket, _Answer(raw)), method=method)
    response.begin()
    return response


def use_line(line: Path, notes: Notes, name: str) -> None:
    """Let every client of this process speak over the line."""

    class LineClient(transport.Client):
        _certificate = b""

        def show(self, certificate: Path, key: Path) -> None:
            super().show(certificate, key)
            loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
            self._certificate = loaded.public_bytes(Encoding.DER)

        def _connection(self) -> Connection:
            return cast(Connection, LineConnection(line, notes, name, self._certificate))

    for module in (enrol, transport):
        setattr(module, "Client", LineClient)  # noqa: B010  # a class of another name


# ---- the task -----------------------------------------------------------------------


class Within:
    """In the place of a `ChildProcess` and of its pipe: the task runs here."""

    is_over, pid = False, 0

    def __init__(self, notes: Notes, name: str) -> None:
        self._notes, self._name = notes, name
        self._bench: Bench | None = None
        self._told: list[j.Answer] = [j.Confined(has=[], why={})]
        self.pipe = self

    def send_bytes(self, data: bytes) -> None:
        job = j.read_job(data)
        if isinstance(job, j.Train):
            self._notes.add(what="trained", site=self._name, round=job.round)
        try:
            if isinstance(job, j.Open):
                self._bench = open_bench(job)
                self._told.append(j.Done())
            else:
                assert self._bench is not None
                self._told.append(_done(self._bench, job))
        except Exception as error:
            self._told.append(_failed(error))

    def poll(self, _: float | None) -> bool:
        return True

    def recv_bytes(self, _: int) -> bytes:
        return j.written(self._told.pop(0))

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass

    def ending(self) -> int:
        return 0


def use_task_within(notes: Notes, name: str) -> None:
    """Let workshops of this process run their task in it."""

    def make(*_: object) -> ChildProcess:
        return cast(ChildProcess, Within(notes, name))

    setattr(workshop, "ChildProcess", make)  # noqa: B010


# ---- the agent ----------------------------------------------------------------------


class Site:
    """One site, as `consortium join` and `consortium agent` run it."""

    def __init__(self, home: Path, records: Path, notes: Notes, line: Path) -> None:
        self._home, self._records = home, records
        self._agent: Agent | None = None
        self._codes: list[str] = []
        use_line(line, notes, home.name)
        use_task_within(notes, home.name)
        setattr(listener, "WAIT_MS", 0)  # noqa: B010  # nobody is there to be waited for
        for module in (scratch, transfer):
            setattr(module, "CHUNK_BYTES", CHUNK_BYTES)  # noqa: B010
        setattr(transfer, "MAX_CHUNKS_BYTES", 2 * CHUNK_BYTES)  # noqa: B010

    def handle(self, words: Words) -> Words:
        """Do what is said. An error ends a command, not the site."""
        match words["do"]:
            case "join":
                try:
                    self._join(words["token"])
                except ConsortiumError as error:
                    return {"error": error.code, "message": error.message}
            case "turn":
                return self._turn()
            case "close" if self._agent is not None:
                self._agent._end([])
        return {}

    def _join(self, token: str) -> None:
        """Take the place, and approve the study; also after a crash in between."""
        clock = SystemClock()
        home = enrol.join(read_token(token), self._home, data=self._records, clock=clock).home
        write_durably(home.policy_file, _POLICY)
        client = enrol.connect(home, clock)
        try:
            study = Studies(
                home, client, Transfer(client, home.blobs, home.path / INCOMING)
            ).fetch()
            machine = Machine(home.log, clock)
            machine.feed(Approve(study.task_hash, study.plan_digest, clock.now_ms()))
        finally:
            client.close()
            home.close()

    def _turn(self) -> Words:
        if self._agent is None:
            self._agent = self._started()
        agent, tools = self._agent, self._agent.tools
        self._codes = []
        turn_of(agent._listener.run)
        for _ in range(_MOST_STEPS):
            if turn_of(agent._worker.run) != MOVED:
                break
        if tools.machine.wait(0.0):
            agent._reconsider()
        agent._worker.give_up_what_is_not_wanted()
        agent._look_for_the_end()
        return {
            "size": tools.machine.size,
            "is_over": tools.stop.is_set(),
            "codes": self._codes,
        }

    def _started(self) -> Agent:
        """An agent as `run` starts it, but for its threads."""
        agent = Agent(SiteHome.open(self._home), on_event=self._heard, until_finished=True)
        tools, patience = agent.tools, cast(Patience, Impatience())
        agent._listener._patience = agent._worker._patience = patience
        for name in ("stop", "wake"):  # frozen, but for us
            object.__setattr__(tools, name, Wake())
        tools.home.lock()
        agent._settle_again()
        return agent

    def _heard(self, event: Event) -> None:
        if event.code:
            self._codes.append(event.code)


def serve(make: Callable[[], Site], told: socket.socket) -> None:
    """Do what is said, until it is closed."""
    part = make()
    while True:
        try:
            words, _ = hear(told)
        except GoneError:
            return
        say(told, part.handle(words))
        if words["do"] == "close":
            return
