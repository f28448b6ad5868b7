"""A site's complete model at work on new records of its own (L12): nothing of it leaves.

A model that was trained on a table takes records with the table's columns, and scales them
as the table was scaled. Any other model takes the numbers as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.data.cells import Block, Encoder, numbers, one_hot, read_blocks
from consortium.data.table import Table, missing_values, standardised
from consortium.errors import SchemaError, SiteDataError

Numbers = npt.NDArray[Any]


def read_features(path: Path, table: Table | None) -> Numbers:
    """The records of a CSV file with a header, (n, f), as the model takes them. Other columns
    than the model's, such as the label, are left aside."""
    blocks = list(read_blocks(path, None))
    names = blocks[0].names
    wanted = names if table is None else table.columns
    encoders = [_encoder(names, column) for column in wanted]
    parts = [_encoded(block, encoders) for block in blocks if block.rows]
    if not parts:
        raise SiteDataError(f"there is no record in {path}")
    features = np.concatenate(parts)
    missing = np.isnan(features).sum(axis=0)
    if missing.any():
        raise missing_values(wanted, missing)
    if table is None or table.mean is None or table.std is None:
        return features.astype(np.float32)
    return standardised(features, table.mean, table.std)


def _encoder(names: tuple[str, ...], column: str) -> tuple[Encoder, int]:
    """How a column of the model comes from the file: as it is, or, for a category such as
    `sex=female`, as 0 or 1."""
    if column in names:
        return numbers, names.index(column)
    source, _, category = column.partition("=")
    if category and source in names:
        return one_hot([category]), names.index(source)
    raise SchemaError(f"the records have no column `{source}`, which the model takes")


def _encoded(block: Block, encoders: list[tuple[Encoder, int]]) -> Numbers:
    return np.hstack([encode(block, place) for encode, place in encoders])


def outputs_csv(outputs: Numbers, table: Table | None) -> str:
    """A line a record: the chance of each class, or one value."""
    columns = outputs.reshape(len(outputs), -1)
    classes = table.classes if table is not None else None
    names = [f"output_{number}" for number in range(1, columns.shape[1] + 1)]
    if classes is not None and len(classes) == columns.shape[1]:
        names = [_cell(name) for name in classes]
    rows = [",".join(repr(float(value)) for value in row) for row in columns]
    return "\n".join([",".join(names), *rows]) + "\n"


def _cell(text: str) -> str:
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if set(text) & set('",\n\r') else text
