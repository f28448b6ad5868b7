"""Torch, held so that the same work gives the same bits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Torch has one generator and one number of threads for the whole process.
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def reproducibly(seed: int) -> Iterator[None]:
    """Draw from `seed` and compute on one thread, because sums over several threads depend
    on how many there are. Torch is left as it was found."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
