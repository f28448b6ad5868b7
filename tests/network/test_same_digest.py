"""The same task and plan, simulated and between five processes, give the same model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from consortium.testing.processes import Network, Shape, run, wait_until

SEED = 7
COMPRESSED = "\n[compression]\nbits = 4\nkeep = 0.3\n"  # rounded, in part, with leftovers
NAMES = ["site-0", "site-1", "site-2", "site-3", "site-4"]


class Study(Network):
    """A study of `consortium init`, with five sites and a seed, instead of the counting one."""

    options: tuple[str, ...] = ()
    more_plan = ""

    def __enter__(self) -> Study:
        self.folder.mkdir()
        run(["init", "study", *self.options], self.folder)
        data = self.study / "data"
        for name, file in zip(NAMES, [*sorted(data.iterdir()), data / "north.csv"], strict=True):
            shutil.copy(file, self.folder / f"{name}.csv")
        shutil.rmtree(data)
        data.mkdir()
        for name in NAMES:
            shutil.copy(self.folder / f"{name}.csv", data)
        plan = self.study / "consortium.toml"
        text = plan.read_text().replace("rounds = 10", "rounds = 3")
        text = text.replace("fraction = 1.0", "fraction = 1.0\nwait_for = 5")
        plan.write_text(text + self.more_plan)
        run(["lock", "consortium.toml", "--seed", str(SEED)], self.study)
        return self

    def start_coordinator(self) -> None:
        listen = ["--listen", f"127.0.0.1:{self.port}", "--seed", str(SEED)]
        self._start("coordinator", ["serve", *listen], self.study)
        self.wait_ready()

    def join(self, name: str) -> None:
        token = json.loads(self.ask("invite", name))["data"]["token"]
        task = self.status()["task"]
        words = ["join", token, "--data", f"{name}.csv", "--home", name, "--approve", task]
        run([*words, "--seed", str(SEED), "--no-start"], self.folder)
        self.start_site(name)


@pytest.mark.parametrize(
    ("options", "more_plan"),
    [
        ((), ""),
        ((), COMPRESSED),
        pytest.param(("--torch",), "", marks=pytest.mark.slow),
        pytest.param(("--torch",), COMPRESSED, marks=pytest.mark.slow),
    ],
    ids=["numpy", "compressed", "torch", "torch compressed"],
)
def test_simulation_and_five_processes_give_the_same_model(
    tmp_path: Path, options: tuple[str, ...], more_plan: str
) -> None:
    network = Study(tmp_path / "n", Shape())
    network.options, network.more_plan = options, more_plan
    with network:
        network.start_coordinator()
        for name in NAMES:
            network.join(name)
        wait_until(network.is_finished, 120.0, "the study ends")
        between = network.status()["model"]
        outcomes = [record["outcome"] for record in network.rounds()]
        told = run(
            [
                "--json",
                "simulate",
                "consortium.toml",
                "--seed",
                str(SEED),
                "--workers",
                "0",
                "--engine",
                "loop",
            ],
            network.study,
        )
    simulated = json.loads(told)["data"]
    assert len(outcomes) == 3
    assert between == simulated["model"]
