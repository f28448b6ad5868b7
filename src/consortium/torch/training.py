"""Local training: some epochs over the site's records, as the plan says.

House rules: the optimiser is made anew each round; what the strategy asks (`site.rules`) is
added to the gradients of shared parameters, after clipping and before the step; only a
layer's own records move it. Torch's seed is the first number drawn from `site.rng`; then
each epoch draws its order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consortium.errors import InternalError, LayoutError, SiteDataError, TaskResultError
from consortium.plan.values import TrainingSection
from consortium.tasks import LocalRules, Site
from consortium.torch.arrays import float_type, misfit
from consortium.torch.batches import Batch, Records, joined
from consortium.torch.losses import Loss, loss_of, outputs_of, scalar
from consortium.torch.marks import Parts, batch_norms
from consortium.torch.steps import effective_steps, is_sgd

Step = Callable[[nn.Module, Any, Any], Tensor]
MakeOptimizer = Callable[[list[nn.Parameter], TrainingSection], torch.optim.Optimizer]
_PLAIN = LocalRules()


@dataclass(frozen=True, slots=True)
class Method:
    """How a task trains: its loss, and what the user put in place of our own steps."""

    loss: Loss
    step: Step | None = None
    optimizer: MakeOptimizer | None = None

    def loss_on(self, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        """The loss of one batch: one number that can be differentiated."""
        if self.step is not None:
            return scalar(self.step(model, inputs, targets))
        outputs = outputs_of(model, inputs, float_type(model))
        return loss_of(self.loss, outputs, targets)


@dataclass(frozen=True, slots=True)
class Workplace:
    """A model at a site, with the records that it learns from."""

    model: nn.Module
    parts: Parts
    records: Records


@dataclass(frozen=True, slots=True)
class Phase:
    """Some epochs that train some of the parameters; the others stand still."""

    names: tuple[str, ...]
    epochs: int
    rules: LocalRules = _PLAIN


RunPhase = Callable[[Workplace, Phase, Site, Method, float | None], float]


def phases(parts: Parts, site: Site) -> Iterator[Phase]:
    """What a round of training consists of at this site.

    A newcomer first fits its private layers to the shared ones, which have gone ahead.
    FedRep trains the private layers, then the shared ones (Collins et al. 2021). All
    others train everything at once.
    """
    personal, epochs = site.personal, site.training.epochs
    is_newcomer = site.state is None and site.round > 1
    if is_newcomer and parts.private and personal.warmup:
        yield Phase(parts.private, personal.warmup)
    if personal.name == "fedrep":
        yield Phase(parts.private, personal.epochs)
        yield Phase(parts.shared, epochs, site.rules)
    else:
        yield Phase(parts.shared + parts.private, epochs, site.rules)


def train_locally(
    place: Workplace, site: Site, method: Method, run: RunPhase | None = None
) -> float:
    """Train in place; the effective number of steps of the shared parameters. `run` is another
    way to do what `run_phase` does."""
    if site.privacy is not None:
        raise InternalError("private training was asked for, and this is not private")
    started, steps = time.monotonic(), 0.0
    limit = site.training.max_seconds
    deadline = None if limit is None else started + limit
    for phase in phases(place.parts, site):
        taken = (run or run_phase)(place, phase, site, method, deadline)
        steps = taken if place.parts.shared[0] in phase.names else steps
    return steps


def warm_up(place: Workplace, site: Site, method: Method) -> None:
    """Fit the private layers of a site that has never trained to the shared ones."""
    if site.state is None and place.parts.private and site.personal.warmup:
        run_phase(place, Phase(place.parts.private, site.personal.warmup), site, method)


def fine_tune(place: Workplace, site: Site, method: Method) -> None:
    """Fit the whole model, but for frozen layers, to the site's own records."""
    names = place.parts.shared + place.parts.private
    run_phase(place, Phase(names, site.personal.epochs), site, method)


def run_phase(
    place: Workplace, phase: Phase, site: Site, method: Method, deadline: float | None = None
) -> float:
    """Train some parameters for some epochs; the effective number of steps. Time is looked
    at after each step, so that even the slowest site takes one."""
    with only_training(place, phase.names) as trained:
        optimizer = make_optimizer(list(trained.values()), site, method)
        terms = _terms(place, phase, trained, optimizer)
        steps = effective_steps(optimizer, phase.rules.mu)
        rate = relative_rate(optimizer, site)
        for _ in range(phase.epochs):
            for inputs, targets in epoch(place, site.training.batch_size, site.rng):
                optimizer.zero_grad(set_to_none=True)
                method.loss_on(place.model, inputs, targets).backward()  # type: ignore[no-untyped-call]
                if site.training.grad_clip is not None:
                    nn.utils.clip_grad_norm_(trained.values(), site.training.grad_clip)
                _add(terms, phase.rules.mu)
                optimizer.step()
                steps.count()
                if deadline is not None and time.monotonic() >= deadline:
                    return steps.total * rate
    return steps.total * rate


def make_optimizer(
    parameters: list[nn.Parameter], site: Site, method: Method
) -> torch.optim.Optimizer:
    """The optimiser of one phase: the user's own, or the one that the plan names."""
    training, lr = site.training, site.training.lr_in(site.round)
    decay = training.weight_decay
    if method.optimizer is not None:
        now = training.model_copy(update={"lr": lr, "lr_decay": 1.0})
        made = method.optimizer(parameters, now)
        if not isinstance(made, torch.optim.Optimizer):
            raise TaskResultError(f"optimizer returned a {type(made).__name__}, no torch optimiser")
        return made
    if training.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=training.momentum, weight_decay=decay)
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr, weight_decay=decay)
    return torch.optim.AdamW(parameters, lr, weight_decay=decay)


def relative_rate(optimizer: torch.optim.Optimizer, site: Site) -> float:
    """How long a step of this optimiser is, in steps of the plan's learning rate. What the
    server makes of steps and variates it computes with the plan's."""
    if not is_sgd(optimizer):
        return 1.0
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1 and site.rules.correction is not None:
        raise TaskResultError(
            "control variates (SCAFFOLD) need one learning rate for all layers",
            hint="give the optimiser one group of parameters",
        )
    return max(rates) / site.training.lr_in(site.round)


def epoch(place: Workplace, batch_size: int, rng: np.random.Generator | None) -> Iterator[Batch]:
    """The site's records once, in batches that BatchNorm can take."""
    batches = place.records.batches(batch_size, rng)
    frozen = set(place.parts.frozen_layers)
    if all(name in frozen for name, _ in batch_norms(place.model)):
        return batches
    if len(place.records) == 1:
        raise SiteDataError(
            "one record is too few to train layers with BatchNorm",
            hint="leave the site out, or use nn.GroupNorm or nn.LayerNorm in the model",
        )
    return joined(batches)


def _set_training(place: Workplace) -> None:
    """Training mode, but for frozen layers: their statistics stay as well."""
    place.model.train()
    frozen = set(place.parts.frozen_layers)
    for name, module in place.model.named_modules():
        if name in frozen:
            module.training = False


def calibrate(place: Workplace) -> None:
    """Running statistics from the site's records, for BatchNorm layers that have seen none.

    They never leave a site, so a model that comes to a new one comes without them.
    """
    fresh = {
        name: layer
        for name, layer in batch_norms(place.model)
        if layer.num_batches_tracked is not None
        and not layer.num_batches_tracked
        and name not in place.parts.frozen_layers
    }
    if not fresh or len(place.records) == 1:
        return
    momenta = {name: layer.momentum for name, layer in fresh.items()}
    place.model.eval()
    dtype = float_type(place.model)
    try:
        for layer in fresh.values():
            layer.training, layer.momentum = True, None  # a plain mean over batches
        with torch.no_grad():
            for inputs, _ in epoch(place, 1024, None):
                outputs_of(place.model, inputs, dtype)
    finally:  # the model may be other sites' as well
        for name, layer in fresh.items():
            layer.training, layer.momentum = False, momenta[name]


@contextmanager
def only_training(place: Workplace, names: tuple[str, ...]) -> Iterator[dict[str, nn.Parameter]]:
    """Training mode in which gradients reach only these parameters, and of them only those
    that the user has not switched off."""
    before = {name: p.requires_grad for name, p in place.model.named_parameters()}
    wanted = {name for name in names if before[name]}
    parameters = dict(place.model.named_parameters())
    if not wanted:
        raise TaskResultError(
            "no parameter is left to train: all have requires_grad=False",
            hint="mark fixed layers with co.frozen(layer), and leave the others as they are",
        )
    _set_training(place)
    try:
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in wanted)
        yield {name: parameters[name] for name in names if name in wanted}
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(before[name])
            parameter.grad = None


_Term = tuple[nn.Parameter, Tensor | None, Tensor | None]  # parameter, base, correction


def _terms(
    place: Workplace,
    phase: Phase,
    trained: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> list[_Term]:
    """What the rules need, as tensors, for each shared parameter that is trained."""
    rules = phase.rules
    if rules.are_plain:
        return []
    check_rules(place, rules, optimizer)
    base = rules.base if rules.mu else None
    shared = [name for name in place.parts.shared if name in trained]
    return [
        (
            trained[name],
            _like(trained[name], base, name),
            _like(trained[name], rules.correction, name),
        )
        for name in shared
    ]


def check_rules(place: Workplace, rules: LocalRules, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what the strategy asks if this optimiser or this model cannot follow."""
    if rules.correction is not None and not is_sgd(optimizer):
        raise TaskResultError(
            "control variates (SCAFFOLD) correct steps of SGD, not of another optimiser",
            hint='set optimizer = "sgd" in [training]',
        )
    base = rules.base if rules.mu else None
    for given in (base, rules.correction):
        wrong = "" if given is None else misfit(place.model, place.parts.shared, given)
        if wrong:
            raise LayoutError(f"the strategy's tensors do not fit: {wrong}")


def _like(parameter: nn.Parameter, arrays: Any, name: str) -> Tensor | None:
    if arrays is None:
        return None
    return torch.from_numpy(np.array(arrays[name])).to(parameter.dtype)


def _add(terms: list[_Term], mu: float) -> None:
    """FedProx (Li et al. 2020): + mu (x - base). SCAFFOLD (Karimireddy et al. 2020): + c - c_i."""
    with torch.no_grad():
        for parameter, base, correction in terms:
            if parameter.grad is None:  # the loss did not use it: its own gradient is zero
                parameter.grad = torch.zeros_like(parameter)
            if base is not None:
                parameter.grad.add_(parameter - base, alpha=mu)
            if correction is not None:
                parameter.grad.add_(correction)
