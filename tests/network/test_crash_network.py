"""A coordinator and an agent, killed and with failing disks, at a share of all durable calls;
`make soak` takes every one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from consortium.core.ids import Seat
from consortium.drive.directory import DataDirectory
from consortium.drive.states import FileStates
from consortium.errors import StoreFailedError
from consortium.site.home import SiteHome
from consortium.testing.crash import Campaign
from consortium.testing.crash_network.__main__ import points_of
from consortium.testing.crash_network.plants import PLANTS

DEAD = 4_194_305  # more than a process's number can be


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "consortium.testing.crash_network", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


# ---- the campaign -------------------------------------------------------------------


@pytest.mark.parametrize("who", ["coordinator", "agent"])
def test_killed_at_every_third_durable_call(who: str) -> None:
    done = run("--who", who, "--kill-every", "3", "--error-every", "0")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("who", ["coordinator", "agent"])
def test_killed_while_a_secret_sum_is_made(who: str) -> None:
    """Most durable calls before the first round are those of every study: see above."""
    done = run(
        "--masked", "--who", who, "--first", "300", "--kill-every", "48", "--error-every", "0"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("who", ["coordinator", "agent"])
def test_disk_fails_in_every_way_at_a_share_of_durable_calls(who: str) -> None:
    done = run("--who", who, "--kill-every", "0", "--error-every", "90")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("plant", "who", "first", "every"),
    [("late-update", "agent", "690", "8"), ("fact-before-blob", "coordinator", "590", "12")],
)
def test_planted_bug_is_found(plant: str, who: str, first: str, every: str) -> None:
    where = ("--first", first, "--kill-every", every, "--error-every", "0")
    done = run("--who", who, "--plant", plant, *where)
    assert done.returncode == 1 and " at " in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_every_planted_bug_is_found(plant: str) -> None:
    # Windows are as small as one commit: two or three calls.
    every = ("0", "20") if plant == "deaf-machine" else ("2", "0")
    done = run("--plant", plant, "--kill-every", every[0], "--error-every", every[1])
    assert done.returncode == 1 and " at " in done.stdout, done.stdout + done.stderr


def test_campaign_fails_clearly_without_strace() -> None:
    done = run(PATH="/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "strace is missing. hint: apt-get install strace\n"


def test_folders_that_are_all_the_same_are_thinned_unless_everything_is_wanted() -> None:
    calls = ["write"] * 9 + ["mkdir"] * 256 + ["fsync"] * 9
    every = Campaign("killed", "signal=SIGKILL", 1, 0, 1)
    assert points_of(calls, every) == list(range(274))
    third = points_of(calls, Campaign("killed", "signal=SIGKILL", 1, 0, 3))
    assert len(third) < 20 and third[:3] == [0, 3, 6] and third[-1] > 265


# ---- what it has found --------------------------------------------------------------


def test_agent_removes_what_a_killed_one_left_half_written(tmp_path: Path) -> None:
    home = SiteHome.prepare(tmp_path / "home")
    places = ("site.toml", "keys/site.pem", "receipts/round-1.proof", "states/1/1.safetensors")
    halves = [home.path / f"{name}.{DEAD}.new" for name in places]
    writing = home.path / f"policy.toml.{os.getpid()}.new"  # a command that is at it now
    for half in (*halves, writing):
        half.parent.mkdir(exist_ok=True)
        half.write_bytes(b"")
    (home.path / "work" / f"0123.{DEAD}.new" / "made").mkdir(parents=True)
    home.lock()
    home.close()
    assert not any(half.exists() for half in halves)
    assert writing.exists() and not list((home.path / "work").iterdir())


def test_coordinator_removes_what_a_killed_one_left_beside_its_log(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "data").close()
    half = tmp_path / "data" / f"operator.json.{DEAD}.new"
    half.write_bytes(b"")
    DataDirectory(tmp_path / "data").close()
    assert not half.exists()


def test_disk_that_fails_while_a_state_moves_is_one_of_our_errors(tmp_path: Path) -> None:
    states = FileStates(tmp_path / "states")
    states.keep(Seat(1), 1, b"state")
    (tmp_path / "states" / "1" / "current.safetensors").mkdir()  # a rename cannot replace it
    with pytest.raises(StoreFailedError):
        states.settle(1, [Seat(1)])
    assert states.pending(Seat(1), 1) == b"state"
