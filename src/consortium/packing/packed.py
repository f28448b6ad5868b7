"""How a step is packed, and which tensors stand for it in an update's file.

| tensor | when | what |
|---|---|---|
| `step.codes` | bits | the numbers that are sent, as codes |
| `step.counts`, `step.places` | the site names places | see `consortium.packing.places` |
| `step.scales` | bits | one for every 256 numbers that are sent |
| `step.values` | no bits | the numbers that are sent, as they are |

How long each of them is follows from the step's size: no file is larger or smaller than another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from consortium.packing.codes import codes_bytes, groups
from consortium.packing.places import draw_of, drawn_count, kept_of, spans
from consortium.tensors import TensorSpec


class Sent(Enum):
    """Which columns of a step are sent."""

    ALL = "all"
    TOP = "the largest, which each site names"
    DRAWN = "those that a public rule draws"


@dataclass(frozen=True, slots=True)
class Packing:
    """How a step is packed: bits a number (0: as it is), and which part of the columns."""

    bits: int = 0
    sent: Sent = Sent.ALL
    keep: float = 1.0
    plan: bytes = b""  # its digest, which drawn places follow from, together with:
    round: int = 0

    def in_round(self, number: int) -> Packing:
        """The same in one round: only where places are drawn does it matter which."""
        return replace(self, round=number) if self.sent is Sent.DRAWN else self

    @property
    def draw(self) -> bytes:
        """What this round's places follow from."""
        return draw_of(self.plan, self.round)

    def count(self, size: int) -> int:
        """How many numbers of a step of this size are sent."""
        match self.sent:
            case Sent.ALL:
                return size
            case Sent.TOP:
                return kept_of(size, self.keep)
            case Sent.DRAWN:
                return drawn_count(size, self.keep)

    def specs(self, name: str, size: int, dtype: str) -> tuple[TensorSpec, ...]:
        """The tensors that stand for a vector of this name, size and type, in their order."""
        count, found = self.count(size), []
        if self.bits:
            found.append(TensorSpec(f"{name}.codes", (codes_bytes(count, self.bits),), "U8"))
        if self.sent is Sent.TOP:
            found.append(TensorSpec(f"{name}.counts", (spans(size),), "U8"))
            found.append(TensorSpec(f"{name}.places", (count,), "U8"))
        if self.bits:
            found.append(TensorSpec(f"{name}.scales", (groups(count),), dtype))
        else:
            found.append(TensorSpec(f"{name}.values", (count,), dtype))
        return tuple(found)
