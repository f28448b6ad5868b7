"""Run every long campaign at its full size, and write down what came out.

    python scripts/soak.py            # hours: all of them
    python scripts/soak.py crash cuts # only these

A campaign is a command that ends with 0 when nothing was violated. One that fails does not
stop the others. After each of them docs/reference/soak.json has its newest result, and
docs/reference/soak.md all of them; each says which commit was tried, so run it on a clean one.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "reference" / "soak.json"
PAGE = KEPT.with_suffix(".md")
_TESTING = "consortium.testing"
_MOST_LINES, _WIDTH = 16, 140

# name -> arguments of `python`; sizes are the goals of a full campaign.
CAMPAIGNS: dict[str, tuple[str, ...]] = {
    "explore": ("-m", f"{_TESTING}.explore", "--clean-only"),
    "explore-planted": ("-m", f"{_TESTING}.explore", "--planted"),
    "world": ("-m", f"{_TESTING}.world", "--seeds", "10000", "--json"),
    "world-async": ("-m", f"{_TESTING}.world", "--seeds", "1000", "--asynchronous", "--json"),
    "world-budgets": ("-m", f"{_TESTING}.world", "--seeds", "1000", "--budgets", "--json"),
    "world-masked": ("-m", f"{_TESTING}.world", "--seeds", "1000", "--masked", "--json"),
    "world-planted": ("-m", f"{_TESTING}.world", "--planted"),
    "crash": ("-m", f"{_TESTING}.crash"),
    "crash-coordinator": ("-m", f"{_TESTING}.crash_network", "--who", "coordinator"),
    "crash-agent": ("-m", f"{_TESTING}.crash_network", "--who", "agent"),
    "crash-coordinator-masked": (
        "-m",
        f"{_TESTING}.crash_network",
        "--masked",
        "--who",
        "coordinator",
    ),
    "crash-agent-masked": ("-m", f"{_TESTING}.crash_network", "--masked", "--who", "agent"),
    "crash-whole": ("-m", f"{_TESTING}.crash_network.whole", "--points", "10"),
    "power-cut": ("-m", f"{_TESTING}.power_cut"),
    "kill-loop": ("-m", f"{_TESTING}.kill_loop", "--cycles", "120"),
    "cuts": ("-m", f"{_TESTING}.cuts", "--cuts", "500"),
    "crowd": ("-m", f"{_TESTING}.crowd", "--sites", "300", "--uploads", "100"),
    "half-open": ("-m", f"{_TESTING}.half_open", "--silent", "5000", "--json"),
    "hostile": ("-m", f"{_TESTING}.hostile"),
    "hostile-large": ("-m", f"{_TESTING}.hostile", "--size", "17000000"),
    "joins": ("-m", f"{_TESTING}.joins", "--runs", "20", "--joiners", "50"),
    "tamper": ("-m", f"{_TESTING}.tamper"),
    "replay": ("-m", f"{_TESTING}.replay", "--shuffles", "200", "--fresh", "10"),
    "secure-dropouts": (
        "-m",
        f"{_TESTING}.secure_dropouts",
        *("--every", "3", "--every", "4", "--every", "5", "--every", "6"),
        *("--random", "200", "--sites", "100"),
    ),
    "remove-checks": ("-m", "scripts.remove_checks"),
    "openapi": ("-m", "pytest", "tests/coordinator/test_openapi_cases.py"),
    "parsers": ("-m", "pytest", "tests/test_fuzz.py"),
    "slow-tests": ("-m", "pytest", "-m", "slow", "tests"),
}


@dataclass(frozen=True, slots=True)
class Ran:
    """How one campaign went."""

    name: str
    seconds: int
    code: int
    said: tuple[str, ...]  # its last lines
    commit: str
    at: str

    @property
    def row(self) -> str:
        result = "0 violations" if self.code == 0 else f"**failed ({self.code})**"
        link = f"[{self.name}](#{self.name})"
        return f"| {link} | {self.at} | `{self.commit}` | {self.seconds:,} | {result} |"

    @property
    def section(self) -> tuple[str, ...]:
        command = f"`python {' '.join(CAMPAIGNS[self.name])}`"
        return f"## {self.name}", "", command, "", "```text", *self.said, "```", ""


def run(name: str) -> Ran:
    """One campaign to its end; what it prints is shown as it comes."""
    begun, said, commit = time.monotonic(), list[str](), _commit()
    environment = os.environ | {"HYPOTHESIS_PROFILE": "soak"}
    with subprocess.Popen(
        [sys.executable, *CAMPAIGNS[name]],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line.rstrip())
    seconds = round(time.monotonic() - begun)
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    return Ran(name, seconds, process.returncode, _last(said), commit, at)


def _last(said: Sequence[str]) -> tuple[str, ...]:
    """What a page can bear of it: the last lines, and of JSON what is counted."""
    whole = _json("\n".join(said))
    if whole is None:
        lines = [line[:_WIDTH] for line in said if line]
        return tuple(lines[-_MOST_LINES:])
    found = []
    for key, value in whole.items():
        if isinstance(value, dict) and all(isinstance(one, int) for one in value.values()):
            found.append(f"{key}: {sum(value.values()):,} of {len(value)} kinds")
        elif isinstance(value, list):
            found.append(f"{key}: {len(value)}")
        elif isinstance(value, int | float | str):
            found.append(f"{key}: {value:,}" if type(value) is int else f"{key}: {value}"[:_WIDTH])
    return tuple(found[-_MOST_LINES:])


def _json(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def keep(new: Ran) -> None:
    """Put a result among the others, and write the page."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else []
    known = [Ran(**one | {"said": tuple(one["said"])}) for one in kept]
    newest = {one.name: one for one in (*known, new)}
    ran = [newest[name] for name in CAMPAIGNS if name in newest]
    KEPT.write_text(json.dumps([asdict(one) for one in ran], indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(ran), encoding="utf-8")


def page(ran: Sequence[Ran]) -> str:
    where = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    lines = [
        "# The last full campaigns",
        "",
        "Written by `make soak` (`scripts/soak.py`), the newest run of each; sizes are in the",
        "commands, and seeds begin at 0 unless they say otherwise. What each campaign looks for is",
        "told in its module and in the [threat model](../explanation/threat-model.md). Planted",
        "bugs count as violations when they are *not* found.",
        "",
        f"{where}, Python {platform.python_version()}; times are UTC. Not run yet: "
        f"{', '.join(sorted(set(CAMPAIGNS) - {one.name for one in ran})) or 'none'}.",
        "",
        "| campaign | ended | commit | seconds | result |",
        "|---|---|---|---|---|",
        *(one.row for one in ran),
        "",
        *(line for one in ran for line in one.section),
    ]
    return "\n".join(lines)


def _commit() -> str:
    kept = {str(path.relative_to(ROOT)) for path in (KEPT, PAGE)}
    changed = {line[3:] for line in _git("status", "--porcelain", "-uno").splitlines()} - kept
    return _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.rstrip()


def main(names: Sequence[str]) -> int:
    unknown = set(names) - set(CAMPAIGNS)
    if unknown:
        print(f"no campaign {', '.join(sorted(unknown))}; there are: {', '.join(CAMPAIGNS)}")
        return 2
    is_clean = True
    for name in names or CAMPAIGNS:
        print(f"\n---- {name}: python {' '.join(CAMPAIGNS[name])}", flush=True)
        ran = run(name)
        keep(ran)
        is_clean = is_clean and ran.code == 0
        print(f"---- {name}: {ran.seconds} s, exit {ran.code}", flush=True)
    print(f"\nwritten: {PAGE.relative_to(ROOT)}")
    return 0 if is_clean else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
