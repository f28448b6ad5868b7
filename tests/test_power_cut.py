"""Power cuts: the model of the disk, the reading of traces, and a share of the campaign."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from consortium.testing.disk import Disk, File
from consortium.testing.power_cut import DURABILITY_PLANTS
from consortium.testing.recording import Event, read_trace

_MODULE = "consortium.testing.power_cut"


def survivors(tmp_path: Path, *events: Event, seed: int = 0) -> dict[str, bytes]:
    """What is left of these events after a power cut."""
    disk = Disk("/d")
    for event in events:
        disk.apply(event)
    tmp_path.mkdir(exist_ok=True)
    disk.write_out(tmp_path / "left", Random(seed) if seed else None)
    left = tmp_path / "left"
    files = [path for path in left.rglob("*") if path.is_file()]
    return {path.relative_to(left).as_posix(): path.read_bytes() for path in files}


MADE = (Event("create", "/d/a"), Event("write", "/d/a", data=b"one"))


def test_what_was_synced_survives(tmp_path: Path) -> None:
    synced = (*MADE, Event("sync", "/d/a"), Event("sync", "/d"))
    assert survivors(tmp_path, *synced, Event("write", "/d/a", data=b"two")) == {"a": b"one"}


def test_bytes_without_a_name_are_lost(tmp_path: Path) -> None:
    assert survivors(tmp_path, *MADE, Event("sync", "/d/a")) == {}


def test_name_without_bytes_is_an_empty_file(tmp_path: Path) -> None:
    assert survivors(tmp_path, *MADE, Event("sync", "/d")) == {"a": b""}


def test_rename_is_durable_when_its_folder_is(tmp_path: Path) -> None:
    named = (*MADE, Event("sync", "/d/a"), Event("sync", "/d"), Event("rename", "/d/a", "/d/b"))
    assert survivors(tmp_path / "1", *named) == {"a": b"one"}
    assert survivors(tmp_path / "2", *named, Event("sync", "/d")) == {"b": b"one"}


def test_rename_between_folders_needs_both(tmp_path: Path) -> None:
    made = (*MADE, Event("sync", "/d/a"), Event("mkdir", "/d/f"), Event("sync", "/d"))
    moved = (*made, Event("rename", "/d/a", "/d/f/a"), Event("sync", "/d/f"))
    assert survivors(tmp_path, *moved) == {"a": b"one", "f/a": b"one"}


def test_removal_and_truncation_wait_for_a_sync(tmp_path: Path) -> None:
    named = (*MADE, Event("sync", "/d/a"), Event("sync", "/d"))
    cut = (*named, Event("truncate", "/d/a", offset=1))
    assert survivors(tmp_path / "1", *cut) == {"a": b"one"}
    assert survivors(tmp_path / "2", *cut, Event("sync", "/d/a")) == {"a": b"o"}
    assert survivors(tmp_path / "3", *named, Event("remove", "/d/a")) == {"a": b"one"}


def test_unsynced_writes_survive_in_any_part() -> None:
    file = File()
    for page in range(4):
        file.write(page * 1024, bytes([page + 1]) * 1024)
    found = {file.survivor(Random(seed)) for seed in range(200)}
    assert b"" in found and bytes(file.live) in found and len(found) > 20
    assert file.survivor(Random(7)) == file.survivor(Random(7))
    assert file.survivor(None) == b""


def test_trace_is_read(tmp_path: Path) -> None:
    def hidden(text: str) -> str:
        return "".join(f"\\x{byte:02x}" for byte in text.encode())

    folder, file = hidden(str(tmp_path)), hidden(f"{tmp_path}/a, b")
    trace = tmp_path / "trace"
    trace.write_text(
        f'12 openat(AT_FDCWD<{folder}>, "{file}", O_WRONLY|O_CREAT|O_TRUNC, 0600) = 3<{file}>\n'
        f'12 pwrite64(3<{file}>, "{hidden("xyz")}", 3, 8) = 2\n'
        f'12 writev(3<{file}>, [{{iov_base="{hidden("pq")}", iov_len=2}}], 1) = 2\n'
        f"12 fsync(3<{file}>) = -1 EIO (Input/output error) (INJECTED)\n"
        f'12 rename("{file}", "{folder}{hidden("/c")}") = 0\n'
        f"12 fdatasync(3<{folder}{hidden('/c')}> <unfinished ...>) = ?\n"
        "12 +++ killed by SIGKILL +++\n"
    )
    name = f"{tmp_path}/a, b"
    assert read_trace(trace, tmp_path) == [
        Event("create", name),
        Event("truncate", name, offset=0),
        Event("write", name, offset=8, data=b"xy"),
        Event("write", name, data=b"pq"),
        Event("rename", name, f"{tmp_path}/c"),
    ]
    trace.write_text(f'12 link("{file}", "{file}") = 0\n')
    with pytest.raises(ValueError, match="not part of the model"):
        read_trace(trace, tmp_path)


def test_nothing_acknowledged_is_lost_and_planted_bugs_are_found() -> None:
    arguments = ["--cuts", "25", "--kills", "4", "--planted-cuts", "6"]
    done = subprocess.run(
        [sys.executable, "-m", _MODULE, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(plant in done.stdout for plant in DURABILITY_PLANTS)
