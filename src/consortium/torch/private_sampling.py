"""Which records a private step looks at: every record by a coin of its own.

Accounts assume that each record comes into a step with the same probability, independently of
all others (Poisson sampling). A shuffled epoch in batches is another mechanism, with another
price. So a sample may have any size, none included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset

from consortium.errors import TaskResultError
from consortium.privacy.noise import Noise
from consortium.tasks import RecordPrivacy
from consortium.torch.batches import Batch, DatasetRecords, LoaderRecords, Records, TensorRecords
from consortium.update.noise import SMOOTH

Places = npt.NDArray[np.int64]
_SEED_BITS = 62


def secret_seed(noise: Noise) -> int:
    """For what layers draw, such as dropout: nobody may know which numbers a record got."""
    return sum(1 << at for at, is_set in enumerate(noise.coins(_SEED_BITS, 0.5)) if is_set)


def with_divisor(privacy: RecordPrivacy, count: int) -> RecordPrivacy:
    """With the number that sums are divided by in this round. Where it follows from how many
    records there are, one record more or less changes that by one: whole noise hides it."""
    if privacy.expected_batch is not None:
        return privacy
    deviation = math.hypot(privacy.count_sigma, SMOOTH)  # as good as continuous noise
    about = count + int(privacy.noise.discrete(1, deviation)[0])
    return replace(privacy, expected_batch=privacy.rate * max(1, about))


def sample(records: Records, privacy: RecordPrivacy) -> Places:
    """The places of the records that are picked this time."""
    return np.flatnonzero(privacy.noise.coins(len(records), privacy.rate))


def picked(records: Records, places: Places, at_once: int) -> Iterator[Batch]:
    """The records at these places, at most so many at a time."""
    for start in range(0, len(places), at_once):
        yield at_places(records, places[start : start + at_once])


def at_places(records: Records, places: Places) -> Batch:
    """The records at these places, of which there is at least one."""
    if isinstance(records, TensorRecords):
        index = torch.from_numpy(places)
        return records.inputs.index_select(0, index), records.targets.index_select(0, index)
    assert isinstance(records, DatasetRecords)
    chosen = DatasetRecords(Subset(records.dataset, places.tolist()))
    return next(chosen.batches(len(places), None))


def check_can_be_sampled(records: Records) -> None:
    """Refuse a loader: it makes its own batches, and nobody knows with which probability a
    record gets into them."""
    if isinstance(records, LoaderRecords):
        raise TaskResultError(
            "private training picks records by coins, and a DataLoader makes its own batches",
            hint="return the data set itself: loader.dataset",
        )
