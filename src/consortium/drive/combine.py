"""From rows to the next model: combine by the rule, step by the server's optimiser.

Everything goes by columns, so that no more than the old and the new model are in memory.
The server's own state (moments, SCAFFOLD's variate) is part of what a round publishes: it
is read from a blob and written to a blob, and never kept between rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consortium.aggregate.columns import Source, for_columns
from consortium.core.ids import Digest
from consortium.model import Layout, Vector, load_model, save_model
from consortium.plan.strategy import VARIATE, StrategySection
from consortium.store.ports import Blobs
from consortium.tensors import CODES, TensorSpec

State = dict[str, Vector]


@dataclass(frozen=True, slots=True)
class Combination:
    """One round's sum under a strategy. `share` is the part of all sites that answered."""

    strategy: StrategySection
    layout: Layout
    share: float

    def step(self, base: Vector, rows: list[Source], state: State) -> tuple[Vector, State]:
        """The next model and the server's next state."""
        optimiser, size = self.strategy.optimiser(), self.layout.size
        combined = self.strategy.combining().columns(rows)
        new: Vector = np.empty_like(base)
        moved: State = {name: np.empty_like(vector) for name, vector in state.items()}
        # Wang et al. 2020: rows are steps per local step; their mean is stretched by the mean
        # number of steps. The one column of tau lies behind the step.
        is_normalised = self.strategy.is_normalised
        stretch = float(combined(size, size + 1)[0]) if is_normalised else 1.0
        variates_at = size + int(is_normalised)

        def work(lo: int, hi: int) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                mean = combined(lo, hi) if stretch == 1.0 else stretch * combined(lo, hi)
                part = {
                    name: state[name][lo:hi].astype(np.float64) for name in optimiser.state_names
                }
                new[lo:hi], after = optimiser.step(base[lo:hi], mean, part)
                for name, values in after.items():
                    moved[name][lo:hi] = values
                if VARIATE in state:  # Karimireddy et al. 2020: c + |S|/N mean of the changes
                    change = combined(variates_at + lo, variates_at + hi)
                    moved[VARIATE][lo:hi] = state[VARIATE][lo:hi] + self.share * change

        for_columns(size, work)
        return new, moved

    def save_state(self, state: State) -> bytes | None:
        """The blob of the server's state; None when the strategy has none. Refuses numbers
        that are not finite, as a model with them is."""
        if not state:
            return None
        layout = _state_layout(self.strategy, self.layout)
        vector = layout.flatten(state)
        data = save_model(layout, vector)
        load_model(layout, data)
        return data


def server_state_of(
    strategy: StrategySection, layout: Layout, blobs: Blobs, digest: Digest | None
) -> State:
    """The server's state that a round starts from; before the first round, its beginning."""
    names = _state_names(strategy)
    if not names:
        return {}
    if digest is None:
        optimiser = strategy.optimiser()
        starts = {name: optimiser.initial(name) for name in optimiser.state_names}
        return {name: np.full(layout.size, starts.get(name, 0.0), layout.dtype) for name in names}
    form = _state_layout(strategy, layout)
    tensors = form.unflatten(load_model(form, blobs.get(digest)))
    return {name: tensors[name] for name in names}


def _state_names(strategy: StrategySection) -> list[str]:
    own = [VARIATE] if strategy.has_variates else []
    return sorted([*strategy.optimiser().state_names, *own])


def _state_layout(strategy: StrategySection, layout: Layout) -> Layout:
    code = CODES[layout.dtype]
    names = _state_names(strategy)
    return Layout(tuple(TensorSpec(name, (layout.size,), code) for name in names))
