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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ROWS_FIRST, _AS_IT_IS, _ON_ITS_SIDE = 101, 111, 112  # CblasRowMajor, CblasNoTrans, CblasTrans
_FLOAT_BYTES = 4
_SHORT = 16  # rows
_LOADING = threading.Lock()  # the environment is everybody's
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
    if blas is not None and left.dtype is torch.float32:
        k, rows, columns = len(left), left.shape[1], right.shape[2]
        made = bias.expand(k, rows, columns).clone(memory_format=torch.contiguous_format)
        if blas.multiply(made, left, right, 1.0, 1.0):
            return made
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
        rows = left.shape[0] * left.shape[1]
        flat, out = left.view(1, rows, left.shape[2]), made.view(1, rows, made.shape[2])
        # The library is slow with a short matrix on its side, and to turn it over takes no time.
        one = right.contiguous() if len(right) <= _SHORT else right
        if blas.multiply(out, flat, one.unsqueeze(0), 0.0, 1.0):
            return made
    return left @ right


class Blas:
    """OpenBLAS's products of float32 in one thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._multiply = library.scipy_cblas_sgemm_batch
        self._multiply.restype = None
        self._calls = _Calls()

    def multiply(
        self, into: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float
    ) -> bool:
        """into := beta into + alpha left @ right; False and nothing done, if these lie in memory
        in a way that it does not know. What `into` held is not looked at if beta is zero."""
        if not left.dtype is right.dtype is into.dtype is torch.float32:
            return False
        shapes = left.shape, right.shape, into.shape
        strides = left.stride(), right.stride(), into.stride()
        call = self._calls.of(shapes, strides, (alpha, beta))
        if call is None:
            return False
        call.starts[:, 0] = left.data_ptr(), right.data_ptr(), into.data_ptr()
        np.add(call.starts, call.steps, out=call.places)
        self._multiply(*call.arguments)
        return True


_Strides = tuple[int, ...]


class _Calls(threading.local):
    """What the library is told of products of some form, but for where the matrices are. To put
    that together takes as long as a small product. Each thread has its own: they are written to."""

    def __init__(self) -> None:
        self.of = lru_cache(maxsize=256)(_call)


@dataclass(frozen=True, slots=True)
class _Call:
    starts: npt.NDArray[np.int64]  # (3, 1): of the first matrices
    steps: npt.NDArray[np.int64]  # (3, k): from there to each of them
    places: npt.NDArray[np.int64]  # (3, k): their sum
    arguments: tuple[Any, ...]
    kept: tuple[Any, ...]  # what the arguments point to


def _call(
    shapes: tuple[torch.Size, torch.Size, torch.Size],
    strides: tuple[_Strides, _Strides, _Strides],
    factors: tuple[float, float],
) -> _Call | None:
    """None for what it cannot do. What does not fit together is left to torch, too: it says so,
    and the library would read and write where nothing of ours is."""
    (k, rows, inner), (left, right, into), columns = shapes[0], strides, shapes[1][2]
    if shapes[1:] != ((k, inner, columns), (k, rows, columns)) or 0 in (k, rows, inner, columns):
        return None
    a, b = _lying(left, rows, inner), _lying(right, inner, columns)
    is_apart = into[2] == 1 and into[1] >= columns and (k == 1 or into[0] >= rows * into[1])
    if a is None or b is None or not is_apart:
        return None
    whole = np.array([a[0], b[0], rows, columns, inner, a[1], b[1], into[1], k], np.int32)
    real = np.array(factors, np.float32)
    steps = np.arange(k) * (_FLOAT_BYTES * np.array([left[0], right[0], into[0]])[:, None])
    places = np.empty((3, k), np.int64)
    numbers = [ctypes.c_void_p(whole[at:].ctypes.data) for at in range(len(whole))]
    alpha, beta = (ctypes.c_void_p(real[at:].ctypes.data) for at in range(2))
    lefts, rights, intos = (ctypes.c_void_p(part.ctypes.data) for part in places)
    across = *numbers[:5], alpha, lefts, numbers[5], rights, numbers[6], beta, intos, numbers[7]
    arguments = ctypes.c_int(_ROWS_FIRST), *across, ctypes.c_int(1), numbers[8]
    return _Call(np.empty((3, 1), np.int64), steps, places, arguments, (whole, real))


def _lying(strides: _Strides, rows: int, columns: int) -> tuple[int, int] | None:
    """Whether matrices lie as they are or on their side, and how far their lines are apart."""
    _, line, side = strides
    if side == 1 and line >= columns:
        return _AS_IT_IS, line
    if line == 1 and side >= rows:
        return _ON_ITS_SIDE, side
    return None


# ---- whether it is there ------------------------------------------------------------


@lru_cache(maxsize=1)
def _blas() -> Blas | None:
    """OpenBLAS, where it is faster than what torch has."""
    with _LOADING:
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
        library = ctypes.CDLL(str(paths[0]))
    name = library.scipy_openblas_get_corename
    name.restype = ctypes.c_char_p
    # If somebody else has loaded it before, it is as they wanted it.
    is_ours = name() == _KERNELS.encode() and library.scipy_openblas_get_num_threads() == 1
    return Blas(library) if is_ours else None


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
