"""How much of itself an update counts that was trained from an older model.

(1 + s)^-a for an update whose base is s versions old: Xie et al. 2019 (FedAsync, the
polynomial form), as Nguyen et al. 2022 (FedBuff) use it. The row itself is scaled, and the mean
still divides by the sum of the weights: a discount that was part of the weight would cancel
in a buffer of one, and in any buffer whose updates are equally old.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.aggregate.columns import Row

_PPM = 1_000_000
_EXACT = Context(prec=40)


def discount(staleness: int, exponent_ppm: int) -> float:
    """(1 + staleness)^-a, with a in parts per million. By decimal arithmetic, which every machine
    does alike: the power of a C library may differ in its last bit.

    >>> discount(3, 500_000)
    0.5
    """
    if staleness == 0:
        return 1.0
    exponent = Decimal(-exponent_ppm) / _PPM
    return float(_EXACT.power(Decimal(1 + staleness), exponent))


@dataclass(frozen=True, slots=True)
class Scaled:
    """A row, each number multiplied by one factor, in float64."""

    row: Row
    factor: float

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, columns: slice, /) -> npt.NDArray[Any]:
        scaled: npt.NDArray[Any] = np.multiply(self.row[columns], self.factor, dtype=np.float64)
        return scaled
