"""Masks that several threads put on: the same words, however the work was cut."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from consortium.crypto.hazmat import masks
from consortium.crypto.hazmat.masks import CHUNK, U32

KEYS = [bytes([at]) * 16 for at in range(5)]
PLUS, MINUS = KEYS[:3], KEYS[3:]
SHORT = 1000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread is worth starting, and rows of a thousand words are long."""
    monkeypatch.setattr(masks, "_LEAST_WORK", 1)
    monkeypatch.setattr(masks, "_SHORT", SHORT)


def plain(size: int) -> U32:
    rows = [np.frombuffer(masks.keystream(key, 4 * size), "<u4") for key in KEYS]
    wanted = np.arange(size, dtype=np.uint32)
    for key, row in zip(KEYS, rows, strict=True):
        wanted = wanted + row if key in PLUS else wanted - row
    return wanted


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("size", [0, 1, 5, SHORT - 1, SHORT, SHORT + 3, 2 * CHUNK + 5])
@pytest.mark.usefixtures("small")
def test_rows_cut_by_keys_or_by_columns_have_the_same_masks(size: int, threads: int) -> None:
    total = np.arange(size, dtype=np.uint32)
    masks.add_masks(total, PLUS, MINUS, threads=threads)
    assert (total == plain(size)).all()


@pytest.mark.parametrize(("size", "made"), [(SHORT - 1, len(KEYS)), (SHORT, 4 * len(KEYS))])
@pytest.mark.usefixtures("small")
def test_keys_of_a_short_row_are_made_ready_once(
    size: int, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = masks._encryptor, list[bytes]()

    def encryptor(key: bytes, counter: Any) -> Any:
        seen.append(key)
        return real(key, counter)

    monkeypatch.setattr(masks, "_encryptor", encryptor)
    masks.add_masks(np.zeros(size, np.uint32), PLUS, MINUS, threads=4)
    assert len(seen) == made and set(seen) == set(KEYS)


@pytest.mark.usefixtures("small")
def test_no_key_and_no_row_need_no_thread() -> None:
    masks.add_masks(np.zeros(0, np.uint32), PLUS, MINUS, threads=4)
    row = np.ones(2 * SHORT, np.uint32)
    masks.add_masks(row, [], [], threads=4)
    assert (row == 1).all()


def test_what_fails_in_a_thread_is_told() -> None:
    """A key of a wrong length, on rows that are really cut."""
    for size in (masks._SHORT - 1, masks._SHORT):
        row = np.zeros(size, np.uint32)
        keys = [os.urandom(16) for _ in range(7)]
        with pytest.raises(ValueError, match="key"):
            masks.add_masks(row, [*keys, b"short"], threads=2)
