"""MADE UP data, in the form of the real sets, for examples and tests without a network.

Nothing here was measured. Say so wherever a figure from it is shown.
"""

from __future__ import annotations

import numpy as np

from consortium.data.table import Doubles, Floats, Table
from consortium.data.turbofan import USEFUL, Engine

_LATENT = 4  # what is really the matter with a patient
_SHORTEST_LIFE, _LONGEST_LIFE = 128, 362  # cycles, as in FD001


def made_up_engines(engines: int, rng: np.random.Generator) -> tuple[Engine, ...]:
    """Run-to-failure sensor series of engines that never existed.

    Wear grows exponentially from a random start and drives 14 sensors up or down, each
    with its own level, slope and noise; the slopes are the same for all engines.
    """
    levels = np.linspace(10.0, 600.0, len(USEFUL))
    slopes = np.where(np.arange(len(USEFUL)) % 3 == 0, -1.0, 1.0)
    return tuple(_engine(unit, levels, slopes, rng) for unit in range(1, engines + 1))


def _engine(unit: int, levels: Doubles, slopes: Doubles, rng: np.random.Generator) -> Engine:
    life = int(rng.integers(_SHORTEST_LIFE, _LONGEST_LIFE + 1))
    left = np.arange(life - 1, -1, -1)
    wear = np.exp(-left / rng.uniform(40.0, 70.0)) + rng.uniform(0.0, 0.1)  # (cycles,)
    noise = rng.normal(0.0, 0.15, (life, len(USEFUL)))
    sensors = levels * (1.0 + 0.01 * (wear[:, None] * slopes + noise))
    return Engine(unit, sensors.astype(np.float32), left.astype(np.float32))


def made_up_hospitals(
    rng: np.random.Generator, records: tuple[int, int] = (600, 400)
) -> dict[str, Table]:
    """Two hospitals that never existed: north measures 10 things about its patients,
    south 15 other ones.

    Behind both is the same illness: four hidden quantities decide the label, and each
    hospital sees its own bent and noisy mixtures of them in its own units. So a shared
    model can help, but only behind an input layer of each hospital's own.
    """
    cause = rng.normal(size=_LATENT)
    return {
        "north": _hospital("n", 10, records[0], cause, rng),
        "south": _hospital("s", 15, records[1], cause, rng),
    }


def _hospital(
    prefix: str, width: int, records: int, cause: Doubles, rng: np.random.Generator
) -> Table:
    hidden = rng.normal(size=(records, _LATENT))
    score = 2.0 * (hidden @ cause) / np.linalg.norm(cause)
    labels = (rng.random(records) < 1.0 / (1.0 + np.exp(-score))).astype(np.int64)
    columns = tuple(f"{prefix}{number}" for number in range(width))
    return Table(_measured(hidden, width, rng), labels, columns, ("healthy", "ill"))


def _measured(hidden: Doubles, width: int, rng: np.random.Generator) -> Floats:
    mixed = hidden @ rng.normal(size=(_LATENT, width)) / np.sqrt(_LATENT)
    bent = np.tanh(mixed) + rng.normal(0.0, 0.2, mixed.shape)
    units, offsets = np.exp(rng.normal(size=width)), rng.normal(0.0, 3.0, width)
    measured: Floats = (bent * units + offsets).astype(np.float32)
    return measured
