"""The checks of one update: one function a check, each with its own code.

An update is checked where it lies, a part at a time: it may be large, and it comes from
outside. What stands out only among the others (ten times the median norm) is the core's to
see. Signatures and privacy parameters are checked by those who have the keys and the ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.aggregate.columns import Row
from consortium.core.facts import Fault
from consortium.core.ids import Digest
from consortium.errors import (
    DimensionError,
    FormatError,
    MagnitudeError,
    StalenessError,
    UpdateError,
)
from consortium.model import Form
from consortium.plan.strategy import TAU
from consortium.store.ports import Blobs
from consortium.stored import StoredUpdate, open_update
from consortium.update.clip import norm

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


@dataclass(frozen=True, slots=True)
class Measures:
    """What is large or small about a row whose numbers are all finite."""

    norm: float  # of all that is sent but FedNova's count of steps
    steps: float | None  # that count


def check_update(blobs: Blobs, digest: Digest, expected: Expected) -> Findings:
    """Run every check on one stored update. Its bytes are not compared with their digest: that
    was done when they became a blob, and is done again before they are summed."""
    if expected.form.is_masked:
        return _check_masked(blobs, digest, expected)
    try:
        update = open_update(blobs, expected.form, digest)
        measures = measure(update.row, expected.form)
        check_staleness(update, expected)
        check_weight(update, expected)
        check_magnitude(measures, expected)
    except UpdateError as error:
        return Findings(_FAULTS[type(error)])
    # Where a clip bounds every update, the norm is nobody's business.
    return Findings(None, update.weight, measures.norm if expected.clip is None else None)


def _check_masked(blobs: Blobs, digest: Digest, expected: Expected) -> Findings:
    """Its form and its base: of masked numbers nobody can say whether they are large or small."""
    try:
        update = open_update(blobs, expected.form, digest)
        check_staleness(update, expected)
        check_weight(update, expected)
    except UpdateError as error:
        return Findings(_FAULTS[type(error)])
    return Findings(None)


def measure(row: Row, form: Form) -> Measures:
    """Go through a row of this form once. Refuses numbers that are not finite."""
    names = [name for name, _ in form.vectors]
    if TAU not in names:
        return Measures(norm(lambda lo, hi: _finite(row[lo:hi]), form.size), None)
    at = sum(size for _, size in form.vectors[: names.index(TAU)])

    def sent(lo: int, hi: int) -> npt.NDArray[Any]:
        """The columns lo:hi of what is left of the row without the count of steps."""
        if lo <= at < hi:
            return np.delete(_finite(row[lo : hi + 1]), at - lo)
        return _finite(row[lo:hi] if hi <= at else row[lo + 1 : hi + 1])

    steps = float(_finite(row[at : at + 1])[0])
    return Measures(norm(sent, form.size - 1), steps)


def _finite(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not np.isfinite(values).all():
        raise FormatError("the update has numbers that are not finite")
    return values


def check_staleness(update: StoredUpdate, expected: Expected) -> None:
    if update.base != expected.base:
        raise StalenessError("the update was trained from another model than the round's")


def check_weight(update: StoredUpdate, expected: Expected) -> None:
    """A site weighs what the plan lets it weigh, whatever it claims."""
    least, most = expected.weights
    if not least <= update.weight <= most:
        raise MagnitudeError("the update claims a weight that the plan does not allow")


def check_magnitude(measures: Measures, expected: Expected) -> None:
    """The norm must be finite and not exceed the clip when the plan has one; the count of steps
    must be one that local training can take, because it stretches everybody's steps."""
    if measures.steps is not None and not 0 < measures.steps <= MAX_STEPS:
        raise MagnitudeError("the update claims a number of local steps that cannot be")
    is_long = expected.clip is not None and measures.norm > expected.clip
    if is_long or not math.isfinite(measures.norm):
        raise MagnitudeError("the update is larger than the plan's clip, or than any number")
