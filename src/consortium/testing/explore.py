"""Walk through every state that small federations can reach, by every input, and check rules.

    python -m consortium.testing.explore                 the walks, then the planted bugs
    python -m consortium.testing.explore --clean-only    the walks alone
    python -m consortium.testing.explore --planted       the planted bugs alone

It ends with 0 when every rule holds and every planted bug is found, otherwise with 1 and
the shortest way to the broken rule. To explore terms of your own:

    from consortium.testing.explore import Alphabet, describe, explore
    seen = explore(terms, Alphabet(sites=3))
    print(describe(seen.violation) if seen.violation else seen)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from consortium.core.tables import Step
from consortium.testing.alphabet import Alphabet
from consortium.testing.bugs_of_site import SITE_BUGS
from consortium.testing.federations import ALL
from consortium.testing.planted import BUGS, Catch, hunt, hunt_at_site
from consortium.testing.walk import Exploration, Violation, explore
from consortium.testing.walk_of_site import walk_of_site

__all__ = ["Alphabet", "Exploration", "Violation", "describe", "explore", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    report = _Report(is_json=options.json)
    if not options.planted:
        for small in ALL:
            report.walked(small.name, explore(small.terms, small.alphabet))
        report.walked("a site", walk_of_site())
        report.reached()
    if not options.clean_only:
        for bug in BUGS:
            report.hunted(hunt(bug))
        for site_bug in SITE_BUGS:
            report.hunted(hunt_at_site(site_bug))
    report.close()
    return 1 if report.has_failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m consortium.testing.explore")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--clean-only", action="store_true", help="skip the planted bugs")
    which.add_argument("--planted", action="store_true", help="only the planted bugs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


# ---- words --------------------------------------------------------------------------


def describe(violation: Violation) -> str:
    """The broken rule, and every input on the way to it with the facts that it brought."""
    return "\n".join(_lines(violation))


def _lines(violation: Violation) -> Iterator[str]:
    yield f"BROKEN  {violation.rule}"
    yield f"        {violation.meaning}"
    for number, (item, facts) in enumerate(violation.trace, start=1):
        yield f"  {number:2}. {_shown(item)}"
        yield from (f"        {_shown(fact)}" for fact in facts)


def _shown(value: Any) -> str:
    """An input or a fact on one line, with digests as the words that they stand for."""
    pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
    inside = ", ".join(f"{name}={_word(item)}" for name, item in pairs if item is not None)
    return f"{type(value).__name__}({inside})"


def _word(value: Any) -> str:
    if isinstance(value, bytes):
        text = value.rstrip(b".")
        return repr(text.decode()) if text.isascii() and text.strip(b"\0\1") else f"{value[0]}…"
    return str(getattr(value, "name", value))


def _counted(name: str, counts: dict[str, Any], inputs: str = "") -> str:
    return (
        f"{name:14} {counts['states']:7,} states {inputs:11} {counts['edges']:10,} edges "
        f"{counts['refusals']:10,} refusals {counts['changes']:8,} with facts "
        f"{counts['seconds']:5.1f} s"
    )


@dataclass(slots=True)
class _Totals:
    walks: list[dict[str, Any]]
    planted: list[dict[str, Any]]


class _Report:
    """Prints what was found: line by line, or all of it as JSON at the end."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._totals = _Totals([], [])
        self._steps: set[str] = set()
        self.has_failed = False

    def walked(self, name: str, seen: Exploration) -> None:
        self._steps.update(seen.steps)
        self.has_failed |= seen.violation is not None
        counts = {name: value for name, value in asdict(seen).items() if name != "violation"}
        broken = describe(seen.violation) if seen.violation else None
        self._totals.walks.append({"name": name, **counts, "violation": broken})
        self._print(_counted(name, counts, f"{seen.inputs:4} inputs"))
        if broken:
            self._print(broken)

    def reached(self) -> None:
        """What the walks did together, and the steps of a round that none came to."""
        walks = self._totals.walks
        reached = [step for step in Step if step.name in self._steps]
        missing = [step.name for step in Step if step not in reached]
        self.has_failed |= bool(missing)
        names = ("states", "edges", "refusals", "changes", "seconds")
        self._print(_counted("together", {x: sum(walk[x] for walk in walks) for x in names}))
        self._print(f"steps reached: {', '.join(step.name for step in reached)}")
        phases = dict.fromkeys(step.phase.name for step in reached)
        self._print(f"phases reached: {', '.join(phases)}; steps missed: {missing or 'none'}")
        longest = max(walk["longest_end"] for walk in walks)
        self._print(f"every state: same from its decoded log; its round ends in {longest} steps")

    def hunted(self, catch: Catch) -> None:
        self.has_failed |= catch.rule is None
        self._totals.planted.append(asdict(catch))
        fate = f"caught by {catch.rule} after {catch.states} states" if catch.rule else "MISSED"
        self._print(f"{catch.bug:60} {fate}")

    def close(self) -> None:
        if self._is_json:
            print(json.dumps({**asdict(self._totals), "has_failed": self.has_failed}, indent=2))
        elif self._totals.planted:
            caught = sum(catch["rule"] is not None for catch in self._totals.planted)
            seconds = sum(catch["seconds"] for catch in self._totals.planted)
            self._print(f"{caught} of {len(self._totals.planted)} caught, {seconds:.1f} s")

    def _print(self, line: str) -> None:
        if not self._is_json:
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
