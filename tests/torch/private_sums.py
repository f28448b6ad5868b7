"""Sums of clipped gradients as anybody would write them, and ours in the same form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from consortium.privacy.noise import Noise, SimulatedNoise
from consortium.tasks import RecordPrivacy, Site
from consortium.torch.batches import adopt
from consortium.torch.marks import sort_tensors
from consortium.torch.private_space import space_of
from consortium.torch.private_training import clipped_sum, has_closed_form
from consortium.torch.training import Method, Workplace, only_training
from tests.torch.sites import site

EXACT, ROUNDED = 1e-10, 1e-5  # in float64 and in float32, of the norm of the sum
CROSS = nn.CrossEntropyLoss()


class Known:
    """Noise that is known: no numbers at all, and every record is picked, or those of a list."""

    def __init__(self, picks: Sequence[Sequence[int]] | None = None) -> None:
        self._picks = None if picks is None else iter(picks)

    def normal(self, count: int) -> npt.NDArray[np.float64]:
        return np.zeros(count)

    def coins(self, count: int, rate: float) -> npt.NDArray[np.bool_]:
        if self._picks is None or (count == 62 and rate == 0.5):  # a seed is not a sample
            return np.ones(count, np.bool_)
        found = np.zeros(count, np.bool_)
        found[list(next(self._picks))] = True
        return found

    def discrete(self, count: int, sigma: float) -> npt.NDArray[np.int64]:
        return np.zeros(count, np.int64)


def simulated(seed: int = 0) -> Noise:
    return SimulatedNoise(np.random.default_rng(seed))


def private_site(noise: Noise | None = None, **options: Any) -> Site:
    """A site with private training; options of `RecordPrivacy` by name, others as of `site`."""
    terms = {"clip": 1.0, "sigma": 1.0, "rate": 0.5, "steps": 3, "expected_batch": 8.0}
    terms |= {name: options.pop(name) for name in [*terms, "count_sigma"] if name in options}
    return replace(site(**options), privacy=RecordPrivacy(noise=noise or simulated(), **terms))


def place_of(model: nn.Module, data: Any, at: Site | None = None) -> Workplace:
    personal = (at or site()).personal
    return Workplace(model, sort_tensors(model, personal), adopt(data, "training"))


def names_of(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def ours(
    model: nn.Module,
    x: Any,
    y: Any,
    clip: float,
    *,
    loss: Any = CROSS,
    names: Sequence[str] | None = None,
    closed: bool = True,
) -> tuple[Tensor, int]:
    """The sum by our own code, in the order of `names`; how many records were left out."""
    names = tuple(names or names_of(model))
    method = Method(loss)
    place = place_of(model, (x, y))
    with only_training(place, names) as trained, torch.no_grad():
        assert has_closed_form(place, site(), method) or not closed
        space = space_of(trained, place.parts.shared, is_like_pictures=closed)
        clipped = clipped_sum(place, space, method, clip, closed)
        rejected = clipped.add(x, y)
        clipped.finish()
        return torch.cat([space.gradients[name].flatten() for name in names]), rejected


def rows_by_autograd(
    model: nn.Module,
    x: Any,
    y: Any,
    loss: Callable[[Tensor, Tensor], Tensor] = CROSS,
    names: Sequence[str] | None = None,
) -> Tensor:
    """The gradient (n, d) of each record, one after the other. `loss` is of one record."""
    model.train()
    parameters = dict(model.named_parameters())
    wanted = [parameters[name] for name in names or names_of(model)]
    rows = []
    for at in range(len(y)):
        found = torch.autograd.grad(
            loss(model(x[at : at + 1]), y[at : at + 1]), wanted, allow_unused=True
        )
        filled = [
            torch.zeros_like(p) if g is None else g for p, g in zip(wanted, found, strict=True)
        ]
        rows.append(torch.cat([one.flatten() for one in filled]))
    return torch.stack(rows)


def clipped_rows(rows: Tensor, clip: float) -> Tensor:
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return rows * (clip / norms.clamp(min=clip)).to(rows.dtype).unsqueeze(1)


def median_norm(rows: Tensor) -> float:
    """A clip that binds for half of the records."""
    return float(torch.linalg.vector_norm(rows, dim=1).median())


def off(found: Tensor, wanted: Tensor) -> float:
    """The distance of two sums, as a part of their norm."""
    return float(torch.linalg.vector_norm(found - wanted) / torch.linalg.vector_norm(wanted))
