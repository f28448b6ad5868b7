"""Populations: clients made on demand, in Python and by the plan; memory and time by the round."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from consortium import Options, Population, SimulatedSite, simulate
from consortium.cli.app import app
from consortium.drive.population import (
    digest_of_sites,
    has_reports,
    have_own_names,
    place_of,
    strangers,
)
from consortium.errors import ConsortiumError, ImpossiblePlanError, PlanError, UsageError
from consortium.plan import Plan, parse_plan
from consortium.tasks import NumpyTask, Site, numpy_task

MEGABYTE = 1 << 20
TASK_FILE = """
import numpy as np
import consortium as co

def records(number):
    rng = np.random.default_rng(number)
    return rng.normal(size=3)

def start(rng):
    return {"w": np.zeros(3, np.float32)}

def evaluate(site, shared):
    return {"loss": float(((shared["w"] - records(site.data)) ** 2).mean())}, 1

@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss"])
def study(site, shared):
    shared["w"] += (0.5 * (records(site.data) - shared["w"])).astype(np.float32)
    return shared, 1
"""


def records(number: int) -> Any:
    return np.random.default_rng(number).normal(size=(50, 100))


def made_task(seen: list[int] | None = None) -> NumpyTask:
    def start(_: np.random.Generator) -> dict[str, Any]:
        return {"w": np.zeros(100, np.float32)}

    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        return {"loss": float(((shared["w"] - records(site.data).mean(axis=0)) ** 2).mean())}, 50

    @numpy_task(start=start, evaluate=evaluate, metrics=["loss"])
    def train(site: Site, shared: dict[str, Any]) -> tuple[dict[str, Any], int]:
        if seen is not None:
            seen.append(site.data)
        shared["w"] += (records(site.data).mean(axis=0) - shared["w"]).astype(np.float32)
        return shared, 50

    return train


def plan_of(target: int, more: str = "", rounds: int = 2) -> Plan:
    return parse_plan(
        f"[federation]\nrounds = {rounds}\n[selection]\ntarget = {target}\n{more}\n"
        "[evaluation]\ngate = false\n"
    )


# ---- the sequence --------------------------------------------------------------------------


def test_clients_are_named_by_their_numbers() -> None:
    clients = Population(1_000)
    assert clients[0] == SimulatedSite("client-000001", 1)
    assert clients[-1] == SimulatedSite("client-001000", 1000)
    assert [site.data for site in clients[10:13]] == [11, 12, 13]
    assert [site.data for site in reversed(clients[:2])] == [2, 1]
    assert (len(clients), len(list(clients)), len(clients[::7])) == (1000, 1000, 143)
    assert clients[:10] == Population(10) and clients != Population(10)
    assert hash(clients[:10]) == hash(Population(10)) and clients != 5
    assert repr(Population(100_000)) == "<Population of 100,000 clients>"
    with pytest.raises(IndexError):
        clients[1000]


def test_clients_are_found_by_their_names() -> None:
    clients = Population(1_000_000)
    assert clients.place_of("client-000042") == 41
    assert clients.place_of("client-1000000") == 999_999
    for name in ("client-42", "client-0000042", "client-000000", "client-1000001", "east", "42"):
        assert clients.place_of(name) is None
    assert clients[10:].place_of("client-000011") == 0
    assert clients[10:].place_of("client-000010") is None
    assert clients[41] in clients and SimulatedSite("client-000042", 7) not in clients
    assert "client-000042" not in clients


def test_what_is_asked_of_all_sites_is_known_of_clients_at_once() -> None:
    clients, few = Population(3), list(Population(3))
    for sites in (clients, few):
        assert place_of(sites, "client-000002") == 1 and place_of(sites, "x") is None
        assert strangers(sites, ["a", "client-000003", "b"]) == ["a", "b"]
        assert have_own_names(sites) and not has_reports(sites)
    assert not have_own_names([*few, few[0]])
    assert has_reports([SimulatedSite("a", 1, report=(("gpu", True),))])
    assert digest_of_sites(clients) != digest_of_sites(Population(4))
    assert digest_of_sites(few) != digest_of_sites(few[:2])


@pytest.mark.parametrize("clients", [0, -1, 1_000_001])
def test_a_population_has_a_sensible_size(clients: int) -> None:
    with pytest.raises(UsageError):
        Population(clients)


# ---- runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", ["", "strategy = 'fair'", "overselect = 1.5"])
def test_a_population_gives_the_model_that_a_list_of_its_clients_gives(more: str) -> None:
    plan = plan_of(5, more)
    options = Options(drops=lambda number, site: number == 1 and site.endswith("7"))
    lazy = simulate(made_task(), plan, Population(40), seed=3, options=options)
    listed = simulate(made_task(), plan, list(Population(40)), seed=3, options=options)
    assert lazy.model_digest == listed.model_digest
    assert isinstance(lazy.sites, Population) and isinstance(listed.sites, tuple)


def test_workers_and_record_give_the_same_model() -> None:
    plan = plan_of(5)
    runs = [
        simulate(made_task(), plan, Population(30), seed=3, options=options)
        for options in (Options(), Options(workers=2), Options(record=True))
    ]
    assert len({run.model_digest for run in runs}) == 1


def test_only_clients_of_the_round_are_made() -> None:
    seen: list[int] = []
    simulate(made_task(seen), plan_of(10), Population(1_000_000), seed=1)
    assert len(seen) == 20 and len(set(seen)) > 15
    assert max(seen) > 100_000


def test_memory_follows_the_round_and_not_the_population() -> None:
    def peak(clients: int, target: int) -> int:
        tracemalloc.start()
        try:
            simulate(made_task(), plan_of(target), Population(clients), seed=1)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1_000, 20)  # whatever is loaded once
    few, many = peak(1_000, 20), peak(1_000_000, 20)
    # Measured: 0.3 MB each. A tuple of their names alone would be 60 MB.
    assert many < few + MEGABYTE
    # A client's records are 40 kB: all of 200 at once would be 8 MB.
    assert peak(1_000, 200) < few + 2 * MEGABYTE


def test_plans_that_need_reports_or_paces_are_told_of_clients() -> None:
    with pytest.raises(ImpossiblePlanError, match="report nothing"):
        simulate(made_task(), plan_of(5, "require = ['gpu == true']"), Population(9), seed=1)
    paced = parse_plan("[simulation]\npace = {east = 2.0}\n")
    with pytest.raises(ImpossiblePlanError, match="no such site") as caught:
        simulate(made_task(), paced, Population(9), seed=1)
    assert caught.value.hint.startswith("the sites are: client-000001, client-000002")


# ---- the plan ------------------------------------------------------------------------------


def test_clients_are_in_no_digest_and_take_no_time() -> None:
    plain, many = parse_plan(""), parse_plan("[simulation]\nclients = 100000\n")
    assert plain.digest == many.digest
    assert not many.takes_time
    assert parse_plan("[simulation]\nclients = 10\nunit = '2m'\n").takes_time


@pytest.mark.parametrize("clients", ["0", "-5", "1000001", "true", '"many"'])
def test_a_wrong_number_of_clients_is_refused(clients: str) -> None:
    with pytest.raises(PlanError, match="clients"):
        parse_plan(f"[simulation]\nclients = {clients}\n")


def test_clients_and_files_together_are_refused() -> None:
    with pytest.raises(ImpossiblePlanError, match="both sites") as caught:
        parse_plan("[federation]\nsites = 'data/*.csv'\n[simulation]\nclients = 10\n")
    assert caught.value.where.endswith(":4")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(TASK_FILE)
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "[task]\nentry = 'task.py:study'\n[federation]\nrounds = 2\n[selection]\ntarget = 8\n"
        "[evaluation]\ngate = false\n[simulation]\nclients = 100000\n"
    )
    return plan


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_plan_of_clients_runs_from_the_command_line(study: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done = call("--json", "simulate", study, "--seed", 1, "--runs", runs, "--dropout", 0.1)
    told = json.loads(done.stdout)["data"]
    assert (done.exit_code, told["rounds"], told["sites"]["count"]) == (0, 2, 100_000)
    kept = call("--json", "simulate", study, "--seed", 1, "--runs", runs, "--dropout", 0.1,
                "--data", tmp_path / "data")  # fmt: skip
    assert json.loads(kept.stdout)["data"]["model"] == told["model"]


def test_what_is_not_for_populations_is_told(study: Path, tmp_path: Path) -> None:
    runs = ("--runs", tmp_path / "runs")
    done = call("simulate", study, "--seed", 1, *runs, "--cross-site")
    assert (done.exit_code, "each of 100,000 clients alone" in done.stderr) == (2, True)
    done = call("simulate", study, "--seed", 1, *runs, "--away", "east:1")
    assert "there is no site `east`" in done.stderr
    assert "--away client-000001:3,4" in done.stderr


def test_the_complete_model_of_a_client_is_found_by_name() -> None:
    run = simulate(made_task(), plan_of(5), Population(50), seed=1)
    with pytest.raises(UsageError, match="there is no site `client-51`"):
        run.at("client-51")
    with pytest.raises(ConsortiumError, match="makes no complete models"):
        run.at("client-000050")
