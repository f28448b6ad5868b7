"""The cross-site table: whose model works where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consortium.drive.alone import CrossSite

_MOST_SITES = 12  # columns that still fit a wide terminal
_WIDTH = 10


def cross_site_table(found: CrossSite) -> list[str]:
    """Rows: where a model was trained. Columns: where it was tried. `–`: it cannot be tried
    there, because the sites have different features."""
    shown = range(min(len(found.sites), _MOST_SITES))
    width = max(8, *(len(name) for name in found.sites)) + 1
    lines = [
        f"{found.metric}: trained at (down), tried at (across)",
        " " * width + "".join(f"{found.sites[at][: _WIDTH - 1]:>{_WIDTH}}" for at in shown),
    ]
    lines += [
        f"{found.sites[row]:<{width}}" + _cells([found.own[row][at] for at in shown])
        for row in shown
    ]
    lines.append(f"{'together':<{width}}" + _cells([found.common[at] for at in shown]))
    if len(found.sites) > _MOST_SITES:
        lines.append(f"(the first {_MOST_SITES} of {len(found.sites)} sites)")
    return lines


def _cells(values: Sequence[float | None]) -> str:
    return "".join(
        f"{'–':>{_WIDTH}}" if value is None else f"{value:>{_WIDTH}.4f}" for value in values
    )
