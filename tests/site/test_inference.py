"""New records as a site's model takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from consortium.data.table import Table
from consortium.errors import ConsortiumError
from consortium.site.inference import outputs_csv, read_features

COLUMNS = ("age", "sex=female", "sex=male")


def _table(classes: tuple[str, ...] | None = ("no", "yes"), scaled: bool = True) -> Table:
    labels = np.zeros(1, np.int64 if classes else np.float32)
    table = Table(np.zeros((1, 3), np.float32), labels, COLUMNS, classes)
    return table.scaled(np.array([50.0, 0.5, 0.5]), np.array([10.0, 0.5, 0.0])) if scaled else table


def _file(path: Path, text: str) -> Path:
    (path / "new.csv").write_text(text)
    return path / "new.csv"


def test_columns_are_found_by_name_and_scaled_as_the_table_was(tmp_path: Path) -> None:
    path = _file(tmp_path, "label,sex,age\n1,male,60\n0,female,40\n0,unknown,50\n")
    found = read_features(path, _table())
    assert found.dtype == np.float32
    assert found.tolist() == [[1.0, -1.0, 0.5], [-1.0, 1.0, -0.5], [0.0, -1.0, -0.5]]


def test_a_table_that_was_not_scaled_takes_numbers_as_they_are(tmp_path: Path) -> None:
    path = _file(tmp_path, "sex,age\nmale,60\n")
    assert read_features(path, _table(scaled=False)).tolist() == [[60.0, 0.0, 1.0]]


def test_without_a_table_every_column_is_taken(tmp_path: Path) -> None:
    path = _file(tmp_path, "a,b\n1,2\n3,4\n")
    assert read_features(path, None).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("sex\nmale\n", "E0209"),
        ("sex,age\nmale,\n", "E0208"),
        ("sex,age\n", "E0205"),
        ("sex,age\nmale,old\n", "E0207"),
        ("", "E0205"),
    ],
)
def test_records_that_do_not_fit_are_refused_without_a_value(
    tmp_path: Path, text: str, code: str
) -> None:
    with pytest.raises(ConsortiumError) as caught:
        read_features(_file(tmp_path, text), _table())
    assert caught.value.code == code and "old" not in caught.value.message


def test_outputs_are_named_for_their_classes() -> None:
    chances = np.array([[0.25, 0.75], [0.5, 0.5]])
    assert outputs_csv(chances, _table()) == "no,yes\n0.25,0.75\n0.5,0.5\n"
    assert outputs_csv(chances, _table(('a "b"', "c,d"))).startswith('"a ""b""","c,d"\n')
    assert outputs_csv(chances, None) == "output_1,output_2\n0.25,0.75\n0.5,0.5\n"
    assert outputs_csv(np.array([1.5, 2.0]), _table(None)) == "output_1\n1.5\n2.0\n"
