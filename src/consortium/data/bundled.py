"""Small real data sets that scikit-learn carries: no network, nothing to fetch."""

from __future__ import annotations

from importlib import import_module
from typing import Literal

from consortium.data.table import Table, from_arrays
from consortium.errors import MissingExtraError, SiteDataError


def load_bundled(name: Literal["breast_cancer", "diabetes", "digits", "wine"]) -> Table:
    """569 × 30, 442 × 10 (a number to predict), 1,797 × 64 or 178 × 13 records."""
    if name not in ("breast_cancer", "diabetes", "digits", "wine"):
        raise SiteDataError(f"scikit-learn carries no data set `{name}` that is known here")
    try:
        bunch = getattr(import_module("sklearn.datasets"), f"load_{name}")()
    except ImportError:
        raise MissingExtraError(
            f"the records of `{name}` come with scikit-learn, which is not installed",
            hint="pip install 'consortium[examples]'",
        ) from None
    classes = None
    if hasattr(bunch, "target_names"):
        classes = [str(text) for text in bunch.target_names]
    columns = [str(text) for text in bunch.feature_names]
    return from_arrays(bunch.data, bunch.target, columns=columns, classes=classes)
