"""Reading a site's CSV file: what it gives, and what it says when it cannot."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortium.data import Statistics, Table, cells, local_moments, read_csv, read_table
from consortium.errors import LabelError, SchemaError, SiteDataError
from tests.data.made import csv_file, numbers_csv

CITIES = ("berlin", "ulm", "NA")


def with_gaps(folder: Path) -> Path:
    """Twelve records; `dose` is missing in the first three, in three ways of writing it."""
    doses = ["", "?", " nan ", *(str(number) for number in range(9))]
    rows = [f"{40 + n},{dose},{n % 2}" for n, dose in enumerate(doses)]
    return csv_file(folder, "age,dose,y\n" + "\n".join(rows))


def with_label(folder: Path, labels: list[str]) -> Path:
    return csv_file(folder, "a,y\n" + "\n".join(f"{n},{text}" for n, text in enumerate(labels)))


def test_reads_features_labels_and_their_names(tmp_path: Path) -> None:
    train, test = read_csv(numbers_csv(tmp_path), label="y")
    assert (len(train), len(test)) == (30, 10)
    assert (train.columns, train.classes) == (("age", "dose"), ("0", "1"))
    assert train.features.dtype == np.float32


def test_the_split_is_the_same_in_every_round(tmp_path: Path) -> None:
    path = numbers_csv(tmp_path)
    first, second = read_csv(path, label="y")[1], read_csv(path, label="y")[1]
    assert (first.features == second.features).all()


def test_columns_are_taken_in_the_order_asked_for(tmp_path: Path) -> None:
    table = read_table(numbers_csv(tmp_path), label="y", columns=["dose", "age"])
    assert table.columns == ("dose", "age")
    assert table.features[:, 1].min() > 10


def test_a_column_that_is_not_asked_for_may_hold_text(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "name,a,y\n" + "somebody,1,0\n" * 8)
    assert read_table(path, label="y", columns=["a"]).columns == ("a",)


def test_names_can_be_given_for_a_file_without_a_header(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "1,2,0\n" * 8)
    assert len(read_table(path, label="y", header=["a", "b", "y"])) == 8


def test_quotes_blank_lines_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = csv_file(tmp_path, '\ufeff"a",y\r\n\r\n' + '"1.5", 1\r\n' * 8)
    assert read_table(path, label="y").features[0, 0] == 1.5


def test_more_rows_than_a_block_are_all_read(tmp_path: Path) -> None:
    rows = 2 * cells._BLOCK_ROWS + 5
    path = csv_file(tmp_path, "a,y\n" + "".join(f"{n},{n % 2}\n" for n in range(rows)))
    assert read_table(path, label="y").features[:, 0].tolist() == list(range(rows))


def test_twenty_five_thousand_records_are_read_in_no_time(tmp_path: Path) -> None:
    """0.6 CPU-s where it was measured; 3 leaves room for a busy machine."""
    row = ",".join(f"{n}.25" for n in range(42))
    path = csv_file(
        tmp_path, ",".join([*(f"c{n}" for n in range(42)), "y"]) + "\n" + f"{row},1\n" * 25_000
    )
    start = time.process_time()
    table = read_table(path, label="y")
    assert (len(table), time.process_time() - start < 3.0) == (25_000, True)


# ---- categories ---------------------------------------------------------------------


def cities_csv(folder: Path) -> Path:
    names = ["ulm", "berlin", "paris", "", "NA", "ulm", "ulm", "ulm", "ulm"]
    return csv_file(folder, "city,y\n" + "".join(f"{name},0\n" for name in names))


def read_cities(folder: Path) -> Table:
    return read_table(cities_csv(folder), label="y", categories={"city": CITIES}, missing="keep")


def test_a_text_column_becomes_zeros_and_ones_in_the_order_given(tmp_path: Path) -> None:
    table = read_cities(tmp_path)
    assert table.columns == ("city=berlin", "city=ulm", "city=NA")
    assert table.features[:2].tolist() == [[0, 1, 0], [1, 0, 0]]


def test_an_unknown_category_is_all_zeros(tmp_path: Path) -> None:
    assert read_cities(tmp_path).features[2].tolist() == [0, 0, 0]


def test_a_missing_category_is_missing(tmp_path: Path) -> None:
    assert np.isnan(read_cities(tmp_path).features[3]).all()


def test_a_category_may_be_named_like_a_missing_value(tmp_path: Path) -> None:
    assert read_cities(tmp_path).features[4].tolist() == [0, 0, 1]


def test_a_missing_category_is_counted_once(tmp_path: Path) -> None:
    with pytest.raises(SiteDataError, match=r"values are missing: city 1$"):
        read_table(cities_csv(tmp_path), label="y", categories={"city": CITIES})


def test_a_number_is_its_category_however_it_is_written(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "pain,y\n" + "1.0,0\n" * 4 + "1,0\n" * 4)
    table = read_table(path, label="y", categories={"pain": ("1", "2")})
    assert table.features.tolist() == [[1, 0]] * 8


# ---- labels -------------------------------------------------------------------------


def test_whole_numbers_are_classes(tmp_path: Path) -> None:
    table = read_table(with_label(tmp_path, ["0", "2.0"] * 4), label="y")
    assert (table.labels.dtype, table.classes) == (np.int64, ("0", "1", "2"))


def test_other_numbers_are_to_be_predicted(tmp_path: Path) -> None:
    table = read_table(with_label(tmp_path, ["0.5", "2"] * 4), label="y")
    assert (table.labels.dtype, table.classes) == (np.float32, None)


def test_whole_numbers_can_be_asked_for_as_numbers(tmp_path: Path) -> None:
    table = read_table(with_label(tmp_path, ["112", "-3"] * 4), label="y", target="number")
    assert table.labels.tolist() == [112.0, -3.0] * 4


def test_text_labels_are_classes_by_their_categories(tmp_path: Path) -> None:
    path = with_label(tmp_path, ["ill", "well"] * 4)
    table = read_table(path, label="y", categories={"y": ("well", "ill")})
    assert (table.labels.tolist(), table.classes) == ([1, 0] * 4, ("well", "ill"))


def test_categories_of_the_label_count_a_class_that_is_not_here(tmp_path: Path) -> None:
    path = with_label(tmp_path, ["0", "1"] * 4)
    assert read_table(path, label="y", categories={"y": ("0", "1", "2")}).n_classes == 3


@pytest.mark.parametrize("positive", [3, "3", 3.0, lambda cell: cell == 3])
def test_positive_makes_a_binary_label(tmp_path: Path, positive: object) -> None:
    path = with_label(tmp_path, ["3", "3.0", "0", "well"] * 2)
    table = read_table(path, label="y", positive=positive)  # type: ignore[arg-type]  # one of its kinds
    assert (table.labels.tolist(), table.classes) == ([1, 1, 0, 0] * 2, ("0", "1"))


def test_positive_that_raises_shows_the_line_and_not_the_value(tmp_path: Path) -> None:
    def fragile(cell: object) -> bool:
        raise ValueError(f"secret {cell}")

    with pytest.raises(SiteDataError, match="line 2, column `y`: `positive` raised") as caught:
        read_table(with_label(tmp_path, ["77"] * 8), label="y", positive=fragile)
    assert "77" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["-1", "1"], {}, "not classes 0..k-1"),
        (["5000", "1e300"], {}, "not classes 0..k-1"),
        (["0.5", "1"], {"target": "class"}, "no whole classes"),
        (["77", "0"], {"categories": {"y": ("0", "1")}}, "line 2, column `y`: the label is not"),
        (["", "0"], {"missing": "keep"}, "values are missing: y 4"),
        (["", "0"], {"missing": "keep", "positive": 0}, "values are missing: y 4"),
        (["", "0"], {"missing": "keep", "categories": {"y": ("0",)}}, "values are missing: y 4"),
        (["1e300", "0.5"], {}, "label is missing, infinite or too large"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(
    tmp_path: Path, labels: list[str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(SiteDataError, match=message) as caught:
        read_table(with_label(tmp_path, labels * 4), label="y", **options)  # type: ignore[arg-type]  # several kinds
    assert "77" not in str(caught.value)


def test_a_positive_label_that_no_cell_has_is_refused(tmp_path: Path) -> None:
    path = with_label(tmp_path, ["ill", "well"] * 4)
    with pytest.raises(LabelError, match="no label in `y` is what positive= says") as caught:
        read_table(path, label="y", positive="Ill")
    assert caught.value.code == "E0206"
    assert not read_table(path, label="y", positive=lambda cell: cell == "Ill").labels.any()


def test_categories_that_no_cell_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="no cell in `city` is one of its categories") as caught:
        read_table(cities_csv(tmp_path), label="y", categories={"city": ["Ulm"]}, missing="keep")
    assert caught.value.code == "E0209"


def test_categories_of_a_column_that_only_other_sites_have_are_ignored(tmp_path: Path) -> None:
    categories = {"city": CITIES, "scanner": ["old", "new"]}
    table = read_table(cities_csv(tmp_path), label="y", categories=categories, missing="keep")
    assert table.columns == ("city=berlin", "city=ulm", "city=NA")


@pytest.mark.parametrize(
    ("options", "choices"),
    [
        ({"scale": "sites"}, '"none", "site"'),
        ({"missing": "fill"}, '"refuse", "drop", "mean"'),
        ({"target": "numbers"}, '"auto", "class", "number"'),
    ],
)
def test_a_misspelt_option_is_refused_with_the_choices(
    tmp_path: Path, options: dict[str, Any], choices: str
) -> None:
    (name,) = options
    with pytest.raises(SchemaError, match=f"^{name}='.*' is not known$") as caught:
        read_csv(numbers_csv(tmp_path), label="y", **options)
    assert (caught.value.code, caught.value.hint) == ("E0209", f"{name} is one of {choices}")


# ---- missing values and scale -------------------------------------------------------


def test_missing_values_are_refused_with_the_count_of_each_column(tmp_path: Path) -> None:
    with pytest.raises(SiteDataError, match=r"values are missing: dose 3$") as caught:
        read_csv(with_gaps(tmp_path), label="y")
    assert "missing='drop'" in caught.value.hint


def test_records_with_missing_values_are_dropped(tmp_path: Path) -> None:
    train, test = read_csv(with_gaps(tmp_path), label="y", missing="drop")
    assert len(train) + len(test) == 9


def test_missing_values_are_filled_from_training_records_only(tmp_path: Path) -> None:
    path = with_gaps(tmp_path)
    kept = read_table(path, label="y", missing="keep").split(0.25, 5)
    filled = read_csv(path, label="y", missing="mean", seed=5)
    mean = np.float32(np.nanmean(kept[0].features[:, 1], dtype=np.float64))
    for before, after in zip(kept, filled, strict=True):
        gaps = np.isnan(before.features)
        assert (after.features[gaps] == mean).all()
        assert (after.features[~gaps] == before.features[~gaps]).all()


def test_a_column_without_any_value_cannot_be_filled(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "a,b,y\n" + "1,,0\n" * 8)
    with pytest.raises(SiteDataError, match="value of b"):
        read_csv(path, label="y", missing="mean")


def test_too_few_usable_records_are_refused(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "a,y\n" + "1,0\n" * 7 + "?,0\n" * 9)
    with pytest.raises(SiteDataError, match="7 usable records are too few"):
        read_csv(path, label="y", missing="drop")


def test_a_file_with_a_header_only_has_too_few_records(tmp_path: Path) -> None:
    with pytest.raises(SiteDataError, match="0 usable records"):
        read_csv(csv_file(tmp_path, "a,y\n"), label="y")


def test_scale_of_the_site_is_that_of_its_training_records(tmp_path: Path) -> None:
    train, _ = read_csv(numbers_csv(tmp_path), label="y", scale="site")
    assert np.allclose(train.features.mean(axis=0), 0, atol=1e-6)  # float32 rounding
    assert np.allclose(train.features.std(axis=0), 1, atol=1e-6)


def test_common_statistics_scale_both_sides(tmp_path: Path) -> None:
    path = numbers_csv(tmp_path)
    plain = read_csv(path, label="y")
    statistics = Statistics(("age", "dose"), np.array([60.0, 0.5]), np.array([9.0, 0.3]), 99)
    scaled = read_csv(path, label="y", scale=statistics)
    for before, after in zip(plain, scaled, strict=True):
        assert (after.features == statistics.apply(before.features)).all()


def test_tables_say_what_they_were_scaled_by(tmp_path: Path) -> None:
    path = numbers_csv(tmp_path)
    plain = read_csv(path, label="y")
    assert (plain[0].mean, plain[0].std) == (None, None)
    scaled = read_csv(path, label="y", scale="site")
    mean, std = scaled[1].mean, scaled[1].std
    assert mean is not None and std is not None
    for before, after in zip(plain, scaled, strict=True):
        assert (before.scaled(mean, std).features == after.features).all()


def test_statistics_of_other_columns_are_refused(tmp_path: Path) -> None:
    other = Statistics.of(("a",), local_moments(np.arange(4.0).reshape(-1, 1)), 4)
    with pytest.raises(SiteDataError, match="of other columns"):
        read_csv(numbers_csv(tmp_path), label="y", scale=other)


# ---- what is wrong with a file ------------------------------------------------------


@pytest.mark.parametrize("cell", ["secret", "1_000", "1,5"])
def test_text_in_a_column_of_numbers_is_shown_by_line_and_never_by_value(
    tmp_path: Path, cell: str
) -> None:
    path = csv_file(tmp_path, "a,y\n" + "1,0\n" * 8 + f'"{cell}",0\n')
    with pytest.raises(SiteDataError, match=r"^line 10, column `a`: not a number$") as caught:
        read_csv(path, label="y")
    assert cell not in str(caught.value) + caught.value.hint


def test_an_absent_label_lists_the_columns_and_guesses(tmp_path: Path) -> None:
    with pytest.raises(SiteDataError, match=r"no column `dosis` .*age, dose, y") as caught:
        read_csv(numbers_csv(tmp_path), label="dosis")
    assert caught.value.hint == "did you mean dose?"


def test_a_first_line_that_is_a_record_is_not_shown(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "smith,42,1\n" * 9)
    with pytest.raises(SiteDataError) as caught:
        read_csv(path, label="y", header=True)
    assert "smith" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "is empty"),
        ("a,y\n1,0\n1,0,3\n", {}, "line 3 of .* has 3 cells instead of 2"),
        ("a,a,y\n1,1,0\n", {}, "column 2 has no name, or another one's"),
        (",y\n1,0\n", {}, "column 1 has no name"),
        ('a,y\n"1,0\n', {}, "line 2 of .* is not valid CSV"),
        ("a,y\ninf,0\n", {}, "line 2, column `a`: the number is infinite"),
        ("a,y\n1e300,0\n" * 1 + "1,0\n" * 8, {}, "`a` has a number that is infinite or too large"),
        ("a,y\n1,0\n", {"columns": []}, "at least one name"),
        ("a,y\n1,0\n", {"columns": ["a", "y"]}, "`y` is the label"),
        ("a,y\n1,0\n", {"columns": ["b"]}, "no column `b`; it has a, y"),
        ("y\n1\n", {}, "at least one name"),
    ],
)
def test_a_file_out_of_form_is_refused(
    tmp_path: Path, text: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(SiteDataError, match=message):
        read_csv(csv_file(tmp_path, text), label="y", **options)  # type: ignore[arg-type]  # several kinds


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteDataError, match=r"none\.csv cannot be read: No such file"):
        read_csv(tmp_path / "none.csv", label="y")


def test_a_file_that_is_not_text_is_refused_without_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "site.csv"
    path.write_bytes(b"a,y\n\xff\xfe,0\n")
    with pytest.raises(SiteDataError, match=r"not UTF-8 text$"):
        read_csv(path, label="y")


def test_a_file_over_the_limit_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "MAX_FILE_BYTES", 10)
    with pytest.raises(SiteDataError, match="larger than"):
        read_csv(numbers_csv(tmp_path), label="y")


def test_a_known_scale_follows_no_record(tmp_path: Path) -> None:
    path = numbers_csv(tmp_path)
    plain, _ = read_csv(path, label="y", split="record")
    name = plain.columns[0]
    train, rest = read_csv(path, label="y", split="record", scale={name: (2.0, 4.0)})
    assert np.allclose(train.features[:, 0], (plain.features[:, 0] - 2.0) / 4.0)
    assert np.array_equal(train.features[:, 1:], plain.features[:, 1:])
    assert not train.follows_records and not rest.follows_records
    assert read_csv(path, label="y", scale="site")[0].follows_records
    for wrong in ({"elsewhere": (0.0, 1.0)}, {name: (0.0, 0.0)}, {name: (np.nan, 1.0)}):
        with pytest.raises(SchemaError):
            read_csv(path, label="y", scale=wrong)
