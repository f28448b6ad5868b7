"""Layers that we know how to compute by hand: what they are and how they are set.

Which modules and calls of a model are such layers is read in `known_layers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Pair = tuple[int, int]  # (rows, columns)


class Kind(Enum):
    """What a layer computes."""

    LINEAR = "linear"
    CONV2D = "conv2d"
    MAX_POOL2D = "max_pool2d"
    AVG_POOL2D = "avg_pool2d"
    GLOBAL_AVG_POOL2D = "global_avg_pool2d"  # (n, c, h, w) to (n, c, 1, 1)
    RELU = "relu"
    LEAKY_RELU = "leaky_relu"
    ELU = "elu"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    GELU = "gelu"
    SILU = "silu"
    LOG_SOFTMAX = "log_softmax"  # over the classes of an (n, k) tensor
    FLATTEN = "flatten"  # all but the first dimension
    DROPOUT = "dropout"  # of single numbers, with 0 < p < 1
    LAYER_NORM = "layer_norm"
    BATCH_NORM = "batch_norm"  # over (n, c) or (n, c, h, w)
    EMBEDDING = "embedding"
    IDENTITY = "identity"  # leaves no trace in a chain


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer in training mode. Fields that its kind has no use for keep their defaults."""

    kind: Kind
    weight: str | None = None  # names as in `named_parameters`
    bias: str | None = None
    statistics: tuple[str, str, str] | None = None  # BatchNorm's mean, variance, counter
    size_in: int = 0  # features or channels; rows of an embedding; what FLATTEN must give, or 0
    size_out: int = 0
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    ceil_mode: bool = False
    count_include_pad: bool = True
    p: float = 0.0  # the part that dropout sets to zero
    slope: float = 0.0  # of LEAKY_RELU below zero; alpha of ELU
    approximates_tanh: bool = False  # GELU
    eps: float = 0.0
    momentum: float | None = None  # of BatchNorm's statistics; None is a plain mean over batches
    shape: tuple[int, ...] = ()  # what LAYER_NORM normalises over
