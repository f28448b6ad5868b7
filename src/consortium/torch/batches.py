"""A site's records in batches, whatever they come in.

A torch `Dataset` or `DataLoader`, a table with `features` and `labels`, or a pair of arrays
all become `Records`. What lies in tensors is sliced as a whole; other data sets are read
record by record. Shuffling uses the caller's NumPy generator, so that a run can be repeated;
a `DataLoader` keeps its own batch size and order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from consortium.errors import SiteDataError, TaskResultError

Batch = tuple[Any, Any]  # (inputs, targets): tensors, or whatever the user's own step takes
_KINDS = "a torch Dataset, a DataLoader, a table, or a pair (inputs, targets) of arrays"


class Records(Protocol):
    """Records that can be gone through in batches, in order or shuffled."""

    def __len__(self) -> int: ...

    def batches(self, batch_size: int, rng: np.random.Generator | None) -> Iterator[Batch]: ...


@dataclass(frozen=True, slots=True)
class TensorRecords:
    """Records that lie in two tensors, side by side."""

    inputs: Tensor  # (n, ...)
    targets: Tensor  # (n, ...)

    def __len__(self) -> int:
        return int(self.inputs.shape[0])  # many times faster than len()

    def batches(self, batch_size: int, rng: np.random.Generator | None) -> Iterator[Batch]:
        order = None if rng is None else torch.from_numpy(rng.permutation(len(self)))
        for start in range(0, len(self), batch_size):
            part: Any = slice(start, start + batch_size)
            if order is not None:
                part = order[part]
            yield self.inputs[part], self.targets[part]


@dataclass(frozen=True, slots=True)
class DatasetRecords:
    """Records that are read one by one and put together."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, batch_size: int, rng: np.random.Generator | None) -> Iterator[Batch]:
        order = range(len(self)) if rng is None else rng.permutation(len(self)).tolist()
        for start in range(0, len(self), batch_size):
            yield _pair(
                default_collate([self.dataset[i] for i in order[start : start + batch_size]])
            )


@dataclass(frozen=True, slots=True)
class LoaderRecords:
    """The batches that the user's own loader makes. Its generators are set anew each time:
    else what it gives would depend on how often it was asked before."""

    loader: DataLoader[Any]

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]  # checked by `adopt`

    def batches(self, batch_size: int, rng: np.random.Generator | None) -> Iterator[Batch]:  # noqa: ARG002
        seed = 0 if rng is None else int(rng.integers(2**63))
        for owner in (self.loader, self.loader.sampler):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                generator.manual_seed(seed)
        for batch in self.loader:
            yield _pair(batch)


def adopt(data: Any, what: str) -> Records:
    """The records in `data`; `what` says in errors which data these are."""
    records = _records(data, what)
    if len(records) == 0:
        raise SiteDataError(
            f"there is no record in the {what} data",
            hint="look at the site's file, and at how the task splits it",
        )
    if isinstance(records, TensorRecords):
        _check_finite(records.inputs, f"the {what} data")
        _check_finite(records.targets, f"the labels of the {what} data")
    return records


def joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same records, with no batch of a single one unless there is only one: it is joined
    to a neighbour. BatchNorm cannot normalise over one record."""
    held: Batch | None = None
    single: Batch | None = None
    for batch in batches:
        whole = batch if single is None else _together(single, batch)
        single = whole if _size(whole) == 1 else None
        if single is not None:
            continue
        if held is not None:
            yield held
        held = whole
    if single is not None:
        held = single if held is None else _together(held, single)
    if held is not None:
        yield held


def joined_sizes(sizes: Iterable[int]) -> Iterator[int]:
    """How large the batches are that `joined` makes of batches of these sizes.

    >>> list(joined_sizes([4, 4, 1])), list(joined_sizes([1, 1, 1]))
    ([4, 5], [3])
    """
    held = single = 0
    for size in sizes:
        whole = single + size
        single = whole if whole == 1 else 0
        if single:
            continue
        if held:
            yield held
        held = whole
    yield held + single


def _together(first: Batch, second: Batch) -> Batch:
    inputs, targets = zip(first, second, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def _size(batch: Batch) -> int:
    return len(batch[0]) if isinstance(batch[0], Tensor) else 2  # unknown: leave it alone


def _records(data: Any, what: str) -> Records:
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise SiteDataError(
                f"the {what} data does not say how many records it has",
                hint="load from a Dataset that has __len__ and __getitem__",
            )
        return LoaderRecords(data)
    pair = _tensor_pair(data)
    if pair is not None:
        if len(pair[0]) != len(pair[1]):
            raise SiteDataError(
                f"the {what} data has {len(pair[0])} inputs and {len(pair[1])} targets"
            )
        return TensorRecords(*pair)
    strange = isinstance(data, tuple | dict | str | bytes | Tensor | np.ndarray)
    if strange or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        mend = "give it __len__ and __getitem__, or " if isinstance(data, Dataset) else ""
        raise TaskResultError(
            f"the {what} data is a {type(data).__name__}", hint=f"{mend}return {_KINDS}"
        )
    return DatasetRecords(data)


def _tensor_pair(data: Any) -> tuple[Tensor, Tensor] | None:
    """(inputs, targets) of data that lies in memory as a whole."""
    if isinstance(data, Subset):
        pair = _tensor_pair(data.dataset)
        index = torch.as_tensor(list(data.indices), dtype=torch.int64)
        return None if pair is None else (pair[0][index], pair[1][index])
    if type(data) is TensorDataset:  # a subclass may change what a record is
        return (data.tensors[0], data.tensors[1]) if len(data.tensors) == 2 else None
    if isinstance(data, tuple) and len(data) == 2:
        return as_tensor(data[0]), as_tensor(data[1])
    is_table = hasattr(data, "features") and hasattr(data, "labels")
    if is_table and not isinstance(data, Dataset):  # a data set of that form may do more
        return as_tensor(data.features), as_tensor(data.labels)
    return None


def as_tensor(values: Any) -> Tensor:
    """Numbers as a tensor: arrays of floats in torch's own float type, of integers in int64."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise SiteDataError(
            f"records are of type {array.dtype}, not numbers",
            hint="co.read_csv(..., categories=...) makes numbers of text",
        )
    is_float = array.dtype.kind == "f"
    return torch.tensor(array, dtype=torch.get_default_dtype() if is_float else torch.int64)


def _check_finite(values: Tensor, what: str) -> None:
    """Refuse missing values, saying how many there are, never which."""
    if not values.is_floating_point() or bool(torch.isfinite(values).all()):
        return
    bad = ~torch.isfinite(values)
    wide = bad.reshape(len(bad), -1) if bad.ndim < 2 else bad.flatten(0, -2)  # (rows, columns)
    columns = int(wide.any(0).sum())
    raise SiteDataError(
        f"{what}: {int(bad.sum())} of {bad.numel()} values are not finite, "
        f"in {columns} of {wide.shape[1]} columns",
        hint="fill or drop missing values before training",
    )


def _pair(batch: Any) -> Batch:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TaskResultError("a batch of the data is not a pair", hint="give (inputs, targets)")
    return batch[0], batch[1]
