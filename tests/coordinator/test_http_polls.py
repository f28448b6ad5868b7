"""Waiting for news: woken at once, answered in time, many at a time."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from consortium.coordinator import rooms
from consortium.coordinator.rates import UnderWay
from consortium.coordinator.threads import READERS, WRITERS
from consortium.wire.signing import RequestLine, new_nonce, sign
from tests.coordinator.wired import FEDERATION, Answered, Site, Wired, until, wire

F = f"/v1/federations/{FEDERATION}"
SOON_S = 0.1  # from the change to the answer
SLOWLY = 3  # other work may have the machine's two cores
MANY = 100


@pytest.fixture
def wired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wired]:
    monkeypatch.setattr(rooms, "PER_KNOWN", MANY + 10)  # one site plays many
    with wire(tmp_path) as found:
        found.server._edge.gate.under_way = UnderWay(MANY + 10)
        yield found


class Waiter:
    """A site that waits in a thread of its own, and when it was answered."""

    def __init__(self, site: Site, wait_ms: int = 20_000) -> None:
        self._site, self._ms = site, wait_ms
        self.mark = site.ask().json["mark"]
        self.told: Answered | None = None
        self.at_s = 0.0
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()
        until(lambda: waiting(site.wired) > 0)

    def _wait(self) -> None:
        self.told = self._site.ask(have=self.mark, wait_ms=self._ms)
        self.at_s = time.monotonic()

    def join(self) -> Answered:
        self._thread.join(30)
        assert self.told is not None
        return self.told


def waiting(wired: Wired) -> int:
    desk = next(iter(wired.office.desks.values()))
    return wired.server._edge.polls.waiting(desk)


def test_answer_at_once_when_there_is_news(wired: Wired) -> None:
    site = wired.enrol("site-0")
    start_s = time.monotonic()
    assert site.ask(wait_ms=20_000).status == 200
    assert site.ask(wait_ms=20_000, have="something older").status == 200
    assert time.monotonic() - start_s < 10


def test_news_wakes_a_site_within_a_tenth_of_a_second(wired: Wired) -> None:
    """The best of three, since other work may have the machine's two cores for a moment."""
    site = wired.in_training()[0]
    took_s = []
    for number in (1, 2, 3):
        until(lambda: site.ask().json["invitation"] is not None)
        waiter = Waiter(site)
        cancelled = cancel(wired, number)
        assert waiter.join().json["invitation"] is None
        took_s.append(waiter.at_s - cancelled)
    assert min(took_s) < SOON_S
    assert waiting(wired) == 0


def cancel(wired: Wired, number: int) -> float:
    """End a round, which is news for its sites; when that was."""
    wired.office.teller_named(FEDERATION).cancel(number)
    return time.monotonic()


def test_time_that_is_over_ends_the_wait(wired: Wired) -> None:
    site = wired.enrol("site-0")
    mark = site.ask().json["mark"]
    start_s = time.monotonic()
    told = site.ask(have=mark, wait_ms=300)
    assert told.json["mark"] == mark
    assert 0.3 <= time.monotonic() - start_s < 5


def test_what_concerns_others_wakes_nobody(wired: Wired) -> None:
    site, other = wired.enrol("site-0"), wired.enrol("site-1")
    waiter = Waiter(site, wait_ms=1500)
    start_s = time.monotonic()
    assert other.call("POST", "/v1/report", {"report": {"cases": 1}}).status == 200
    assert waiter.join().json["mark"] == waiter.mark
    assert waiter.at_s - start_s > 1


def test_site_that_is_revoked_while_it_waits_is_refused(wired: Wired) -> None:
    site = wired.enrol("site-0")
    waiter = Waiter(site)
    start_s = time.monotonic()
    wired.order("POST", f"{F}/sites/site-0/revoke")
    told = waiter.join()
    assert waiter.at_s - start_s < SLOWLY * 2
    assert (told.status, told.code) in [(401, "E0814"), (403, "E0301")]


def test_peer_that_hangs_up_waits_no_longer(wired: Wired) -> None:
    site = wired.enrol("site-0")
    mark = site.ask().json["mark"]
    body = {"seen_size": 0, "own_size": 0, "have": mark, "wait_ms": 60_000}
    data = json.dumps(body).encode()
    connection = wired.connect(site.context())
    headers = sign(site.line("POST", "/v1/ask", data), site.key)
    connection.request("POST", "/v1/ask", body=data, headers=headers)
    until(lambda: waiting(wired) == 1)
    connection.close()
    until(lambda: waiting(wired) == 0)  # raises when it does not come about


def test_trouble_while_looking_wakes_who_waits(
    wired: Wired, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site, other = wired.enrol("site-0"), wired.enrol("site-1")
    waiter = Waiter(site)
    monkeypatch.setattr(wired.office.desk_of(site.row), "has_news", None)
    assert other.call("POST", "/v1/report", {"report": {"cases": 3}}).status == 200
    assert waiter.join().json["mark"] == waiter.mark
    assert "no telling" in caplog.text
    monkeypatch.undo()
    assert site.ask(have=waiter.mark, wait_ms=200).status == 200  # and it looks again


def test_end_of_the_server_ends_all_waits(tmp_path: Path) -> None:
    with wire(tmp_path) as wired:
        site = wired.enrol("site-0")
        waiter = Waiter(site, wait_ms=60_000)
        start_s = time.monotonic()
        wired.server.stop()
        assert waiter.join().json["mark"] == waiter.mark
        assert waiter.at_s - start_s < SLOWLY * 2


def test_nobody_waits_in_a_thread(wired: Wired) -> None:
    site = wired.enrol("site-0")

    def count_threads() -> None:
        names = [thread.name.partition("_")[0] for thread in threading.enumerate()]
        assert names.count("reader") <= READERS and names.count("writer") <= WRITERS

    asyncio.run(crowd(site, 20, count_threads))


def test_hundred_sites_wait_and_all_are_woken(wired: Wired) -> None:
    site = wired.in_training()[0]
    start_s = time.monotonic()
    told = asyncio.run(crowd(site, MANY, lambda: cancel(wired, 1)))
    assert [answer["invitation"] for answer in told] == [None] * MANY
    assert time.monotonic() - start_s < 20
    until(lambda: waiting(wired) == 0)


async def crowd(site: Site, count: int, meanwhile: Callable[[], object]) -> list[dict[str, object]]:
    """So many connections that wait at the same time; what they are told after something has
    happened, or when a second is over."""
    mark, context = site.ask().json["mark"], site.context()
    polls = [asyncio.create_task(poll(site, mark, context)) for _ in range(count)]
    while waiting(site.wired) < count:
        assert not any(one.done() for one in polls)
        await asyncio.sleep(0.01)
    meanwhile()
    done, late = await asyncio.wait(polls, timeout=10 if count == MANY else 0.1)
    for one in late:
        one.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return [one.result() for one in done]


async def poll(site: Site, mark: str, context: ssl.SSLContext) -> dict[str, object]:
    body = {"seen_size": 0, "own_size": 0, "have": mark, "wait_ms": 30_000}
    data = json.dumps(body).encode()
    audience, digest = site.wired.office.audience, sha256(data).hexdigest()
    line = RequestLine("POST", "/v1/ask", audience, site.row.id, 0, new_nonce(), digest)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.wired.port, ssl=context)
    try:
        headers = sign(line, site.key) | {"Host": "x", "Content-Length": str(len(data))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"POST /v1/ask HTTP/1.1\r\n{head}\r\n".encode() + data)
        told = await reader.readuntil(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 200 "), told
        size = next(
            int(line.partition(b":")[2])
            for line in told.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        return dict(json.loads(await reader.readexactly(size)))
    finally:
        writer.transport.abort()
