"""Records in batches, whatever they come in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from consortium.data.table import Table
from consortium.errors import SiteDataError, TaskResultError
from consortium.torch.batches import (
    DatasetRecords,
    LoaderRecords,
    TensorRecords,
    adopt,
    as_tensor,
    joined,
)

X = np.arange(14, dtype=np.float32).reshape(7, 2)
Y = np.arange(7)


@dataclass
class TableLike:
    features: Any
    labels: Any


class Own(Dataset[Any]):
    features, labels = None, None  # as a table has them: a data set is read by its records

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield 1, 1


TENSORS = TensorDataset(torch.tensor(X), torch.tensor(Y))
FORMS = {
    "pair": ((X, Y), TensorRecords),
    "tensors": ((torch.tensor(X), torch.tensor(Y)), TensorRecords),
    "lists": ((X.tolist(), Y.tolist()), TensorRecords),
    "doubles": ((X.astype(float), Y.astype(np.int32)), TensorRecords),
    "table": (TableLike(X, Y), TensorRecords),
    "tensor data set": (TENSORS, TensorRecords),
    "subset": (Subset(Subset(TENSORS, range(7)), list(range(7))), TensorRecords),
    "data set": (Own(), DatasetRecords),
    "subset of a data set": (Subset(Own(), range(7)), DatasetRecords),
    "list of records": ([(X[i], int(Y[i])) for i in range(7)], DatasetRecords),
    "loader": (DataLoader(Own(), batch_size=3), LoaderRecords),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_batches(form: str) -> None:
    data, kind = FORMS[form]
    records = adopt(data, "training")
    assert isinstance(records, kind)
    assert len(records) == 7
    batches = list(records.batches(3, None))
    assert [len(x) for x, _ in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.tensor(X))
    assert torch.equal(torch.cat([y for _, y in batches]), torch.tensor(Y))
    assert batches[0][0].dtype == torch.float32


def test_our_own_tables_are_taken() -> None:
    x = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    table = Table(x, np.arange(9) % 2, ("age", "dose"), ("no", "yes"))
    records = adopt(table, "training")
    assert isinstance(records, TensorRecords)
    ((inputs, targets),) = records.batches(9, None)
    assert torch.equal(inputs, torch.tensor(x))
    assert targets.dtype == torch.int64


@pytest.mark.parametrize("form", ["pair", "data set"])
def test_shuffling_follows_the_generator(form: str) -> None:
    records = adopt(FORMS[form][0], "training")
    order = np.random.default_rng(1).permutation(7)
    batches = list(records.batches(3, np.random.default_rng(1)))
    assert torch.cat([y for _, y in batches]).tolist() == order.tolist()
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.tensor(X[order]))


def test_a_shuffling_loader_repeats_itself_when_the_generator_does() -> None:
    generator = torch.Generator().manual_seed(3)
    records = adopt(DataLoader(Own(), batch_size=3, shuffle=True, generator=generator), "training")
    one, two, other = (
        torch.cat([y for _, y in records.batches(99, np.random.default_rng(seed))]).tolist()
        for seed in (1, 1, 2)
    )
    assert one == two != other


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (5, "is a int"),
        ("data.csv", "is a str"),
        (X, "is a ndarray"),
        ((X, Y, Y), "is a tuple"),
        (Endless(), "is a Endless"),
        (None, "is a NoneType"),
    ],
)
def test_what_holds_no_records_is_refused(data: Any, says: str) -> None:
    with pytest.raises(TaskResultError, match=says) as caught:
        adopt(data, "training")
    assert "DataLoader" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ((X, Y[:3]), "7 inputs and 3 targets"),
        ((X[:0], Y[:0]), "no record in the test data"),
        ((np.array([["a"]]), Y[:1]), "not numbers"),
        (DataLoader(Endless()), "does not say how many"),
    ],
)
def test_data_that_cannot_be_used_is_refused(data: Any, says: str) -> None:
    with pytest.raises(SiteDataError, match=says):
        adopt(data, "test")


def test_missing_values_are_counted_and_never_shown() -> None:
    x = X.copy()
    x[[0, 3], 1], x[2, 1] = np.nan, np.inf
    with pytest.raises(SiteDataError) as caught:
        adopt((x, Y), "training")
    assert (
        caught.value.message
        == "the training data: 3 of 14 values are not finite, in 1 of 2 columns"
    )
    with pytest.raises(SiteDataError, match="labels of the test data: 1 of 7 values"):
        adopt((X, np.array([np.nan, *range(6)])), "test")
    windows = np.zeros((3, 4, 5))
    windows[1, 2, 3] = windows[0, 0, 0] = np.nan
    with pytest.raises(SiteDataError, match="2 of 60 values are not finite, in 2 of 5 columns"):
        adopt((windows, np.zeros(3)), "training")


def test_a_batch_that_is_no_pair_is_refused() -> None:
    with pytest.raises(TaskResultError, match="not a pair"):
        list(adopt([1.0, 2.0, 3.0], "training").batches(2, None))


def test_numbers_keep_their_meaning() -> None:
    assert as_tensor(np.array([True, False])).dtype == torch.int64
    assert as_tensor(np.zeros(2, np.float16)).dtype == torch.float32
    assert as_tensor(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64


@given(st.lists(st.integers(1, 4), max_size=8))
def test_joined_batches_hold_the_same_records_and_no_single_one(sizes: list[int]) -> None:
    numbers = iter(torch.arange(sum(sizes)))
    batches = [(torch.stack([next(numbers) for _ in range(size)]),) * 2 for size in sizes]
    result = list(joined(batches))
    assert [int(i) for x, _ in result for i in x] == list(range(sum(sizes)))
    assert all(len(x) > 1 for x, _ in result) or sum(sizes) == 1
    if 1 not in sizes:
        assert [len(x) for x, _ in result] == sizes
