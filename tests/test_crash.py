"""Kills and failing disks at a share of all durable calls; `make soak` takes every one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from consortium.core import inputs as i
from consortium.core.terms import Terms
from consortium.drive.clock import ManualClock
from consortium.drive.directory import DataDirectory
from consortium.drive.driver import Driver
from consortium.drive.hands import CoordinatorHands
from consortium.errors import StoreFailedError
from consortium.model import digest_of
from consortium.store.cache import SqliteCache
from consortium.store.files import FileBlobs
from consortium.store.memory import MemoryLog
from consortium.testing.crash import Campaign
from consortium.testing.crash_scenario import EXIT_LOST
from consortium.testing.warm import strace


def run(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"consortium.testing.{module}", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


# ---- the scenario -------------------------------------------------------------------


def test_scenario_ends_the_same_whenever_it_is_started(tmp_path: Path) -> None:
    def summary(name: str) -> dict[str, object]:
        done = run("crash_scenario", str(tmp_path / name), "--acks", str(tmp_path / f"{name}.acks"))
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    first = summary("one")
    assert first == summary("one") == summary("two")
    assert (first["finished"], first["members"]) == ("ROUNDS_DONE", [[1, 2, 3, 4, 5], [1, 2, 3, 5]])


def test_sites_notice_a_log_that_forgot(tmp_path: Path) -> None:
    acks = str(tmp_path / "acks")
    assert run("crash_scenario", str(tmp_path / "one"), "--acks", acks).returncode == 0
    done = run("crash_scenario", str(tmp_path / "other"), "--acks", acks)
    assert (done.returncode, done.stderr[:5]) == (EXIT_LOST, "lost:")


# ---- the campaigns ------------------------------------------------------------------


def test_strace_is_here() -> None:
    assert strace()  # raises with what to install: campaigns are never skipped


@pytest.mark.parametrize("module", ["crash", "power_cut"])
def test_campaigns_fail_clearly_without_strace(module: str) -> None:
    done = run(module, PATH="/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "strace is missing. hint: apt-get install strace\n"


def test_killed_at_every_seventh_durable_call() -> None:
    done = run("crash", "--kill-every", "7", "--error-every", "0")
    assert done.returncode == 0, done.stdout + done.stderr


def test_disk_fails_at_every_seventeenth_durable_call() -> None:
    done = run("crash", "--kill-every", "0", "--error-every", "17")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("plant", "kill_every", "error_every"), [("early-ack", "7", "0"), ("deaf-log", "0", "60")]
)
def test_planted_bug_is_found(plant: str, kill_every: str, error_every: str) -> None:
    every = ("--kill-every", kill_every, "--error-every", error_every)
    done = run("crash", *every, "--first", "300", "--plant", plant)
    assert done.returncode == 1 and " at " in done.stdout, done.stdout + done.stderr


def test_each_kind_of_call_is_counted_by_itself() -> None:
    calls = ["write", "fsync", "write", "fsync", "rename"]
    once = Campaign("", "error=EIO", 1, 0, 1)
    assert once.injections(calls, 2) == ["inject=write:error=EIO:when=2..2"]
    twice = Campaign("", "error=EIO", 2, 0, 1)
    assert twice.injections(calls, 3) == [
        "inject=fsync:error=EIO:when=2..2",
        "inject=rename:error=EIO:when=1..1",
    ]
    always = Campaign("", "error=EIO", 0, 0, 1)
    assert "inject=write:error=EIO:when=3+" in always.injections(calls, 3)


# ---- what the campaigns have found --------------------------------------------------


def test_cache_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache.sqlite").mkdir()
    cache = SqliteCache(tmp_path / "cache.sqlite")
    cache.put("a", b"one")
    assert cache.get("a") is None
    cache.close()


def test_half_written_keys_and_notes_are_removed_at_the_next_start(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "data").close()
    half = tmp_path / "data" / "keys" / "0123.new"
    half.write_bytes(b"")
    DataDirectory(tmp_path / "data").close()
    assert not half.exists()


def test_blob_is_stored_while_another_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, sync = FileBlobs(tmp_path / "blobs"), os.fsync

    def start_another(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        FileBlobs(tmp_path / "blobs")  # removes the temporary files that it finds

    monkeypatch.setattr(os, "fsync", start_another)
    assert blobs.get(blobs.put(b"some bytes")) == b"some bytes"


class FailsOnce(MemoryLog):
    """Refuses one append, as a full disk does."""

    is_full = False

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        if self.is_full:
            self.is_full = False
            raise StoreFailedError("the disk is full")
        return super().append(stream, expected, records)


def test_tick_that_the_store_refused_is_owed_still() -> None:
    log = FailsOnce()
    driver = Driver(log, "a", ManualClock())
    name = digest_of(b"")
    driver.feed(i.Found("a", 0))
    driver.feed(i.AdoptPlan(name, name, name, Terms(rounds=1, quorum=1, wait_for=1), 0))
    driver.feed(i.InstallModel(name, 0))
    driver.feed(i.AdmitCohort(1, 0))
    hands = CoordinatorHands.__new__(CoordinatorHands)  # opening a round needs no hands
    log.is_full = True
    with pytest.raises(StoreFailedError):
        driver.work(hands)
    assert driver.work(hands) and driver.state.round is not None
