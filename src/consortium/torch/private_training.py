"""Local training in which no single record shows: DP-SGD (Abadi et al. 2016).

Every step picks records by coins, clips the gradient of each to one norm over all trained
parameters, adds noise to their sum and divides by a fixed number. An empty sample is a step of
noise alone: that nobody was picked is nobody's business either. All that comes after the noise
does not look at records: the optimiser with its momentum and decay, and what the strategy adds.

House rules: what is trained but stays at the site takes part in the same clipped and noised step,
because later steps of the shared layers depend on it. Whatever else would let records through is
refused. Numbers that a layer draws, such as dropout's, follow from the secret source of the
noise: which of them a record gets depends on who else was picked.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from consortium.errors import ImpossiblePlanError, TaskResultError
from consortium.tasks import RecordPrivacy, Site
from consortium.torch.arrays import tensors_of
from consortium.torch.batches import TensorRecords
from consortium.torch.chain import shapes_through
from consortium.torch.fused import can_fuse, known_chain
from consortium.torch.private_clipping import ClippedChain, ClippedSum
from consortium.torch.private_descent import begin_descent
from consortium.torch.private_losses import record_gradients
from consortium.torch.private_models import check_records_stay_apart
from consortium.torch.private_norms import can_clip
from consortium.torch.private_sampling import (
    check_can_be_sampled,
    picked,
    sample,
    secret_seed,
    with_divisor,
)
from consortium.torch.private_space import Space, space_of
from consortium.torch.steps import effective_steps
from consortium.torch.training import (
    Method,
    Phase,
    Workplace,
    only_training,
    phases,
    relative_rate,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrivateSteps:
    """What private training took. How many gradients were left out, because they were not
    finite, depends on the records: it stays at the site."""

    effective: float  # steps of the shared parameters, as `training.train_locally` counts them
    rejected: int


def train_privately(
    place: Workplace, site: Site, method: Method, *, has_own_loop: bool = False
) -> PrivateSteps:
    """Train in place, as `site.privacy` says. The phases of a round share its steps in
    proportion to their epochs, so that all of them together are those that were paid for.

    The plan's `epochs` and `batch_size` have become `steps` and `rate` before.
    """
    _check_method(method, has_own_loop)
    check_can_be_sampled(place.records)
    check_records_stay_apart(place)
    privacy = checked_privacy(site)
    torch.default_generator.manual_seed(secret_seed(privacy.noise))
    privacy = with_divisor(privacy, len(place.records))
    site = replace(site, privacy=privacy)
    todo = list(phases(place.parts, site))
    steps, rejected = 0.0, 0
    for phase, count in zip(todo, shares([one.epochs for one in todo], privacy.steps), strict=True):
        taken = _run(place, phase, site, method, count)
        rejected += taken.rejected
        steps = taken.effective if place.parts.shared[0] in phase.names else steps
    if rejected:
        _log.warning("%d gradients of records were not finite and counted as zero", rejected)
    return PrivateSteps(steps, rejected)


def shares(epochs: Sequence[int], steps: int) -> list[int]:
    """Steps in proportion to epochs; the last phase, which trains the shared layers, gets one at
    least.

    >>> shares([1, 3], 8), shares([1, 1], 1)
    ([2, 6], [0, 1])
    """
    before, total = list(accumulate(epochs, initial=0))[:-1], sum(epochs)
    ends = [min(steps * done // total, steps - 1) for done in before]
    return [end - start for start, end in pairwise([*ends, steps])]


def _run(place: Workplace, phase: Phase, site: Site, method: Method, steps: int) -> PrivateSteps:
    """So many steps of some of the parameters; the others stand still."""
    assert site.privacy is not None
    rejected = 0
    with only_training(place, phase.names) as trained, torch.no_grad():
        is_chain = has_closed_form(place, site, method)
        space = space_of(trained, place.parts.shared, is_like_pictures=is_chain)
        descent = begin_descent(place, phase, site, method, space)
        clipped = clipped_sum(place, space, method, site.privacy.clip, is_chain)
        counter = effective_steps(descent.optimizer, phase.rules.mu)
        for _ in range(steps):
            places = sample(place.records, site.privacy)
            for inputs, targets in picked(place.records, places, clipped.at_once):
                rejected += clipped.add(inputs, targets)
            descent.step()
            counter.count()
        clipped.finish()
        space.bring_back(trained)
    return PrivateSteps(counter.total * relative_rate(descent.optimizer, site), rejected)


def has_closed_form(place: Workplace, site: Site, method: Method) -> bool:
    """Whether all layers are known, and the norms of a record's gradients in them can be
    computed. Any optimiser will do."""
    if not can_fuse(place, site, Method(method.loss)):
        return False
    return all(can_clip(layer) for layer in known_chain(place.model) or ())


def clipped_sum(
    place: Workplace, space: Space, method: Method, clip: float, is_chain: bool
) -> ClippedSum:
    """What adds to the space's gradient; by Opacus for models without a closed form."""
    if not is_chain:
        from consortium.torch.private_opacus import OpacusSum  # needs Opacus, which chains do not

        return OpacusSum(place, space, record_gradients(method.loss, place.records, None), clip)
    chain, records = known_chain(place.model) or (), place.records
    assert isinstance(records, TensorRecords)
    shape = tuple(records.inputs.shape[1:])
    shapes = shapes_through(chain, shape) or ()
    loss = record_gradients(method.loss, records, shapes[-1])
    fixed = {name: tensor.detach() for name, tensor in tensors_of(place.model).items()}
    return ClippedChain(chain, shape, {**fixed, **space.tensors}, space.gradients, loss, clip)


# ---- what is refused -----------------------------------------------------------------


def checked_privacy(site: Site) -> RecordPrivacy:
    """What the plan says of this site's privacy, if it can be kept."""
    privacy = site.privacy
    assert privacy is not None
    divisor = privacy.count_sigma if privacy.expected_batch is None else privacy.expected_batch
    positive = privacy.clip, privacy.sigma, privacy.rate, divisor
    is_fit = all(math.isfinite(number) and number > 0 for number in positive)
    if not is_fit or privacy.rate > 1 or privacy.steps < 1:
        raise ImpossiblePlanError(
            "private training needs a positive clip, noise, sampling rate and number of steps",
            hint="let the plan compute them from its [privacy] section",
        )
    _check_plan(site)
    return privacy


def _check_plan(site: Site) -> None:
    if site.training.max_seconds is not None:
        raise ImpossiblePlanError(
            "max_seconds cannot stop private training: when it ends may depend on the records, "
            "and all steps are paid for",
            hint="leave [training] max_seconds out, and take fewer epochs",
        )
    if site.training.grad_clip is not None:
        raise ImpossiblePlanError(
            "grad_clip clips the gradient of a batch, which private training has no use for: "
            "it clips that of every record",
            hint="leave [training] grad_clip out, and set the clip in [privacy]",
        )


def _check_method(method: Method, has_own_loop: bool) -> None:
    name = "loop" if has_own_loop else "step" if method.step is not None else ""
    if name:
        raise TaskResultError(
            f"the task trains by a {name} of its own, and nobody can vouch that it is private",
            hint=f"leave {name}=... out: loss, model and optimizer may be yours",
        )
