"""Rows of numbers, one a record: how long they are, and leaving some out."""

from __future__ import annotations

import torch
from torch import Tensor


def row_squares(rows: Tensor, leading: int = 1) -> Tensor:
    """The squared norms (n,) of rows (n, ...), in float64; (k, n) of (k, n, ...) with two leading
    dimensions."""
    flat = rows.reshape(*rows.shape[:leading], -1)
    norms: Tensor = torch.linalg.vector_norm(flat, dim=leading, dtype=torch.float64)
    return norms.square_()


def without(rows: Tensor, is_bad: Tensor) -> Tensor:
    """Rows (n, ...) with zeros in those that are bad (n,); or (k, n, ...) and (k, n)."""
    return rows.masked_fill(is_bad.view(*is_bad.shape, *[1] * (rows.ndim - is_bad.ndim)), 0.0)
