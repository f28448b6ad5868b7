"""Sites and coordinators that die: rounds end, nobody is counted twice, everybody comes back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consortium.testing import crowd, cuts
from consortium.testing.kill_loop import campaign, processes_of
from consortium.testing.processes import Network, ProcessesError, Shape, run, wait_until


@pytest.fixture
def network(tmp_path: Path, request: Any) -> Iterator[Network]:
    with Network(tmp_path / "n", request.param) as network:
        network.start_coordinator()
        yield network
    # A killed agent's task hears of it when its pipe breaks: a moment later.
    wait_until(lambda: not processes_of(tmp_path), 5.0, "an end of all processes")


def _counted(network: Network) -> list[int]:
    return [record["counted"] for record in network.rounds() if record["outcome"]]


@pytest.mark.parametrize(
    "network", [Shape(sites=3, rounds=50, quorum=2, pace_s=0.5, duration="4s")], indirect=True
)
def test_round_completes_at_its_deadline_without_a_killed_site_which_then_rejoins(
    network: Network,
) -> None:
    for name in network.site_names():
        network.join(name)
    wait_until(lambda: _counted(network)[-1:] == [3], 60.0, "a round of all")
    network.kill("site-2")
    first = network.status()["rounds"]["done"]  # while they joined, some were of two as well

    def of_two() -> list[Any]:
        ended = [one for one in network.rounds()[first:] if one["outcome"]]
        return [one for one in ended if one["counted"] == 2]

    wait_until(lambda: bool(of_two()), 60.0, "a round of two")
    record = of_two()[0]
    took_s = (record["ended_ms"] - record["opened_ms"]) / 1000
    assert 3.9 < took_s < 8.0, "the round waited until its deadline, and no longer"
    assert record["outcome"] == "accepted"
    network.start_site("site-2")
    wait_until(lambda: _counted(network)[-1] == 3, 60.0, "the site takes part again")


@pytest.mark.parametrize(
    "network", [Shape(sites=2, rounds=1000, quorum=2, pace_s=0.2, duration="30s")], indirect=True
)
def test_old_backup_of_the_coordinator_is_noticed_and_refused(network: Network) -> None:
    for name in network.site_names():
        network.join(name)
    network.wait_for_rounds(2)
    network.kill("coordinator")
    shutil.copytree(network.data, network.folder / "backup")
    network.start_coordinator()
    network.wait_for_rounds(5)
    network.kill("coordinator")
    shutil.rmtree(network.data)
    shutil.copytree(network.folder / "backup", network.data)
    network.start_coordinator()
    told = _wait_for_objection(network, "E0903")
    assert {one["objection"] for one in told} == {"E0903"}
    done = network.status()["rounds"]["done"]
    with pytest.raises(ProcessesError):
        wait_until(lambda: network.status()["rounds"]["done"] > done + 1, 5.0, "rounds")


def _wait_for_objection(network: Network, code: str) -> list[Any]:
    def roster() -> list[Any]:
        told = json.loads(network.ask("status", "--sites"))["data"]["federations"][0]
        return list(told["roster"])

    wait_until(lambda: all(one["objection"] == code for one in roster()), 40.0, code)
    return roster()


@pytest.mark.parametrize(
    "network", [Shape(sites=2, rounds=1000, quorum=2, pace_s=0.2, duration="30s")], indirect=True
)
def test_old_backup_of_a_site_is_noticed_and_refused(network: Network) -> None:
    for name in network.site_names():
        network.join(name)
    network.wait_for_rounds(1)
    network.kill("site-0")
    shutil.copytree(network.home("site-0"), network.folder / "backup")
    network.start_site("site-0")
    network.wait_for_rounds(4)
    wait_until(lambda: "round 4" in network.tail("site-0"), 30.0, "the site went on")
    network.kill("site-0")
    shutil.rmtree(network.home("site-0"))
    shutil.copytree(network.folder / "backup", network.home("site-0"))
    with pytest.raises(ProcessesError, match="E0905"):
        run(["agent", "--home", "site-0", "--until-finished"], network.folder)


def test_kill_loop() -> None:
    """Six cycles here; `make soak` does sixty."""
    told = campaign(6, seed=1)
    assert told["violations"] == []
    assert told["rounds"] >= 2


def test_cut_lines() -> None:
    """Eight cuts here; `make soak` does two hundred."""
    told = cuts.campaign(8, seed=1)
    assert told["violations"] == []
    assert told["cuts"] == 8


def test_a_crowd() -> None:
    """Thirty sites here; `make soak` has three hundred."""
    told = crowd.campaign(30, 10)
    assert told["violations"] == []
