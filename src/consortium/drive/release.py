"""The noised mean that a coordinator releases, column by column.

Every row is rounded to the grid and only then added up; noise comes on the sum, which is divided by
a number that the plan fixes: see `consortium.update.noise`. Columns are asked for once, in chunks,
maybe by several threads: each chunk has noise of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from consortium.aggregate.columns import CHUNK, Columns, Combine, Source, cut, ranked
from consortium.aggregate.weighed import sum_of
from consortium.errors import InternalError
from consortium.model import Layout
from consortium.plan.security import ring_of
from consortium.plan.values import Plan
from consortium.privacy.noise import Noise, SecretNoise
from consortium.update.noise import CentralNoise, Grid
from consortium.update.ring import Ring
from consortium.update.ring_noise import sum_deviation

NoiseAt = Callable[[int, int], Noise]  # of a round, for a chunk that begins with this column


def secret_noise(_round: int, _column: int) -> Noise:
    """The only kind that protects anybody."""
    return SecretNoise()


class Noised(Protocol):
    """A mean with noise on it."""

    def columns(self, sources: Sequence[Source]) -> Combine:
        """The noised mean of these rows. What it returns must be asked for each column once:
        again would be another release."""
        ...

    def exact(self, sources: Sequence[Source], lo: int, hi: int) -> Columns:
        """The mean before the noise: for auditors, who have the updates too."""
        ...

    @property
    def deviation(self) -> float:
        """Of the noise on a number of the mean."""
        ...


@dataclass(frozen=True, slots=True)
class Release:
    """One round's release of a plan with noise on its sums."""

    sigma: float
    clip: float
    denominator: float
    round: int
    noise_at: NoiseAt

    def columns(self, sources: Sequence[Source]) -> Combine:
        rows = ranked(sources)
        if any(row.is_sum for row in rows):
            raise InternalError("noise needs single rows: a block's sum is on no grid")

        def combine(lo: int, hi: int) -> Columns:
            parts = [self._chunk(rows, *chunk) for chunk in cut(lo, hi, CHUNK)]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return combine

    def exact(self, sources: Sequence[Source], lo: int, hi: int) -> Columns:
        return self._total(self._mechanism(lo), ranked(sources), lo, hi) / self.denominator

    @property
    def deviation(self) -> float:
        return self.sigma * self.clip / self.denominator

    def _chunk(self, rows: Sequence[Source], lo: int, hi: int) -> Columns:
        mechanism = self._mechanism(lo)
        return mechanism.release(self._total(mechanism, rows, lo, hi), len(rows))

    def _total(self, mechanism: CentralNoise, rows: Sequence[Source], lo: int, hi: int) -> Columns:
        total = np.zeros(hi - lo)
        for row in rows:
            total += mechanism.columns(row.values[lo:hi], row.weight)
        return total

    def _mechanism(self, lo: int) -> CentralNoise:
        noise = self.noise_at(self.round, lo)
        return CentralNoise(self.sigma, self.clip, self.denominator, noise)


@dataclass(frozen=True, slots=True)
class MaskedRelease:
    """The same of sums that come out of masks: they are on a grid already, that of the ring, and
    one site moves them by what rounding may have made of its clip."""

    ring: Ring
    size: int  # numbers of a row, without those behind them
    sigma: float
    denominator: float
    round: int
    noise_at: NoiseAt

    def columns(self, sources: Sequence[Source]) -> Combine:
        total = sum_of(sources)

        def combine(lo: int, hi: int) -> Columns:
            parts = [
                self._grid.noised(total(*chunk), self.noise_at(self.round, chunk[0]))
                for chunk in cut(lo, hi, CHUNK)
            ]
            return np.concatenate(parts) / self.denominator

        return combine

    def exact(self, sources: Sequence[Source], lo: int, hi: int) -> Columns:
        return sum_of(sources)(lo, hi) / self.denominator

    @property
    def deviation(self) -> float:
        return self._grid.sigma * self.ring.step / self.denominator

    @property
    def _grid(self) -> Grid:
        return Grid(self.ring.step, sum_deviation(self.ring, self.size, self.sigma))


def release_of(
    plan: Plan, layout: Layout, number: int, noise_at: NoiseAt = secret_noise
) -> Noised | None:
    """What a round of this plan releases; None: a sum without noise of the coordinator's."""
    section = plan.privacy
    if section.hides != "site" or plan.has_noise_shares:
        return None
    if section.noise_multiplier is None or plan.selection.target is None:
        raise InternalError("the noise of a private plan is computed before it is run")
    denominator = float(plan.asynchronous.buffer or plan.selection.target)
    if plan.is_masked:
        size = plan.strategy.form(layout).size
        of_ring = ring_of(plan, size), size  # scores have no noise, and are not in the model
        return MaskedRelease(*of_ring, section.noise_multiplier, denominator, number, noise_at)
    return Release(section.noise_multiplier, section.clip, denominator, number, noise_at)
