"""Every strategy: golden rounds against loops written from the papers, the same bytes however
it is run and wherever it is stopped, an audit that redoes its sums, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortium.core import facts as f
from consortium.core.codec import decode, encode
from consortium.core.ids import Seat
from consortium.drive.directory import DataDirectory
from consortium.drive.engine import SimulatedSite
from consortium.drive.history import RoundRecord
from consortium.drive.simulate import Options, Run, simulate
from consortium.drive.verify import verify_directory
from consortium.errors import ImpossiblePlanError
from consortium.plan import Plan, parse_plan
from consortium.store.files import FileBlobs
from consortium.tasks import NumpyTask, Site, Trained, numpy_task
from consortium.tensors import load_tensors
from tests.test_cli import run as run_command
from tests.test_verify import rows, write_row


@pytest.fixture(autouse=True, scope="module")
def no_fsync() -> Iterator[None]:
    """The crashes here end a process, not the machine: forcing the disk only takes time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


Vector = list[float]  # the model as the loops see it: bias, then weights

LR, DECAY, ROUNDS, EVER = 0.05, 0.9, 3, 1 << 62
SIZES, STEPS = (8, 20, 50), (2, 5, 9)  # records and local steps of the three sites


# ---- the study: least squares by full gradients, in the form that the rules ask for --------


def start(rng: np.random.Generator) -> dict[str, Any]:
    return {"b": np.zeros(1), "w": np.zeros(3)}


def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
    features, target, _ = site.data
    error = features @ shared["w"] + shared["b"] - target
    return {"loss": float((error**2).mean())}, len(target)


@numpy_task(start=start, evaluate=evaluate, follows_rules=True)
def train(site: Site, shared: dict[str, Any]) -> Trained:
    features, target, steps = site.data
    lr = site.training.lr_in(site.round)
    for _ in range(steps):
        error = features @ shared["w"] + shared["b"] - target
        gradients = {"b": error.mean(keepdims=True), "w": error @ features / len(target)}
        for name, gradient in site.rules.adjusted(shared, gradients).items():
            shared[name] = (shared[name] - lr * gradient).astype(shared[name].dtype)
    return Trained(shared, len(target), steps=steps)


TASK: NumpyTask = train
SINGLE: NumpyTask = replace(
    TASK, start=lambda rng: {"b": np.zeros(1, np.float32), "w": np.zeros(3, np.float32)}
)


def make_sites(sizes: tuple[int, ...] = SIZES, hostile: int = 0) -> list[SimulatedSite]:
    """Sites of these sizes; the last `hostile` of them want the opposite."""
    made = []
    for number, size in enumerate(sizes):
        rng = np.random.default_rng(number)
        features = rng.normal(size=(size, 3))
        target = features @ [1.0, -2.0, 0.5] + 0.3 * number + rng.normal(size=size)
        if number >= len(sizes) - hostile:
            target = -4 * target
        steps = STEPS[number % 3]
        made.append(SimulatedSite(f"site-{number}", (features, target, steps)))
    return made


def make_plan(
    strategy: str, *, rounds: int = ROUNDS, quorum: int = 2, is_judged: bool = False
) -> Plan:
    return parse_plan(
        f"[federation]\nrounds = {rounds}\nquorum = {quorum}\n[selection]\nfraction = 1.0\n"
        f"[training]\nlr = {LR}\nlr_decay = {DECAY}\n"
        f"[evaluation]\nenabled = {str(is_judged).lower()}\n[strategy]\n{strategy}\n"
    )


# ---- the papers, in loops over single numbers ----------------------------------------------


def gradient_at(model: Vector, site: SimulatedSite) -> Vector:
    features, target, _ = site.data
    total = [0.0] * len(model)
    for row, truth in zip(features.tolist(), target.tolist(), strict=True):
        error = model[0] - truth
        for weight, value in zip(model[1:], row, strict=True):
            error += weight * value
        total[0] += error
        for at, value in enumerate(row):
            total[at + 1] += error * value
    return [number / len(target) for number in total]


def local_model(
    model: Vector, site: SimulatedSite, number: int, mu: float = 0.0, extra: Vector | None = None
) -> Vector:
    """SGD at one site; every gradient gets mu (y - x) and `extra`."""
    local, lr = list(model), LR * DECAY ** (number - 1)
    for _ in range(site.data[2]):
        gradient = gradient_at(local, site)
        for at in range(len(local)):
            pull = mu * (local[at] - model[at])
            correction = extra[at] if extra else 0.0
            gradient[at] += pull + correction
        local = [value - lr * slope for value, slope in zip(local, gradient, strict=True)]
    return local


def steps_of(
    model: Vector, number: int, sites: list[SimulatedSite], mu: float = 0.0
) -> list[Vector]:
    moved = [local_model(model, site, number, mu) for site in sites]
    return [[new - old for new, old in zip(local, model, strict=True)] for local in moved]


def mean(vectors: list[Vector], weights: list[float]) -> Vector:
    total = sum(weights)
    columns = zip(*vectors, strict=True)
    return [sum(w * v for w, v in zip(weights, column, strict=True)) / total for column in columns]


def by_samples(sites: list[SimulatedSite]) -> list[float]:
    return [float(len(site.data[1])) for site in sites]


def server_steps(
    name: str, means: Callable[[int, Vector], Vector], lr: float
) -> tuple[Vector, ...]:
    """Reddi et al. 2021, Algorithm 2 (FedAdagrad, FedYogi, FedAdam), and Hsu et al. 2019
    (momentum), with the defaults of the plan: b1 = 0.9, b2 = 0.99, tau = 1e-3."""
    b1, b2, tau = 0.9, 0.99, 1e-3
    x, m, v = [0.0] * 4, [0.0] * 4, [tau**2] * 4
    for number in range(1, ROUNDS + 1):
        delta = means(number, x)
        for at in range(4):
            square = delta[at] ** 2
            if name == "momentum":
                m[at] = b1 * m[at] + delta[at]
                x[at] += lr * m[at]
                continue
            m[at] = b1 * m[at] + (1 - b1) * delta[at]
            if name == "adagrad":
                v[at] = v[at] + square
            elif name == "yogi":
                v[at] = v[at] - (1 - b2) * square * math.copysign(1.0, v[at] - square)
            else:
                v[at] = b2 * v[at] + (1 - b2) * square
            x[at] += lr * m[at] / (math.sqrt(v[at]) + tau)
    return x, m, v


def fedavg(
    weights: list[float], mu: float = 0.0, clip: float = math.inf, lr: float = 1.0
) -> Vector:
    """McMahan et al. 2017, Algorithm 1; with mu, Li et al. 2020, Algorithm 2."""
    x, sites = [0.0] * 4, make_sites()
    for number in range(1, ROUNDS + 1):
        steps = steps_of(x, number, sites, mu)
        norms = [math.sqrt(sum(value**2 for value in step)) for step in steps]
        steps = [
            [value * min(1.0, clip / norm) for value in step]
            for step, norm in zip(steps, norms, strict=True)
        ]
        x = [value + lr * moved for value, moved in zip(x, mean(steps, weights), strict=True)]
    return x


# ---- golden rounds -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("", lambda: fedavg([8.0, 20.0, 50.0])),
        ("weight = 'samples'", lambda: fedavg([8.0, 20.0, 50.0])),
        ("weight = 'uniform'", lambda: fedavg([1.0, 1.0, 1.0])),
        ("weight = 'capped'\nweight_cap = 20", lambda: fedavg([0.4, 1.0, 1.0])),
        ("weight = 'sqrt'", lambda: fedavg([math.sqrt(8), math.sqrt(20), math.sqrt(50)])),
        ("server_lr = 0.5", lambda: fedavg([8.0, 20.0, 50.0], lr=0.5)),
        ("name = 'fedprox'", lambda: fedavg([8.0, 20.0, 50.0], mu=0.01)),
        ("name = 'fedprox'\nmu = 2.0", lambda: fedavg([8.0, 20.0, 50.0], mu=2.0)),
        ("mu = 2.0\nweight = 'uniform'", lambda: fedavg([1.0, 1.0, 1.0], mu=2.0)),
    ],
)
def test_three_rounds_of_a_mean_are_those_of_the_paper(
    strategy: str, expected: Callable[[], Vector]
) -> None:
    run = simulate(TASK, make_plan(strategy), make_sites(), seed=1)
    np.testing.assert_allclose(run.model, expected(), rtol=1e-12)


def test_clipped_steps_are_scaled_to_the_norm_and_no_other() -> None:
    run = simulate(TASK, make_plan("clip = 0.3"), make_sites(), seed=1)
    expected = fedavg([8.0, 20.0, 50.0], clip=0.3)
    assert not np.allclose(expected, fedavg([8.0, 20.0, 50.0]), rtol=1e-3)  # it does clip
    assert not np.allclose(expected, fedavg([1.0, 1.0, 1.0], clip=1e-9), rtol=1e-3)
    # A clipped row that rounds up past the norm is shrunk by one part in a million.
    np.testing.assert_allclose(run.model, expected, rtol=3e-6)


@pytest.mark.parametrize(
    ("strategy", "server", "lr"),
    [
        ("name = 'fedavgm'", "momentum", 1.0),
        ("name = 'fedadam'\nserver_lr = 0.1", "adam", 0.1),
        ("name = 'fedyogi'\nserver_lr = 0.1", "yogi", 0.1),
        ("name = 'fedadagrad'\nserver_lr = 0.2", "adagrad", 0.2),
        ("server = 'adam'\nserver_lr = 0.03", "adam", 0.03),
    ],
)
def test_a_server_optimiser_carries_its_state_from_round_to_round(
    strategy: str, server: str, lr: float, tmp_path: Path
) -> None:
    run, state = kept_run(tmp_path, make_plan(strategy))
    sites = make_sites()
    x, m, v = server_steps(
        server, lambda number, x: mean(steps_of(x, number, sites), by_samples(sites)), lr
    )
    np.testing.assert_allclose(run.model, x, rtol=1e-12)
    np.testing.assert_allclose(state["m"], m, rtol=1e-12)
    if server != "momentum":
        np.testing.assert_allclose(state["v"], v, rtol=1e-12)


def scaffold(
    weights: list[float], away: set[tuple[int, int]], beta: float = 0.0
) -> tuple[Vector, Vector, list[Vector]]:
    """Karimireddy et al. 2020, Algorithm 1 with option II, server step 1: (x, c, every c_i).
    With `beta`, the server adds momentum."""
    sites = make_sites()
    x, c, m = [0.0] * 4, [0.0] * 4, [0.0] * 4
    own = [[0.0] * 4 for _ in sites]
    for number in range(1, ROUNDS + 1):
        present = [at for at in range(len(sites)) if (number, at) not in away]
        moves, changes = [], []
        for at in present:
            extra = [server - mine for server, mine in zip(c, own[at], strict=True)]
            y = local_model(x, sites[at], number, extra=extra)
            budget = sites[at].data[2] * LR * DECAY ** (number - 1)
            new = [own[at][j] - c[j] + (x[j] - y[j]) / budget for j in range(4)]
            moves.append([y[j] - x[j] for j in range(4)])
            changes.append([new[j] - own[at][j] for j in range(4)])
            own[at] = new
        share = [weights[at] for at in present]
        moved, changed = mean(moves, share), mean(changes, share)
        m = [beta * m[j] + moved[j] for j in range(4)]
        x = [x[j] + m[j] for j in range(4)]
        c = [c[j] + len(present) / len(sites) * changed[j] for j in range(4)]
    return x, c, own


@pytest.mark.parametrize("away", [set(), {(2, 1)}, {(1, 0), (3, 2)}])
@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_scaffold_corrects_drift_as_in_the_paper(
    weight: str, away: set[tuple[int, int]], tmp_path: Path
) -> None:
    run, state = kept_run(
        tmp_path,
        make_plan(f"name = 'scaffold'\nweight = '{weight}'"),
        drops=lambda number, site: (number, int(site[-1])) in away,
    )
    weights = [1.0] * 3 if weight == "uniform" else [8.0, 20.0, 50.0]
    x, c, own = scaffold(weights, away)
    np.testing.assert_allclose(run.model, x, rtol=1e-11)
    np.testing.assert_allclose(state["variate"], c, rtol=1e-11)
    for seat, expected in enumerate(own, start=1):
        np.testing.assert_allclose(private_state(run, seat)["variate"], expected, rtol=1e-11)
    if weight == "uniform":  # the paper's invariant: c is the mean of every c_i, present or not
        np.testing.assert_allclose(state["variate"], np.mean(own, axis=0), rtol=1e-9)


def test_fednova_takes_out_the_uneven_number_of_local_steps() -> None:
    """Wang et al. 2020, section 4: x + (sum p_i tau_i) (sum p_i step_i / tau_i)."""
    run = simulate(TASK, make_plan("name = 'fednova'"), make_sites(), seed=1)
    x, sites = [0.0] * 4, make_sites()
    parts = [size / sum(SIZES) for size in SIZES]
    for number in range(1, ROUNDS + 1):
        steps = steps_of(x, number, sites)
        tau = sum(part * count for part, count in zip(parts, STEPS, strict=True))
        for at in range(4):
            direction = 0.0
            for part, step, count in zip(parts, steps, STEPS, strict=True):
                direction += part * step[at] / count
            x[at] += tau * direction
    np.testing.assert_allclose(run.model, x, rtol=1e-12)
    assert not np.allclose(x, fedavg([8.0, 20.0, 50.0]), rtol=1e-3)


def test_fedprox_and_an_adam_server_combine() -> None:
    strategy = "name = 'fedprox'\nmu = 1.0\nserver = 'adam'\nserver_lr = 0.1"
    run = simulate(TASK, make_plan(strategy), make_sites(), seed=1)
    sites = make_sites()
    x, _, _ = server_steps(
        "adam", lambda number, x: mean(steps_of(x, number, sites, 1.0), by_samples(sites)), 0.1
    )
    np.testing.assert_allclose(run.model, x, rtol=1e-12)


def test_scaffold_and_a_momentum_server_combine(tmp_path: Path) -> None:
    strategy = "name = 'scaffold'\nserver = 'momentum'\nbeta1 = 0.5"
    run, state = kept_run(tmp_path, make_plan(strategy))
    x, c, _ = scaffold([1.0, 1.0, 1.0], set(), beta=0.5)  # the paper counts sites alike
    np.testing.assert_allclose(run.model, x, rtol=1e-11)
    np.testing.assert_allclose(state["variate"], c, rtol=1e-11)
    assert sorted(state) == ["m", "variate"]


# ---- robust rules --------------------------------------------------------------------------

SEVEN = (12, 14, 16, 18, 20, 22, 24)


def distance(left: Vector, right: Vector) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(left, right, strict=True)))


def coordinate_median(steps: list[Vector]) -> Vector:
    """Yin et al. 2018, Definition 1."""
    return [sorted(column)[len(steps) // 2] for column in zip(*steps, strict=True)]


def trimmed(steps: list[Vector], f: int = 2) -> Vector:
    """Yin et al. 2018, Definition 2."""
    kept = [sorted(column)[f:-f] for column in zip(*steps, strict=True)]
    return [sum(column) / len(column) for column in kept]


def krum_order(steps: list[Vector], f: int = 2) -> list[int]:
    """Blanchard et al. 2017, section 3: by the squared distances to the n - f - 2 nearest."""
    scores = []
    for at, step in enumerate(steps):
        others = sorted(distance(step, other) ** 2 for o, other in enumerate(steps) if o != at)
        scores.append(sum(others[: len(steps) - f - 2]))
    return sorted(range(len(steps)), key=scores.__getitem__)


def multi_krum(steps: list[Vector], f: int = 2) -> Vector:
    best = krum_order(steps, f)[: len(steps) - f]
    return mean([steps[at] for at in best], [1.0] * len(best))


def weiszfeld(steps: list[Vector]) -> Vector:
    """The point with the least sum of distances (Pillutla et al. 2022)."""
    point = mean(steps, [1.0] * len(steps))
    for _ in range(2000):
        point = mean(steps, [1 / distance(step, point) for step in steps])
    return point


def centred(steps: list[Vector], radius: float | None = None) -> Vector:
    """Karimireddy, He and Jaggi 2021, Algorithm 2, ten times from zero."""
    v = [0.0] * len(steps[0])
    for _ in range(10):
        away = [distance(step, v) for step in steps]
        limit = sorted(away)[len(away) // 2] if radius is None else radius
        v = [
            value
            + sum(
                (step[at] - value) * min(1.0, limit / far)
                for step, far in zip(steps, away, strict=True)
            )
            / len(steps)
            for at, value in enumerate(v)
        ]
    return v


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        ("rule = 'median'", coordinate_median),
        ("rule = 'trimmed_mean'", trimmed),
        ("rule = 'krum'", lambda steps: steps[krum_order(steps)[0]]),
        ("rule = 'multi_krum'", multi_krum),
        ("rule = 'geometric_median'", weiszfeld),
        ("rule = 'centred_clipping'", centred),
        ("rule = 'centred_clipping'\nradius = 0.2", lambda steps: centred(steps, 0.2)),
    ],
)
def test_a_robust_rule_is_that_of_its_paper(
    strategy: str, rule: Callable[[list[Vector]], Vector]
) -> None:
    sites = make_sites(SEVEN, hostile=1)
    run = simulate(TASK, make_plan(strategy, rounds=2, quorum=7), sites, seed=1)
    x = [0.0] * 4
    for number in (1, 2):
        x = [a + b for a, b in zip(x, rule(steps_of(x, number, sites)), strict=True)]
    # Coefficients are rounded to 24 binary digits, so that machines agree: 6e-8 of each step.
    np.testing.assert_allclose(run.model, x, rtol=1e-6)
    assert [record.counted for record in run.history.rounds] == [7, 7]


def test_a_robust_rule_steps_a_server_optimiser_too() -> None:
    sites = make_sites(SEVEN, hostile=1)
    strategy = "rule = 'median'\nserver = 'adam'\nserver_lr = 0.1"
    run = simulate(TASK, make_plan(strategy, quorum=7), sites, seed=1)
    x, _, _ = server_steps(
        "adam", lambda number, x: coordinate_median(steps_of(x, number, sites)), 0.1
    )
    np.testing.assert_allclose(run.model, x, rtol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "weights"),
    [
        ("rule = 'median'", {1.0}),
        ("", {8.0, 20.0, 50.0}),
        ("weight = 'uniform'", {1.0}),
        ("weight = 'capped'\nweight_cap = 20", {0.4, 1.0}),
    ],
)
def test_a_site_claims_no_more_than_the_plan_lets_it(strategy: str, weights: set[float]) -> None:
    """A robust rule counts everybody alike, so nobody need say how many records it has."""
    run = simulate(
        TASK, make_plan(strategy, quorum=3), make_sites(), seed=1, options=Options(record=True)
    )
    accepted = [fact for fact in map(decode, run.records) if isinstance(fact, f.UpdateAccepted)]
    assert len(accepted) == 3 * ROUNDS
    assert {fact.weight for fact in accepted} == weights


@pytest.mark.parametrize("rule", ["krum", "multi_krum", "trimmed_mean"])
@pytest.mark.parametrize("hostile", [0.1, 0.2, 0.3, 0.4])
def test_whatever_number_of_updates_a_plan_admits_can_be_combined(
    rule: str, hostile: float
) -> None:
    """The number of hostile sites is rounded up, so six updates can be too few for Krum where
    five were enough: the plan must say so, and no round must stumble over it."""
    admitted = [quorum for quorum in range(1, 25) if is_possible(rule, hostile, quorum)]
    assert admitted
    for quorum in admitted[:2]:
        plan = make_plan(f"rule = '{rule}'\nhostile = {hostile}", rounds=1, quorum=quorum)
        for count in (quorum, quorum + 1, quorum + 2):
            run = simulate(SINGLE, plan, make_sites((9,) * count), seed=1)
            assert run.history.rounds[0].counted == count


def is_possible(rule: str, hostile: float, quorum: int) -> bool:
    try:
        make_plan(f"rule = '{rule}'\nhostile = {hostile}", quorum=quorum)
    except ImpossiblePlanError:
        return False
    return True


# ---- the same bytes however it is run ------------------------------------------------------

STRATEGIES = {
    "fedavg": "weight = 'sqrt'\nclip = 0.5",
    "capped": "weight = 'capped'\nweight_cap = 15",
    "uniform": "weight = 'uniform'",
    "fedprox": "name = 'fedprox'\nmu = 0.5",
    "fedavgm": "name = 'fedavgm'",
    "fedadam": "name = 'fedadam'",
    "fedyogi": "name = 'fedyogi'",
    "fedadagrad": "name = 'fedadagrad'",
    "scaffold": "name = 'scaffold'",
    "scaffold+momentum": "name = 'scaffold'\nserver = 'momentum'",
    "fednova": "name = 'fednova'",
    "fedprox+adam": "name = 'fedprox'\nserver = 'adam'",
    "median": "rule = 'median'",
    "trimmed_mean": "rule = 'trimmed_mean'",
    "krum": "rule = 'krum'",
    "multi_krum": "rule = 'multi_krum'",
    "geometric_median": "rule = 'geometric_median'",
    "centred_clipping": "rule = 'centred_clipping'",
    "screened": "anomalies = 'exclude'",
}
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def seven(name: str, rounds: int = ROUNDS) -> tuple[Plan, list[SimulatedSite]]:
    """Seven sites, one of them hostile; where it may be excluded, six are enough."""
    quorum = 6 if name == "screened" else 7
    plan = make_plan(STRATEGIES[name], rounds=rounds, quorum=quorum, is_judged=True)
    return plan, make_sites(SEVEN, hostile=1)


@every_strategy
def test_blocks_single_updates_and_workers_give_the_same_model(name: str) -> None:
    plan, sites = seven(name)
    runs = [
        simulate(SINGLE, plan, sites, seed=1, options=Options(record=record, workers=workers))
        for record in (False, True)
        for workers in (0, 2)
    ]
    assert len({run.model_digest for run in runs}) == 1
    assert len({run.state.versions[run.state.current].server_state for run in runs}) == 1
    assert runs[0].state.current > 0


# ---- the same bytes after a crash ----------------------------------------------------------


class Stop(Exception):
    """A crash, as far as everything that is durable can tell."""


def kept_run(folder: Path, plan: Plan, **options: Any) -> tuple[Run, dict[str, Any]]:
    """A run on a directory, and the server's last state."""
    directory = DataDirectory(folder / "data")
    run = simulate(
        TASK, plan, make_sites(), seed=1, options=Options(directory=directory, **options)
    )
    state = server_state(run, directory.blobs)
    directory.close()
    return run, state


def server_state(run: Run, blobs: FileBlobs) -> dict[str, Any]:
    digest = run.state.versions[run.state.current].server_state
    return {} if digest is None else load_tensors(blobs.get(digest))


def private_state(run: Run, seat: int) -> dict[str, Any]:
    held = run.states.current(Seat(seat))
    return {} if held is None else load_tensors(held)


def stopped(folder: Path, plan: Plan, **options: Any) -> None:
    with pytest.raises(Stop):
        kept_run(folder, plan, **options)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Any]:
    found = {}
    for name in ("scaffold", "fedadam"):
        for record in (False, True):
            folder = tmp_path_factory.mktemp("whole")
            found[name, record] = kept_run(folder, make_plan(STRATEGIES[name]), record=record)[0]
    return found


def assert_same_end(whole: Run, resumed: Run) -> None:
    assert resumed.model_digest == whole.model_digest
    assert resumed.state.versions == whole.state.versions  # models and server states, by digest
    for seat in (1, 2, 3):
        assert resumed.states.current(Seat(seat)) == whole.states.current(Seat(seat))


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("name", ["scaffold", "fedadam"])
def test_a_crash_between_rounds_changes_no_byte(
    name: str, record: bool, uninterrupted: dict[tuple[str, bool], Run], tmp_path: Path
) -> None:
    def stop_after_two(ended: RoundRecord) -> None:
        if ended.number == 2:
            raise Stop

    plan = make_plan(STRATEGIES[name])
    stopped(tmp_path, plan, record=record, on_round=stop_after_two)
    resumed, _ = kept_run(tmp_path, plan, record=record)
    assert_same_end(uninterrupted[name, record], resumed)


@pytest.mark.parametrize(
    ("name", "record"), [("scaffold", False), ("scaffold", True), ("fedadam", False)]
)
def test_a_crash_at_any_site_of_any_round_changes_no_byte(
    name: str, record: bool, uninterrupted: dict[tuple[str, bool], Run], tmp_path: Path
) -> None:
    plan = make_plan(STRATEGIES[name])
    for crash_at in range(1, ROUNDS * 3 + 1):
        done = 0

        def stop(number: int, what: str, count: int, of: int, at: int = crash_at) -> None:
            nonlocal done
            done += count
            if done == at:
                raise Stop

        folder = tmp_path / str(crash_at)
        stopped(folder, plan, record=record, on_work=stop)
        resumed, _ = kept_run(folder, plan, record=record)
        assert_same_end(uninterrupted[name, record], resumed)


def test_a_run_that_crashes_in_every_round_changes_no_byte(
    uninterrupted: dict[tuple[str, bool], Run], tmp_path: Path
) -> None:
    """Site states are written before the update is known: training again must not build on
    what the same round wrote before the crash."""
    plan = make_plan(STRATEGIES["scaffold"])
    trained = dict.fromkeys(range(1, ROUNDS + 1), 0)

    def stop_once_a_round(number: int, what: str, count: int, of: int) -> None:
        trained[number] += count
        if trained[number] == 3:
            raise Stop

    for _ in range(ROUNDS):
        stopped(tmp_path, plan, on_work=stop_once_a_round)
    assert trained == {1: 6, 2: 6, 3: 3}
    resumed, _ = kept_run(tmp_path, plan)
    assert_same_end(uninterrupted["scaffold", False], resumed)


TASK_FILE = """
import numpy as np

import consortium as co


def start(rng):
    return {"w": np.zeros(3, np.float32)}


def evaluate(site, shared):
    table = np.loadtxt(site.data, delimiter=",", ndmin=2)
    return {"loss": float(((table[:, :3] @ shared["w"] - table[:, 3]) ** 2).mean())}, len(table)


@co.numpy_task(start=start, evaluate=evaluate, follows_rules=True)
def study(site, shared):
    table = np.loadtxt(site.data, delimiter=",", ndmin=2)
    lr = site.training.lr_in(site.round)
    for _ in range(4):
        gradient = (table[:, :3] @ shared["w"] - table[:, 3]) @ table[:, :3] / len(table)
        step = site.rules.adjusted(shared, {"w": gradient})["w"]
        shared["w"] = (shared["w"] - lr * step).astype(np.float32)
    return co.Trained(shared, len(table), steps=4)
"""


def test_a_killed_process_goes_on_to_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK_FILE)
    (tmp_path / "plan.toml").write_text(
        "[task]\nentry = 'task.py:study'\n[federation]\nrounds = 5\nsites = '*.csv'\n"
        "[selection]\nfraction = 1.0\n[training]\nlr = 0.05\n"
        "[strategy]\nname = 'scaffold'\nserver = 'adam'\n"
    )
    for number in range(4):
        table = np.random.default_rng(number).normal(size=(12, 4))
        np.savetxt(tmp_path / f"site-{number}.csv", table, delimiter=",")
    common = ("simulate", "plan.toml", "--seed", "4")
    whole = run_command("--json", *common, cwd=tmp_path)
    command = [sys.executable, "-m", "consortium", *common, "--data", "kept"]
    killed = subprocess.Popen(
        [*command, "--workers", "2", "--pace", "0.05", "--runs", "killed"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ends = time.monotonic() + 60
    while time.monotonic() < ends and not any(
        len(rounds.read_text().splitlines()) >= 2
        for rounds in tmp_path.glob("killed/*/rounds.jsonl")
    ):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, "it was killed before it was done"
    went_on = run_command("--json", *common, "--data", "kept", cwd=tmp_path)
    told = json.loads(went_on.stdout)
    assert told["data"]["model"] == json.loads(whole.stdout)["data"]["model"]
    assert told["data"]["rounds"] == 5
    assert verify_directory(tmp_path / "kept").findings == []


# ---- the audit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "record"),
    [
        (name, record)
        for name, text in STRATEGIES.items()
        for record in (False, True)
        if not (record and make_plan(text, quorum=7).strategy.needs_rows)
    ],
)
def test_an_auditor_redoes_the_sums_of_every_strategy(
    name: str, record: bool, tmp_path: Path
) -> None:
    plan, sites = seven(name, rounds=2)
    directory = DataDirectory(tmp_path / "data")
    run = simulate(SINGLE, plan, sites, seed=1, options=Options(directory=directory, record=record))
    directory.close()
    assert run.state.current > 0
    audit = verify_directory(tmp_path / "data")
    assert audit.findings == []
    assert audit.facts == len(run.records)


def damaged(folder: Path, change: Callable[[f.Fact], f.Fact]) -> list[str]:
    """What an auditor says after facts were rewritten, each as the coordinator would have."""
    found = 0
    for stream, position, record in list(rows(folder)):
        if "/" in stream:
            continue
        fact = decode(record)
        changed = change(fact)
        if changed != fact:
            write_row(folder, stream, position, encode(changed))
            found += 1
    assert found
    return [finding.what for finding in verify_directory(folder).findings]


def test_a_server_state_that_was_made_up_is_found(tmp_path: Path) -> None:
    """In the last round, where no later sum would show it, and consistently: every fact that
    names the state names the other one."""
    run, _ = kept_run(tmp_path, make_plan("name = 'fedavgm'"))
    states = [version.server_state for version in run.state.versions.values()]
    last, other = states[-1], states[-2]
    assert last != other and other is not None

    def swap(fact: f.Fact) -> f.Fact:
        is_last = getattr(fact, "server_state", None) == last
        return replace(fact, server_state=other) if is_last else fact  # type: ignore[call-arg]

    found = damaged(tmp_path / "data", swap)
    assert "the members' updates give another state of the server" in found[0]


def test_a_server_state_that_was_left_out_is_found(tmp_path: Path) -> None:
    kept_run(tmp_path, make_plan("name = 'scaffold'", rounds=1))

    def leave_out(fact: f.Fact) -> f.Fact:
        if isinstance(fact, f.Aggregated | f.ModelPublished):
            return replace(fact, server_state=None)
        return fact

    assert "another state of the server" in damaged(tmp_path / "data", leave_out)[0]


def test_a_changed_byte_of_a_server_state_is_found(tmp_path: Path) -> None:
    run, _ = kept_run(tmp_path, make_plan("name = 'fedadam'"))
    digest = run.state.versions[2].server_state
    assert digest is not None
    path = tmp_path / "data" / "blobs" / digest.hex()[:2] / digest.hex()[2:]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    findings = verify_directory(tmp_path / "data").findings
    assert findings
    path.unlink()
    assert any(
        "missing" in finding.what for finding in verify_directory(tmp_path / "data").findings
    )
