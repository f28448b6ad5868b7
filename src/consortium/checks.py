"""The checks of one update: one function a check, each with its own code.

Format and finiteness are checked while the bytes are read; what stands out only among
the others (ten times the median norm) is the core's to see. Signatures and privacy
parameters are checked by those who have the keys and the ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from consortium.core.facts import Fault
from consortium.core.ids import Digest
from consortium.errors import (
    DimensionError,
    FormatError,
    MagnitudeError,
    StalenessError,
    UpdateError,
)
from consortium.model import Form, Update, load_update
from consortium.plan.strategy import TAU
from consortium.update.clip import norms
from consortium.update.stage import Rows

MAX_STEPS = 1e6  # of one site in one round: more is a lie or a mistake


@dataclass(frozen=True, slots=True)
class Expected:
    """What an update of this round must be."""

    form: Form
    base: Digest
    clip: float | None
    weights: tuple[float, float]  # least and most that a site may weigh


@dataclass(frozen=True, slots=True)
class Findings:
    """What the checks found: a fault, or weight and norm of a good update."""

    fault: Fault | None
    weight: float | None = None
    norm: float | None = None


_FAULTS: dict[type[UpdateError], Fault] = {
    FormatError: Fault.FORMAT,
    DimensionError: Fault.DIMENSIONS,
    MagnitudeError: Fault.MAGNITUDE,
    StalenessError: Fault.STALENESS,
}


def check_update(data: bytes, expected: Expected) -> Findings:
    """Run every check on the bytes of one update."""
    try:
        update = load_update(data, expected.form)
        check_staleness(update, expected)
        check_weight(update, expected)
        norm = check_magnitude(update, expected)
    except UpdateError as error:
        return Findings(_FAULTS[type(error)])
    # Where a clip bounds every update, the norm is nobody's business.
    return Findings(None, update.weight, norm if expected.clip is None else None)


def check_staleness(update: Update, expected: Expected) -> None:
    if update.base != expected.base:
        raise StalenessError("the update was trained from another model than the round's")


def check_weight(update: Update, expected: Expected) -> None:
    """A site weighs what the plan lets it weigh, whatever it claims."""
    least, most = expected.weights
    if not least <= update.weight <= most:
        raise MagnitudeError("the update claims a weight that the plan does not allow")


def check_magnitude(update: Update, expected: Expected) -> float:
    """The norm of all that is sent but FedNova's count of steps. It must be finite and not
    exceed the clip when the plan has one; the count must be one that local training can take,
    because it stretches everybody's steps."""
    form, weight = expected.form, np.array([update.weight])
    names = [name for name, _ in form.vectors]
    if TAU in names and not 0 < float(form.part(update.row, TAU)[0]) <= MAX_STEPS:
        raise MagnitudeError("the update claims a number of local steps that cannot be")
    sent = np.concatenate([form.part(update.row, name) for name in names if name != TAU])
    with np.errstate(over="ignore"):
        norm = float(norms(Rows(sent[None, :], weight, weight))[0])
    if not math.isfinite(norm) or (expected.clip is not None and norm > expected.clip):
        raise MagnitudeError("the update is larger than the plan's clip, or than any number")
    return norm
