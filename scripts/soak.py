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

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "reference" / "soak.json"
PAGE = KEPT.with_suffix(".md")
_TESTING = "consortium.testing"

# name -> arguments of `python`; sizes are the goals of a full campaign.
CAMPAIGNS: dict[str, tuple[str, ...]] = {
    "explore": ("-m", f"{_TESTING}.explore", "--clean-only", "--json"),
    "explore-planted": ("-m", f"{_TESTING}.explore", "--planted"),
    "world": ("-m", f"{_TESTING}.world", "--seeds", "10000", "--json"),
    "world-async": ("-m", f"{_TESTING}.world", "--seeds", "1000", "--asynchronous", "--json"),
    "world-planted": ("-m", f"{_TESTING}.world", "--planted"),
    "crash": ("-m", f"{_TESTING}.crash"),
    "crash-network": ("-m", f"{_TESTING}.crash_network"),
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
    "remove-checks": ("-m", "scripts.remove_checks"),
    "tests": ("-m", "pytest", "-q", "-m", "", "tests"),
}


@dataclass(frozen=True, slots=True)
class Ran:
    """How one campaign went."""

    name: str
    seconds: int
    code: int
    said: str  # its last line
    commit: str
    at: str

    @property
    def row(self) -> str:
        result = "0 violations" if self.code == 0 else f"**failed ({self.code})**"
        command = " ".join(CAMPAIGNS[self.name])
        when = f"`{self.commit}`, {self.at}"
        told = f"{self.seconds} | {result} | {self.said}"
        return f"| {self.name} | `python {command}` | {when} | {told} |"


def run(name: str) -> Ran:
    """One campaign to its end; what it prints is shown as it comes."""
    begun, last, commit = time.monotonic(), "", _commit()
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
            last = line.strip() or last
    seconds = round(time.monotonic() - begun)
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    return Ran(name, seconds, process.returncode, _told(last), commit, at)


def _told(line: str) -> str:
    """The last line as it may stand in a table: of a JSON object, what is short."""
    try:
        told = json.loads(line)
    except ValueError:
        return line.replace("|", "/")[:200]
    short = {key: value for key, value in told.items() if isinstance(value, int | float | str)}
    return ", ".join(f"{key} {value}" for key, value in short.items())[:200].replace("|", "/")


def keep(new: Ran) -> None:
    """Put a result among the others, and write the page."""
    known = [Ran(**one) for one in json.loads(KEPT.read_text())] if KEPT.exists() else []
    newest = {one.name: one for one in (*known, new)}
    ran = [newest[name] for name in CAMPAIGNS if name in newest]
    KEPT.write_text(json.dumps([asdict(one) for one in ran], indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(ran), encoding="utf-8")


def page(ran: Sequence[Ran]) -> str:
    where = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    lines = [
        "# The last full campaigns",
        "",
        "Written by `make soak` (`scripts/soak.py`); sizes and seeds are in the commands. What",
        "each campaign looks for is told in its module, and in the",
        "[threat model](../explanation/threat-model.md).",
        "",
        f"{where}, Python {platform.python_version()}; times are UTC. Not run yet: "
        f"{', '.join(sorted(set(CAMPAIGNS) - {one.name for one in ran})) or 'none'}.",
        "",
        "| campaign | command | commit | seconds | result | its last line |",
        "|---|---|---|---|---|---|",
        *(one.row for one in ran),
        "",
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
