"""From many rows to one: the rules by name, and the weighted mean among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Protocol

import numpy as np

from consortium.aggregate import robust
from consortium.aggregate.block import BLOCK
from consortium.aggregate.columns import (
    CHUNK,
    Columns,
    Combine,
    Row,
    Source,
    cut,
    for_columns,
    ranked,
    weighted_sum,
)
from consortium.errors import InsufficientParticipantsError, InternalError


class Rule(Protocol):
    """How rows become one row."""

    @property
    def name(self) -> str: ...

    @property
    def linear(self) -> bool:
        """Whether it may run on sums of rows: masked sums, or those of simulated blocks."""
        ...

    def columns(self, sources: Sequence[Source]) -> Combine:
        """Prepare, with a pass over all columns if need be; then give columns lo:hi.

        What it returns may be called from several threads, and for any cut of the
        columns: the bits are the same.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Block:
    """The sources of one block: sums that were made elsewhere, then single rows by rank."""

    sums: tuple[Row, ...]
    rows: tuple[tuple[Row, float], ...]
    weight: float

    @classmethod
    def of(cls, sources: Sequence[Source]) -> _Block:
        sums = [source for source in sources if source.is_sum]
        rows = [source for source in sources if not source.is_sum]
        parts = [source.weight for source in sums]
        if rows:  # their own weights are added up first: the order in which blocks are joined
            parts.append(_total(row.weight for row in rows))
        return cls(
            tuple(source.values for source in sums),
            tuple((row.values, row.weight) for row in rows),
            _total(parts),
        )

    def columns(self, lo: int, hi: int) -> Columns:
        if not self.sums:
            return weighted_sum(self.rows, lo, hi)
        total = weighted_sum([(values, 1.0) for values in self.sums], lo, hi)
        return np.add(total, weighted_sum(self.rows, lo, hi)) if self.rows else total


def _total(weights: Iterable[float]) -> float:
    """Σ w, one after the other: `sum` of newer Pythons corrects its rounding, which differs."""
    total = 0.0
    for weight in weights:
        total += weight
    return total


@dataclass(frozen=True, slots=True)
class Mean:
    """Σ wᵢΔᵢ / Σ wᵢ (McMahan et al. 2017), the blocks of `block.BLOCK` ranks added up in order."""

    name: str = "mean"
    linear: bool = True

    def columns(self, sources: Sequence[Source]) -> Combine:
        blocks = [
            _Block.of(list(group))
            for _, group in groupby(ranked(sources), key=lambda source: source.rank // BLOCK)
        ]
        weight = _total(block.weight for block in blocks)
        if weight <= 0.0:
            raise InsufficientParticipantsError("there is nothing to average")

        def combine(lo: int, hi: int) -> Columns:
            out = np.empty(hi - lo)
            for start, end in cut(lo, hi, CHUNK):
                total = blocks[0].columns(start, end)
                for block in blocks[1:]:
                    np.add(total, block.columns(start, end), out=total)
                np.divide(total, weight, out=out[start - lo : end - lo])
            return out

        return combine


def make_rule(name: str, hostile: float = 0.2, radius: float | None = None) -> Rule:
    """The rule of that name. `hostile` is the share of sites that may lie, below one half.

    `radius` belongs to centred clipping; without one it measures its own.

    >>> rows = [Source(rank, np.float32([value]), 1.0) for rank, value in enumerate([1, 2, 9e9])]
    >>> float(make_rule("median").columns(rows)(0, 1)[0])
    2.0
    """
    if not 0.0 <= hostile < 0.5 or (radius is not None and not radius > 0.0):
        raise InternalError("a share of hostile sites is below one half, a radius above zero")
    match name:
        case "mean":
            return Mean()
        case "median":
            return robust.Median()
        case "trimmed_mean":
            return robust.TrimmedMean(hostile)
        case "krum":
            return robust.Combination(name, partial(robust.krum, hostile=hostile))
        case "multi_krum":
            return robust.Combination(name, partial(robust.multi_krum, hostile=hostile))
        case "geometric_median":
            return robust.Combination(name, robust.geometric_median)
        case "centred_clipping":
            return robust.Combination(name, partial(robust.centred_clipping, radius=radius))
    raise InternalError("there is no rule of that name")


def combined(rule: Rule, sources: Sequence[Source], threads: int | None = None) -> Columns:
    """All columns at once, (d,) in float64: for small models, and for tests.

    A large model is better written chunk by chunk, with `for_columns` and `rule.columns`:
    this result alone weighs as much as two float32 models.
    """
    combine = rule.columns(sources)
    out = np.empty(len(sources[0].values))

    def work(lo: int, hi: int) -> None:
        out[lo:hi] = combine(lo, hi)

    for_columns(len(out), work, threads)
    return out
