"""How every benchmark reports: one JSON object a line, ours beside a named base."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
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
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    for line in measure():
        if as_json:
            print(json.dumps({**asdict(line), "ratio": round(line.ratio, 3)}), flush=True)
        else:
            print(
                f"{line.name:<28} {line.ours:>10.4g} {line.unit:<4} base {line.base:>10.4g}  "
                f"ratio {line.ratio:>6.2f}  {line.detail}",
                flush=True,
            )
