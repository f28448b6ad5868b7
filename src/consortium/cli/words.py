"""Times, sizes and digests as people say them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_SHOWN = 12  # digits of a digest


def span(ms: int) -> str:
    """How long something takes.

    >>> [span(ms) for ms in (40, 3_200, 42_000, 125_000, 2_520_000, 18_600_000, 259_200_000)]
    ['0.04 s', '3.2 s', '42 s', '2 min 5 s', '42 min', '5 h 10 min', '3 d']
    """
    ms = max(ms, 0)
    if ms < 10 * _SECOND:
        return f"{ms / _SECOND:.2f} s" if ms < 100 else f"{ms / _SECOND:.1f} s"
    if ms < 100 * _SECOND:
        return f"{ms // _SECOND} s"
    if ms < 10 * _MINUTE:
        return _two(ms, (_MINUTE, "min"), (_SECOND, "s"))
    if ms < 100 * _MINUTE:
        return f"{ms // _MINUTE} min"
    if ms < 2 * _DAY:
        return _two(ms, (_HOUR, "h"), (_MINUTE, "min"))
    return _two(ms, (_DAY, "d"), (_HOUR, "h"))


def _two(ms: int, large: tuple[int, str], small: tuple[int, str]) -> str:
    count, rest = divmod(ms, large[0])
    more = f" {rest // small[0]} {small[1]}" if rest >= small[0] else ""
    return f"{count} {large[1]}{more}"


def until(at_ms: int, now_ms: int) -> str:
    """When something is, seen from now: `in 42 min`, `3 min ago`."""
    if at_ms > now_ms:
        return f"in {span(at_ms - now_ms)}"
    return ago(at_ms, now_ms)


def ago(at_ms: int | None, now_ms: int) -> str:
    """When something was, seen from now."""
    if at_ms is None:
        return "never"
    return "now" if now_ms - at_ms < 2 * _SECOND else f"{span(now_ms - at_ms)} ago"


def moment(at_ms: int | None) -> str:
    """A time by this machine's calendar."""
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M")


def size(count: int) -> str:
    """A number of bytes.

    >>> size(900), size(10_000_000), size(3_500_000_000)
    ('900 B', '10.0 MB', '3.5 GB')
    """
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def short(digest: str) -> str:
    """The beginning of a digest or a key: enough to compare by eye."""
    return f"{digest[:_SHOWN]}…" if len(digest) > _SHOWN else digest


def number(value: float) -> str:
    """A metric's value in ten columns or less."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"


def of_versions(versions: Iterable[int]) -> str:
    """Which versions scores are of: `of version 5`, `of versions 4 to 5`; empty for none."""
    known = sorted(set(versions))
    if len(known) < 2:
        return f"of version {known[0]}" if known else ""
    return f"of versions {known[0]} to {known[-1]}"


def plain(name: str) -> str:
    """A name from the core as words: `no_test_data` is `no test data`."""
    return name.lower().replace("_", " ")


def objection(code: str) -> str:
    """Why a site refuses to work: `E0311` is `E0311 not approved`."""
    from consortium.errors import every_error

    for kind in every_error():
        if kind.code == code:
            parts = re.findall("[A-Z][a-z0-9]*", kind.__name__.removesuffix("Error"))
            return f"{code} {' '.join(parts).lower()}"
    return code
