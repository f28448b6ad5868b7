"""What a site of the previous version said, said again to today's coordinator: it is understood
and answered in a way that the old site understands.

The transcripts were written by the old code itself (`scripts/record_transcript.py`), with a
coordinator's folder of that time. So this is also a test that an old folder can be opened.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from consortium.coordinator.app import make_app
from consortium.coordinator.desk import Desk
from consortium.coordinator.office import Office
from consortium.coordinator.protocol import CERTIFICATE, EXTENSION
from consortium.wire.version import PRESENT, PROTOCOL

TRANSCRIPTS = Path(__file__).parent / "transcripts"
PREVIOUS = TRANSCRIPTS / f"v{PRESENT - 1}"
PATIENCE_S = 0.5
Said = dict[str, Any]


class Then:
    """A clock that shows when the request was made that is said again."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms


class Replay:
    """Today's coordinator in the folder of an old one."""

    def __init__(self, folder: Path, said: list[Said]) -> None:
        with tarfile.open(PREVIOUS / "coordinator.tar.gz") as tar:
            tar.extractall(folder, filter="data")
        self.clock = Then()
        self.clock.ms = said[0]["at_ms"]
        self.office = Office(folder, self.clock, seed=1)
        self.app = make_app(self.office)
        self.certificates = dict(_certificates(said))

    @property
    def desk(self) -> Desk:
        return self.office.tellers()[0].desk

    async def say(self, one: Said, more: dict[str, str] | None = None) -> tuple[int, Said, bytes]:
        """Status, headers and body of the answer."""
        headers = one["headers"] | (more or {})
        path, _, query = one["target"].partition("?")
        shown = self.certificates.get(headers.get("consortium-site", ""))
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": one["method"],
            "scheme": "https",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "extensions": {EXTENSION: {CERTIFICATE: shown}},
        }
        heard = [{"type": "http.request", "body": base64.b64decode(one["body"])}]
        told: list[Any] = []

        async def receive() -> Any:
            if heard:
                return heard.pop()
            # Who waits for news gets none here before its peer goes on: it hangs up, and is
            # answered with what there is.
            await asyncio.sleep(PATIENCE_S)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            told.append(message)

        await self.app(scope, receive, send)
        names = {name.decode(): value.decode() for name, value in told[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in told[1:])
        return told[0]["status"], names, body

    def wait_for_candidate(self) -> None:
        """The sum is made in a thread; a site was asked to try it before it spoke of it."""
        ends = time.monotonic() + 20.0
        while time.monotonic() < ends:
            with self.desk.lock:
                open_round = self.desk.state.round
                if open_round is not None and open_round.model is not None:
                    return
            time.sleep(0.02)
        raise AssertionError("there is no candidate")


def _certificates(said: list[Said]) -> Any:
    """Each site's certificate (DER), as it got it when it joined."""
    for one in said:
        if one["target"] == "/v1/enrol":
            told = json.loads(base64.b64decode(one["answer"]))
            found = x509.load_pem_x509_certificate(told["certificate"].encode())
            yield told["site"], found.public_bytes(Encoding.DER)


@pytest.fixture
def said() -> list[Said]:
    return list(json.loads((PREVIOUS / "said.json").read_text())["said"])


def test_old_site_takes_part_in_a_whole_round(tmp_path: Path, said: list[Said]) -> None:
    replay = Replay(tmp_path, said)
    replay.office.start(lambda _: None)
    try:
        asyncio.run(_all(replay, said))
        assert replay.desk.is_finished
        with replay.desk.lock:
            assert replay.desk.state.current == 1
    finally:
        replay.app.state.edge.close()
        replay.office.close()
    assert {_kind(one) for one in said} >= {"enrol", "ask", "report", "study", "update", "score"}


async def _all(replay: Replay, said: list[Said]) -> None:
    candidates = {_score_of(one) for one in said if _kind(one) == "score"}
    for number, one in enumerate(said):
        replay.clock.ms = one["at_ms"]
        if _kind(one) == "score" or one["target"].rpartition("/")[2] in candidates:
            await asyncio.to_thread(replay.wait_for_candidate)
        status, _, body = await replay.say(one)
        where = f"{number}: {one['method']} {one['target']}: {body[:300]!r}"
        assert status == one["status"], where
        _has_all(json_of(base64.b64decode(one["answer"])), json_of(body), where)


def _score_of(one: Said) -> str:
    return str(json.loads(base64.b64decode(one["body"]))["model"])


def _kind(one: Said) -> str:
    return str(one["target"].partition("?")[0].rpartition("/")[2])


def json_of(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _has_all(old: Any, new: Any, where: str) -> None:
    """What was there for an old site is there still, of the same type. There may be more. What
    depends on the moment, such as an invitation that is not there yet, may be null."""
    if not isinstance(old, dict):
        return
    assert isinstance(new, dict), where
    for key, value in old.items():
        assert key in new, f"{where}: {key}"
        if value is not None and new[key] is not None:
            assert type(new[key]) is type(value), f"{where}: {key}"


@pytest.mark.parametrize(
    ("told", "hint"), [(str(PRESENT + 1), "update this side"), ("0", ""), ("two", "")]
)
def test_unknown_version_is_refused_with_a_code(
    tmp_path: Path, said: list[Said], told: str, hint: str
) -> None:
    replay = Replay(tmp_path, said)
    ask = next(one for one in said if _kind(one) == "ask")
    try:
        status, _, body = asyncio.run(replay.say(ask, {PROTOCOL.lower(): told}))
        assert (status, json.loads(body)["code"]) == (400, "E0822")
        assert hint in json.loads(body)["hint"]
    finally:
        replay.app.state.edge.close()
        replay.office.close()


def test_every_answer_says_its_version(tmp_path: Path, said: list[Said]) -> None:
    replay = Replay(tmp_path, said)
    try:
        for one in (said[0], said[0] | {"target": "/nowhere"}):
            assert asyncio.run(replay.say(one))[1][PROTOCOL.lower()] == str(PRESENT)
    finally:
        replay.app.state.edge.close()
        replay.office.close()
