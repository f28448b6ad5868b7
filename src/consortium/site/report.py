"""What a site says of itself, so that plans can ask for it: no word about its records."""

from __future__ import annotations

import json
import os
from pathlib import Path

from consortium import __version__
from consortium.core.ids import SiteId
from consortium.core.roster import MAX_REPORT, Member, is_reportable, meets
from consortium.core.terms import Condition, ReportValue
from consortium.errors import CorruptStoreError, UsageError
from consortium.plan.text import parse_condition
from consortium.site.home import SiteHome
from consortium.store.files import write_durably

Reported = dict[str, ReportValue]


def own_report(home: SiteHome) -> Reported:
    """The machine, and what the site's people added."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found: Reported = {
        "cpus": os.cpu_count() or 1,
        "memory_gb": round(memory / 2**30, 1),
        "version": __version__,
    }
    return found | _added(home)


def add_to_report(home: SiteHome, entries: list[str]) -> None:
    """Report `name=value` too, from now on. An empty value takes a name out again."""
    added = _added(home)
    for entry in entries:
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not equals:
            raise UsageError(f"`{entry}` is not of the form name=value", hint="region=north")
        added.pop(name, None)
        if value:
            added[name] = _value(name, value)
    if len(added) > MAX_REPORT // 2:
        raise UsageError(f"a site reports at most {MAX_REPORT // 2} things of its own")
    write_durably(_file(home), json.dumps(added).encode())


def meets_all(report: Reported, conditions: tuple[Condition, ...]) -> bool:
    """Whether a plan's conditions hold for what this site reports."""
    return meets(Member(SiteId(""), b"", 0, tuple(report.items())), conditions)


def _value(name: str, text: str) -> ReportValue:
    """As a plan writes it, so that the two can be compared."""
    try:
        value = parse_condition(f"{name} == {text}").value
    except ValueError:
        raise UsageError(f"`{name}` is not a name for a report", hint="region=north") from None
    if not is_reportable((name, value)):
        raise UsageError(f"the value of `{name}` is too long or too large")
    return value


def _added(home: SiteHome) -> Reported:
    path = _file(home)
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CorruptStoreError(f"{path} is not a report")
    return found


def _file(home: SiteHome) -> Path:
    return home.path / "report.json"
