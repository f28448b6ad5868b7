"""UCI Heart Disease: patients of four hospitals, the natural case of a federation.

Janosi, Steinbrunn, Pfisterer and Detrano (1989), *Heart Disease*, UCI Machine Learning
Repository, data set 45, https://doi.org/10.24432/C52P4X. Licence: CC BY 4.0.

Things to know: cholesterol 0 means not measured (all of Switzerland, part of VA); after
the missing values are gone, Switzerland has one patient without the disease among 46.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from consortium.data.fetch import Progress, Source, fetch, sums
from consortium.data.read import read_table
from consortium.data.table import Table

SOURCE = Source(
    name="heart_disease",
    url="https://archive.ics.uci.edu/static/public/45/heart+disease.zip",
    sha256=sums("""
        a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8  processed.cleveland.data
        d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796  processed.hungarian.data
        834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314  processed.switzerland.data
        e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f  processed.va.data
    """),
    instead="consortium.data.made_up_hospitals",
)

COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal"),
)
LABEL = "num"  # 0: no disease, 1 to 4: narrowing of the vessels
COMMON = COLUMNS[:10]  # slope, ca and thal are nearly always missing outside Cleveland
_CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}
_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

Form = Literal["numbers", "encoded", "raw"]


def load_heart(
    folder: str | Path | None = None, *, form: Form = "numbers", progress: Progress | None = None
) -> dict[str, Table]:
    """Hospital -> its patients; the label is 1 for any disease.

    `numbers` is FLamby's rule (Ogier du Terrail et al. 2022): without slope, ca and thal,
    then without records that miss something: 303, 261, 46 and 130 patients, 10 columns.
    `encoded` is the same with chest pain and ECG as columns of 0 and 1 (FLamby's own form
    leaves out the first of each). `raw` is all as published: 13 columns, 920 patients, NaN
    for missing, classes 0 to 4.
    """
    place = fetch(SOURCE, folder, progress=progress)
    return {
        hospital: _hospital(place / f"processed.{hospital}.data", form) for hospital in _HOSPITALS
    }


def _hospital(path: Path, form: Form) -> Table:
    header = (*COLUMNS, LABEL)
    if form == "raw":
        classes = {LABEL: ("0", "1", "2", "3", "4")}
        return read_table(path, label=LABEL, missing="keep", categories=classes, header=header)
    return read_table(
        path,
        label=LABEL,
        columns=COMMON,
        missing="drop",
        categories=_CATEGORIES if form == "encoded" else None,
        positive=lambda num: bool(num > 0),
        header=header,
    )
