"""Measure how fast `simulate` is, and write the figures into docs/reference/simulation-speed.md.

    python scripts/simulation_speed.py --peer flwr=/path/to/python --peer pfl=/path/to/python
    python scripts/simulation_speed.py --only-page     # measure nothing: the page from the JSON

What is given goes to `python -m benchmarks.simulation`. The lines that it prints are kept in
docs/reference/simulation-speed.json, with the commit and the machine: run it on a clean commit
and on a machine that does nothing else. Of the page only the part between its marks changes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "reference" / "simulation-speed.json"
PAGE = KEPT.with_suffix(".md")
MODULE = "benchmarks.simulation"
_PART = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Speed:
    """One run of the benchmark."""

    at: str
    commit: str
    machine: str
    command: str  # without the paths of this machine
    lines: tuple[str, ...]  # JSON objects, as they were printed


def run(arguments: Sequence[str]) -> Speed:
    """Measure; lines are shown as they come. A failure ends this, too, and keeps nothing."""
    commit, lines = _commit(), list[str]()
    with subprocess.Popen(
        [sys.executable, "-m", MODULE, "--json", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode:
        raise SystemExit(process.returncode)
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    told = [re.sub(r"=.*/", "=/…/", one) for one in arguments]
    command = " ".join(("python", "-m", MODULE, "--json", *told))
    return Speed(at, commit, _machine(), command, tuple(lines))


def rendered(text: str, speed: Speed | None) -> str:
    """The page with its figures made anew."""
    part = "Not measured yet." if speed is None else "\n".join(_figures(speed))
    return _PART.sub(lambda match: f"{match[1]}\n{part}\n\n{match[2]}", text)


def _figures(speed: Speed) -> list[str]:
    measured: list[dict[str, Any]] = [json.loads(line) for line in speed.lines]
    return [
        f"{speed.at} UTC, commit `{speed.commit}`. {speed.machine}.",
        "",
        "| | ours | base | base ÷ ours |",
        "|---|---|---|---|",
        *(
            f"| {one['name']} | {one['ours']:.4g} {one['unit']} | {one['base']:.4g} {one['unit']} "
            f"| {one['ratio']:.2f} |"
            for one in measured
        ),
        "",
        f"What `{speed.command}` printed:",
        "",
        "```text",
        *speed.lines,
        "```",
    ]


def kept() -> Speed | None:
    if not KEPT.exists():
        return None
    found = json.loads(KEPT.read_text(encoding="utf-8"))
    return Speed(**found | {"lines": tuple(found["lines"])})


def _machine() -> str:
    cores, python = os.cpu_count(), platform.python_version()
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    system = f"{platform.system()} {platform.machine()}"
    return f"{cores} cores, {_processor()}, {system}, Python {python}, {packages}"


def _processor() -> str:
    """Its name and how wide its vectors are, which is what arithmetic depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown processor"
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    widest = next((one for one in ("avx512f", "avx2", "avx") if f" {one} " in text), "no AVX")
    return f"{name[1].strip() if name else 'unknown processor'} ({widest})"


def _commit() -> str:
    ours = {str(path.relative_to(ROOT)) for path in (KEPT, PAGE)}
    changed = {line[3:] for line in _git("status", "--porcelain", "-uno").splitlines()} - ours
    return _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.rstrip()


def main(arguments: Sequence[str]) -> None:
    if "--only-page" not in arguments:
        text = json.dumps(asdict(run(arguments)), indent=1, ensure_ascii=False)
        KEPT.write_text(text + "\n", encoding="utf-8")
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), kept()), encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
