"""Uploads over the wire: resumed, repeated, cut, too large, not asked for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from consortium.core.ids import Digest
from consortium.wire.messages import MAX_CHUNKS_BYTES
from consortium.wire.signing import sign
from tests.coordinator.wired import Answered, Site, Wired, until, wire

CHUNK = 400_000


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    with wire(tmp_path) as found:
        yield found


@pytest.fixture
def site(wired: Wired) -> Site:
    return wired.in_training()[0]


@pytest.fixture
def data(site: Site) -> bytes:
    return site.update()


def place(data: bytes, offset: int) -> str:
    return f"/v1/uploads/{sha256(data).hexdigest()}?offset={offset}"


def send(site: Site, data: bytes, offset: int, size: int = CHUNK) -> Answered:
    return site.call("PATCH", place(data, offset), data[offset : offset + size])


def offset_of(site: Site, data: bytes) -> int:
    return int(site.call("GET", place(data, 0).partition("?")[0]).json["offset"])


def stored(site: Site, data: bytes) -> bytes:
    digest = Digest(sha256(data).digest())
    return site.wired.office.uploads.path(site.row.id, digest).read_bytes()


def test_upload_goes_on_where_it_was(site: Site, data: bytes) -> None:
    assert send(site, data, 0).json == {"offset": CHUNK, "is_complete": False}
    site.hang_up()
    assert offset_of(site, data) == CHUNK
    assert site.upload(data, start=CHUNK, chunk=CHUNK).json["offset"] == len(data)
    assert site.submit(data).status == 200


@pytest.mark.parametrize("offset", [CHUNK - 1, CHUNK + 1, 2 * CHUNK])
def test_wrong_offset_says_where_to_go_on(site: Site, data: bytes, offset: int) -> None:
    send(site, data, 0)
    told = send(site, data, offset)
    assert (told.status, told.code) == (409, "E0816")
    assert told.json["details"] == {"offset": CHUNK}
    assert stored(site, data) == data[:CHUNK]


def test_same_chunk_again_gets_the_same_answer(site: Site, data: bytes) -> None:
    first = send(site, data, 0)
    send(site, data, CHUNK)
    again = send(site, data, 0)
    assert (again.status, again.body) == (first.status, first.body)
    assert offset_of(site, data) == 2 * CHUNK
    assert stored(site, data) == data[: 2 * CHUNK]


def test_other_bytes_at_a_place_that_is_filled_are_refused(site: Site, data: bytes) -> None:
    send(site, data, 0)
    told = site.call("PATCH", place(data, 0), bytes(CHUNK))
    assert (told.status, told.code) == (409, "E0816")
    assert stored(site, data) == data[:CHUNK]


def test_body_of_another_digest_counts_for_nothing(site: Site, data: bytes) -> None:
    send(site, data, 0)
    line = site.line("PATCH", place(data, CHUNK), data[CHUNK : 2 * CHUNK])
    told = site.send(line, bytes(CHUNK))
    assert (told.status, told.code) == (401, "E0814")
    assert stored(site, data) == data[:CHUNK]
    assert send(site, data, CHUNK).status == 200


def half_sent(site: Site, data: bytes, offset: int) -> socket.socket:
    """A connection on which half a chunk was sent, and nothing since."""
    body = data[offset : offset + CHUNK]
    line = site.line("PATCH", place(data, offset), body)
    head = f"PATCH {line.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in sign(line, site.key).items())
    plain = socket.create_connection(("127.0.0.1", site.wired.port))
    tls = site.context().wrap_socket(plain, server_hostname="127.0.0.1")
    tls.sendall(head.encode() + b"\r\n" + body[: CHUNK // 2])
    return tls


def size_of(site: Site, data: bytes) -> int:
    return len(stored(site, data))


def test_cut_in_the_middle_of_a_chunk_costs_that_chunk(site: Site, data: bytes) -> None:
    send(site, data, 0)
    line = half_sent(site, data, CHUNK)
    until(lambda: size_of(site, data) > CHUNK)
    assert offset_of(site, data) == CHUNK
    socket.socket.shutdown(line, socket.SHUT_RDWR)  # no goodbye
    line.close()
    until(lambda: size_of(site, data) == CHUNK)
    assert site.upload(data, start=CHUNK, chunk=CHUNK).json["offset"] == len(data)
    assert site.submit(data).status == 200


def test_cut_in_the_middle_of_a_long_request_keeps_its_whole_chunks(
    site: Site, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consortium.coordinator.uploads.CHUNK_BYTES", CHUNK // 8)
    send(site, data, 0)
    line = half_sent(site, data, CHUNK)
    whole = CHUNK + CHUNK // 8 * 4
    until(lambda: offset_of(site, data) == whole)
    socket.socket.shutdown(line, socket.SHUT_RDWR)
    line.close()
    assert site.upload(data, start=whole, chunk=CHUNK).json["offset"] == len(data)
    assert site.submit(data).status == 200


def test_dead_connection_does_not_keep_the_next_one_out(site: Site, data: bytes) -> None:
    send(site, data, 0)
    line = half_sent(site, data, CHUNK)
    until(lambda: size_of(site, data) > CHUNK)
    assert site.upload(data, start=CHUNK, chunk=CHUNK).json["offset"] == len(data)
    line.sendall(bytes(CHUNK // 2))  # the dead one comes back, too late
    assert b"409" in line.recv(4096).partition(b"\r\n")[0]
    line.close()
    assert stored(site, data) == data
    assert site.submit(data).status == 200


def test_blob_is_out_of_reach_of_a_writer_that_is_still_open(site: Site, data: bytes) -> None:
    site.upload(data)
    more = data + bytes(CHUNK)  # the same name, more bytes
    line = replace(site.line("PATCH", place(data, len(data)), more[len(data) :]))
    head = f"PATCH {line.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 64\r\n"
    line = replace(line, digest=sha256(bytes(64)).hexdigest())
    head += "".join(f"{name}: {value}\r\n" for name, value in sign(line, site.key).items())
    plain = socket.create_connection(("127.0.0.1", site.wired.port))
    tls = site.context().wrap_socket(plain, server_hostname="127.0.0.1")
    tls.sendall(head.encode() + b"\r\n")
    assert offset_of(site, data) == len(data)  # by now the other request is waiting for bytes
    assert site.submit(data).status == 200
    tls.sendall(bytes(64))
    assert b"409" in tls.recv(4096).partition(b"\r\n")[0]
    tls.close()
    desk = site.wired.office.desk_of(site.row)
    assert desk.blobs.get(Digest(sha256(data).digest())) == data  # which verifies it


def test_chunk_that_is_too_large_is_refused(site: Site, data: bytes) -> None:
    line = site.line("PATCH", place(data, 0), b"")
    headers = sign(line, site.key) | {"Content-Length": str(MAX_CHUNKS_BYTES + 1)}
    connection = site.wired.connect(site.context())
    connection.putrequest("PATCH", line.path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    assert (response.status, response.getheader("connection")) == (413, "close")
    assert b"E0817" in response.read()
    connection.close()


def test_upload_that_is_larger_than_an_update_is_refused(site: Site, data: bytes) -> None:
    limit = site.wired.office.desk_of(site.row).upload_limit(site.row)
    assert len(data) <= limit < len(data) + 100_000
    told = site.call("PATCH", place(data, 0), bytes(limit + 1))
    assert (told.status, told.code) == (413, "E0817")


def test_length_must_be_told(site: Site, data: bytes) -> None:
    line = site.line("PATCH", place(data, 0), b"x")
    connection = site.wired.connect(site.context())
    connection.request(
        "PATCH", line.path, body=iter([b"x"]), headers=sign(line, site.key), encode_chunked=True
    )
    response = connection.getresponse()
    assert response.status == 411
    assert b"E0810" in response.read()
    connection.close()


def test_site_that_is_not_asked_may_not_upload(wired: Wired, site: Site, data: bytes) -> None:
    late = wired.enrol("late")
    told = send(late, data, 0)
    assert (told.status, told.code) == (403, "E0301")
    folder = wired.folder / "data" / "uploads" / late.row.id
    assert not folder.exists()


def test_upload_of_another_site_is_as_if_it_were_not_there(
    wired: Wired, site: Site, data: bytes
) -> None:
    send(site, data, 0)
    other = wired.sites[1]
    assert offset_of(other, data) == 0
    told = send(other, data, CHUNK)
    assert told.json["details"] == {"offset": 0}
    assert other.submit(data).code == "E0602"
    assert offset_of(site, data) == CHUNK


def test_bytes_that_were_sent_before_are_not_sent_again(site: Site, data: bytes) -> None:
    site.upload(data)
    assert site.submit(data).status == 200
    again = send(site, data, CHUNK)
    assert again.json == {"offset": 2 * CHUNK, "is_complete": True}


def test_unfinished_upload_is_not_counted(site: Site, data: bytes) -> None:
    send(site, data, 0)
    told = site.submit(data)
    assert (told.status, told.code) == (404, "E0602")
    assert offset_of(site, data) == CHUNK


def test_upload_with_other_bytes_than_its_name_says_begins_again(site: Site, data: bytes) -> None:
    other = bytes(len(data))
    for offset in range(0, len(data), CHUNK):
        chunk = other[offset : offset + CHUNK]
        assert site.call("PATCH", place(data, offset), chunk).status == 200
    told = site.submit(data)
    assert told.status == 400
    assert offset_of(site, data) == 0
    site.upload(data)
    assert site.submit(data).status == 200


@pytest.mark.parametrize("query", ["", "?offset=-1", "?offset=x", "?offset=1e3"])
def test_offset_must_be_a_number(site: Site, data: bytes, query: str) -> None:
    told = site.call("PATCH", place(data, 0).partition("?")[0] + query, b"x")
    assert (told.status, told.code) == (422, "E0810")


def test_empty_chunk_is_no_trouble_of_ours(site: Site, data: bytes) -> None:
    told = site.call("PATCH", place(data, 0), b"")
    assert (told.status, told.json["offset"]) == (200, 0)
    site.upload(data)
    assert site.submit(data).status == 200
