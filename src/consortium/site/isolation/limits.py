"""Limits of one process, and of what it starts: each of them has the same."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from consortium.site.isolation.cell import Cell, Held
from consortium.site.isolation.kernel import IS_LINUX

_COUNTED_APART = (5, 14)  # since then, a user namespace's processes are not the user's others


def apply(cell: Cell, held: Held) -> None:
    """Set what the system has. Nobody inside can raise it again."""
    _set(resource.RLIMIT_CORE, 0)  # a dump would show records
    if cell.memory_bytes:
        _set(resource.RLIMIT_FSIZE, cell.memory_bytes)
        held.note("fsize")
        # Not the whole address space: torch and GPUs reserve far more of it than they use.
        _set(resource.RLIMIT_DATA, cell.memory_bytes)
        if IS_LINUX:  # elsewhere it counts hardly anything
            held.note("memory")
    if "user" in held.has and os.getuid() != 0 and _release() >= _COUNTED_APART:
        _set(resource.RLIMIT_NPROC, cell.most_processes)
        held.note("nproc")


def _set(which: int, value: int) -> None:
    _, most = resource.getrlimit(which)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(which, (value, value))


def _release() -> tuple[int, ...]:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdecimal())


def machine_memory_bytes() -> int:
    """How much memory there is: the machine's, or the control group's where that is less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            found = min(found, int(text))
    return found
