"""From the cells of a CSV file to numbers, block by block, so that memory stays bounded.

Text is not trusted: a cell is a number, a missing value, a category that was named
beforehand, or an error that gives column and line. A cell's own text is never in a
message, because the message may leave the site in a log.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consortium.data.table import Doubles
from consortium.errors import NotANumberError, SiteDataError

MAX_FILE_BYTES = 2 << 30
_BLOCK_ROWS = 8192
_MISSING = frozenset({"", "?", "na", "nan"})

Positive = Callable[[Any], bool] | str | float  # Any: the cell as a number where it is one
Encoder = Callable[["Block", int], Doubles]  # (block, place of the column) -> (n, width)


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a file, with the number of the line that each ends on."""

    names: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def cells(self, place: int) -> list[str]:
        return [row[place] for row in self.rows]

    def wrong(self, place: int, row: int, what: str, hint: str = "") -> SiteDataError:
        """An error that points at a cell without showing it."""
        return NotANumberError(
            f"line {self.lines[row]}, column `{self.names[place]}`: {what}", hint=hint
        )


def is_missing(cell: str) -> bool:
    return cell.strip().casefold() in _MISSING


def as_number(cell: str) -> float | None:
    """The number that a cell is, or None. `1_000` is Python's way to write, not data's."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def read_blocks(path: Path, header: Sequence[str] | None) -> Iterator[Block]:
    """The rows of a CSV file; `header` names its columns when its first line does not."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SiteDataError(
                f"{path} is larger than {MAX_FILE_BYTES >> 30} GiB",
                hint="split it, or give the task arrays with consortium.data.from_arrays",
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _blocks(path, csv.reader(file, strict=True), header)
    except OSError as error:
        raise SiteDataError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:  # its text would show bytes of the file
        raise SiteDataError(f"{path} is not UTF-8 text", hint="save it as CSV, UTF-8") from None


def _blocks(path: Path, reader: Any, header: Sequence[str] | None) -> Iterator[Block]:
    # Any: the type of csv.reader has no public name.
    names = tuple(header) if header is not None else None
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if not row:
                continue  # an empty line
            if names is None:
                names = tuple(cell.strip() for cell in row)
                continue
            if len(row) != len(names):
                counts = f"{len(row)} cells instead of {len(names)}"
                raise SiteDataError(
                    f"line {reader.line_num} of {path} has {counts}",
                    hint='a cell with a comma in it needs quotes: "3,5"',
                )
            rows.append(row)
            lines.append(reader.line_num)
            if len(rows) == _BLOCK_ROWS:
                yield Block(names, rows, lines)
                rows, lines = [], []
    except csv.Error:
        raise SiteDataError(f"line {reader.line_num} of {path} is not valid CSV") from None
    if names is None:
        raise SiteDataError(
            f"{path} is empty", hint="line 1 has the names of the columns, then one record a line"
        )
    yield Block(names, rows, lines)  # perhaps without rows: it still carries the names


def numbers(block: Block, place: int) -> Doubles:
    """A column of numbers, (n, 1); missing is NaN."""
    cells = block.cells(place)
    try:
        values = np.array(list(map(float, cells)), np.float64)
        is_plain = "_" not in "".join(cells)
    except ValueError:
        is_plain = False
    if not is_plain:
        values = np.array([_number(block, place, row, cell) for row, cell in enumerate(cells)])
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise block.wrong(place, row, "the number is infinite", hint="leave it empty: missing")
    return values.reshape(-1, 1).astype(np.float64)


def _number(block: Block, place: int, row: int, cell: str) -> float:
    value = np.nan if is_missing(cell) else as_number(cell)
    if value is None:
        name = block.names[place]
        raise block.wrong(
            place,
            row,
            "not a number",
            hint=f"name its categories: categories={{'{name}': [...]}}; leave a feature out with "
            "columns=[...]; say positive=... if it is the label",
        )
    return value


def one_hot(categories: Sequence[str]) -> Encoder:
    """Columns of 0 and 1 in the given order, (n, k); unknown is all 0, missing all NaN."""
    find = _finder(categories)
    # One row per category, then one for unknown and one for missing.
    patterns = np.vstack(
        [np.eye(len(categories)), np.zeros(len(categories)), np.full(len(categories), np.nan)]
    )

    def encode(block: Block, place: int) -> Doubles:
        codes = {cell: find(cell) for cell in set(block.cells(place))}
        return patterns[[codes[cell] for cell in block.cells(place)]]

    return encode


def codes_of(categories: Sequence[str]) -> Encoder:
    """The place of each label among its classes, (n, 1); unknown is refused."""
    find = _finder(categories)

    def encode(block: Block, place: int) -> Doubles:
        codes = {cell: find(cell) for cell in set(block.cells(place))}
        found = np.array([codes[cell] for cell in block.cells(place)], np.float64)
        if (found == len(categories)).any():
            row = int(np.flatnonzero(found == len(categories))[0])
            raise block.wrong(
                place,
                row,
                "the label is not among the categories given for it",
                hint="name every class that any site has, at all sites alike",
            )
        return np.where(found > len(categories), np.nan, found).reshape(-1, 1)

    return encode


def _finder(categories: Sequence[str]) -> Callable[[str], int]:
    """Category of a cell: k for unknown, k + 1 for missing. "1.0" is the category "1"."""
    texts = {text: place for place, text in enumerate(categories)}
    pairs = [(as_number(text), place) for place, text in enumerate(categories)]
    values = {value: place for value, place in pairs if value is not None}

    def find(cell: str) -> int:
        text = cell.strip()
        if text in texts:
            return texts[text]
        if is_missing(text):
            return len(categories) + 1
        value = as_number(text)
        return len(categories) if value is None else values.get(value, len(categories))

    return find


def truth_of(positive: Positive) -> Encoder:
    """1 where the label is positive, (n, 1): by a function of the cell, or by equality."""
    if callable(positive):
        judge = positive
    else:
        find = _finder([str(positive)])

        def judge(cell: Any) -> bool:  # Any: a number where the cell is one
            return find(str(cell)) == 0

    def encode(block: Block, place: int) -> Doubles:
        cells = block.cells(place)
        first = {cell: row for row, cell in reversed(list(enumerate(cells)))}
        known = {cell: _judged(judge, block, place, row) for cell, row in first.items()}
        return np.array([known[cell] for cell in cells], np.float64).reshape(-1, 1)

    return encode


def _judged(judge: Callable[[Any], bool], block: Block, place: int, row: int) -> float:
    cell = block.rows[row][place].strip()
    if is_missing(cell):
        return np.nan
    value = as_number(cell)
    try:
        return float(bool(judge(cell if value is None else value)))
    except Exception as error:  # the user's own code: it may raise anything, with the value
        raise block.wrong(
            place, row, f"`positive` raised {type(error).__name__} on this label"
        ) from None


def encoders_of(
    names: Sequence[str], categories: Mapping[str, Sequence[str]]
) -> list[tuple[Encoder, tuple[str, ...]]]:
    """For each column: how it is encoded, and what the columns are called that come of it."""
    return [
        (one_hot(categories[name]), tuple(f"{name}={text}" for text in categories[name]))
        if name in categories
        else (numbers, (name,))
        for name in names
    ]
