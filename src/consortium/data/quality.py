"""Is this site's data fit to train on? Asked before training, at the site (L10).

The report is for the people of the site and stays there: it has counts of their records.
`QualityReport.passed` and `QualityReport.code` are all that may leave. The code is the
first of a fixed order, so that it tells one thing and not a profile of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from consortium.data.table import MIN_RECORDS, Integers, Table
from consortium.errors import QualityError


class QualityCode(Enum):
    """What may leave the site; the gravest first. A code never changes its meaning."""

    PASSED = "Q00"
    SCHEMA = "Q01"
    TOO_FEW = "Q02"
    MISSING = "Q03"
    OUT_OF_RANGE = "Q04"
    CLASSES = "Q05"
    CONSTANT = "Q06"
    DUPLICATES = "Q07"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What a site's data must be. None leaves a thing unasked."""

    columns: tuple[str, ...] | None = None  # exactly these, in this order
    classes: int | None = None  # exactly so many
    min_records: int = MIN_RECORDS
    max_missing: float = 0.2  # share of a column
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # (least, most)
    min_class_share: float = 0.0  # 0: a class must be there, with one record at least
    may_lack_class: bool = False
    may_be_constant: bool = True  # one-hot columns of a small site often are
    max_duplicates: float = 0.5  # share of records that repeat another one


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was noticed. Only a serious one makes the data fail."""

    code: QualityCode
    text: str
    is_serious: bool = True


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Stays at the site, except for `passed` and `code`."""

    records: int = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)

    @property
    def passed(self) -> bool:
        return self.code is QualityCode.PASSED

    @property
    def code(self) -> QualityCode:
        """The gravest serious finding, or PASSED."""
        serious = [finding.code for finding in self.findings if finding.is_serious]
        return min(serious, key=lambda code: code.value, default=QualityCode.PASSED)

    def lines(self) -> list[str]:
        """The report as text, for people at the site."""
        verdict = "passed" if self.passed else "failed"
        head = f"{self.records} records: {verdict} ({self.code.value})"
        return [
            head,
            *(
                f"  {'FAIL' if finding.is_serious else 'note'} {finding.code.value} {finding.text}"
                for finding in self.findings
            ),
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def demand(self) -> None:
        """Raise unless the data passed. The site then sits the round out, and says only that
        its data was not fit."""
        if not self.passed:
            raise QualityError(
                f"the data failed its quality check ({self.code.value})",
                hint="consortium site check FILE --label NAME    # says what is wrong, at the site",
            )


def check_quality(table: Table, *, rules: Quality | None = None) -> QualityReport:
    """Look at all records of a site, read with `missing="keep"`.

    >>> table = Table(np.ones((9, 1), np.float32), np.arange(9) % 2, ("age",), ("no", "yes"))
    >>> report = check_quality(table, rules=Quality(columns=("age", "sex")))
    >>> report.passed, report.code.value
    (False, 'Q01')
    """
    asked = rules or Quality()
    found = [finding for check in _CHECKS for finding in check(table, asked)]
    return QualityReport(len(table), tuple(sorted(found, key=lambda each: each.code.value)))


def _schema(table: Table, rules: Quality) -> Iterator[Finding]:
    if rules.columns is not None and table.columns != rules.columns:
        absent = [name for name in rules.columns if name not in table.columns]
        extra = [name for name in table.columns if name not in rules.columns]
        if absent:
            yield Finding(QualityCode.SCHEMA, f"columns are missing: {', '.join(absent)}")
        if extra:
            yield Finding(QualityCode.SCHEMA, f"columns nobody asked for: {', '.join(extra)}")
        if not absent and not extra:
            yield Finding(QualityCode.SCHEMA, "the columns are in another order")
    if rules.classes is not None and table.n_classes != rules.classes:
        yield Finding(QualityCode.SCHEMA, f"{table.n_classes} classes instead of {rules.classes}")
    for name in rules.ranges:
        if name not in table.columns:
            yield Finding(QualityCode.SCHEMA, f"a range is given for `{name}`, which is not there")


def _too_few(table: Table, rules: Quality) -> Iterator[Finding]:
    if len(table) < rules.min_records:
        yield Finding(QualityCode.TOO_FEW, f"{len(table)} records, fewer than {rules.min_records}")


def _missing(table: Table, rules: Quality) -> Iterator[Finding]:
    counts = np.isnan(table.features).sum(axis=0)
    for name, count in zip(table.columns, counts.tolist(), strict=True):
        if count:
            share = count / len(table)
            text = f"`{name}` is missing in {count} records ({share:.1%})"
            yield Finding(QualityCode.MISSING, text, is_serious=share > rules.max_missing)


def _out_of_range(table: Table, rules: Quality) -> Iterator[Finding]:
    for name, (least, most) in rules.ranges.items():
        if name in table.columns:
            values = table.features[:, table.columns.index(name)]
            count = int(((values < least) | (values > most)).sum())  # NaN is neither
            if count:
                text = f"`{name}` is outside of {least:g} to {most:g} in {count} records"
                yield Finding(QualityCode.OUT_OF_RANGE, text)


def _classes(table: Table, rules: Quality) -> Iterator[Finding]:
    if table.classes is None or not len(table):
        return
    counts = np.bincount(_as_integers(table), minlength=table.n_classes)
    for name, count in zip(table.classes, counts.tolist(), strict=True):
        share = count / len(table)
        if not count:
            text = f"class `{name}` has no record"
            yield Finding(QualityCode.CLASSES, text, is_serious=not rules.may_lack_class)
        elif share < rules.min_class_share:
            text = f"class `{name}` has {count} records ({share:.1%})"
            yield Finding(QualityCode.CLASSES, text)


def _as_integers(table: Table) -> Integers:
    return table.labels.astype(np.int64)


def _constant(table: Table, rules: Quality) -> Iterator[Finding]:
    is_known = ~np.isnan(table.features)
    least = np.where(is_known, table.features, np.inf).min(axis=0, initial=np.inf)
    most = np.where(is_known, table.features, -np.inf).max(axis=0, initial=-np.inf)
    for name, is_constant in zip(table.columns, (least >= most).tolist(), strict=True):
        if is_constant:
            text = f"`{name}` is the same in all records that have it"
            yield Finding(QualityCode.CONSTANT, text, is_serious=not rules.may_be_constant)


def _duplicates(table: Table, rules: Quality) -> Iterator[Finding]:
    if not len(table):
        return
    # By bytes, so that NaN equals NaN; + 0.0 makes -0.0 the same as 0.0.
    rows = np.column_stack([table.features + np.float32(0), table.labels.astype(np.float64)])
    distinct = len({row.tobytes() for row in rows})
    count = len(table) - distinct
    if count:
        share = count / len(table)
        text = f"{count} records ({share:.1%}) repeat another one"
        yield Finding(QualityCode.DUPLICATES, text, is_serious=share > rules.max_duplicates)


_CHECKS: tuple[Callable[[Table, Quality], Iterator[Finding]], ...] = (
    _schema,
    _too_few,
    _missing,
    _out_of_range,
    _classes,
    _constant,
    _duplicates,
)
