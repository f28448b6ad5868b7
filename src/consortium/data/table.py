"""A site's records as arrays: features, labels, the names of both.

A `Table` is what every reader and loader here gives and what a task trains on. NaN means
missing, and is there only where it was asked for; infinity is never there. Messages name
columns, lines and counts, never a value: they may end up in a log that somebody sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from consortium.errors import (
    LabelError,
    MissingValuesError,
    NotANumberError,
    SchemaError,
    SiteDataError,
    TooFewRecordsError,
)

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Labels = Integers | Floats

MIN_RECORDS = 8
MAX_CLASSES = 1000  # whole numbers beyond this are counts or amounts, not classes


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Records of one site. Labels are classes 0..k-1 (int64), or numbers (float32) to be
    predicted, and then `classes` is None."""

    features: Floats  # (n, f)
    labels: Labels  # (n,)
    columns: tuple[str, ...]
    classes: tuple[str, ...] | None
    mean: Doubles | None = None  # what the features were scaled by, to scale new records alike
    std: Doubles | None = None
    # Whether cells were filled or scaled by numbers that come from these very records, or who is
    # among them depends on the others: then one record moves all others, and no clip hides it.
    follows_records: bool = False

    def __post_init__(self) -> None:
        _check_form(self)
        _check_content(self)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_features(self) -> int:
        return len(self.columns)

    @property
    def n_classes(self) -> int:
        """How many classes there are, here or elsewhere; 0 when the label is a number."""
        return len(self.classes or ())

    def rows(self, index: npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]) -> Table:
        """Some of the records, in the order of `index`."""
        return replace(self, features=self.features[index], labels=self.labels[index])

    def split(
        self, test: float = 0.25, seed: int = 0, *, stratify: bool = True, by_record: bool = False
    ) -> tuple[Table, Table]:
        """(training, test): every record on exactly one side, the same in every round.

        A seed and not a generator, because a record that trained in one round must not
        test in the next. Stratified, each class keeps its share on both sides as nearly
        as whole records allow; the only record of a class is a training record.

        With `by_record` each record's side follows from the record alone: one more or less
        changes no other's, as private training needs. Equal records are on one side, and the
        shares are only about right.
        """
        if not 0.0 <= test < 1.0:
            raise SiteDataError("the test share is from 0 up to, not including, 1")
        if by_record:
            is_test = _by_itself(self, test, seed)
            return self.rows(~is_test), self.rows(is_test)
        rng = np.random.default_rng(seed)
        if stratify and self.classes is not None:
            is_test = _stratified(self.labels, test, rng)
        else:
            is_test = np.zeros(len(self), bool)
            count = max(0, min(round(test * len(self)), len(self) - 1))
            is_test[rng.permutation(len(self))[:count]] = True
        train = self.rows(~is_test)
        return replace(train, follows_records=self.follows_records or test > 0), self.rows(is_test)

    def scaled(self, mean: Doubles, std: Doubles) -> Table:
        """(x - mean) / std by column; a column without spread is only shifted."""
        scaled = standardised(self.features, mean, std)
        return replace(self, features=scaled, mean=mean, std=std)


def standardised(features: npt.NDArray[Any], mean: Doubles, std: Doubles) -> Floats:
    """(x - mean) / std in float64, rounded once; where std is 0 it divides by 1."""
    spread = np.where(std > 0, std, 1.0)
    return ((features.astype(np.float64) - mean) / spread).astype(np.float32)


def from_arrays(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    missing: Literal["refuse", "keep"] = "refuse",
) -> Table:
    """A table of arrays that are already in memory, with the same checks as a file.

    Whole-number labels (an integer or boolean type) are classes 0..k-1; floats are numbers
    to predict. Give `classes` when a site may lack one that others have.

    >>> table = from_arrays(np.arange(16.0).reshape(8, 2), np.arange(8) % 2)
    >>> len(table), table.n_features, table.n_classes
    (8, 2, 2)
    """
    wide = _numbers(x, "features")
    with np.errstate(over="ignore"):  # the table refuses what became infinite
        features = wide.astype(np.float32)
    labels = np.asarray(y)
    if features.ndim != 2 or labels.ndim != 1:
        raise SiteDataError("features have the shape (records, columns) and labels (records,)")
    names = tuple(columns) if columns is not None else _names(features.shape[1])
    if labels.dtype.kind in "iub":
        known = tuple(classes) if classes is not None else class_names(labels.astype(np.int64))
        table = Table(features, labels.astype(np.int64), names, known)
    else:
        table = Table(features, _numbers(y, "labels").astype(np.float32), names, None)
    if missing == "refuse" and np.isnan(features).any():
        raise missing_values(names, np.isnan(features).sum(axis=0))
    check_enough(len(table))
    return table


def class_names(labels: Integers) -> tuple[str, ...]:
    """Names for classes that are only numbered: "0" to "k-1", by the largest seen."""
    top = int(labels.max()) if len(labels) else 0
    if len(labels) and (int(labels.min()) < 0 or top >= MAX_CLASSES):
        raise LabelError(
            f"the labels are whole numbers, but not classes 0..k-1 with k up to {MAX_CLASSES}",
            hint="give positive=, or categories= for the label, or target='number'",
        )
    return tuple(str(number) for number in range(top + 1))


def check_enough(records: int) -> None:
    if records < MIN_RECORDS:
        raise TooFewRecordsError(
            f"{records} usable records are too few; a site needs {MIN_RECORDS} or more",
            hint="leave the site out; missing='mean' keeps what missing='drop' left out",
        )


def missing_values(columns: Sequence[str], counts: npt.NDArray[Any]) -> SiteDataError:
    """The error for missing values, with the count of each column that has some."""
    found = [
        f"{name} {count}" for name, count in zip(columns, counts.tolist(), strict=True) if count
    ]
    return MissingValuesError(
        f"values are missing: {', '.join(found)}",
        hint="missing='drop' leaves such records out, missing='mean' fills in the site's mean",
    )


def _by_itself(table: Table, test: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which records test: those whose digest is low."""
    most, start = int(test * (1 << 64)), f"consortium/split/v1/{seed}/".encode()
    labels = table.labels.astype("<f8")
    digests = (
        sha256(start + row.tobytes() + label.tobytes()).digest()[:8]
        for row, label in zip(table.features.astype("<f4"), labels, strict=True)
    )
    return np.array([int.from_bytes(digest, "big") < most for digest in digests], bool)


def _stratified(labels: Labels, test: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which records test: each class gives its share, and never its last record."""
    groups = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    sizes = np.array([len(group) for group in groups], np.int64)
    exact = sizes * test
    taken = np.minimum(np.floor(exact).astype(np.int64), sizes - 1)
    wanted = round(float(test * len(labels)))
    for place in np.argsort(-(exact - taken), kind="stable"):  # by largest remainder
        if taken.sum() < wanted and taken[place] < sizes[place] - 1:
            taken[place] += 1
    is_test = np.zeros(len(labels), bool)
    for group, count in zip(groups, taken, strict=True):
        is_test[group[:count]] = True
    return is_test


def _check_form(table: Table) -> None:
    features, labels = table.features, table.labels
    if features.dtype != np.float32 or features.ndim != 2 or labels.ndim != 1:
        raise SiteDataError("a table has float32 features (n, f) and labels (n,)")
    if len(features) != len(labels):
        raise SiteDataError(f"{len(features)} records of features, but {len(labels)} labels")
    if features.shape[1] != len(table.columns) or not table.columns:
        raise SiteDataError(f"{features.shape[1]} features, but {len(table.columns)} names of them")
    if len(set(table.columns)) != len(table.columns):
        raise SchemaError("two columns have one name")
    if labels.dtype != (np.float32 if table.classes is None else np.int64):
        raise SiteDataError("labels are int64 when there are classes, and float32 when not")


def _check_content(table: Table) -> None:
    is_infinite = np.isinf(table.features).any(axis=0)
    if is_infinite.any():
        column = table.columns[int(np.flatnonzero(is_infinite)[0])]
        raise NotANumberError(f"column `{column}` has a number that is infinite or too large")
    labels = table.labels
    if table.classes is None:
        if not np.isfinite(labels).all():
            raise LabelError("a label is missing, infinite or too large")
    elif len(labels) and (labels.min() < 0 or labels.max() >= table.n_classes):
        raise LabelError(f"a label is not among the {table.n_classes} classes 0..k-1")


def _numbers(values: npt.ArrayLike, what: str) -> Doubles:
    try:
        return np.asarray(values).astype(np.float64)
    except (TypeError, ValueError):  # its text would show a value
        raise NotANumberError(f"the {what} are not all numbers, or the rows differ") from None


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"x{number}" for number in range(count))
