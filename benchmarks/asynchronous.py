"""Nine sites, and one that is ten times slower: how long until the model is as good.

    python -m benchmarks.asynchronous --json

scikit-learn's digits, unevenly spread over ten sites (Dirichlet, alpha 0.5), softmax regression
in NumPy. Time is simulated: a fast site trains for one minute, the slow one for ten. Ours is a
buffer without a barrier, base is the same plan with rounds that wait for everybody. Both are
measured at the accuracy that the base has in the end, on records that no site trains on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.report import Line, main
from consortium.data import dirichlet, load_bundled
from consortium.drive.engine import SimulatedSite
from consortium.drive.history import RoundRecord
from consortium.drive.simulate import simulate
from consortium.plan import Plan
from consortium.tasks import NumpyTask, Site, numpy_task

SITES, SLOW, ROUNDS, FLUSHES = 10, 10.0, 12, 400
BUFFERS = (9, 5, 1)
HELD = 5  # flushes in a row
CLASSES, PIXELS = 10, 64
MINUTE_MS = 60_000


def _task() -> NumpyTask:
    def start(_: np.random.Generator) -> dict[str, Any]:
        return {"w": np.zeros((PIXELS, CLASSES), np.float32), "b": np.zeros(CLASSES, np.float32)}

    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        _, _, pixels, labels = site.data
        found = (pixels @ shared["w"] + shared["b"]).argmax(axis=1)
        return {"loss": 0.0, "accuracy": float((found == labels).mean())}, len(labels)

    @numpy_task(start=start, evaluate=evaluate, metrics=("loss", "accuracy"))
    def digits(site: Site, shared: dict[str, Any]) -> tuple[dict[str, Any], int]:
        pixels, labels, _, _ = site.data
        w, b = shared["w"].copy(), shared["b"].copy()
        for _ in range(site.training.epochs):
            order = site.rng.permutation(len(labels))
            for at in range(0, len(order), site.training.batch_size):
                rows = order[at : at + site.training.batch_size]
                scores = pixels[rows] @ w + b
                share = np.exp(scores - scores.max(axis=1, keepdims=True))
                share /= share.sum(axis=1, keepdims=True)
                share[np.arange(len(rows)), labels[rows]] -= 1.0
                step = site.training.lr / len(rows)
                w -= step * (pixels[rows].T @ share)
                b -= step * share.sum(axis=0)
        return {"w": w, "b": b}, len(labels)

    return digits


def _sites(seed: int) -> list[SimulatedSite]:
    train, test = load_bundled("digits").split(0.25, seed=seed)
    parts = dirichlet(train.labels, SITES, 0.5, np.random.default_rng(seed))
    unseen = (test.features / 16, test.labels)
    return [
        SimulatedSite(
            f"site-{at}", (train.features[part] / 16, train.labels[part].astype(np.int64), *unseen)
        )
        for at, part in enumerate(parts)
    ]


def _plan(rounds: int, buffer: int) -> Plan:
    sections: dict[str, Any] = {
        "federation": {"rounds": rounds, "quorum": buffer or SITES},
        "selection": {"fraction": 1.0, "wait_for": SITES},
        "round": {"duration": "12h"},
        "training": {"epochs": 2, "batch_size": 32, "lr": 0.1},
        "evaluation": {"metric": "accuracy", "gate": False, "quorum": 1},
        "simulation": {"unit": "1m", "pace": {"site-0": SLOW}},
    }
    if buffer:
        sections["asynchronous"] = {"buffer": buffer, "max_staleness": 50 * SITES // buffer}
    return Plan.model_validate(sections)


def _history(rounds: int, buffer: int, seed: int) -> list[RoundRecord]:
    run = simulate(_task(), _plan(rounds, buffer), _sites(seed), seed=seed)
    return run.history.rounds


def _reached_min(rounds: list[RoundRecord], accuracy: float) -> float:
    """Simulated minutes until the model was as good as that, and stayed so for some flushes:
    one lucky model among many is none. For ever if it never was."""
    good = [one.metrics["accuracy"] >= accuracy for one in rounds]
    held = (at for at in range(len(good) - HELD + 1) if all(good[at : at + HELD]))
    at = next(held, None)
    return float("inf") if at is None else rounds[at].ended_ms / MINUTE_MS


def measure(seed: int = 1) -> Iterator[Line]:
    last = _history(ROUNDS, 0, seed)[-1]
    goal = last.metrics["accuracy"]
    for buffer in BUFFERS:
        ours = _history(FLUSHES // buffer, buffer, seed)
        yield Line(
            f"minutes to {goal:.1%}, buffer {buffer}",
            _reached_min(ours, goal),
            last.ended_ms / MINUTE_MS,
            "min",
            f"simulated; {SITES} sites, one {SLOW:g} times slower; base waits for all, "
            f"{ROUNDS} rounds",
        )


if __name__ == "__main__":
    main(measure, __doc__)
