"""The quality report: what it finds, and that only a verdict and a code leave."""

from __future__ import annotations

import numpy as np
import pytest

from consortium.data import Quality, QualityCode, Table, check_quality


def good(records: int = 40) -> Table:
    rng = np.random.default_rng(0)
    features = rng.normal(50, 10, (records, 2)).astype(np.float32)
    return Table(features, np.arange(records) % 2, ("age", "dose"), ("no", "yes"))


def with_features(features: np.ndarray) -> Table:
    table = good(len(features))
    return Table(features.astype(np.float32), table.labels, table.columns, table.classes)


def with_gaps(count: int) -> Table:
    features = good().features.copy()
    features[:count, 1] = np.nan
    return with_features(features)


def with_labels(labels: list[int], classes: tuple[str, ...] = ("no", "yes")) -> Table:
    table = good(len(labels))
    return Table(table.features, np.array(labels, np.int64), table.columns, classes)


def repeated(share: float) -> Table:
    features, count = good().features.copy(), int(40 * share)
    features[: count + 2] = features[0]
    return with_features(features)


def test_good_data_passes_without_a_finding() -> None:
    report = check_quality(good(), rules=Quality(columns=("age", "dose"), classes=2))
    assert (report.passed, report.code, report.findings) == (True, QualityCode.PASSED, ())


@pytest.mark.parametrize(
    ("table", "rules", "code"),
    [
        (good(), Quality(columns=("age",)), QualityCode.SCHEMA),
        (good(), Quality(columns=("age", "dose", "sex")), QualityCode.SCHEMA),
        (good(), Quality(columns=("dose", "age")), QualityCode.SCHEMA),
        (good(), Quality(classes=3), QualityCode.SCHEMA),
        (good(), Quality(ranges={"weight": (0, 9)}), QualityCode.SCHEMA),
        (good(7), Quality(), QualityCode.TOO_FEW),
        (good(), Quality(min_records=41), QualityCode.TOO_FEW),
        (with_gaps(9), Quality(), QualityCode.MISSING),
        (good(), Quality(ranges={"age": (0, 50)}), QualityCode.OUT_OF_RANGE),
        (with_labels([0] * 40), Quality(), QualityCode.CLASSES),
        (with_labels([0] * 38 + [1] * 2), Quality(min_class_share=0.1), QualityCode.CLASSES),
        (with_features(np.ones((40, 2))), Quality(may_be_constant=False), QualityCode.CONSTANT),
        (repeated(0.6), Quality(max_duplicates=0.2), QualityCode.DUPLICATES),
    ],
)
def test_each_fault_fails_with_its_code(table: Table, rules: Quality, code: QualityCode) -> None:
    assert check_quality(table, rules=rules).code is code


@pytest.mark.parametrize(
    ("table", "rules", "code"),
    [
        (with_gaps(8), Quality(), QualityCode.MISSING),
        (with_labels([0] * 40), Quality(may_lack_class=True), QualityCode.CLASSES),
        (with_features(np.ones((40, 2))), Quality(max_duplicates=1.0), QualityCode.CONSTANT),
        (repeated(0.3), Quality(), QualityCode.DUPLICATES),
    ],
)
def test_a_small_fault_is_a_note_and_passes(
    table: Table, rules: Quality, code: QualityCode
) -> None:
    report = check_quality(table, rules=rules)
    assert report.passed and code in {finding.code for finding in report.findings}


@pytest.mark.parametrize(
    ("table", "rules"),
    [
        (with_gaps(3), Quality(ranges={"dose": (-1e6, 1e6)})),
        (with_labels([0] * 36 + [1] * 4), Quality(min_class_share=0.1)),
        (good(8), Quality()),
    ],
)
def test_what_is_at_the_limit_passes(table: Table, rules: Quality) -> None:
    assert check_quality(table, rules=rules).passed


def test_the_gravest_of_several_faults_gives_the_code() -> None:
    report = check_quality(with_gaps(20), rules=Quality(columns=("age",), min_records=99))
    assert report.code is QualityCode.SCHEMA
    assert {finding.code.value for finding in report.findings} >= {"Q01", "Q02", "Q03"}


def test_gaps_in_the_same_places_repeat_a_record() -> None:
    features = np.full((40, 2), np.nan)
    features[:, 0] = np.where(np.arange(40) % 2, 0.0, -0.0)
    report = check_quality(with_features(features), rules=Quality(max_missing=1.0))
    assert report.code is QualityCode.DUPLICATES


def test_a_column_without_any_value_is_constant() -> None:
    report = check_quality(with_gaps(40), rules=Quality(max_missing=1.0, may_be_constant=False))
    assert report.code is QualityCode.CONSTANT


def test_numbers_to_predict_have_no_classes_to_balance() -> None:
    table = good()
    numbers = Table(table.features, np.linspace(0, 1, 40, dtype=np.float32), table.columns, None)
    assert check_quality(numbers).passed


def test_no_records_at_all_are_too_few_and_nothing_breaks() -> None:
    assert check_quality(good().rows(np.zeros(40, bool))).code is QualityCode.TOO_FEW


def test_the_report_prints_one_line_a_finding_for_people() -> None:
    report = check_quality(with_gaps(9), rules=Quality(ranges={"age": (0, 200)}))
    assert str(report).splitlines() == [
        "40 records: failed (Q03)",
        "  FAIL Q03 `dose` is missing in 9 records (22.5%)",
    ]


def test_what_may_be_logged_of_a_report_has_no_findings() -> None:
    assert repr(check_quality(with_gaps(9))) == "QualityReport()"


def test_codes_are_distinct_and_in_order_of_gravity() -> None:
    values = [code.value for code in QualityCode]
    assert values == sorted(set(values))
