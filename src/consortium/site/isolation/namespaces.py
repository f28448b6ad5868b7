"""Namespaces of the task's own: users, network, mounts, messages, processes.

Whether the system lets us make them is tried in a process that then ends: a user namespace
that was half made cannot be left again.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from consortium.site.isolation import kernel
from consortium.site.isolation.cell import Held

# The first is tried with each of the others: it gives an ordinary user the right to them.
NAMES = {
    "user": kernel.CLONE_NEWUSER,
    "net": kernel.CLONE_NEWNET,
    "mount": kernel.CLONE_NEWNS,
    "ipc": kernel.CLONE_NEWIPC,
    "pid": kernel.CLONE_NEWPID,
}


def take(held: Held, without: tuple[str, ...]) -> None:
    """Enter as many as the system gives, and note which. `pid` is entered by the next child."""
    wanted = [name for name in NAMES if name not in without]
    given = wanted if _trouble(wanted) is None else _given_one_by_one(held, wanted)
    if not given:
        return
    _enter(given)
    for name in given:
        held.note(name)


def _given_one_by_one(held: Held, wanted: list[str]) -> list[str]:
    base = ["user"] if "user" in wanted else []
    trouble = _trouble(base) if base else None
    if trouble is not None:
        held.note("user", trouble)
        base = []
    given = list(base)
    for name in wanted:
        if name == "user":
            continue
        trouble = _trouble([*given, name])
        if trouble is None:
            given.append(name)
        else:
            held.note(name, trouble)
    # A user namespace alone keeps nobody from anything, and costs the rights of root.
    return given if given != base else []


def _trouble(names: list[str]) -> OSError | None:
    """What a process meets that enters these; None: nothing."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            _enter(names)
        except OSError as error:
            code = error.errno or errno.EPERM
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if status == 0 else OSError(status, os.strerror(max(status, 1)))


def _enter(names: list[str]) -> None:
    user, group = os.getuid(), os.getgid()
    flags = 0
    for name in names:
        flags |= NAMES[name]
    kernel.unshare(flags)
    if "user" in names:
        with suppress(FileNotFoundError):  # before Linux 3.19
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if "mount" in names:
        # Nothing that is mounted from here on is seen outside.
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
