"""One screen of facts for people: a title, labelled lines, tables.

On a terminal it is as wide as the terminal and long lines are folded; in a pipe there is one
line a fact, and nothing is cut.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from consortium.cli.report import Voice, data, say

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. `right` names the columns of numbers; those and the `firm` ones never break."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: frozenset[str] = frozenset()
    firm: frozenset[str] = frozenset()

    def plain(self) -> list[str]:
        widths = [
            max(len(row[at]) for row in (self.header, *self.rows)) for at in range(len(self.header))
        ]
        return [self._line(row, widths) for row in (self.header, *self.rows)]

    def _line(self, row: tuple[str, ...], widths: list[int]) -> str:
        cells = [
            cell.rjust(width) if name in self.right else cell.ljust(width)
            for name, cell, width in zip(self.header, row, widths, strict=True)
        ]
        return "  ".join(cells).rstrip()

    def rich(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        for name in self.header:
            justify: Literal["left", "right"] = "right" if name in self.right else "left"
            no_wrap = name in self.right | self.firm
            table.add_column(name, justify=justify, no_wrap=no_wrap, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
        return table


# Words that have a colour; the word alone says it, too.
STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red", "revoked": "red"}


@dataclass(slots=True)
class Sheet:
    """What a command shows. Parts are separated by an empty line."""

    title: str = ""
    parts: list[list[tuple[str, str]] | Grid] = field(default_factory=list)

    def plain(self) -> list[str]:
        lines = [self.title] if self.title else []
        width = max((len(label) for label, _ in self._pairs()), default=0)
        for part in self.parts:
            if lines and (isinstance(part, Grid) or len(lines) > 1):
                lines.append("")
            if isinstance(part, Grid):
                lines += part.plain()
            else:
                lines += [f"{label:<{width}}  {text}".rstrip() for label, text in part]
        return lines

    def _pairs(self) -> list[tuple[str, str]]:
        return [pair for part in self.parts if not isinstance(part, Grid) for pair in part]

    def rich(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        width = max((len(label) for label, _ in self._pairs()), default=0)
        shown: list[RenderableType] = [Text(self.title, style="bold")] if self.title else []
        for part in self.parts:
            if shown and (isinstance(part, Grid) or len(shown) > 1):
                shown.append(Text(""))
            if isinstance(part, Grid):
                shown.append(part.rich())
                continue
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(width=width, no_wrap=True, style="dim")
            grid.add_column(overflow="fold")
            for label, text in part:
                grid.add_row(label, Text(text))
            shown.append(grid)
        return Group(*shown)


def terminal() -> Console | None:
    """The terminal that people look at; None where stdout is a pipe or a file."""
    if Voice.json or not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False)


def show(sheet: Sheet) -> None:
    """A sheet of data, to stdout."""
    console = terminal()
    if console is not None:
        console.print(sheet.rich())
        return
    for line in sheet.plain():
        data(line)


def tell(sheet: Sheet, talk: Callable[[str], None] = say) -> None:
    """A sheet of talk: to the terminal behind stderr, or line by line to `talk`."""
    if talk is say and not Voice.json and sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True, highlight=False).print(sheet.rich())
        return
    for line in sheet.plain():
        talk(line)
