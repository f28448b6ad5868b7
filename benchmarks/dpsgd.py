"""What private training costs: a step with clipped records and noise beside a plain step of SGD.

    python -m benchmarks.dpsgd --json

The model is an MLP 128-256-128-64-2, the base nn.Module with torch.optim.SGD on the same batches.
All take turns in one process, on one thread, and a figure is the median of its turns. `clip` is
private training without its noise, `noise` is all of it, with noise from AES. `error` is how far
the sum of clipped gradients is from one that is added up record by record, beside what is
allowed. Opacus is a further base: its own noise is torch's, which is not cryptographic.
"""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.report import Line, main
from consortium.plan.values import TrainingSection
from consortium.privacy.noise import SecretNoise
from consortium.tasks import RecordPrivacy, Site
from consortium.torch.batches import TensorRecords
from consortium.torch.marks import sort_tensors
from consortium.torch.private_descent import begin_descent
from consortium.torch.private_space import space_of
from consortium.torch.private_training import clipped_sum, has_closed_form
from consortium.torch.training import Method, Workplace, phases

Batch = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor], object]
LR, CLIP, SIGMA = 0.1, 1.0, 1.1
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass(frozen=True, slots=True)
class Setting:
    """How much is measured."""

    sizes: tuple[int, ...] = (128, 256, 128, 64, 2)
    batches: tuple[int, ...] = (64, 512)
    turns: int = 150
    peer_turns: int = 7


def model_of(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def batches_of(setting: Setting, size: int, count: int = 8) -> list[Batch]:
    torch.manual_seed(2)
    first, last = setting.sizes[0], setting.sizes[-1]
    return [(torch.randn(size, first), torch.randint(0, last, (size,))) for _ in range(count)]


# ---- who takes part ------------------------------------------------------------------


def plain(model: nn.Module) -> Step:
    loss, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), LR)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step


class Ours:
    """The parts of a private step as `train_privately` puts them together."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, clip: float = CLIP) -> None:
        training = TrainingSection(lr=LR, momentum=0.0)
        privacy = RecordPrivacy(clip, SIGMA, 0.01, 1, float(len(x)), SecretNoise())
        site = Site("site", None, 1, np.random.default_rng(0), training, privacy=privacy)
        place = Workplace(model, sort_tensors(model, site.personal), TensorRecords(x, y))
        method = Method(nn.CrossEntropyLoss())
        assert has_closed_form(place, site, method)
        trained = dict(model.named_parameters())
        self.space = space_of(trained, place.parts.shared, is_like_pictures=True)
        phase = next(phases(place.parts, site))
        self.descent = begin_descent(place, phase, site, method, self.space)
        self.sum = clipped_sum(place, self.space, method, clip, True)

    @torch.no_grad()
    def clip(self, x: Tensor, y: Tensor) -> None:
        self.sum.add(x, y)
        self.descent.move()

    @torch.no_grad()
    def noise(self, x: Tensor, y: Tensor) -> None:
        self.sum.add(x, y)
        self.descent.step()


def opacus(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> Step:
    """A step of Opacus' hooks or of its ghost clipping."""
    from opacus import PrivacyEngine

    loader = DataLoader(TensorDataset(x, y), len(x))
    options: dict[str, Any] = {"noise_multiplier": SIGMA, "max_grad_norm": CLIP}
    made = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), LR),
        data_loader=loader,
        criterion=nn.CrossEntropyLoss(),
        poisson_sampling=False,
        grad_sample_mode=mode,
        **options,
    )
    private, optimizer = made[0], made[1]
    loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(private(x), y).backward()
        optimizer.step()

    return step


# ---- time ----------------------------------------------------------------------------


def in_turns(steps: dict[str, Step], batches: Sequence[Batch], turns: int) -> dict[str, float]:
    """Milliseconds a step, the median over all turns; the first two of each are not counted."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 2):
        x, y = batches[turn % len(batches)]
        for name, step in steps.items():
            begun = time.perf_counter()
            step(x, y)
            found[name].append(1e3 * (time.perf_counter() - begun))
    return {name: statistics.median(taken[2:]) for name, taken in found.items()}


def costs(setting: Setting, size: int) -> Iterator[Line]:
    batches = batches_of(setting, size)
    ours = Ours(model_of(setting.sizes), *batches[0])
    steps: dict[str, Step] = {
        "base": plain(model_of(setting.sizes)),
        "clip": ours.clip,
        "noise": ours.noise,
    }
    taken = in_turns(steps, batches, setting.turns)
    how = f"MLP {'-'.join(map(str, setting.sizes))}, float32, batch {size}, one thread"
    for name, what in (("clip", "clipping alone"), ("noise", "clipping and noise from AES-CTR")):
        detail = f"{how}; {what}; base: nn.Module and torch.optim.SGD"
        yield Line(f"{name} {size}", taken[name], taken["base"], "ms", detail)
    yield from against_opacus(setting, batches, how)


def against_opacus(setting: Setting, batches: Sequence[Batch], how: str) -> Iterator[Line]:
    ours = Ours(model_of(setting.sizes), *batches[0])
    modes = ("hooks", "ghost")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its noise, and of hooks on inputs
        logging.getLogger("opacus").setLevel(logging.ERROR)
        theirs = {mode: opacus(model_of(setting.sizes), *batches[0], mode) for mode in modes}
        taken = in_turns({"ours": ours.noise, **theirs}, batches, setting.peer_turns)
    for mode in modes:
        detail = f"{how}; clipping and noise; base: Opacus, {mode}"
        name = f"noise {len(batches[0][0])} against opacus {mode}"
        yield Line(name, taken["ours"], taken[mode], "ms", detail)


# ---- the sum -------------------------------------------------------------------------


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Of one record after the other, by autograd, in the order of the names."""
    parameters = [one for _, one in sorted(model.named_parameters())]
    loss = nn.CrossEntropyLoss()
    for at in range(len(x)):
        value = loss(model(x[at : at + 1]), y[at : at + 1])
        yield torch.cat([one.flatten() for one in torch.autograd.grad(value, parameters)])


def error(setting: Setting, size: int, dtype: torch.dtype) -> Line:
    """With a clip that every second record has more than."""
    x, y = batches_of(setting, size, 1)[0]
    x, model = x.to(dtype), model_of(setting.sizes, dtype)
    norms = [float(one.norm(dtype=torch.float64)) for one in gradients(model, x, y)]
    clip = statistics.median(norms)
    total = torch.zeros(sum(one.numel() for one in model.parameters()), dtype=dtype)
    for norm, one in zip(norms, gradients(model, x, y), strict=True):
        total += one * (clip / max(norm, clip))
    ours = Ours(model, x, y, clip)
    with torch.no_grad():
        ours.sum.add(x, y)
    off = float((ours.space.gradient - total).norm() / total.norm())
    kind = str(dtype).removeprefix("torch.")
    detail = f"batch {size}; distance from the sum by single records, of its norm; base: allowed"
    least = float(torch.finfo(torch.float64).tiny)  # for the ratio
    return Line(f"error {kind} {size}", max(off, least), LIMITS[dtype], "", detail)


def measure(setting: Setting | None = None) -> Iterator[Line]:
    setting = setting or Setting()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for size in setting.batches:
            yield from costs(setting, size)
            for dtype in LIMITS:
                yield error(setting, size, dtype)
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main(measure, __doc__)
