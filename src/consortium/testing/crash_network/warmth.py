"""A whole federation in one process, before any is broken: what Python loads and compiles when
it is first needed is then there for every fork."""

from __future__ import annotations

import time
from pathlib import Path

from consortium.testing.crash_network import site
from consortium.testing.crash_network.coordinator import Coordinator
from consortium.testing.crash_network.line import Notes, Words, request
from consortium.testing.crash_network.site import Site
from consortium.testing.crash_network.study import sites_of
from consortium.wire import words

_TURNS = 20


def spare_words() -> None:
    """Let the words that people compare cost nothing: they cost much, so that nobody tries
    them out, and nothing durable depends on it."""
    setattr(words, "_ITERATIONS", 1)  # noqa: B010


def warm_up(folder: Path, plan: Path) -> None:
    """Run a federation here. Nothing of it is looked at."""
    now_ms, names = time.time_ns() // 1_000_000, sites_of(plan)
    coordinator = Coordinator(folder / "coordinator", plan, now_ms)
    sites = [
        Site(folder / name, plan.parent / f"{name}.txt", Notes(folder / "notes"), folder)
        for name in names
    ]

    def answer(_: Path, asked: Words, body: bytes) -> tuple[Words, bytes]:
        return coordinator.answer(asked, body)

    setattr(site, "request", answer)  # noqa: B010  # a function of another module
    try:
        for name, one in zip(names, sites, strict=True):
            found = coordinator.handle({"do": "invite", "invited": name, "now_ms": now_ms})
            one.handle({"do": "join", "token": found["token"]})
        for _ in range(_TURNS):
            now_ms += 1000
            for one in sites:
                one.handle({"do": "turn"})
            coordinator.handle({"do": "turn", "now_ms": now_ms})
    finally:
        setattr(site, "request", request)  # noqa: B010
    for one in sites:
        one.handle({"do": "close"})
    coordinator.handle({"do": "close", "now_ms": now_ms})
