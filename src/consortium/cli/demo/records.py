"""The demo's four hospitals: which cases each sees, and what each measures of them.

The 569 records are real: cell nuclei in images of breast tissue, which scikit-learn carries.
No value is changed. Who has which record, and which of its columns, is made up, so that the
hospitals differ as real ones do: in size, in their cases, and in their instruments.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LABEL = "malignant"
_SEED = 1
_SIZE = ("radius", "perimeter", "area")
_SHAPE = (
    "texture",
    "smoothness",
    "compactness",
    "concavity",
    "concave_points",
    "symmetry",
    "fractal_dimension",
)


def _mean(of: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"mean_{name}" for name in of)


def _worst(of: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"worst_{name}" for name in of)


COMMON = _mean(_SHAPE)


@dataclass(frozen=True, slots=True)
class Hospital:
    """A case comes here more often the larger, or the smaller, its cell nuclei are."""

    name: str
    sees: str
    share: float
    middle: float  # the mean radius at which it is half the share
    slope: float  # above zero: larger nuclei come here
    besides: tuple[str, ...]  # columns that it has, and not every other

    def chance(self, radius: float) -> float:
        """How likely a case comes here, before all hospitals are compared."""
        return self.share / (1 + math.exp(-self.slope * (radius - self.middle)))

    @property
    def columns(self) -> tuple[str, ...]:
        return (*COMMON, *self.besides)


# In the order of their names: a simulation takes sites in the order of their files, and the
# seats of a federation go by who joins first.
HOSPITALS = (
    Hospital("city", "most cases", 1.0, 17.0, -2.0, _mean(_SIZE)),
    Hospital("county", "few cases", 0.2, 14.5, -2.0, tuple(f"{name}_error" for name in _SHAPE)),
    Hospital(
        "referral", "large cell nuclei", 3.0, 15.0, 3.0, (*_mean(_SIZE), *_worst(_SIZE + _SHAPE))
    ),
    Hospital("screening", "small cell nuclei", 1.2, 12.0, -3.0, _worst(_SIZE + _SHAPE)),
)


@dataclass(frozen=True, slots=True)
class Records:
    """What one hospital has."""

    hospital: Hospital
    count: int
    malignant: int
    tested: int  # of these, how many are kept for testing


def write_records(folder: Path) -> list[Records]:
    """One CSV file a hospital."""
    from consortium.data.bundled import load_bundled

    table = load_bundled("breast_cancer")
    columns = [name.replace(" ", "_") for name in table.columns]
    radius = columns.index("mean_radius")
    is_malignant = [int(label == 0) for label in table.labels]
    dealt = _deal([float(row[radius]) for row in table.features])
    folder.mkdir(parents=True)
    told = []
    for hospital, rows in zip(HOSPITALS, dealt, strict=True):
        places = [columns.index(name) for name in hospital.columns]
        lines = [",".join((*hospital.columns, LABEL))]
        for row in rows:
            cells = [f"{table.features[row, place]:.6g}" for place in places]
            lines.append(",".join((*cells, str(is_malignant[row]))))
        path = folder / f"{hospital.name}.csv"
        path.write_text("\n".join(lines) + "\n")
        malignant = sum(is_malignant[row] for row in rows)
        told.append(Records(hospital, len(rows), malignant, _tested(path)))
    return told


def _deal(radii: list[float]) -> list[list[int]]:
    """The rows of each hospital: every record is at exactly one."""
    rng = random.Random(_SEED)
    places = range(len(HOSPITALS))
    rows: list[list[int]] = [[] for _ in HOSPITALS]
    for number, radius in enumerate(radii):
        chances = [hospital.chance(radius) for hospital in HOSPITALS]
        rows[rng.choices(places, chances)[0]].append(number)
    return rows


def _tested(path: Path) -> int:
    """Half of them, as both studies split."""
    from consortium.data.read import read_csv

    _, test = read_csv(path, label=LABEL, test=0.5)
    return len(test)
