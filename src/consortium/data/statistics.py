"""Feature statistics of all sites together, without anybody's records: pure functions.

A site computes three numbers a column; the records-weighted mean of them over sites gives
the pooled mean and spread. They are statistics of private data: sharing them is opt-in,
and whoever combines them sums securely or adds noise, over a minimum of sites (L10).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.data.table import Doubles, Floats, standardised
from consortium.data.whole_file import write_whole
from consortium.errors import MissingValuesError, SchemaError, SiteDataError

_FORMAT = "consortium/statistics/v1"
_KEYS = {"columns", "format", "mean", "records", "std"}
_MAX_FILE_BYTES = 1 << 24
MOMENTS = ("mean", "present", "square")


def local_moments(features: npt.NDArray[Any], centre: Doubles | None = None) -> dict[str, Doubles]:
    """Per column: the share of records that have a value (`present`), and the sums of the
    values (`mean`) and of their squares (`square`), both divided by *all* records.

    So weights are simply records, whatever is missing where. Values are taken relative to
    `centre`, a public typical value per column. Without one, spread that is small beside
    the mean is lost to rounding: with mean/std = 1000, six digits of the variance go, and
    in float32 all of them.
    """
    if features.ndim != 2 or not len(features):
        raise SiteDataError("moments need features of the shape (records, columns), not empty")
    values = features.astype(np.float64) - (0.0 if centre is None else centre)  # (n, f)
    is_present = ~np.isnan(values)
    known = np.where(is_present, values, 0.0)
    return {
        "mean": known.mean(axis=0),
        "present": is_present.mean(axis=0),
        "square": np.square(known).mean(axis=0),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Mean and (population) standard deviation of each column over `records` records."""

    columns: tuple[str, ...]
    mean: Doubles  # (f,)
    std: Doubles  # (f,)
    records: int

    def __post_init__(self) -> None:
        shape = (len(self.columns),)
        if self.mean.shape != shape or self.std.shape != shape or not self.columns:
            raise SiteDataError("statistics have one mean and one std for each column")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all()):
            raise SiteDataError("statistics have a number that is not finite")
        if (self.std < 0).any() or self.records < 1:
            raise SiteDataError("a std or the number of records is below what it can be")

    @classmethod
    def of(
        cls,
        columns: Sequence[str],
        moments: Mapping[str, Doubles],
        records: int,
        centre: Doubles | None = None,
    ) -> Statistics:
        """From moments averaged over sites with records as weights, and their common centre."""
        if set(moments) != set(MOMENTS):
            raise SiteDataError(f"moments are {', '.join(MOMENTS)}, and nothing else")
        present = moments["present"]
        if not (present > 0).all():  # written so that NaN is caught
            names = [name for name, share in zip(columns, present, strict=True) if not share > 0]
            raise MissingValuesError(
                f"no site has a value of {', '.join(names)}", hint="leave the column out"
            )
        shifted = moments["mean"] / present
        variance = np.maximum(moments["square"] / present - np.square(shifted), 0.0)
        mean = shifted + (0.0 if centre is None else centre)
        return cls(tuple(columns), mean, np.sqrt(variance), records)

    def apply(self, features: npt.NDArray[Any]) -> Floats:
        """The features in units of these statistics; a column without spread is shifted."""
        if features.ndim != 2 or features.shape[1] != len(self.columns):
            raise SchemaError(
                f"the statistics are of {len(self.columns)} columns, the features are not"
            )
        return standardised(features, self.mean, self.std)

    def save(self, path: Path) -> None:
        """Write them as JSON: equal statistics have equal bytes."""
        content = {
            "columns": list(self.columns),
            "format": _FORMAT,
            "mean": self.mean.tolist(),
            "records": self.records,
            "std": self.std.tolist(),
        }
        write_whole(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Statistics:
        """Read what `save` wrote; refuses everything else."""
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise SiteDataError(f"{path} is too large to be statistics")
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SiteDataError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise SiteDataError(f"{path} is not JSON") from None
        if not _is_statistics(content):
            raise SiteDataError(f"{path} is not a file of statistics in the form {_FORMAT}")
        mean, std = (np.array(content[key], np.float64) for key in ("mean", "std"))
        return cls(tuple(content["columns"]), mean, std, content["records"])


def _is_statistics(content: object) -> bool:
    if not isinstance(content, dict) or set(content) != _KEYS or content["format"] != _FORMAT:
        return False
    lists = [content[key] for key in ("columns", "mean", "std")]
    if not all(isinstance(values, list) for values in lists):
        return False
    has_names = all(isinstance(name, str) for name in lists[0])
    has_numbers = all(type(value) is float for value in [*lists[1], *lists[2]])
    return has_names and has_numbers and type(content["records"]) is int
