"""A privacy budget between real processes: killed and asked at once, it is never overspent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from consortium.core.account_facts import Cost
from consortium.privacy.gaussian import epsilon_of, mu_of, sigma_for
from consortium.testing.kill_loop import processes_of
from consortium.testing.processes import Network, Shape, wait_until

# Three rounds of 0.5 cost 0.92 together, and four 1.07: see `test_limit_pays_for_three_rounds`.
PRIVATE = """[privacy]
unit = "site"
epsilon_per_round = 0.5
weekly = 1.0
"""
SHAPE = Shape(sites=3, rounds=50, target=3, quorum=2, pace_s=0.2, more=PRIVATE)
_EXCEEDED = 5


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path / "n", SHAPE) as network:
        network.start_coordinator()
        yield network
    wait_until(lambda: not processes_of(tmp_path), 5.0, "an end of all processes")


def test_limit_pays_for_three_rounds() -> None:
    sigma = sigma_for(0.5, 1e-5)
    assert Cost(sigma, 1, 1.0).is_sound()
    assert epsilon_of(mu_of([sigma] * 3), 1e-5) < 1.0 < epsilon_of(mu_of([sigma] * 4), 1e-5)


def released(network: Network) -> list[Any]:
    return [one for one in network.rounds() if one["outcome"] in ("accepted", "kept", "unjudged")]


def _order(network: Network) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "consortium", "--json", "round", "open"]
    return subprocess.run(
        command, cwd=network.study, capture_output=True, text=True, timeout=120, check=False
    )


def test_three_rounds_are_paid_and_no_fourth_whoever_asks_or_dies(network: Network) -> None:
    for name in network.site_names():
        network.join(name)
    for _ in range(2):  # in the middle of whatever it does
        wait_until(lambda: bool(network.status()["round"]), 60.0, "a round is open")
        network.kill("coordinator")
        network.start_coordinator()
    wait_until(lambda: len(released(network)) == 3, 120.0, "three rounds")
    (budget,) = json.loads(network.ask("budget", "show"))["data"]["budgets"]
    weekly = next(one for one in budget["windows"] if one["window"] == "weekly")
    assert weekly["spent"] <= 1.0 < weekly["after_next"]
    assert not budget["is_affordable"] and budget["frees_ms"] > budget["rounds"][-1]["at_ms"]
    with ThreadPoolExecutor(10) as pool:
        orders = list(pool.map(_order, [network] * 10))
    network.kill("coordinator")
    network.start_coordinator()
    for order in orders:
        assert order.returncode == _EXCEEDED, order.stderr
        assert json.loads(order.stdout)["error"]["code"] == "E0501"
    assert "can be paid from" in _plain(network)
    assert len(released(network)) == 3
    assert network.status()["version"] == 3
    charged = [one for one in budget["rounds"] if one["standing"] == "charged"]
    assert len(charged) == 3


def _plain(network: Network) -> str:
    """What a person reads."""
    command = [sys.executable, "-m", "consortium", "round", "open"]
    done = subprocess.run(
        command, cwd=network.study, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == _EXCEEDED
    return done.stderr
