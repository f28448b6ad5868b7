"""A site's CSV file as tables. `read_csv` is what a task calls; it reads, splits into
training and test, fills and scales, always by training records only.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from consortium.data.cells import (
    Block,
    Encoder,
    Positive,
    as_number,
    codes_of,
    encoders_of,
    is_missing,
    numbers,
    read_blocks,
    truth_of,
)
from consortium.data.statistics import Statistics, local_moments
from consortium.data.table import (
    Doubles,
    Labels,
    Table,
    check_enough,
    class_names,
    missing_values,
)
from consortium.errors import LabelError, SchemaError, SiteDataError

Scale = Literal["none", "site"] | Statistics | Mapping[str, tuple[float, float]]
Target = Literal["auto", "class", "number"]
_MAX_NAMES_SHOWN = 40


def read_csv(
    path: str | Path,
    *,
    label: str,
    columns: Sequence[str] | None = None,
    missing: Literal["refuse", "drop", "mean"] = "refuse",
    categories: Mapping[str, Sequence[str]] | None = None,
    positive: Positive | None = None,
    target: Target = "auto",
    scale: Scale = "none",
    test: float = 0.25,
    split: Literal["share", "record"] = "share",
    seed: int = 0,
    header: Literal[True] | Sequence[str] = True,
) -> tuple[Table, Table]:
    """(training, test) records of a CSV file; the same split in every round: with `test` of each
    class for testing, or `split="record"` by each record alone, which private training needs.

    Columns are numbers, or text whose `categories` are named: then they become columns of
    0 and 1 in that order, at every site alike. Empty cells, `?`, `NA` and `NaN` are
    missing: refused, or dropped with their record, or filled with the mean of the site's
    training records. `scale="site"` standardises by those too; `Statistics` by everybody's;
    `{"age": (50, 15)}` by a middle and a spread that you know, which tell nothing of any record:
    private training takes no other.

    The label: `positive` (a value, or a function of the cell) makes it 0 or 1; its
    `categories` make it classes; else whole numbers are classes 0..k-1 and others numbers
    to predict. Say `target="number"` for whole numbers to predict, and name the label's
    categories where a site may lack a class that others have.
    """
    _check_choice("missing", missing, ("refuse", "drop", "mean"))
    _check_choice("split", split, ("share", "record"))
    if isinstance(scale, str):
        _check_choice("scale", scale, ("none", "site"))
    table = read_table(
        path,
        label=label,
        columns=columns,
        missing="keep" if missing == "mean" else missing,
        categories=categories,
        positive=positive,
        target=target,
        header=header,
    )
    train, rest = table.split(test, seed, by_record=split == "record")
    if missing == "mean":
        train, rest = _filled(train, rest)
    return _scaled(train, rest, scale)


def read_table(
    path: str | Path,
    *,
    label: str,
    columns: Sequence[str] | None = None,
    missing: Literal["refuse", "drop", "keep"] = "refuse",
    categories: Mapping[str, Sequence[str]] | None = None,
    positive: Positive | None = None,
    target: Target = "auto",
    header: Literal[True] | Sequence[str] = True,
) -> Table:
    """All records of a CSV file in one table, neither split nor scaled.

    With `missing="keep"` missing features are NaN: for the quality check and for
    statistics. A missing label is never kept.
    """
    _check_choice("missing", missing, ("refuse", "drop", "keep"))
    _check_choice("target", target, ("auto", "class", "number"))
    parts = _Parts(label, columns, dict(categories or {}), positive)
    names = None if header is True else header
    read = _read(Path(path), parts, names)
    has_label = ~np.isnan(read.labels)
    is_whole = has_label & ~np.isnan(read.features).any(axis=1)
    counts = _missing_counts(read)
    if missing == "refuse" and counts.any():
        raise missing_values((*read.sources, label), counts)
    if missing == "keep" and not has_label.all():
        raise missing_values((label,), counts[-1:])
    kept = is_whole if missing == "drop" else has_label
    check_enough(int(kept.sum()))
    labels, classes = _labels(read.labels[kept], parts, target)
    with np.errstate(over="ignore"):  # the table refuses what became infinite
        features = read.features[kept].astype(np.float32)
    return Table(features, labels, read.columns, classes)


def _check_choice(name: str, given: object, known: tuple[str, ...]) -> None:
    """A misspelt option must not quietly mean another one."""
    if given not in known:
        listed = ", ".join(f'"{choice}"' for choice in known)
        raise SchemaError(f"{name}={given!r} is not known", hint=f"{name} is one of {listed}")


@dataclass(frozen=True, slots=True)
class _Parts:
    """Which columns of a file are wanted, and as what."""

    label: str
    columns: Sequence[str] | None
    categories: dict[str, Sequence[str]]
    positive: Positive | None

    def label_encoder(self) -> Encoder:
        if self.positive is not None:
            return truth_of(self.positive)
        if self.label in self.categories:
            return codes_of(self.categories[self.label])
        return numbers


@dataclass(frozen=True, slots=True)
class _Read:
    sources: tuple[str, ...]  # the file's columns that were taken, without the label
    widths: tuple[int, ...]  # how many columns each of them became
    columns: tuple[str, ...]
    features: Doubles  # (n, f)
    labels: Doubles  # (n,)


def _read(path: Path, parts: _Parts, header: Sequence[str] | None) -> _Read:
    blocks = read_blocks(path, header)
    first = next(blocks)
    sources = _wanted(path, first.names, parts)
    encoders = encoders_of(sources, parts.categories)
    label_encoder = parts.label_encoder()
    places = [first.names.index(name) for name in sources]
    label_place = first.names.index(parts.label)

    def encode(block: Block) -> tuple[Doubles, Doubles]:
        pieces = [
            encoder(block, place) for (encoder, _), place in zip(encoders, places, strict=True)
        ]
        return np.hstack(pieces), label_encoder(block, label_place)[:, 0]

    done = [encode(block) for block in (first, *blocks) if block.rows]
    columns = tuple(name for _, names in encoders for name in names)
    widths = tuple(len(names) for _, names in encoders)
    if not done:
        return _Read(sources, widths, columns, np.zeros((0, len(columns))), np.zeros(0))
    features, labels = (np.concatenate(part) for part in zip(*done, strict=True))
    _check_matches(parts, sources, widths, features, labels)
    return _Read(sources, widths, columns, features, labels)


def _check_matches(
    parts: _Parts,
    sources: tuple[str, ...],
    widths: tuple[int, ...],
    features: Doubles,
    labels: Doubles,
) -> None:
    """Categories and positive labels that no cell has are misspelt: refuse them."""
    if parts.positive is not None and not callable(parts.positive) and not (labels == 1).any():
        raise LabelError(
            f"no label in `{parts.label}` is what positive= says",
            hint="compare it with the file; if this site has no such record, give "
            "positive=lambda cell: ...",
        )
    at = 0
    for name, width in zip(sources, widths, strict=True):
        block = features[:, at : at + width]
        if name in parts.categories and not (block == 1).any() and not np.isnan(block).all():
            raise SchemaError(
                f"no cell in `{name}` is one of its categories",
                hint="write them as in the file, such as categories={'sex': ['female', 'male']}",
            )
        at += width


def _wanted(path: Path, names: tuple[str, ...], parts: _Parts) -> tuple[str, ...]:
    """The feature columns to take; refuses names that the file does not have."""
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            raise SchemaError(f"{path}: column {place + 1} has no name, or another one's")
    chosen = names if parts.columns is None else tuple(parts.columns)
    for name in (parts.label, *chosen):  # a column with categories may be at some sites only
        if name not in names:
            raise _no_column(path, name, names, is_label=name == parts.label)
    if parts.columns is not None and parts.label in chosen:
        raise SchemaError(f"`{parts.label}` is the label: it cannot be a feature too")
    features = tuple(name for name in chosen if name != parts.label)
    if not features or len(set(features)) != len(features):
        raise SchemaError("columns= needs at least one name, and each name once")
    return features


def _no_column(path: Path, name: str, names: Sequence[str], *, is_label: bool) -> SiteDataError:
    kind = LabelError if is_label else SchemaError
    message = f"{path} has no column `{name}`" + (" for the label" if is_label else "")
    if any(is_missing(known) or as_number(known) is not None for known in names):
        # Then line 1 is probably a record, and its cells must not be shown as names.
        return kind(message, hint="line 1 is no header? give the names: header=[...]")
    if len(names) == 1:
        return kind(message, hint="are its cells separated by something else? save it with commas")
    close = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(names[:_MAX_NAMES_SHOWN]) + (" …" if len(names) > _MAX_NAMES_SHOWN else "")
    return kind(
        f"{message}; it has {listed}",
        hint=f"did you mean {close[0]}?" if close else "give the name as in the file's first line",
    )


def _missing_counts(read: _Read) -> Doubles:
    """Records without a value, per source column and then for the label."""
    starts = np.cumsum((0, *read.widths[:-1]))
    by_column = np.isnan(read.features[:, starts]).sum(axis=0)
    return np.append(by_column, np.isnan(read.labels).sum()).astype(np.int64)


def _labels(
    values: Doubles, parts: _Parts, target: Target
) -> tuple[Labels, tuple[str, ...] | None]:
    if parts.positive is not None:
        return values.astype(np.int64), ("0", "1")
    if parts.label in parts.categories:
        return values.astype(np.int64), tuple(parts.categories[parts.label])
    is_whole = bool((values == np.floor(values)).all())
    if target == "number" or (target == "auto" and not is_whole):
        with np.errstate(over="ignore"):  # the table refuses what became infinite
            return values.astype(np.float32), None
    if not is_whole:
        raise LabelError(f"label `{parts.label}` has numbers that are no whole classes")
    labels = np.clip(values, -1, np.iinfo(np.int32).max).astype(np.int64)
    return labels, class_names(labels)


def _filled(train: Table, rest: Table) -> tuple[Table, Table]:
    """Missing features become the mean of the training records that have them."""
    moments = local_moments(train.features)
    means = Statistics.of(train.columns, moments, len(train)).mean.astype(np.float32)

    def fill(table: Table) -> Table:
        features = np.where(np.isnan(table.features), means, table.features)
        return Table(features, table.labels, table.columns, table.classes)

    return replace(fill(train), follows_records=True), fill(rest)


def _scaled(train: Table, rest: Table, scale: Scale) -> tuple[Table, Table]:
    if isinstance(scale, Statistics):
        _check_columns(scale, train)
        train, rest = (part.scaled(scale.mean, scale.std) for part in (train, rest))
        return replace(train, follows_records=True), rest  # these are among everybody's
    if isinstance(scale, Mapping):
        known = _known_scale(scale, train.columns)
        return train.scaled(*known), rest.scaled(*known)
    if scale == "none":
        return train, rest
    own = Statistics.of(train.columns, local_moments(train.features), len(train))
    train, rest = train.scaled(own.mean, own.std), rest.scaled(own.mean, own.std)
    return replace(train, follows_records=True), rest


def _known_scale(
    scale: Mapping[str, tuple[float, float]], columns: tuple[str, ...]
) -> tuple[Doubles, Doubles]:
    """Middle and spread of each column; one that is not named stays as it is."""
    strange = sorted(set(scale) - set(columns))
    if strange:
        raise SchemaError(
            f"scale names a column that is not read: `{strange[0]}`",
            hint=f"columns: {', '.join(columns[:_MAX_NAMES_SHOWN])}",
        )
    pairs = [scale.get(name, (0.0, 1.0)) for name in columns]
    middle, spread = (np.array(part, np.float64) for part in zip(*pairs, strict=True))
    if not np.isfinite(middle).all() or not (np.isfinite(spread) & (spread > 0)).all():
        raise SchemaError("a scale is a middle and a spread above zero, such as (50, 15)")
    return middle, spread


def _check_columns(statistics: Statistics, table: Table) -> None:
    if statistics.columns != table.columns:
        raise SchemaError(
            f"the statistics are of other columns: {len(statistics.columns)} of them, "
            f"the file gives {table.n_features}",
            hint="make them with the same columns= and categories=",
        )
