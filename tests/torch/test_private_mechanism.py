"""One record more or less changes the sum by the clip at most: real training, and planted faults.

Noise is turned off and every record is picked, so that a step of SGD tells the sum. Records that
would do most are added one by one. A fault that lets one of them through must be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from consortium.tasks import RecordPrivacy
from consortium.torch import (
    private,
    private_clipping,
    private_norms,
    private_opacus,
    private_training,
)
from consortium.torch.batches import Records
from consortium.torch.private_clipping import ClippedChain
from consortium.torch.private_descent import NoisyDescent
from consortium.torch.private_rows import row_squares
from consortium.torch.private_training import train_privately
from consortium.torch.reproducible import reproducibly
from consortium.torch.training import Method
from tests.torch.private_sums import Known, place_of, private_site

CLIP, USUAL = 0.5, 6
SLACK = 1e-6


class Branched(nn.Module):
    """No chain: by Opacus."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter, self.head = private(nn.Linear(4, 5)), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.adapter(x)
        out: Tensor = self.head(torch.tanh(x) + 0.1 * torch.sin(x))
        return out


def chain() -> nn.Module:
    return nn.Sequential(private(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2))


def reader() -> nn.Module:
    """All places of a record pull a word's row the same way."""
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(4 * 6, 2))
    nn.init.constant_(model[2].weight, 1.0)
    return model


def numbers() -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Records of which all pull one way, and others that would do much."""
    x, y = torch.randn(4).double().repeat(USUAL, 1), torch.full((USUAL, 2), 1e3).double()
    worst = [
        (x[0], -y[0]),  # pulls the other way
        (0 * x[0], 1e6 * y[0]),  # shows in biases only
        (1e4 * x[0], y[0]),  # shows in the private layer, where x is not squashed
        (-1e4 * x[0], -1e-3 * y[0]),
        (1e200 * x[0], 1e200 * y[0]),  # has no finite norm
        (0 * x[0], 0 * y[0]),
    ]
    return x, y, worst


def texts() -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    x, y = torch.randint(0, 7, (USUAL, 6)), torch.randn(USUAL, 2).double()
    return x, y, [(torch.full((6,), 3), 1e3 * y[0]), (torch.arange(6), -1e3 * y[0])]


def summed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What one step of training is made of: all trained numbers, private ones too."""
    at = private_site(
        Known(), clip=CLIP, rate=1.0, steps=1, expected_batch=float(USUAL), lr=1.0, momentum=0.0
    )
    trained = deepcopy(model)
    train_privately(place_of(trained, (x, y)), at, Method(nn.MSELoss()))
    pairs = zip(model.parameters(), trained.parameters(), strict=True)
    return torch.cat([(before - after).detach().flatten() for before, after in pairs]) * USUAL


def leak(make: Callable[[], nn.Module]) -> float:
    """The most that a record does to the sum, in clips; infinity for what is no number."""
    with reproducibly(1):
        model = make().double()
        x, y, worst = texts() if make is reader else numbers()
    without = summed(model, x, y)
    sums = [summed(model, torch.cat([x, a[None]]), torch.cat([y, b[None]])) for a, b in worst]
    found = [float((one - without).norm()) / CLIP for one in sums]
    return max(one if one == one else float("inf") for one in found)


@pytest.mark.parametrize("make", [chain, Branched, reader])
def test_one_record_changes_the_sum_by_the_clip_at_most(make: Callable[[], nn.Module]) -> None:
    assert 0.99 < leak(make) <= 1 + SLACK


# ---- planted faults --------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def _parts(chained: ClippedChain) -> list[Any]:
    return [place.part for place in chained._way_back if place.part is not None]


def each_layer_by_itself(patch: Patch) -> None:
    def add(self: ClippedChain, inputs: Tensor, targets: Tensor) -> int:
        bad = ~torch.isfinite(self._norms(inputs, targets))
        for part in _parts(self):
            part.leave_out(bad)
            norms = part.squares(part.d).sqrt()
            part.add(private_clipping.clip_factors(norms, self._clip, self._dtype))
        return 0

    patch.setattr(ClippedChain, "add", add)


def the_mean_and_not_the_records(patch: Patch) -> None:
    patch.setattr(private_clipping, "clip_factors", lambda norms, _, dtype: torch.ones_like(norms))

    def add_noise(self: NoisyDescent) -> None:
        mean = self.space.gradient / self.divisor
        self.space.gradient.mul_(self.privacy.clip / mean.norm().clamp(min=self.privacy.clip))

    patch.setattr(NoisyDescent, "add_noise", add_noise)


def whatever_is_no_number(patch: Patch) -> None:
    """min(1, C / norm) of a norm that is not finite, with nothing left out."""

    def add(self: ClippedChain, inputs: Tensor, targets: Tensor) -> int:
        factors = (self._clip / self._norms(inputs, targets)).clamp(max=1.0)
        for part in _parts(self):
            part.add(factors)
        return 0

    patch.setattr(ClippedChain, "add", add)


def biases(patch: Patch) -> None:
    def squares(self: Any, d: Tensor) -> Tensor:
        self.d = d
        return row_squares(d) * row_squares(self.x)

    patch.setattr(private_norms._Linear, "squares", squares)


def private_layers(patch: Patch) -> None:
    original = private_clipping.part_of

    def part_of(layer: Any, before: Any, gradients: Any) -> Any:
        part = original(layer, before, gradients)
        if part is not None and layer.weight == "0.weight":
            squares = part.squares
            patch.setattr(part, "squares", lambda d: 0 * squares(d), raising=False)
        return part

    patch.setattr(private_clipping, "part_of", part_of)


def how_many_were_picked(patch: Patch) -> None:
    original, picked = private_training.sample, list[int]()

    def sample(records: Records, privacy: RecordPrivacy) -> Any:
        found = original(records, privacy)
        picked.append(len(found))
        return found

    def move(self: NoisyDescent) -> None:
        self.space.gradient.mul_(self.divisor / picked[-1])
        moved(self)

    moved = NoisyDescent.move
    patch.setattr(private_training, "sample", sample)
    patch.setattr(NoisyDescent, "move", move)


def words_that_come_again(patch: Patch) -> None:
    patch.setattr(private_norms, "table_squares", lambda _words, d, _layer: row_squares(d))


def no_clip_of_what_opacus_tells(patch: Patch) -> None:
    patch.setattr(private_opacus, "clip_factors", lambda norms, *_: torch.ones_like(norms))


def what_opacus_tells_that_is_no_number(patch: Patch) -> None:
    patch.setattr(torch, "isfinite", lambda numbers: torch.ones_like(numbers, dtype=torch.bool))


FAULTS: list[tuple[Callable[[Patch], None], Callable[[], nn.Module]]] = [
    (each_layer_by_itself, chain),
    (the_mean_and_not_the_records, chain),
    (whatever_is_no_number, chain),
    (biases, chain),
    (private_layers, chain),
    (how_many_were_picked, chain),
    (words_that_come_again, reader),
    (no_clip_of_what_opacus_tells, Branched),
    (what_opacus_tells_that_is_no_number, Branched),
]


@pytest.mark.parametrize(("fault", "make"), FAULTS, ids=[one[0].__name__ for one in FAULTS])
def test_planted_faults_are_seen(
    fault: Callable[[Patch], None],
    make: Callable[[], nn.Module],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    assert leak(make) > 1.05
