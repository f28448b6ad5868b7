"""Uploads as files: chunks that count when they are whole, requests that are signed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from consortium.coordinator.uploads import Uploads
from consortium.core.ids import Digest
from consortium.errors import (
    MissingBlobError,
    StoreFailedError,
    UnsignedRequestError,
    UsageError,
    WrongOffsetError,
)

SITE, OTHER = "0" * 32, "1" * 32
DATA = bytes(range(256)) * 40
WHOLE = Digest(sha256(DATA).digest())


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path / "uploads")


def send(uploads: Uploads, data: bytes, offset: int, site: str = SITE) -> int:
    chunk = uploads.receive(site, WHOLE, offset)
    for start in range(0, len(data), 1000):
        chunk.write(data[start : start + 1000])
    return chunk.commit(Digest(sha256(data).digest()))


def test_chunks_add_up_to_the_file(uploads: Uploads) -> None:
    assert uploads.offset(SITE, WHOLE) == 0
    assert send(uploads, DATA[:4000], 0) == 4000
    assert send(uploads, DATA[4000:], 4000) == len(DATA)
    assert uploads.path(SITE, WHOLE).read_bytes() == DATA
    taken, is_compared = uploads.take(SITE, WHOLE, len(DATA))
    assert taken.read_bytes() == DATA and is_compared


def test_chunk_is_known_by_the_digest_of_all_until_its_end(uploads: Uploads) -> None:
    """As well as by its own: then every byte is hashed once, at both sides."""
    for start, end in ((0, 4000), (4000, len(DATA))):
        chunk = uploads.receive(SITE, WHOLE, start)
        chunk.write(DATA[start:end])
        until_here = Digest(sha256(DATA[:end]).digest())
        assert chunk.commit(until_here) == end
        assert uploads.holds(SITE, WHOLE, start, until_here, end - start)
        assert not uploads.holds(SITE, WHOLE, start + 1, until_here, end - start)
    assert uploads.path(SITE, WHOLE).read_bytes() == DATA
    assert uploads.take(SITE, WHOLE, len(DATA))[1]


def test_chunk_that_is_right_behind_other_bytes_is_not_taken_for_the_whole(
    uploads: Uploads,
) -> None:
    send(uploads, bytes(4000), 0)
    chunk = uploads.receive(SITE, WHOLE, 4000)
    chunk.write(DATA[4000:])
    with pytest.raises(UnsignedRequestError):
        chunk.commit(WHOLE)
    send(uploads, DATA[4000:], 4000)
    assert uploads.take(SITE, WHOLE, len(DATA))[1] is False


def test_chunk_does_not_count_before_it_is_committed(uploads: Uploads) -> None:
    chunk = uploads.receive(SITE, WHOLE, 0)
    chunk.write(DATA[:500])
    assert uploads.offset(SITE, WHOLE) == 0
    chunk.abandon()
    assert uploads.path(SITE, WHOLE).read_bytes() == b""


# ---- several chunks in one request --------------------------------------------------


@pytest.fixture
def short(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    """With chunks of 1,000 bytes."""
    monkeypatch.setattr("consortium.coordinator.uploads.CHUNK_BYTES", 1000)
    return uploads


def until(end: int) -> Digest:
    return Digest(sha256(DATA[:end]).digest())


@pytest.mark.parametrize("piece", [1, 999, 1000, 1001, 3700])
@pytest.mark.parametrize("is_killed", [False, True])
def test_cut_costs_one_chunk_however_many_a_request_has(
    short: Uploads, tmp_path: Path, piece: int, is_killed: bool
) -> None:
    incoming = short.receive(SITE, WHOLE, 0)
    for start in range(0, 3700, piece):
        incoming.write(DATA[start : min(start + piece, 3700)])
    if is_killed:
        short = Uploads(tmp_path / "uploads")
    else:
        incoming.abandon()
        assert short.path(SITE, WHOLE).read_bytes() == DATA[:3000]
    assert short.offset(SITE, WHOLE) == 3000
    incoming = short.receive(SITE, WHOLE, 3000)
    incoming.write(DATA[3000:])
    assert incoming.commit(WHOLE) == len(DATA)
    taken, is_compared = short.take(SITE, WHOLE, len(DATA))
    assert taken.read_bytes() == DATA and is_compared


@pytest.mark.parametrize("wrong_at", [0, 2500, 4999])
def test_request_that_is_not_what_was_signed_counts_for_nothing(
    short: Uploads, tmp_path: Path, wrong_at: int
) -> None:
    """Neither do its chunks that counted while the rest came."""
    assert send(short, DATA[:1500], 0) == 1500
    incoming, sent = short.receive(SITE, WHOLE, 1500), bytearray(DATA[1500:6500])
    sent[wrong_at] ^= 1
    incoming.write(bytes(sent))
    assert short.offset(SITE, WHOLE) == 6000
    with pytest.raises(UnsignedRequestError):
        incoming.commit(until(6500))
    incoming.abandon()
    for here in (short, Uploads(tmp_path / "uploads")):
        assert here.offset(SITE, WHOLE) == 1500
        assert here.path(SITE, WHOLE).read_bytes() == DATA[:1500]
    assert send(short, DATA[1500:], 1500) == len(DATA)
    assert short.take(SITE, WHOLE, len(DATA))[1]


@pytest.mark.parametrize("is_killed", [False, True])
def test_chunks_that_no_request_vouched_for_go_with_the_next_that_does_not_fit(
    short: Uploads, tmp_path: Path, is_killed: bool
) -> None:
    """Else an upload with a wrong chunk in it could never be finished."""
    assert send(short, DATA[:1500], 0) == 1500
    cut = short.receive(SITE, WHOLE, 1500)
    cut.write(bytes(2000))  # other bytes, and the request never ends
    cut.abandon()
    if is_killed:  # what was compared before is not known any more
        short = Uploads(tmp_path / "uploads")
    assert short.offset(SITE, WHOLE) == 3000
    incoming = short.receive(SITE, WHOLE, 3000)
    incoming.write(DATA[3000:])
    with pytest.raises(UnsignedRequestError):
        incoming.commit(WHOLE)
    incoming.abandon()
    assert short.offset(SITE, WHOLE) == (0 if is_killed else 1500)
    assert send(short, DATA[short.offset(SITE, WHOLE) :], short.offset(SITE, WHOLE)) == len(DATA)
    assert short.take(SITE, WHOLE, len(DATA))[1]


def test_digest_of_its_own_bytes_does_not_vouch_for_what_lies_before(short: Uploads) -> None:
    cut = short.receive(SITE, WHOLE, 0)
    cut.write(bytes(2000))  # other bytes, and the request never ends
    cut.abandon()
    assert send(short, DATA[2000:3000], 2000) == 3000  # signed with its own digest
    incoming = short.receive(SITE, WHOLE, 3000)
    incoming.write(DATA[3000:])
    with pytest.raises(UnsignedRequestError):
        incoming.commit(WHOLE)
    incoming.abandon()
    assert short.offset(SITE, WHOLE) == 0


def test_request_in_chunks_is_known_by_its_own_digest_as_well(short: Uploads) -> None:
    assert send(short, DATA[:3500], 0) == 3500
    assert send(short, DATA[3500:8000], 3500) == 8000
    assert send(short, DATA[8000:], 8000) == len(DATA)
    assert short.take(SITE, WHOLE, len(DATA))[1]


def test_who_comes_later_goes_on_where_the_earlier_writer_is(short: Uploads) -> None:
    """Between the look at the offset and its turn, a chunk of the earlier one has counted."""
    earlier = short.receive(SITE, WHOLE, 0)

    class Late(type(short)):  # type: ignore[misc]
        def offset(self, site: str, digest: Digest) -> int:
            found = super().offset(site, digest)
            earlier.write(DATA[:1200])
            return int(found)

    short.__class__ = Late
    with pytest.raises(WrongOffsetError) as refused:
        short.receive(SITE, WHOLE, 0)
    assert refused.value.details == {"offset": 1000}
    with pytest.raises(WrongOffsetError):
        earlier.commit(until(1200))
    short.__class__ = Uploads
    assert send(short, DATA[1000:], 1000) == len(DATA)
    assert short.take(SITE, WHOLE, len(DATA))[1]


# ---- what does not fit --------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 3999, 4001, 8000])
def test_wrong_offset_is_told_and_changes_nothing(uploads: Uploads, offset: int) -> None:
    send(uploads, DATA[:4000], 0)
    with pytest.raises(WrongOffsetError) as refused:
        uploads.receive(SITE, WHOLE, offset)
    assert refused.value.details == {"offset": 4000}
    assert uploads.path(SITE, WHOLE).read_bytes() == DATA[:4000]


def test_chunk_of_another_digest_is_cut_off_again(uploads: Uploads) -> None:
    send(uploads, DATA[:4000], 0)
    chunk = uploads.receive(SITE, WHOLE, 4000)
    chunk.write(b"other bytes")
    with pytest.raises(UnsignedRequestError):
        chunk.commit(Digest(sha256(DATA[4000:]).digest()))
    chunk.abandon()
    assert uploads.path(SITE, WHOLE).read_bytes() == DATA[:4000]
    assert uploads.offset(SITE, WHOLE) == 4000


def test_what_a_killed_process_left_of_a_chunk_does_not_count(
    uploads: Uploads, tmp_path: Path
) -> None:
    send(uploads, DATA[:4000], 0)
    with uploads.path(SITE, WHOLE).open("ab") as file:
        file.write(b"torn")
    after = Uploads(tmp_path / "uploads")
    assert after.offset(SITE, WHOLE) == 4000
    assert send(after, DATA[4000:], 4000) == len(DATA)
    assert after.take(SITE, WHOLE, len(DATA))[0].read_bytes() == DATA


def test_torn_tail_is_no_part_of_a_finished_upload(uploads: Uploads) -> None:
    send(uploads, DATA, 0)
    with uploads.path(SITE, WHOLE).open("ab") as file:
        file.write(b"torn")
    assert uploads.take(SITE, WHOLE, len(DATA))[0].read_bytes() == DATA


def test_restart_goes_on_with_what_counted(uploads: Uploads, tmp_path: Path) -> None:
    send(uploads, DATA[:4000], 0)
    after = Uploads(tmp_path / "uploads")
    assert after.offset(SITE, WHOLE) == 4000
    assert after.holds(SITE, WHOLE, 3000, Digest(sha256(DATA[:4000]).digest()), 1000)
    send(after, DATA[4000:], 4000)
    assert Uploads(tmp_path / "uploads").take(SITE, WHOLE, len(DATA))[1]


@pytest.mark.parametrize(
    "left", [DATA[:100], bytes(len(DATA)), DATA[:-1] + b"!"], ids=["shorter", "zeros", "changed"]
)
def test_file_that_a_power_cut_has_changed_begins_again(
    uploads: Uploads, tmp_path: Path, left: bytes
) -> None:
    send(uploads, DATA, 0)
    uploads.path(SITE, WHOLE).write_bytes(left)
    after = Uploads(tmp_path / "uploads")
    assert after.offset(SITE, WHOLE) == 0
    with pytest.raises(MissingBlobError):
        after.take(SITE, WHOLE, len(DATA))
    send(after, DATA, 0)
    taken, is_compared = after.take(SITE, WHOLE, len(DATA))
    assert taken.read_bytes() == DATA and is_compared


@pytest.mark.parametrize("told", [b"", b"x", b"00000000000000004000", b"4000 " + b"0" * 64])
def test_torn_note_begins_again(uploads: Uploads, tmp_path: Path, told: bytes) -> None:
    send(uploads, DATA[:4000], 0)
    uploads.path(SITE, WHOLE).with_suffix(".at").write_bytes(told)
    assert Uploads(tmp_path / "uploads").offset(SITE, WHOLE) == 0


def test_file_that_somebody_has_removed_begins_again(uploads: Uploads) -> None:
    send(uploads, DATA[:4000], 0)
    uploads.path(SITE, WHOLE).unlink()
    with pytest.raises(WrongOffsetError) as refused:
        send(uploads, DATA[4000:], 4000)
    assert refused.value.details == {"offset": 0}
    assert send(uploads, DATA, 0) == len(DATA)


def test_later_writer_takes_over(uploads: Uploads) -> None:
    first = uploads.receive(SITE, WHOLE, 0)
    first.write(b"never finished")
    assert send(uploads, DATA, 0) == len(DATA)
    with pytest.raises(WrongOffsetError):
        first.write(b"more")
    with pytest.raises(WrongOffsetError):
        first.commit(Digest(sha256(b"never finished").digest()))
    first.abandon()
    assert uploads.path(SITE, WHOLE).read_bytes() == DATA


def test_nobody_writes_to_a_file_that_was_taken(uploads: Uploads) -> None:
    send(uploads, DATA, 0)
    late = uploads.receive(SITE, WHOLE, len(DATA))
    taken, is_compared = uploads.take(SITE, WHOLE, len(DATA))
    assert is_compared
    with pytest.raises(WrongOffsetError):
        late.write(b"poison")
    late.abandon()
    assert taken.read_bytes() == DATA
    for offset in (0, len(DATA)):
        with pytest.raises(WrongOffsetError):
            uploads.receive(SITE, WHOLE, offset)
    assert uploads.offset(SITE, WHOLE) == len(DATA)
    assert taken.read_bytes() == DATA
    assert uploads.take(SITE, WHOLE, len(DATA)) == (taken, False)


def test_unfinished_upload_cannot_be_taken(uploads: Uploads) -> None:
    with pytest.raises(MissingBlobError):
        uploads.take(SITE, WHOLE, len(DATA))
    send(uploads, DATA[:4000], 0)
    with pytest.raises(MissingBlobError):
        uploads.take(SITE, WHOLE, len(DATA))
    assert uploads.offset(SITE, WHOLE) == 4000


def test_forgotten_upload_begins_again(uploads: Uploads) -> None:
    send(uploads, DATA, 0)
    uploads.take(SITE, WHOLE, len(DATA))
    uploads.forget(SITE, WHOLE)
    assert uploads.offset(SITE, WHOLE) == 0
    with pytest.raises(MissingBlobError):
        uploads.take(SITE, WHOLE, len(DATA))


def test_new_upload_of_a_site_drops_the_old_one(uploads: Uploads) -> None:
    send(uploads, DATA[:4000], 0)
    send(uploads, DATA[:4000], 0, site=OTHER)
    newer = Digest(sha256(b"newer").digest())
    chunk = uploads.receive(SITE, newer, 0)
    chunk.write(b"newer")
    assert chunk.commit(newer) == 5
    assert uploads.offset(SITE, WHOLE) == 0
    assert uploads.offset(OTHER, WHOLE) == 4000


def test_chunk_that_is_there_is_known_by_its_bytes(uploads: Uploads) -> None:
    send(uploads, DATA[:4000], 0)
    first = Digest(sha256(DATA[1000:3000]).digest())
    assert uploads.holds(SITE, WHOLE, 1000, first, 2000)
    assert not uploads.holds(SITE, WHOLE, 1001, first, 2000)
    assert not uploads.holds(SITE, WHOLE, 3000, first, 2000)  # not all of it
    assert not uploads.holds(OTHER, WHOLE, 1000, first, 2000)


def test_what_a_site_has_sent_is_remembered(uploads: Uploads, tmp_path: Path) -> None:
    send(uploads, DATA, 0)
    assert not uploads.is_done(SITE, WHOLE)
    uploads.mark_done(SITE, WHOLE)
    uploads.mark_done(SITE, WHOLE)
    after = Uploads(tmp_path / "uploads")
    assert after.is_done(SITE, WHOLE)
    assert not after.is_done(OTHER, WHOLE)
    assert [file.name for file in (tmp_path / "uploads" / SITE).iterdir()] == ["done"]


@pytest.mark.parametrize("site", ["", "../etc", "a/b", "a" * 65, "."])
def test_site_that_is_no_file_name_is_refused(uploads: Uploads, site: str) -> None:
    for use in (uploads.path, uploads.offset, uploads.is_done, uploads.mark_done):
        with pytest.raises(UsageError):
            use(site, WHOLE)


@pytest.mark.parametrize(
    "use",
    [
        lambda uploads: uploads.receive(SITE, WHOLE, 0),
        lambda uploads: uploads.mark_done(SITE, WHOLE),
        lambda uploads: uploads.offset(SITE, WHOLE),
    ],
)
def test_trouble_with_the_disk_is_told_as_such(
    uploads: Uploads, tmp_path: Path, use: Callable[[Uploads], object]
) -> None:
    (tmp_path / "uploads" / SITE).write_text("a file where a folder should be")
    with pytest.raises(StoreFailedError):
        use(uploads)


def test_note_without_its_bytes_goes_at_the_next_start(uploads: Uploads, tmp_path: Path) -> None:
    send(uploads, b"some bytes", 0)
    path = uploads.path(SITE, WHOLE)
    left = path.with_name("ab" * 32 + ".at")
    left.write_bytes(b"%020d" % 10)
    again = Uploads(path.parent.parent)
    assert not left.exists()
    assert again.offset(SITE, WHOLE) == len(b"some bytes")


def test_upload_that_is_shorter_than_what_counts_is_not_taken(uploads: Uploads) -> None:
    send(uploads, DATA, 0)
    os.truncate(uploads.path(SITE, WHOLE), 100)
    with pytest.raises(MissingBlobError):
        uploads.take(SITE, WHOLE, len(DATA))
    assert uploads.offset(SITE, WHOLE) == 0
    assert send(uploads, DATA, 0) == len(DATA)


def test_finished_file_that_a_power_cut_shortened_is_sent_again(
    uploads: Uploads, tmp_path: Path
) -> None:
    send(uploads, DATA, 0)
    whole, _ = uploads.take(SITE, WHOLE, len(DATA))
    os.truncate(whole, 100)
    after = Uploads(tmp_path / "uploads")
    with pytest.raises(MissingBlobError):
        after.take(SITE, WHOLE, len(DATA))
    assert after.offset(SITE, WHOLE) == 0
    assert send(after, DATA, 0) == len(DATA)


@pytest.mark.parametrize(
    "left", [b"", DATA[:100], bytes(len(DATA))], ids=["empty", "shorter", "zeros"]
)
def test_finished_file_that_a_power_cut_has_changed_is_gone_at_the_next_start(
    uploads: Uploads, tmp_path: Path, left: bytes
) -> None:
    """Else nobody could send it again: no one writes beside a finished file."""
    send(uploads, DATA, 0)
    uploads.take(SITE, WHOLE, len(DATA))[0].write_bytes(left)
    after = Uploads(tmp_path / "uploads")
    assert after.offset(SITE, WHOLE) == 0
    assert send(after, DATA, 0) == len(DATA)
    assert after.take(SITE, WHOLE, len(DATA))[1]


@pytest.mark.parametrize("days", [0, 2])
def test_finished_file_is_kept_for_a_day(uploads: Uploads, tmp_path: Path, days: int) -> None:
    send(uploads, DATA, 0)
    whole = uploads.take(SITE, WHOLE, len(DATA))[0]
    then = time.time() - 86_400 * days
    os.utime(whole, (then, then))
    after = Uploads(tmp_path / "uploads")
    assert after.offset(SITE, WHOLE) == (0 if days else len(DATA))


def test_note_that_cannot_be_removed_does_not_keep_an_upload_from_being_taken(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(uploads, DATA, 0)

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("consortium.coordinator.uploads.os.unlink", fail)
        whole, is_compared = uploads.take(SITE, WHOLE, len(DATA))
    assert is_compared and whole.read_bytes() == DATA
    assert uploads.take(SITE, WHOLE, len(DATA)) == (whole, False)
