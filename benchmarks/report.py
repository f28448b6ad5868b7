"""How every benchmark reports: one JSON object a line, ours beside a named base."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """`ratio` is base ÷ ours, so that higher is better whatever the machine."""

    name: str
    ours: float
    base: float
    unit: str
    detail: str

    @property
    def ratio(self) -> float:
        return self.base / self.ours


def main(measure: Callable[[], Iterator[Line]], about: str | None) -> None:
    """Run a benchmark as `python -m benchmarks.NAME [--json]`."""
    show(measure(), as_json=parser(about).parse_args().json)


def parser(about: str | None) -> argparse.ArgumentParser:
    """What every benchmark understands; one that has more options adds them."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="one JSON object a line")
    return made


def show(lines: Iterable[Line], *, as_json: bool) -> None:
    """Print each line as soon as it is there."""
    for line in lines:
        if as_json:
            print(json.dumps({**asdict(line), "ratio": round(line.ratio, 3)}), flush=True)
        else:
            print(
                f"{line.name:<28} {line.ours:>10.4g} {line.unit:<4} base {line.base:>10.4g}  "
                f"ratio {line.ratio:>6.2f}  {line.detail}",
                flush=True,
            )
