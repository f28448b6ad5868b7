"""The audit: a sound directory passes, and whatever is changed in it is found."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from consortium.core import inputs as i
from consortium.core.codec import encode
from consortium.core.facts import FederationHeld, LogKeyAdopted
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import ManualClock
from consortium.drive.coordinate import Coordinator, checkpoints_of
from consortium.drive.directory import SIGNER_NAME, DataDirectory
from consortium.drive.simulate import Options, simulate
from consortium.drive.verify import Audit, _verify_all_blobs, verify_directory
from consortium.errors import CorruptStoreError, NoteError, StoreFailedError
from consortium.ledger.notary import Notary, origin_of
from consortium.ledger.note import Signer
from consortium.ledger.proof import read_proof
from consortium.plan import parse_plan
from consortium.store.files import FileBlobs
from consortium.store.memory import MemoryCache
from tests.studies import TASK, sites
from tests.test_cli import run as run_command

PLAN = parse_plan("[federation]\nrounds = 1\n[selection]\nfraction = 1.0\n")


def make(folder: Path, *, record: bool = True, rounds: int = 1) -> Path:
    directory = DataDirectory(folder)
    plan = PLAN.model_copy(
        update={"federation": PLAN.federation.model_copy(update={"rounds": rounds})}
    )
    options = Options(record=record, directory=directory)
    simulate(TASK, plan, sites(3), seed=1, options=options)
    directory.close()
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "data")


@pytest.fixture
def copied(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "data")
    return tmp_path / "data"


def stream_of(folder: Path) -> str:
    with sqlite3.connect(folder / "log.sqlite") as connection:
        rows = connection.execute("SELECT DISTINCT stream FROM records").fetchall()
    return next(name for (name,) in rows if "/" not in name)


@pytest.mark.parametrize("record", [True, False])
def test_a_sound_directory_passes(tmp_path: Path, record: bool) -> None:
    audit = verify_directory(make(tmp_path / "data", record=record, rounds=3))
    assert audit.findings == []
    assert audit.federations == 1
    assert audit.checkpoints >= 4  # one a round, and the newest
    assert audit.facts > 20
    assert audit.blobs > 5


def test_an_audit_changes_nothing(copied: Path) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    verify_directory(copied)
    assert before == {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}


def rows(folder: Path) -> Iterator[tuple[str, int, bytes]]:
    with sqlite3.connect(folder / "log.sqlite") as connection:
        yield from connection.execute("SELECT stream, position, record FROM records")


def write_row(folder: Path, stream: str, position: int, record: bytes) -> None:
    with sqlite3.connect(folder / "log.sqlite") as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute(
            "UPDATE records SET record = ? WHERE stream = ? AND position = ?",
            (record, stream, position),
        )


def test_every_changed_byte_of_every_row_is_found(copied: Path) -> None:
    changed = 0
    for stream, position, record in list(rows(copied)):
        for at in range(len(record)):
            damaged = bytearray(record)
            damaged[at] ^= 1 << (at % 8)
            write_row(copied, stream, position, bytes(damaged))
            assert verify_directory(copied).findings, f"{stream} {position} byte {at}"
            changed += 1
        write_row(copied, stream, position, record)
    assert changed > 1000
    assert verify_directory(copied).is_clean


def test_every_changed_byte_of_every_blob_is_found(copied: Path) -> None:
    blobs = FileBlobs.existing(copied / "blobs")
    for digest in list(blobs.digests()):
        path = copied / "blobs" / digest.hex()[:2] / digest.hex()[2:]
        data = path.read_bytes()
        for at in range(len(data)):
            damaged = bytearray(data)
            damaged[at] ^= 1 << (at % 8)
            path.write_bytes(damaged)
            audit = Audit()
            _verify_all_blobs(audit, blobs)
            assert [finding.where for finding in audit.findings] == [f"blob {digest.hex()}"]
        path.write_bytes(data)


def test_every_changed_byte_of_the_newest_checkpoint_is_found(copied: Path) -> None:
    (path,) = (copied / "checkpoints").iterdir()
    data = path.read_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        assert verify_directory(copied).findings, f"byte {at}"


def test_random_bytes_of_the_database_are_found_or_outside_the_record(copied: Path) -> None:
    """What no finding tells of must not have changed any record: the log reads the same."""
    rng = random.Random(7)
    expected, path = list(rows(copied)), copied / "log.sqlite"
    data = path.read_bytes()
    outside = 0
    for _ in range(2000):
        damaged = bytearray(data)
        at = rng.randrange(len(data))
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        if not verify_directory(copied).findings:
            assert list(rows(copied)) == expected, f"byte {at}"
            outside += 1
    assert outside < 2000


def test_a_cut_log_is_found_by_the_checkpoint_beside_it(copied: Path) -> None:
    with sqlite3.connect(copied / "log.sqlite") as connection:
        last = connection.execute(
            "SELECT max(position) FROM records WHERE stream = ?", (stream_of(copied),)
        ).fetchone()[0]
        connection.execute("DELETE FROM records WHERE position = ? OR stream LIKE '%/%'", (last,))
    told = verify_directory(copied).findings
    assert any("the log has" in finding.what for finding in told)


def test_a_rewritten_log_is_found_though_every_fact_is_legal(copied: Path) -> None:
    stream = stream_of(copied)
    held = encode(FederationHeld(1))
    with sqlite3.connect(copied / "log.sqlite") as connection:
        query = "SELECT max(position) FROM records WHERE stream = ?"
        last = connection.execute(query, (stream,)).fetchone()[0]
    write_row(copied, stream, last, held)
    (first, *_) = verify_directory(copied).findings
    assert "the log was rewritten" in first.what or "checkpoint" in first.where


def test_a_missing_blob_a_missing_checkpoint_and_a_missing_log_are_found(copied: Path) -> None:
    (note,) = (copied / "checkpoints").iterdir()
    kept = note.read_bytes()
    note.unlink()
    assert "no newest checkpoint" in verify_directory(copied).findings[0].what
    note.write_bytes(b"\xff\xfe")
    assert "not text" in verify_directory(copied).findings[0].what
    note.write_bytes(kept)
    digest = next(iter(FileBlobs.existing(copied / "blobs").digests()))
    (copied / "blobs" / digest.hex()[:2] / digest.hex()[2:]).unlink()
    assert digest.hex() in verify_directory(copied).findings[0].what
    (copied / "log.sqlite").unlink()
    assert "there is no log" in verify_directory(copied).findings[0].what


def test_an_empty_log_is_not_a_sound_one(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "data").close()
    assert "no federation" in verify_directory(tmp_path / "data").findings[0].what


def test_the_key_that_somebody_holds_is_compared(copied: Path) -> None:
    (key,) = verify_directory(copied).keys
    assert verify_directory(copied, key=bytes.fromhex(key)).is_clean
    told = verify_directory(copied, key=bytes(32)).findings
    assert "does not begin with the key" in told[0].what


def reopened(folder: Path) -> tuple[DataDirectory, Coordinator]:
    directory = DataDirectory(folder)
    return directory, Coordinator(directory, stream_of(folder), ManualClock(10**9))


def test_keys_rotate_and_the_log_stays_sound(copied: Path) -> None:
    directory, coordinator = reopened(copied)
    coordinator.rotate_key()
    coordinator.rotate_key()
    proof = coordinator.proof(3)
    directory.close()
    audit = verify_directory(copied, receipts=[proof])
    assert (audit.findings, audit.receipts) == ([], 1)


def test_a_rotation_that_the_old_key_did_not_sign_is_found(copied: Path) -> None:
    directory, coordinator = reopened(copied)
    coordinator.rotate_key()
    stream = checkpoints_of(stream_of(copied))
    last = directory.log.follow(stream, 0, 0.0) - 1
    note = next(iter(directory.log.read(stream, last))).decode()
    directory.close()
    write_row(copied, stream, last, (note.rsplit("\n", 2)[0] + "\n").encode())
    assert any("no signature" in finding.what for finding in verify_directory(copied).findings)


def test_somebody_elses_key_does_not_inherit_the_trust_in_the_first(copied: Path) -> None:
    """Cut the log after the first key, adopt another, and tell another story."""
    stream, forger = stream_of(copied), SigningKey.generate()
    for key in (copied / "keys").iterdir():
        key.unlink()
    (copied / "keys" / "x.key").write_bytes(forger.secret().reveal())
    with sqlite3.connect(copied / "log.sqlite") as connection:
        connection.execute("DELETE FROM records WHERE stream <> ? OR position > 1", (stream,))
        adopted = encode(LogKeyAdopted(forger.public, 5))
        connection.execute("INSERT INTO records VALUES (?, 2, ?)", (stream, adopted))
        held = encode(FederationHeld(6))
        connection.execute("INSERT INTO records VALUES (?, 3, ?)", (stream, held))
    (copied / "cache.sqlite").unlink()
    directory = DataDirectory(copied)
    coordinator = Coordinator(directory, stream, ManualClock(10**9))
    with pytest.raises(NoteError, match="not here"):  # it would have to sign with both
        coordinator.keep_checkpoint()
    origin, signer = origin_of(stream), Signer(SIGNER_NAME, forger)
    notary = Notary(directory.log, stream, MemoryCache(), origin, [signer])
    directory.keep_newest(stream, notary.checkpoint(4, forger.public).encode())
    directory.close()
    told = verify_directory(copied).findings
    assert any("no signature of the log's key" in finding.what for finding in told)


def test_facts_that_no_checkpoint_covers_are_counted(copied: Path) -> None:
    directory, coordinator = reopened(copied)
    coordinator.feed(i.Hold(10**9))
    directory.close()
    audit = verify_directory(copied)
    assert (audit.findings, audit.unsigned) == ([], 1)


def test_a_cache_that_lies_does_not_make_a_coordinator_sign(copied: Path) -> None:
    with sqlite3.connect(copied / "cache.sqlite") as connection:
        connection.execute("UPDATE cache SET value = zeroblob(length(value))")
    directory, coordinator = reopened(copied)
    coordinator.feed(i.Hold(10**9))
    coordinator.keep_checkpoint()
    directory.close()
    assert verify_directory(copied).is_clean


def test_two_coordinators_leave_a_sound_directory(copied: Path) -> None:
    directory, first = reopened(copied)
    second = Coordinator(directory, stream_of(copied), ManualClock(10**9))
    second.feed(i.Hold(10**9))
    second.keep_checkpoint()
    first.keep_checkpoint()  # it had not seen the newest fact
    directory.close()
    assert verify_directory(copied).is_clean


def test_a_log_that_is_not_what_was_signed_is_not_gone_on_with(copied: Path) -> None:
    stream = stream_of(copied)
    with sqlite3.connect(copied / "log.sqlite") as connection:
        query = "SELECT max(position) FROM records WHERE stream = ?"
        last = connection.execute(query, (stream,)).fetchone()[0]
        connection.execute("DELETE FROM records WHERE stream = ? AND position = ?", (stream, last))
    with pytest.raises(CorruptStoreError, match="shorter"):
        reopened(copied)
    with sqlite3.connect(copied / "log.sqlite") as connection:
        held = encode(FederationHeld(1))
        connection.execute("INSERT INTO records VALUES (?, ?, ?)", (stream, last, held))
    with pytest.raises(CorruptStoreError, match="not the one"):
        reopened(copied)


def test_a_receipt_of_another_past_is_found(sound: Path, copied: Path, tmp_path: Path) -> None:
    directory, coordinator = reopened(copied)
    mine = coordinator.proof(3)
    directory.close()
    other = make(tmp_path / "other")
    told = verify_directory(other, receipts=[mine]).findings
    assert "receipt for fact 3" in [finding.where for finding in told]
    assert verify_directory(sound, receipts=[mine]).is_clean


def test_a_coordinator_without_its_key_signs_nothing(copied: Path) -> None:
    for key in (copied / "keys").iterdir():
        key.unlink()
    directory, coordinator = reopened(copied)
    with pytest.raises(NoteError, match="not here"):
        coordinator.checkpoint()
    directory.close()


def test_what_is_no_key_is_refused(copied: Path) -> None:
    (copied / "keys" / "x.key").write_bytes(b"short")
    with pytest.raises(StoreFailedError, match="not a key"):
        reopened(copied)


def test_keys_are_readable_by_their_owner_alone(copied: Path) -> None:
    for key in (copied / "keys").glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0


# ---- the command --------------------------------------------------------------------


def test_the_command_is_exit_0_or_7(copied: Path, tmp_path: Path) -> None:
    done = run_command("audit", "verify", str(copied))
    assert (done.returncode, done.stdout[:3]) == (0, "ok:")
    (path,) = (copied / "checkpoints").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    done = run_command("audit", "verify", str(copied))
    assert done.returncode == 7
    assert "newest checkpoint" in done.stdout
    assert "error[E0904]" in done.stderr
    (copied / "log.sqlite").write_bytes(b"junk" * 1000)
    done = run_command("audit", "verify", str(copied))
    assert (done.returncode, "Traceback" in done.stderr) == (7, False)
    told = json.loads(run_command("--json", "audit", "verify", str(copied)).stdout)
    assert told["error"]["code"] == "E0904"
    assert told["error"]["details"]["findings"]
    assert run_command("audit", "verify", str(tmp_path / "none")).returncode == 2


def test_a_receipt_is_verified_with_the_key_alone(copied: Path, tmp_path: Path) -> None:
    directory, coordinator = reopened(copied)
    (tmp_path / "receipt.txt").write_text(coordinator.proof(5).text())
    key = coordinator.driver.state.log_keys[0].hex()
    directory.close()
    file = str(tmp_path / "receipt.txt")
    done = run_command("audit", "receipt", file, "--key", key)
    assert (done.returncode, "ok: fact 5" in done.stdout) == (0, True)
    assert run_command("audit", "receipt", file, "--key", "ab").returncode == 2
    assert run_command("audit", "receipt", str(tmp_path / "x"), "--key", key).returncode == 7
    text = read_proof((tmp_path / "receipt.txt").read_text()).text()
    (tmp_path / "receipt.txt").write_text(text.replace("\n5\n", "\n6\n"))
    assert run_command("audit", "receipt", file, "--key", key).returncode == 7
