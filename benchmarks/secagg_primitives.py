"""What each primitive of a secure sum takes by itself, on this machine and now.

AES-CTR with an addition in a chunk that stays in the cache (on one core, and while all cores do
the same), X25519, HKDF, AES-GCM, the making and joining of shares, the addition of a row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from consortium.crypto.hazmat import agreement, sealing, shamir
from consortium.crypto.hazmat.masks import CHUNK

CORES = os.cpu_count() or 1
INFO = bytes(250)  # about as long as ours


@dataclass(frozen=True, slots=True, order=True)
class Taken:
    """Processor seconds of all threads, and those of the clock."""

    worked: float
    clock: float


def timed(call: Callable[[], object]) -> Taken:
    begun, worked = time.perf_counter(), time.process_time()
    call()
    return Taken(time.process_time() - worked, time.perf_counter() - begun)


def each(call: Callable[[], object], times: int) -> Taken:
    """Of one call, by so many of them."""

    def run() -> None:
        for _ in range(times):
            call()

    taken = timed(run)
    return Taken(taken.worked / times, taken.clock / times)


def _expanded(times: int) -> None:
    """Masks in one chunk that stays in the cache."""
    total, stream = np.zeros(CHUNK, np.uint32), np.empty(4 * CHUNK, np.uint8)
    words, zeros = stream.view("<u4"), bytes(4 * CHUNK)
    encryptor = Cipher(algorithms.AES128(os.urandom(16)), modes.CTR(bytes(16))).encryptor()
    fill: Callable[[Any, Any], int] = encryptor.update_into  # it takes any buffer
    for _ in range(times):
        fill(zeros, stream)
        np.add(total, words, out=total)


def masked_byte(threads: int, times: int = 400) -> Taken:
    """Of one byte of a mask, while so many threads do the same."""
    with ThreadPoolExecutor(threads) as pool:
        taken = timed(lambda: list(pool.map(_expanded, [times] * threads)))
    count = 4 * CHUNK * times * threads
    return Taken(taken.worked / count, taken.clock / count)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of each primitive; `masked` is of one byte of one mask."""

    masked: float
    masked_by_all_cores: float
    agreed: float
    public: float
    derived: float
    sealed: float
    opened: float
    split: float
    joined: float
    coefficients: float
    added: float  # one row


def costs_of(holders: int, threshold: int, size: int) -> list[Taken]:
    """Measured now, in the order of `Costs`."""
    mine, raw = X25519PrivateKey.generate(), agreement.public_bytes(X25519PrivateKey.generate())
    private, secret, about = os.urandom(32), os.urandom(32), bytes(120)
    sealed = sealing.seal(secret, bytes(34), about)
    drawn = shamir.elements(os.urandom(shamir.WIDE_BYTES * (threshold - 1)))
    points = tuple(range(1, threshold + 1))
    total, row = np.ones((2, size), np.uint32)  # written, so that no page of them is new
    return [
        masked_byte(1),
        masked_byte(CORES),
        each(lambda: mine.exchange(X25519PublicKey.from_public_bytes(raw)), 50),
        each(lambda: X25519PrivateKey.from_private_bytes(private).public_key(), 50),
        each(lambda: agreement.derive(secret, INFO, 16), 200),
        each(lambda: sealing.seal(secret, bytes(34), about), 200),
        each(lambda: sealing.unseal(secret, sealed, about), 200),
        each(lambda: shamir.split(secret[:16], range(1, holders + 1), drawn), 3),
        each(lambda: _joined(points, drawn), 20),
        each(lambda: shamir.coefficients_at_zero.__wrapped__(points), 3),
        each(lambda: np.add(total, row, out=total), 5),
    ]


def _joined(points: tuple[int, ...], shares: list[int]) -> int:
    found: int = sum(map(int.__mul__, shamir.coefficients_at_zero(points), shares)) % shamir.PRIME
    return found


def least(found: list[list[Taken]]) -> tuple[Costs, Costs]:
    """The least that was measured of each primitive: processor seconds, and by the clock."""
    columns = list(zip(*found, strict=True))
    worked = [min(taken.worked for taken in column) for column in columns]
    return Costs(*worked), Costs(*[min(taken.clock for taken in column) for column in columns])
