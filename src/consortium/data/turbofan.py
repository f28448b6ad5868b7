"""NASA's turbofan engines (C-MAPSS, FD001): how many cycles until an engine fails?

Saxena and Goebel (2008), *Turbofan Engine Degradation Simulation Data Set*, NASA Ames
Prognostics Data Repository, data set 6; the model is Saxena, Goebel, Simon and Eklund,
*Damage Propagation Modeling for Aircraft Engine Run-to-Failure Simulation*, PHM 2008.
Open data of the US Government. FD001: one operating condition, one way to fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from consortium.data.fetch import Progress, Source, fetch, sums
from consortium.data.partition import by_id
from consortium.data.table import Doubles, Floats
from consortium.errors import SiteDataError

SOURCE = Source(
    name="cmapss",
    url="https://phm-datasets.s3.amazonaws.com/NASA/6.+Turbofan+Engine+Degradation+Simulation+Data+Set.zip",
    sha256=sums("""
        a19c8ec94931949d0485bdc35118206e9c81c4547b422efb9cf86f4ceddbceca  RUL_FD001.txt
        3cda7109ce17bafb5443f2ac926cfcf88154b941b8c4cf95eb55d1ddd6f52851  test_FD001.txt
        963b5e22825b34d8b21c69e1aeb4af3e647050eb672ee8834ba4b5d91d2de0f8  train_FD001.txt
    """),
    instead="consortium.data.made_up_engines",
)

# The other seven of the 21 sensors do not change, or hardly, in FD001.
USEFUL = (2, 3, 4, 7, 8, 9, 11, 12, 13, 14, 15, 17, 20, 21)
SENSORS = tuple(f"s{number}" for number in USEFUL)
CAP = 125.0  # cycles; a healthy engine shows nothing yet (Heimes 2008)
_BEFORE_SENSORS = 5  # unit, cycle, three settings


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """One engine's life, cycle by cycle."""

    unit: int
    sensors: Floats  # (cycles, 14), in the order of `SENSORS`
    rul: Floats  # (cycles,): remaining useful life in cycles, not capped

    def __len__(self) -> int:
        return len(self.rul)


@dataclass(frozen=True, slots=True, eq=False)
class Turbofan:
    """Engines that ran to failure, and engines that stopped before it."""

    train: tuple[Engine, ...]
    test: tuple[Engine, ...]

    @property
    def rul(self) -> Floats:
        """What is asked: the life left at the last cycle of each test engine, not capped."""
        return np.array([engine.rul[-1] for engine in self.test], np.float32)


def load_turbofan(
    folder: str | Path | None = None, *, progress: Progress | None = None
) -> Turbofan:
    """100 engines to train on and 100 to test, each with its 14 sensors that tell something."""
    place = fetch(SOURCE, folder, progress=progress)
    left = _rows(place / "RUL_FD001.txt", columns=1)[:, 0]
    train = _engines(_rows(place / "train_FD001.txt", columns=26), None)
    return Turbofan(train, _engines(_rows(place / "test_FD001.txt", columns=26), left))


def windows(engine: Engine, length: int, cap: float = CAP) -> tuple[Floats, Floats]:
    """For every cycle the last `length` cycles, (cycles, length, 14), and the life left
    after them, (cycles,), at most `cap`.

    Where the past is shorter the first cycle is repeated in front, so that every cycle has
    a window and young engines count too. The last window is the one that tests ask for.
    """
    if length < 1:
        raise SiteDataError("a window has one cycle or more")
    front = np.repeat(engine.sensors[:1], length - 1, axis=0)
    padded = np.concatenate([front, engine.sensors])  # (length - 1 + cycles, 14)
    views = np.lib.stride_tricks.sliding_window_view(padded, length, axis=0)
    return np.ascontiguousarray(views.transpose(0, 2, 1)), np.minimum(engine.rul, np.float32(cap))


def _rows(path: Path, *, columns: int) -> Doubles:
    rows = np.loadtxt(path, ndmin=2)
    if rows.shape[1] != columns:
        raise SiteDataError(f"{path} has {rows.shape[1]} columns instead of {columns}")
    return rows


def _engines(rows: Doubles, left: Doubles | None) -> tuple[Engine, ...]:
    """Engines of the file; `left` is their life after the last cycle, none if they failed."""
    places = np.array(USEFUL) + _BEFORE_SENSORS - 1
    units = by_id(rows[:, 0].astype(int).tolist())
    if left is not None and len(left) != len(units):
        raise SiteDataError(f"{len(units)} engines, but the life of {len(left)}")
    return tuple(
        Engine(
            unit,
            rows[index][:, places].astype(np.float32),
            _countdown(len(index), 0.0 if left is None else float(left[place])),
        )
        for place, (unit, index) in enumerate(units.items())
    )


def _countdown(cycles: int, end: float) -> Floats:
    return (np.arange(cycles - 1, -1, -1) + end).astype(np.float32)
