"""The two little languages inside a plan: durations and conditions."""

from __future__ import annotations

import re

from consortium.core.terms import Comparison, Condition, ReportValue

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d|w)")
_CONDITION = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*(==|!=|<=|>=|<|>)\s*(\S.*)")
_COMPARISONS = {
    "==": Comparison.EQUAL,
    "!=": Comparison.UNEQUAL,
    "<": Comparison.LESS,
    "<=": Comparison.AT_MOST,
    ">": Comparison.GREATER,
    ">=": Comparison.AT_LEAST,
}


def parse_duration_ms(text: str) -> int:
    """Milliseconds in "500ms", "90s", "30m", "1h", "1d" or "2w".

    >>> parse_duration_ms("30m")
    1800000
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError('a duration is a whole number and a unit, such as "30m", "1h" or "1d"')
    return int(match[1]) * _UNIT_MS[match[2]]


def parse_condition(text: str) -> Condition:
    """A condition on what sites report.

    >>> parse_condition("memory_gb >= 16")
    Condition(name='memory_gb', comparison=<Comparison.AT_LEAST: 6>, value=16)
    """
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise ValueError('a condition is a name, a comparison and a value: "memory_gb >= 16"')
    return Condition(match[1], _COMPARISONS[match[2]], _value(match[3]))


def _value(text: str) -> ReportValue:
    text = text.strip().strip("'\"")
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", text):
        return float(text)
    return text
