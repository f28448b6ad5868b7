"""What leaves of what sites made: finite, weighed, clipped, compressed or made ready for masks;
and what then stays.

It works on rows side by side: a real site is a block of one. With error feedback a site
keeps what compression left of its step, beside what its task keeps, and adds it to its next
step. It becomes the site's own only with an update that counted, as everything does that a
site keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.core.facts import Failure
from consortium.core.terms import Metric
from consortium.drive.contribution import Contributions
from consortium.drive.rng import stream
from consortium.drive.unmasked import on_ring
from consortium.errors import InternalError
from consortium.model import Layout, Vector
from consortium.plan.values import Plan
from consortium.privacy.noise import SideBySide
from consortium.tasks import Site
from consortium.tensors import save_tensors
from consortium.update.compress import Compress
from consortium.update.noise import LocalNoise
from consortium.update.stage import Rows

HELD_BACK = "held_back"  # the name of what compression left, in what a site keeps

Block = npt.NDArray[Any]  # (n, d)


@dataclass(slots=True)
class Made:
    """What one site made, before it leaves: the row lies beside those of the others."""

    site: Site
    held_back: Vector | None  # of its earlier updates
    records: int = 0
    kept: dict[str, Any] | None = None  # None: it made nothing
    failure: Failure | None = None
    scores: tuple[float, ...] = ()  # of the base, where they go into masked sums

    def fail(self, failure: Failure) -> None:
        """It falls out of the round, and keeps nothing of it."""
        self.records, self.kept, self.failure = 0, None, failure


def leaving(
    plan: Plan, layout: Layout, rows: Block, made: Sequence[Made], metrics: tuple[Metric, ...] = ()
) -> Contributions:
    """What leaves these sites of a round; `rows` may be changed. A row that is not finite does
    not leave, and nothing is kept beside it. `metrics` are those that the task reports."""
    with np.errstate(over="ignore"):
        _add_held_back(plan, layout, rows, made)
    for at in np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist():
        rows[at] = 0.0
        made[at].fail(Failure.TRAINING)
    samples = np.array([one.records for one in made], np.float64)
    sent = _noised(plan, plan.pipeline().apply(Rows(rows, samples, samples)), made)
    values, packed = sent.values, list[bytes | None]([None] * len(made))
    weights = sent.weights.tolist()
    if plan.is_masked:  # a weight is told under the mask, and nowhere else
        values, packed = _on_ring(plan, layout, sent, made, metrics)
        weights = [1.0] * len(made)
    elif plan.compression.is_on:
        values, packed = _compressed(plan, layout, sent.values, made)
    return Contributions(
        values,
        [one.records for one in made],
        weights,
        [save_tensors(one.kept) if one.kept else None for one in made],
        [one.failure for one in made],
        packed,
    )


def _on_ring(
    plan: Plan, layout: Layout, sent: Rows, made: Sequence[Made], metrics: tuple[Metric, ...]
) -> tuple[Block, list[bytes | None]]:
    """Who fell out before its scores were known has none, and does not leave anyway."""
    ring = plan.ring(layout, metrics)
    nothing = (0.0,) * len(ring.metrics)
    told = [(one.site, one.scores or nothing) for one in made]
    return on_ring(plan, ring, plan.noise_share(layout), sent, told)


def _noised(plan: Plan, sent: Rows, made: Sequence[Made]) -> Rows:
    """With the noise that hides an update from everybody, where the plan asks for it."""
    section = plan.privacy
    if section.hides != "local":
        return sent
    sources = [one.site.noise for one in made]
    if section.noise_multiplier is None or None in sources:
        raise InternalError("an update must not leave without its noise")
    noise = SideBySide([source for source in sources if source is not None])
    return LocalNoise(section.noise_multiplier, section.clip, noise).apply(sent)


def _add_held_back(plan: Plan, layout: Layout, rows: Block, made: Sequence[Made]) -> None:
    if not plan.compression.has_feedback:
        return
    for row, one in zip(rows, made, strict=True):
        # What was kept for another layout is of no use for this one.
        if one.kept is not None and one.held_back is not None and len(one.held_back) == layout.size:
            row[: layout.size] += one.held_back


def _compressed(
    plan: Plan, layout: Layout, rows: Block, made: Sequence[Made]
) -> tuple[Block, list[bytes | None]]:
    """The rows as they will be read, and as the files have them. Rounding is by chance, and
    protects nobody: a site draws from the seed of its own that it keeps, so that a round that is
    done again gives the same update."""
    number = made[0].site.round
    rngs = [stream(one.site.own_seed, "rounding", number) for one in made]
    form, has_feedback = plan.form(layout, number), plan.compression.has_feedback
    found = Compress(form, plan.strategy.clip, has_feedback).apply(rows, rngs)
    if has_feedback:
        for one, left in zip(made, found.left, strict=True):
            if one.kept is not None:
                one.kept[HELD_BACK] = left
    return found.rows, list(found.packed)
