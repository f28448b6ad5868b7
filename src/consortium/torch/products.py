"""Products of many small matrices: (k, a, n) times (k, n, b), each with its own.

Torch leaves them to a library that uses half of the width of AMD's processors. Where one of those
has AVX-512 and OpenBLAS is installed, that does them, in less than half of the time for sites'
small models. The choice follows from the processor and is never measured: the last bits depend
on it, as they do between any two kinds of processor.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ROWS_FIRST, _AS_IT_IS, _ON_ITS_SIDE = 101, 111, 112  # CblasRowMajor, CblasNoTrans, CblasTrans
_FLOAT_BYTES = 4
_MOST = 4096  # matrices of one call
_KERNELS = "SkylakeX"  # OpenBLAS does not know every processor with AVX-512, and has these for all


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right."""
    blas = _blas()
    if blas is not None:
        made = torch.empty((len(left), left.shape[1], right.shape[2]), dtype=left.dtype)
        if blas.multiply(made, left, right, 0.0, 1.0):
            return made
    return torch.bmm(left, right)


def sum_and_product(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """bias (k, 1, b) + left @ right."""
    blas = _blas()
    if blas is not None:
        made = torch.empty((len(left), left.shape[1], right.shape[2]), dtype=left.dtype)
        if blas.multiply(made, left, right, 0.0, 1.0):
            return made.add_(bias)
    return torch.baddbmm(bias, left, right)


def add_product(into: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> None:
    """into := beta into + alpha left @ right."""
    blas = _blas()
    if blas is None or not blas.multiply(into, left, right, beta, alpha):
        into.baddbmm_(left, right, beta=beta, alpha=alpha)


def product_with_one(left: Tensor, right: Tensor) -> Tensor:
    """left (k, a, n) @ right (n, b), the same for all: one product for them."""
    blas = _blas()
    if blas is not None and left.is_contiguous():
        made = torch.empty((*left.shape[:2], right.shape[1]), dtype=left.dtype)
        flat, out = left.view(1, -1, left.shape[2]), made.view(1, -1, made.shape[2])
        if blas.multiply(out, flat, right.unsqueeze(0), 0.0, 1.0):
            return made
    return left @ right


class Blas:
    """OpenBLAS's products of float32 in one thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._multiply = library.scipy_cblas_sgemm_batch
        number, pointer = ctypes.c_int, ctypes.c_void_p
        self._multiply.argtypes = [number, *[pointer] * 13, number, pointer]
        self._multiply.restype = None
        self._places = _Places()

    def multiply(
        self, into: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float
    ) -> bool:
        """into := beta into + alpha left @ right; False and nothing done, if these lie in memory
        in a way that it does not know. What `into` held is not looked at if beta is zero."""
        k, rows, inner = left.shape
        columns = right.shape[2]
        a, b = _lying(left, rows, inner), _lying(right, inner, columns)
        step, line, side = into.stride()
        is_known = side == 1 and line >= columns and k <= _MOST and into.dtype is torch.float32
        if a is None or b is None or not is_known or inner == 0:
            return False
        if not left.dtype is right.dtype is torch.float32:
            return False
        of = self._places
        np.add(_steps(k, left.stride(0)), left.data_ptr(), out=of.lefts[:k])
        np.add(_steps(k, right.stride(0)), right.data_ptr(), out=of.rights[:k])
        np.add(_steps(k, step), into.data_ptr(), out=of.intos[:k])
        _, at = _whole_numbers(a[0], b[0], rows, columns, inner, a[1], b[1], line, k)
        _, factors = _numbers(alpha, beta)
        self._multiply(
            _ROWS_FIRST,
            *at[:5],
            factors[0],
            of.at[0],
            at[5],
            of.at[1],
            at[6],
            factors[1],
            of.at[2],
            at[7],
            1,
            at[8],
        )
        return True


class _Places(threading.local):
    """Where matrices begin, of each thread."""

    def __init__(self) -> None:
        self.lefts, self.rights, self.intos = np.empty((3, _MOST), np.int64)
        self.at = [part.ctypes.data for part in (self.lefts, self.rights, self.intos)]


def _lying(matrices: Tensor, rows: int, columns: int) -> tuple[int, int] | None:
    """Whether matrices lie as they are or on their side, and how far their lines are apart."""
    _, line, side = matrices.stride()
    if side == 1 and line >= columns:
        return _AS_IT_IS, line
    if line == 1 and side >= rows:
        return _ON_ITS_SIDE, side
    return None


@lru_cache(maxsize=256)
def _steps(k: int, stride: int) -> Any:
    return np.arange(k, dtype=np.int64) * (_FLOAT_BYTES * stride)


@lru_cache(maxsize=1024)
def _whole_numbers(*values: int) -> tuple[Any, list[int]]:
    """Numbers in memory, and where each of them is."""
    array = np.array(values, np.int32)
    return array, [array.ctypes.data + array.itemsize * at for at in range(len(values))]


@lru_cache(maxsize=1024)
def _numbers(*values: float) -> tuple[Any, list[int]]:
    array = np.array(values, np.float32)
    return array, [array.ctypes.data + array.itemsize * at for at in range(len(values))]


# ---- whether it is there ------------------------------------------------------------


@lru_cache(maxsize=1)
def _blas() -> Blas | None:
    """OpenBLAS, where it is faster than what torch has."""
    return loaded() if _has_width_that_torch_leaves() else None


def loaded() -> Blas | None:
    """OpenBLAS with its kernels for AVX-512, if it is installed; the processor must have that."""
    # The package itself would load it for everybody in this process, with other kernels.
    package = importlib.util.find_spec("scipy_openblas32")
    folders = [] if package is None else package.submodule_search_locations or []
    paths = [path for folder in folders for path in Path(folder, "lib").glob("libscipy_*.so")]
    if not paths:
        return None
    with _environment(OPENBLAS_CORETYPE=_KERNELS, OPENBLAS_NUM_THREADS="1"):
        return Blas(ctypes.CDLL(str(paths[0])))  # a copy that nobody else uses


def _has_width_that_torch_leaves() -> bool:
    if sys.platform != "linux" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        return "AuthenticAMD" in file.read(4096)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """With these variables: a library reads them when it is loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
