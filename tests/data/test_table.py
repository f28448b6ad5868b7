"""Tables: what they refuse, and how they are split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.data import Table, from_arrays
from consortium.errors import SiteDataError


def table_of(labels: list[int], classes: int) -> Table:
    """One feature that numbers the records, so that they can be told apart."""
    features = np.arange(len(labels), dtype=np.float32).reshape(-1, 1)
    names = tuple(str(number) for number in range(classes))
    return Table(features, np.array(labels, np.int64), ("id",), names)


def ids(table: Table) -> list[int]:
    return [int(value) for value in table.features[:, 0]]


labels_and_share = st.tuples(
    st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0.0, 0.95)
)


@given(labels_and_share, st.integers(0, 5), st.booleans())
def test_split_puts_every_record_on_exactly_one_side(
    case: tuple[list[int], float], seed: int, stratify: bool
) -> None:
    train, test = table_of(case[0], 5).split(case[1], seed, stratify=stratify)
    assert sorted(ids(train) + ids(test)) == list(range(len(case[0])))


@given(labels_and_share)
def test_split_leaves_every_class_a_training_record(case: tuple[list[int], float]) -> None:
    train, _ = table_of(case[0], 5).split(case[1])
    assert set(train.labels.tolist()) == set(case[0])


def test_split_is_the_same_every_time() -> None:
    table = table_of([0, 1] * 20, 2)
    assert ids(table.split(0.25, seed=3)[1]) == ids(table.split(0.25, seed=3)[1])


def test_split_depends_on_the_seed() -> None:
    table = table_of([0, 1] * 20, 2)
    assert ids(table.split(0.25, seed=3)[1]) != ids(table.split(0.25, seed=4)[1])


def test_split_keeps_the_shares_of_classes() -> None:
    _, test = table_of([0] * 60 + [1] * 20, 2).split(0.25)
    assert np.bincount(test.labels).tolist() == [15, 5]


def test_split_of_numbers_gives_the_test_share() -> None:
    table = from_arrays(np.arange(40.0).reshape(-1, 1), np.linspace(0, 1, 40))
    train, test = table.split(0.3)
    assert (len(train), len(test)) == (28, 12)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_split_refuses_a_share_outside_of_its_range(share: float) -> None:
    with pytest.raises(SiteDataError, match="test share"):
        table_of([0] * 9, 1).split(share)


def test_scaled_shifts_a_constant_column_without_dividing_by_zero() -> None:
    table = from_arrays(np.full((8, 1), 5.0), np.arange(8) % 2)
    scaled = table.scaled(np.array([5.0]), np.array([0.0]))
    assert (scaled.features == 0).all()


def test_rows_takes_a_mask_or_numbers() -> None:
    table = table_of([0, 1, 2], 3)
    assert ids(table.rows(np.array([2, 0]))) == [2, 0]
    assert ids(table.rows(np.array([True, False, True]))) == [0, 2]


def test_arrays_of_floats_are_numbers_to_predict() -> None:
    table = from_arrays(np.zeros((8, 2)), np.linspace(0, 1, 8))
    assert (table.classes, table.n_classes, table.labels.dtype) == (None, 0, np.float32)


def test_arrays_get_names_for_columns_and_classes() -> None:
    table = from_arrays(np.zeros((8, 2)), np.arange(8) % 3)
    assert (table.columns, table.classes) == (("x0", "x1"), ("0", "1", "2"))


def test_a_class_that_a_site_lacks_is_counted_when_it_is_named() -> None:
    table = from_arrays(np.zeros((8, 1)), np.zeros(8, int), classes=["no", "yes"])
    assert table.n_classes == 2


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((7, 1)), np.zeros(7, int), "too few"),
        (np.zeros((8, 1)), np.zeros(9, int), "8 records of features, but 9 labels"),
        (np.zeros(8), np.zeros(8, int), "shape"),
        (np.zeros((8, 0)), np.zeros(8, int), "0 features"),
        (np.full((8, 1), np.inf), np.zeros(8, int), "`x0`.*infinite"),
        (np.full((8, 1), 1e300), np.zeros(8, int), "`x0`.*too large"),
        (np.full((8, 1), np.nan), np.zeros(8, int), "values are missing: x0 8"),
        (np.zeros((8, 1)), np.full(8, np.nan), "label is missing"),
        (np.zeros((8, 1)), np.full(8, -1), "not classes 0..k-1"),
        (np.zeros((8, 1)), np.full(8, 1000), "not classes 0..k-1"),
        (np.array([["secret"]] * 8), np.zeros(8, int), "not all numbers"),
        (np.zeros((8, 1)), np.array(["secret"] * 8), "not all numbers"),
        ([[1], [2, 3]], [0, 1], "not all numbers"),
    ],
)
def test_arrays_that_cannot_be_records_are_refused(x: object, y: object, message: str) -> None:
    with pytest.raises(SiteDataError, match=message) as caught:
        from_arrays(x, y)  # type: ignore[arg-type]  # on purpose
    assert "secret" not in str(caught.value)


def test_missing_values_are_kept_when_asked_for() -> None:
    table = from_arrays(np.full((8, 1), np.nan), np.zeros(8, int), missing="keep")
    assert np.isnan(table.features).all()


@pytest.mark.parametrize(
    ("features", "labels", "columns", "classes", "message"),
    [
        (np.zeros((2, 1)), np.zeros(2, np.int64), ("a",), ("0",), "float32"),
        (np.zeros((2, 2), np.float32), np.zeros(2, np.int64), ("a", "a"), ("0",), "one name"),
        (np.zeros((2, 1), np.float32), np.zeros(2, np.int64), ("a",), None, "labels are int64"),
        (np.zeros((2, 1), np.float32), np.ones(2, np.int64), ("a",), ("0",), "1 classes"),
    ],
)
def test_a_table_out_of_form_cannot_be_made(
    features: np.ndarray,
    labels: np.ndarray,
    columns: tuple[str, ...],
    classes: tuple[str, ...] | None,
    message: str,
) -> None:
    with pytest.raises(SiteDataError, match=message):
        Table(features, labels, columns, classes)


def test_a_split_by_record_moves_nobody_else() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(400, 3)), rng.integers(0, 2, 400)
    whole, less = from_arrays(x, y), from_arrays(x[1:], y[1:])

    def sides(table: Table) -> tuple[set[bytes], set[bytes]]:
        train, test = table.split(0.25, seed=3, by_record=True)
        assert not train.follows_records
        return {row.tobytes() for row in train.features}, {row.tobytes() for row in test.features}

    (train, test), (train_less, test_less) = sides(whole), sides(less)
    assert len((train ^ train_less) | (test ^ test_less)) == 1
    assert 0.15 < len(test) / 400 < 0.35
    assert whole.split(0.25, seed=3)[0].follows_records
    assert not whole.split(0.0)[0].follows_records
