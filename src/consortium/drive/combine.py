"""From rows to the next model: combine by the rule, step by the server's optimiser.

Everything goes by columns, from the blob store and back into it, so that memory follows
neither the model's size nor the number of sites. The server's own state (moments, SCAFFOLD's
variate) is part of what a round publishes: it is read from a blob and written to a blob, and
never kept between rounds.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from consortium.aggregate.columns import Combine, Row, Source, for_columns
from consortium.aggregate.rules import Rule
from consortium.core.ids import Digest
from consortium.drive.release import Noised
from consortium.model import Layout
from consortium.plan.strategy import VARIATE, StrategySection
from consortium.store.ports import Blobs
from consortium.stored import ModelSink, open_tensors
from consortium.tensors import CODES, TensorSpec

State = dict[str, Row]


@dataclass(frozen=True, slots=True)
class Combination:
    """One round's sum under a strategy. `share` is the part of all sites that answered."""

    strategy: StrategySection
    layout: Layout
    share: float
    release: Noised | None = None  # noise on the sum; None: the mean as it is
    rule: Rule | None = None  # in place of the strategy's, where rows are masked

    def write(
        self, blobs: Blobs, base: Row, rows: list[Source], state: State
    ) -> tuple[Digest, Digest | None]:
        """Store the next model and the server's next state, which is None when the strategy
        has none. Raises `ModelFileError`, and stores nothing, when a number is not finite."""
        with ExitStack() as stack:
            model = ModelSink(stack.enter_context(blobs.writer()), self.layout)
            moved = None
            if state:
                layout = _state_layout(self.strategy, self.layout)
                moved = ModelSink(stack.enter_context(blobs.writer()), layout)
            self._step(base, rows, state, model, moved)
            return model.finish(), None if moved is None else moved.finish()

    def _combined(self, rows: list[Source]) -> Combine:
        if self.release is not None:
            return self.release.columns(rows)
        return (self.rule or self.strategy.combining()).columns(rows)

    def _step(
        self, base: Row, rows: list[Source], state: State, model: ModelSink, moved: ModelSink | None
    ) -> None:
        optimiser, size = self.strategy.optimiser(), self.layout.size
        combined = self._combined(rows)
        # Wang et al. 2020: rows are steps per local step; their mean is stretched by the mean
        # number of steps. The one column of tau lies behind the step.
        is_normalised = self.strategy.is_normalised
        stretch = float(combined(size, size + 1)[0]) if is_normalised else 1.0
        variates_at = size + int(is_normalised)
        places = {name: at * size for at, name in enumerate(state)}

        def work(lo: int, hi: int) -> None:
            with np.errstate(over="ignore", invalid="ignore"):  # the sinks look for both
                mean = combined(lo, hi) if stretch == 1.0 else stretch * combined(lo, hi)
                part = {
                    name: state[name][lo:hi].astype(np.float64) for name in optimiser.state_names
                }
                new, after = optimiser.step(base[lo:hi], mean, part)
                model.put(lo, new)
                if VARIATE in state:  # Karimireddy et al. 2020: c + |S|/N mean of the changes
                    change = combined(variates_at + lo, variates_at + hi)
                    after[VARIATE] = state[VARIATE][lo:hi] + self.share * change
                for name, values in after.items():
                    assert moved is not None
                    moved.put(places[name] + lo, values)

        for_columns(size, work)


def server_state_of(
    strategy: StrategySection, layout: Layout, blobs: Blobs, digest: Digest | None
) -> State:
    """The server's state that a round starts from, by name; before the first round, its
    beginning. Compares a stored one with its digest."""
    names = _state_names(strategy)
    if not names:
        return {}
    if digest is None:
        optimiser = strategy.optimiser()
        starts = {name: optimiser.initial(name) for name in optimiser.state_names}
        return {name: _filled(starts.get(name, 0.0), layout) for name in names}
    blobs.check(digest)
    return {**open_tensors(blobs, _state_layout(strategy, layout), digest)}


def _filled(value: float, layout: Layout) -> Row:
    """A vector of one number, which takes the place of one."""
    return np.broadcast_to(np.array(value, layout.dtype), (layout.size,))


def _state_names(strategy: StrategySection) -> list[str]:
    own = [VARIATE] if strategy.has_variates else []
    return sorted([*strategy.optimiser().state_names, *own])


def _state_layout(strategy: StrategySection, layout: Layout) -> Layout:
    code = CODES[layout.dtype]
    names = _state_names(strategy)
    return Layout(tuple(TensorSpec(name, (layout.size,), code) for name in names))
