"""The transport against a real TLS port: whom it trusts, what it signs, how it goes on after
a cut."""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from consortium.core.ids import Digest
from consortium.crypto.authority import Authority, public_key_of, request_certificate
from consortium.crypto.keyfile import write_secret
from consortium.crypto.recipes import SigningKey
from consortium.errors import (
    CertificateError,
    CorruptBlobError,
    DeadlineExpiredError,
    StoreFailedError,
    TooLargeError,
    UnreachableError,
    UnsignedRequestError,
    WireError,
)
from consortium.site.clock import Patience, SharedClock
from consortium.site.transfer import Transfer
from consortium.site.transport import Client, Identity, fetch_authority, verified_context
from consortium.store.files import FileBlobs
from consortium.wire.messages import CHUNK_BYTES, Taken
from tests.site.small_coordinator import AUDIENCE, SITE, Heard, Small, small_coordinator

KEY = SigningKey.generate()
LARGE = os.urandom(3 * CHUNK_BYTES + 12_345)
NAME = Digest(sha256(LARGE).digest())
MOST = 1 << 30


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    folder = tmp_path / "coordinator"
    folder.mkdir()
    with small_coordinator(folder) as found:
        found.key = KEY.public
        found.blobs[NAME.hex()] = LARGE
        yield found


@pytest.fixture
def client(small: Small) -> Iterator[Client]:
    made = new_client(small)
    yield made
    made.close()


@pytest.fixture
def transfer(client: Client, tmp_path: Path) -> Transfer:
    return Transfer(client, FileBlobs(tmp_path / "blobs"), tmp_path / "incoming")


def new_client(small: Small, key: SigningKey = KEY) -> Client:
    context = verified_context(small.authority.pem())
    return Client(small.url, context, Identity(SITE, AUDIENCE, key))


def file_of(tmp_path: Path) -> Path:
    path = tmp_path / "update"
    path.write_bytes(LARGE)
    return path


def other_file(tmp_path: Path) -> tuple[Path, Digest]:
    path, data = tmp_path / "other", LARGE[::-1]
    path.write_bytes(data)
    return path, Digest(sha256(data).digest())


# ---- whom to trust ------------------------------------------------------------------


def test_only_the_pinned_authority_is_trusted(small: Small) -> None:
    other = Client(small.url, verified_context(Authority.make(int(time.time() * 1000)).pem()))
    with pytest.raises(CertificateError, match="refused"):
        other.call("GET", "/v1/authority", reply=Taken)
    assert small.heard == []
    other.close()


def test_authority_can_be_fetched_before_anybody_is_trusted(small: Small) -> None:
    shown = fetch_authority(small.url)
    assert shown.pem == small.authority.pem()
    assert shown.date_ms is not None and abs(shown.date_ms - time.time() * 1000) < 5000


def test_certificate_is_shown_once_there_is_one(small: Small, tmp_path: Path) -> None:
    client = new_client(small)
    small.routes["GET", "/v1/me"] = lambda _: (200, {})
    client.call("GET", "/v1/me", reply=Taken)
    request = request_certificate(KEY)
    certificate = small.authority.issue_site(request, SITE, int(time.time() * 1000))
    write_secret(tmp_path / "site.key", KEY.pem())
    (tmp_path / "site.pem").write_bytes(certificate)
    client.show(tmp_path / "site.pem", tmp_path / "site.key")
    client.cut()  # what is open has shown none
    client.call("GET", "/v1/me", reply=Taken)
    before, after = small.heard[0].peer, small.heard[-1].peer
    assert before is None
    assert after is not None and public_key_of(after) == KEY.public
    client.close()


def test_coordinator_that_is_not_there_is_unreachable() -> None:
    client = Client("https://127.0.0.1:9", verified_context(Authority.make(0).pem()))
    with pytest.raises(UnreachableError):
        client.call("GET", "/v1/authority", reply=Taken)
    client.close()


# ---- requests -----------------------------------------------------------------------


def test_request_that_is_sent_again_is_the_same_request(small: Small, client: Client) -> None:
    answers = iter([(503, {"code": "E0604", "detail": "full"}), (200, {})])
    small.routes["POST", "/v1/leave"] = lambda _: next(answers)
    request = client.prepare("POST", "/v1/leave")
    with pytest.raises(UnreachableError, match="full"):
        client.send(request, Taken)
    client.send(request, Taken)
    first, second = (heard.headers["Consortium-Nonce"] for heard in small.heard)
    assert first == second
    assert client.prepare("POST", "/v1/leave").headers["Consortium-Nonce"] != first


def test_signature_of_another_key_is_refused(small: Small) -> None:
    client = new_client(small, SigningKey.generate())
    with pytest.raises(UnsignedRequestError):
        client.call("GET", f"/v1/uploads/{NAME.hex()}", reply=Taken)
    client.close()


@pytest.mark.parametrize("code", ["E0905", "E0903", "E0312", "E0314"])
def test_what_a_site_finds_out_by_itself_is_not_believed(
    small: Small, client: Client, code: str
) -> None:
    """RestoredBackupError ends an agent: nobody else may raise it there."""
    small.routes["POST", "/v1/leave"] = lambda _: (409, {"code": code, "detail": "so I say"})
    with pytest.raises(WireError, match="so I say"):
        client.call("POST", "/v1/leave", reply=Taken)


def test_refusal_comes_back_as_the_error_that_it_is(small: Small, client: Client) -> None:
    problem = {"code": "E0302", "detail": "too late", "hint": "next round", "details": {"n": 1}}
    small.routes["POST", "/v1/leave"] = lambda _: (409, problem)
    with pytest.raises(DeadlineExpiredError, match="too late") as caught:
        client.call("POST", "/v1/leave", reply=Taken)
    assert caught.value.hint == "next round"
    assert caught.value.details == {"n": 1}


@pytest.mark.parametrize(
    "answer",
    [
        (400, {"code": "E0999", "detail": "from the future"}),
        (500, {}),
        (200, {"taken": "yes"}),
        (302, {}),
    ],
)
def test_answer_that_means_nothing_is_a_wire_error(
    small: Small, client: Client, answer: tuple[int, dict[str, object]]
) -> None:
    small.routes["POST", "/v1/leave"] = lambda _: answer
    with pytest.raises(WireError) as caught:
        client.call("POST", "/v1/leave", reply=Taken)
    assert type(caught.value) is WireError


def test_what_a_coordinator_says_cannot_steer_a_terminal(small: Small, client: Client) -> None:
    problem = {"code": "E0810", "detail": "\x1b[2Jall is well", "hint": "\x07\nok"}
    small.routes["POST", "/v1/leave"] = lambda _: (400, problem)
    with pytest.raises(WireError) as caught:
        client.call("POST", "/v1/leave", reply=Taken)
    assert (caught.value.message, caught.value.hint) == ("[2Jall is well", "ok")


def test_request_under_way_can_be_cut_from_another_thread(small: Small, client: Client) -> None:
    waiting, release = threading.Event(), threading.Event()

    def wait(_: Heard) -> tuple[int, dict[str, object]]:
        waiting.set()
        release.wait(10)
        return 200, {}

    small.routes["POST", "/v1/ask"] = wait
    found: list[BaseException] = []

    def ask() -> None:
        try:
            client.call("POST", "/v1/ask", reply=Taken, read_s=30)
        except UnreachableError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert waiting.wait(5)
    client.cut()
    thread.join(2)
    release.set()
    assert not thread.is_alive()
    assert found


# ---- downloads ----------------------------------------------------------------------


def test_blob_is_fetched_once(small: Small, transfer: Transfer, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    transfer.fetch(NAME, most_bytes=MOST, on_progress=lambda *done: seen.append(done))
    transfer.fetch(NAME, most_bytes=MOST)
    assert FileBlobs(tmp_path / "blobs").get(NAME) == LARGE
    assert seen[-1] == (len(LARGE), len(LARGE))
    assert len(small.paths("GET")) == 1


def test_download_goes_on_where_it_was_cut(
    small: Small, transfer: Transfer, client: Client, tmp_path: Path
) -> None:
    small.cut_down = [1_000_000, 500_000]
    for _ in range(2):
        with pytest.raises(UnreachableError):
            transfer.fetch(NAME, most_bytes=MOST)
    # Another process goes on: what is here is a file, not a memory.
    blobs = FileBlobs(tmp_path / "blobs")
    Transfer(client, blobs, tmp_path / "incoming").fetch(NAME, most_bytes=MOST)
    assert blobs.get(NAME) == LARGE
    asked = [heard.headers.get("Range") for heard in small.heard]
    assert asked == [None, "bytes=1000000-", "bytes=1500000-"]


def test_download_that_was_complete_is_not_fetched_again(
    small: Small, transfer: Transfer, tmp_path: Path
) -> None:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / f"{NAME.hex()}.part").write_bytes(LARGE)
    transfer.fetch(NAME, most_bytes=MOST)
    assert FileBlobs(tmp_path / "blobs").get(NAME) == LARGE


def test_coordinator_without_ranges_starts_again(
    small: Small, transfer: Transfer, tmp_path: Path
) -> None:
    small.cut_down, small.ignores_range = [1_000_000], True
    with pytest.raises(UnreachableError):
        transfer.fetch(NAME, most_bytes=MOST)
    transfer.fetch(NAME, most_bytes=MOST)
    assert FileBlobs(tmp_path / "blobs").get(NAME) == LARGE


@pytest.mark.parametrize("left", [b"\0" * 2_000_000, LARGE + b"more"])
def test_damaged_beginning_is_thrown_away(transfer: Transfer, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / f"{NAME.hex()}.part").write_bytes(left)
    transfer.fetch(NAME, most_bytes=MOST)
    assert FileBlobs(tmp_path / "blobs").get(NAME) == LARGE


def test_other_bytes_than_the_digest_says_never_become_a_blob(
    small: Small, transfer: Transfer, tmp_path: Path
) -> None:
    small.garbles = 2
    with pytest.raises(CorruptBlobError):
        transfer.fetch(NAME, most_bytes=MOST)
    assert not FileBlobs(tmp_path / "blobs").has(NAME)
    assert list((tmp_path / "incoming").iterdir()) == []


def test_more_than_a_blob_can_have_is_not_taken(transfer: Transfer, tmp_path: Path) -> None:
    with pytest.raises(TooLargeError):
        transfer.fetch(NAME, most_bytes=len(LARGE) - 1)
    assert not FileBlobs(tmp_path / "blobs").has(NAME)


# ---- uploads ------------------------------------------------------------------------


def test_upload_sends_chunks(small: Small, transfer: Transfer, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = file_of(tmp_path)
    size = transfer.send(path, NAME, round=7, on_progress=lambda *done: seen.append(done))
    assert size == len(LARGE)
    assert bytes(small.uploads[NAME.hex()]) == LARGE
    chunks = [heard for heard in small.heard if heard.method == "PATCH"]
    assert [len(heard.body) for heard in chunks] == [CHUNK_BYTES] * 3 + [12_345]
    assert {heard.headers["Consortium-Round"] for heard in chunks} == {"7"}
    assert seen[-1] == (len(LARGE), len(LARGE))


@pytest.mark.parametrize(("most", "ends"), [(1, (1, 2, 3, 4)), (2, (2, 4)), (8, (4,))])
def test_requests_of_a_marked_file_are_signed_with_what_it_was_until_there(
    small: Small,
    transfer: Transfer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    ends: tuple[int, ...],
) -> None:
    """So that each may carry several chunks, and none is hashed again."""
    monkeypatch.setattr("consortium.site.transfer.MAX_CHUNKS_BYTES", most * CHUNK_BYTES)
    marks = marks_of(LARGE)
    transfer.mark(NAME, marks)
    transfer.send(file_of(tmp_path), NAME, round=7)
    assert bytes(small.uploads[NAME.hex()]) == LARGE
    places = [min(end * CHUNK_BYTES, len(LARGE)) for end in ends]
    assert signed_digests(small) == [marks[place].hex() for place in places]
    assert signed_digests(small)[-1] == NAME.hex()


def test_progress_is_told_within_a_request(
    small: Small, transfer: Transfer, tmp_path: Path
) -> None:
    transfer.mark(NAME, marks_of(LARGE))
    seen: list[tuple[int, int]] = []
    transfer.send(file_of(tmp_path), NAME, round=7, on_progress=lambda *done: seen.append(done))
    assert len(small.paths("PATCH")) == 1
    assert [done for done, _ in seen] == [*range(0, len(LARGE), CHUNK_BYTES // 16), len(LARGE)]
    assert {of for _, of in seen} == {len(LARGE)}


@pytest.mark.parametrize("how", ["an older coordinator", "marks of another file", "an odd offset"])
def test_chunk_is_else_signed_with_its_own_digest(
    small: Small, transfer: Transfer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("consortium.site.transfer.MAX_CHUNKS_BYTES", 2 * CHUNK_BYTES)
    start = 10 if how == "an odd offset" else 0
    small.uploads[NAME.hex()] = bytearray(LARGE[:start])
    small.version = "1" if how == "an older coordinator" else "2"
    marked = Digest(bytes(32)) if how == "marks of another file" else NAME
    transfer.mark(marked, marks_of(LARGE))
    transfer.send(file_of(tmp_path), NAME, round=7)
    assert bytes(small.uploads[NAME.hex()]) == LARGE
    ends = range(start, len(LARGE), CHUNK_BYTES)
    own = [sha256(LARGE[at : at + CHUNK_BYTES]).hexdigest() for at in ends]
    if how == "an odd offset":
        own[-2:] = [NAME.hex()]  # the end of the file is marked, wherever a request begins
    assert signed_digests(small) == own


def test_request_after_one_that_got_lost_is_small(
    small: Small, transfer: Transfer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a line that is slow or bad, little is to be sent again; on a good one it grows."""
    monkeypatch.setattr("consortium.site.transfer.MAX_CHUNKS_BYTES", 2 * CHUNK_BYTES)
    transfer.mark(NAME, marks_of(LARGE))
    small.cut_up, arrived = ["before"], list[int]()
    with pytest.raises(UnreachableError):
        transfer.send(file_of(tmp_path), NAME, round=7, on_arrival=lambda: arrived.append(1))
    assert arrived == []
    transfer.send(file_of(tmp_path), NAME, round=7, on_arrival=lambda: arrived.append(1))
    sizes = [len(heard.body) for heard in small.heard if heard.method == "PATCH"]
    assert sizes == [2 * CHUNK_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES, 12_345]
    assert len(arrived) == 3


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("closed file")])
def test_progress_that_cannot_be_shown_stops_no_upload(
    small: Small, transfer: Transfer, tmp_path: Path, error: Exception
) -> None:
    transfer.mark(NAME, marks_of(LARGE))

    def show(done: int, of: int) -> None:
        if done < of:
            raise error

    transfer.send(file_of(tmp_path), NAME, round=7, on_progress=show)
    assert bytes(small.uploads[NAME.hex()]) == LARGE


def test_file_that_shrinks_while_it_is_sent_is_no_trouble_of_the_line(
    transfer: Transfer, tmp_path: Path
) -> None:
    path = file_of(tmp_path)
    transfer.mark(NAME, marks_of(LARGE))

    def shrink(done: int, _: int) -> None:
        if done > CHUNK_BYTES:
            os.truncate(path, CHUNK_BYTES)

    with pytest.raises(StoreFailedError, match="became shorter"):
        transfer.send(path, NAME, round=1, on_progress=shrink)


@pytest.mark.parametrize("is_marked", [False, True])
def test_file_that_cannot_be_read_is_no_trouble_of_the_line(
    transfer: Transfer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    class Broken(io.FileIO):
        def read(self, size: int = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    path = file_of(tmp_path)
    if is_marked:
        transfer.mark(NAME, marks_of(LARGE))
    monkeypatch.setattr("consortium.site.transfer._opened", Broken)
    with pytest.raises(StoreFailedError, match="Input/output"):
        transfer.send(path, NAME, round=1)


def marks_of(data: bytes) -> dict[int, bytes]:
    ends = [*range(0, len(data), CHUNK_BYTES), len(data)]
    return {end: sha256(data[:end]).digest() for end in ends}


def signed_digests(small: Small) -> list[str]:
    chunks = [heard for heard in small.heard if heard.method == "PATCH"]
    return [heard.headers["Consortium-Content-Digest"] for heard in chunks]


def test_upload_of_what_is_there_sends_nothing(
    small: Small, transfer: Transfer, tmp_path: Path
) -> None:
    done = {"offset": len(LARGE), "is_complete": True}
    small.routes["GET", f"/v1/uploads/{NAME.hex()}"] = lambda _: (200, done)
    transfer.send(file_of(tmp_path), NAME, round=1)
    assert small.paths("PATCH") == []


def test_cut_costs_at_most_one_chunk(small: Small, transfer: Transfer, tmp_path: Path) -> None:
    path, cuts = file_of(tmp_path), ["before", "after", "", "after", "before", "before"]
    small.cut_up = list(cuts)
    count = 0
    while True:
        try:
            transfer.send(path, NAME, round=1)
            break
        except UnreachableError:
            count += 1
    assert bytes(small.uploads[NAME.hex()]) == LARGE
    assert count == 5
    assert len(small.paths("PATCH")) <= 4 + count


def test_true_offset_is_taken(small: Small, transfer: Transfer, tmp_path: Path) -> None:
    small.uploads[NAME.hex()] = bytearray(LARGE[: 2 * CHUNK_BYTES])
    small.routes["GET", f"/v1/uploads/{NAME.hex()}"] = lambda _: (200, {"offset": 0})
    transfer.send(file_of(tmp_path), NAME, round=1)
    assert bytes(small.uploads[NAME.hex()]) == LARGE


def test_another_upload_is_sent_without_asking(
    small: Small, transfer: Transfer, tmp_path: Path
) -> None:
    transfer.send(file_of(tmp_path), NAME, round=1)
    path, other = other_file(tmp_path)
    transfer.send(path, other, round=2)
    assert bytes(small.uploads[other.hex()]) == path.read_bytes()
    assert small.paths("GET") == [f"/v1/uploads/{NAME.hex()}"]


def test_upload_that_was_tried_before_asks_how_much_is_there(
    small: Small, transfer: Transfer, tmp_path: Path
) -> None:
    """A chunk that is there is taken again without a word: nobody would say where to go on."""
    transfer.send(file_of(tmp_path), NAME, round=1)
    path, other = other_file(tmp_path)
    small.cut_up = ["", "after"]
    with pytest.raises(UnreachableError):
        transfer.send(path, other, round=2)
    for _ in range(2):  # after a cut, and after an answer to the submission was lost
        transfer.send(path, other, round=2)
    assert small.paths("GET")[1:] == [f"/v1/uploads/{other.hex()}"] * 2
    offsets = [int(path.partition("=")[2]) for path in small.paths("PATCH")]
    assert offsets == [*range(0, 4 * CHUNK_BYTES, CHUNK_BYTES)] * 2


def test_upload_ends_when_the_first_chunk_shows_that_all_is_there(
    small: Small, transfer: Transfer, tmp_path: Path
) -> None:
    transfer.send(file_of(tmp_path), NAME, round=1)
    path, other = other_file(tmp_path)
    place, done = f"/v1/uploads/{other.hex()}", {"offset": CHUNK_BYTES, "is_complete": True}
    small.routes["PATCH", place] = lambda _: (200, done)
    seen: list[tuple[int, int]] = []
    transfer.send(path, other, round=2, on_progress=lambda *done: seen.append(done))
    assert small.paths("PATCH")[4:] == [f"{place}?offset=0"]
    assert seen[-1] == (len(LARGE), len(LARGE))


@pytest.mark.parametrize("offset", [0, -1, 1 << 40, 1 << 70, "7"])
def test_upload_that_does_not_move_ends(
    small: Small, transfer: Transfer, tmp_path: Path, offset: object
) -> None:
    problem = {"code": "E0816", "detail": "no", "details": {"offset": offset}}
    small.routes["PATCH", f"/v1/uploads/{NAME.hex()}"] = lambda _: (409, problem)
    with pytest.raises(WireError):
        transfer.send(file_of(tmp_path), NAME, round=1)


# ---- time ---------------------------------------------------------------------------


def test_time_is_the_coordinators_once_it_is_known() -> None:
    clock = SharedClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 1000
    clock.observe(1_000_000)
    assert 1_000_000 <= clock.now_ms() < 1_001_000


def test_patience_grows_and_forgets() -> None:
    stop, patience = threading.Event(), Patience(0.01, 0.04)
    begin = time.monotonic()
    for _ in range(4):
        assert not patience.wait(stop)
    assert time.monotonic() - begin >= 0.5 * (0.01 + 0.02 + 0.04 + 0.04)
    patience.reset()
    stop.set()
    assert patience.wait(stop)
