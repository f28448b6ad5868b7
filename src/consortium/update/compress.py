"""Steps in fewer bytes: what is sent of them, what the coordinator will read, what is left.

With error feedback (Seide et al. 2014; Karimireddy et al. 2019) a site adds what was left of its
earlier updates to its step before it comes here: nothing is lost, it leaves later. Without it,
drawn columns are scaled up, so that the mean of many draws is the step itself (Konečný et al.
2016); the largest ones are not, because no chance chose them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.model import Form
from consortium.packing.codes import pack_levels, scaled
from consortium.packing.packed import Packing, Sent
from consortium.packing.places import Places, all_drawn, pack_places
from consortium.tensors import CODES
from consortium.update.clip import norms
from consortium.update.quantise import quantise
from consortium.update.sparsify import largest_places

Block = npt.NDArray[Any]  # (n, d)


@dataclass(frozen=True, slots=True)
class Compressed:
    """n rows after packing: as the coordinator will read them (n, d), as the file has each of
    them, and what is left of each step (n, step)."""

    rows: Block
    packed: list[bytes]
    left: Block


@dataclass(frozen=True, slots=True)
class Compress:
    """Packs the steps of rows of a form; what stands behind a step stays as it is.

    With `clip`, no step is longer than that when it is read: rounding and scaling up can
    lengthen one. With `has_feedback`, what is left is sent later, so nothing is scaled up.
    """

    form: Form
    clip: float | None = None
    has_feedback: bool = False

    def apply(self, rows: Block, rngs: Sequence[np.random.Generator]) -> Compressed:
        """Pack finite rows (n, d). A row draws from its own generator, and does not depend on
        its neighbours."""
        packing, size = self.form.packing, self.form.vectors[0][1]
        assert packing is not None
        steps = rows[:, :size]
        places = _places(steps, packing)
        read, tensors = self._numbers(steps, places, packing, rngs)
        if packing.sent is Sent.TOP and places is not None:
            tensors[".counts"], tensors[".places"] = pack_places(places, size)
        out = rows.copy()
        out[:, :size] = read
        ordered = [tensors[spec.name] for spec in packing.specs("", size, CODES[self.form.dtype])]
        parts = [*ordered, rows[:, size:]]
        packed = [b"".join(part[at].tobytes() for part in parts) for at in range(len(rows))]
        return Compressed(out, packed, steps - read)

    def _numbers(
        self,
        steps: Block,
        places: Places | None,
        packing: Packing,
        rngs: Sequence[np.random.Generator],
    ) -> tuple[Block, dict[str, Block]]:
        """The steps as they will be read (n, d), and the tensors that have their numbers."""
        numbers = steps if places is None else np.take_along_axis(steps, places, axis=1)
        if packing.sent is Sent.DRAWN and not self.has_feedback:
            numbers = _times(numbers, steps.shape[1] / numbers.shape[1])
        if not packing.bits:
            numbers = numbers * self._factors(_spread(numbers, places, steps))
            return _spread(numbers, places, steps), {".values": numbers}
        levels, scales = quantise(numbers, packing.bits, rngs)
        scales = scales * self._factors(_spread(scaled(levels, scales), places, steps))
        read = _spread(scaled(levels, scales), places, steps)
        return read, {".codes": pack_levels(levels, packing.bits), ".scales": scales}

    def _factors(self, read: Block) -> Block:
        """What brings each row within the clip, (n, 1): one where it is. The margin is for the
        rounding of the products: they have 24 binary digits at least."""
        factors = np.ones(len(read))
        if self.clip is not None:
            lengths = norms(read)
            shorter = self.clip / np.maximum(lengths, self.clip) * (1 - 1e-6)
            factors = np.where(lengths > self.clip, shorter, 1.0)
        return factors[:, None].astype(read.dtype)


def _places(steps: Block, packing: Packing) -> Places | None:
    """Which columns are sent, (n, k); None: all of them."""
    rows, size = steps.shape
    match packing.sent:
        case Sent.ALL:
            return None
        case Sent.TOP:
            return largest_places(steps, packing.count(size))
        case Sent.DRAWN:
            drawn = all_drawn(packing.draw, size, packing.keep)
            return np.broadcast_to(drawn, (rows, len(drawn)))


def _times(numbers: Block, factor: float) -> Block:
    """The product; what would be beyond all numbers is the largest one."""
    largest = np.finfo(numbers.dtype).max
    with np.errstate(over="ignore"):
        products: Block = np.clip(numbers * numbers.dtype.type(factor), -largest, largest)
    return products


def _spread(numbers: Block, places: Places | None, steps: Block) -> Block:
    """The numbers at their places, and zeros."""
    if places is None:
        return numbers
    values = np.zeros_like(steps)
    np.put_along_axis(values, places, numbers, axis=1)
    return values
