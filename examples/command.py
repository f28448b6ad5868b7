"""What the examples' commands have in common: where records come from, how errors look."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import consortium as co
from consortium.cli.report import render
from consortium.errors import DownloadError

Records = TypeVar("Records")


def options(text: str, *, seeds: int = 1, bundled: str = "") -> argparse.ArgumentParser:
    """The options that every example has; `bundled` says what --bundled runs on instead."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--seeds", type=int, default=seeds, help=f"how many (default {seeds})")
    parser.add_argument("--rounds", type=int, help="instead of the example's own")
    parser.add_argument("--json", action="store_true", help="one JSON object to stdout")
    if bundled:
        parser.add_argument("--folder", type=Path, help="where the publisher's files lie")
        parser.add_argument("--bundled", action="store_true", help=f"run on {bundled} instead")
    return parser


def records(
    load: Callable[[], Records], instead: Callable[[], Records], is_bundled: bool
) -> Records:
    """The published records; where the publisher cannot be reached, say so and how to go on."""
    if is_bundled:
        print("NOT the published records; instead:", instead.__doc__, file=sys.stderr)
        return instead()
    try:
        return load()
    except DownloadError as error:
        name = Path(sys.argv[0]).stem  # the example's own
        error.hint = f"{error.hint}; or: python -m examples.{name} --bundled"
        raise


def plan_of(text: str, rounds: int | None) -> co.Plan:
    """The example's plan, with another number of rounds if one is given."""
    plan = co.parse_plan(text)
    if not rounds:
        return plan
    federation = plan.federation.model_copy(update={"rounds": rounds})
    return plan.model_copy(update={"federation": federation})


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """A plain table: text to the left, numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[at]) for row in [list(header), *cells]) for at in range(len(header))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [list(header), *cells]
    )


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main(
    run: Callable[[argparse.Namespace], dict[str, Any]], parser: argparse.ArgumentParser
) -> None:
    """Run an example; its errors look like those of the `consortium` command."""
    arguments = parser.parse_args()
    try:
        told = run(arguments)
    except co.ConsortiumError as error:
        print(render(error), file=sys.stderr)
        sys.exit(error.exit_code)
    if arguments.json:
        print(json.dumps(told))
