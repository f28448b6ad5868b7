"""Remaining useful life: ten fleets learn when a turbofan engine will fail.

NASA's C-MAPSS FD001: a hundred engines run to failure, ten to each of ten fleets; a hundred
others, stopped early, to test on. An LSTM reads the last 50 cycles of 14 sensors and says how
many cycles are left, capped at 125. Sensors are scaled by federated statistics. At the end
the model is written as safetensors and as ONNX, and the ONNX file is run without torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import consortium as co
from consortium.data import Engine, Turbofan, load_turbofan, made_up_engines, windows
from consortium.torch import RemainingLife
from examples.command import main, mean, options, plan_of, records

PLAN = """
[federation]
name = "turbofan"
rounds = 20
quorum = 5
[selection]
fraction = 1.0
[training]
epochs = 1
batch_size = 64
optimizer = "adam"
lr = 0.003
lr_decay = 0.85
grad_clip = 1.0
[strategy]
server = "momentum"
beta1 = 0.5
[evaluation]
enabled = false
gate = false
"""
FLEETS, WINDOW, STRIDE, CAP = 10, 50, 3, 125.0
MEANED = 5  # cycles: one reading of a sensor is mostly noise


class Life(nn.Module):
    """The LSTM over means of five cycles. It speaks in units of the cap, and starts near the
    mean of what it is to say."""

    def __init__(self, n_sensors: int) -> None:
        super().__init__()
        self.life = RemainingLife(n_sensors)
        nn.init.constant_(self.life.head.bias, 0.6)

    def forward(self, cycles: Tensor) -> Tensor:
        left: Tensor = self.life(cycles.unflatten(1, (WINDOW // MEANED, MEANED)).mean(2))
        return left


@co.task(loss=nn.MSELoss(), metrics=["rmse"])
def remaining_life(site: co.Site) -> tuple[nn.Module, Any, Any]:
    inputs, left = site.data
    return Life(inputs.shape[2]), (inputs, left), (inputs, left)


def fleet(engines: list[Engine], scale: co.Statistics) -> tuple[Any, Any]:
    """Every third window of a fleet's engines: (n, cycles, sensors), and the life left, (n,)."""
    pairs = [windows(engine, WINDOW, CAP) for engine in engines]
    inputs = np.concatenate([inputs[::-STRIDE] for inputs, _ in pairs])
    left = np.concatenate([left[::-STRIDE] for _, left in pairs])
    return _scaled(inputs, scale), (left / CAP).astype(np.float32)


def _scaled(inputs: Any, scale: co.Statistics) -> Any:
    return ((inputs - scale.mean) / scale.std).astype(np.float32)


def bundled() -> Turbofan:
    """Made-up engines; half of them are stopped early, to test on."""
    rng = np.random.default_rng(0)
    whole = made_up_engines(100, rng)
    cuts = [int(rng.integers(40, len(engine.sensors))) for engine in whole[50:]]
    stopped = tuple(
        Engine(engine.unit, engine.sensors[:cut], engine.rul[:cut])
        for engine, cut in zip(whole[50:], cuts, strict=True)
    )
    return Turbofan(whole[:50], stopped)


def learn(turbofan: Turbofan, seed: int, rounds: int | None) -> tuple[co.Run, co.Statistics]:
    """One model of ten fleets."""
    order = np.random.default_rng(seed).permutation(len(turbofan.train))
    fleets = [[turbofan.train[at] for at in part] for part in np.array_split(order, FLEETS)]
    raw = [co.SimulatedSite(f"fleet-{at}", part) for at, part in enumerate(fleets, 1)]

    def readings(site: co.Site) -> Any:
        return np.concatenate([engine.sensors for engine in site.data])

    columns = [f"sensor-{at}" for at in range(turbofan.train[0].sensors.shape[1])]
    scale = co.federated_statistics(raw, readings, columns)
    sites = [co.SimulatedSite(site.name, fleet(site.data, scale)) for site in raw]
    plan = plan_of(PLAN, rounds)
    return co.simulate(remaining_life, plan, sites, seed=seed), scale


def last_windows(turbofan: Turbofan, scale: co.Statistics) -> tuple[Any, Any]:
    """What is asked of the test engines: the life left after their last cycle."""
    inputs = np.stack([windows(engine, WINDOW, CAP)[0][-1] for engine in turbofan.test])
    return _scaled(inputs, scale), np.minimum(turbofan.rul, CAP)


def exported(model: Any, inputs: Any, folder: Path) -> float:
    """Write the model twice; the largest difference between torch and the ONNX file, cycles."""
    import onnxruntime  # type: ignore[import-untyped]  # it has no types

    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "turbofan.safetensors")
    model.to_onnx(folder / "turbofan.onnx", inputs[:4])
    session = onnxruntime.InferenceSession(folder / "turbofan.onnx")
    (found,) = session.run(None, {"inputs": inputs})
    return float(np.abs(found - model.predict(inputs)).max() * CAP)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    turbofan = records(lambda: load_turbofan(arguments.folder), bundled, arguments.bundled)
    told: dict[str, Any] = {"rmse": [], "onnx_differs_by": []}
    for seed in range(arguments.seeds):
        finished, scale = learn(turbofan, seed, arguments.rounds)
        inputs, left = last_windows(turbofan, scale)
        model = finished.at("fleet-1")
        found = np.clip(model.predict(inputs) * CAP, 0.0, CAP)
        told["rmse"].append(float(np.sqrt(np.mean((found - left) ** 2))))
        told["onnx_differs_by"].append(exported(model, inputs, arguments.out))
        if not arguments.json:
            print(f"seed {seed}: RMSE {told['rmse'][-1]:.2f} cycles, last round")
    told["mean"] = mean(told["rmse"])
    if not arguments.json:
        print(f"mean RMSE {told['mean']:.2f} cycles over {len(turbofan.test)} test engines")
        print(
            f"{arguments.out}: safetensors and ONNX; they differ by at most "
            f"{max(told['onnx_differs_by']):.1e} cycles"
        )
    return told


if __name__ == "__main__":
    parser = options(__doc__ or "", seeds=3, bundled="made-up engines")
    parser.add_argument("--out", type=Path, default=Path("turbofan-model"), help="where to write")
    main(run, parser)
