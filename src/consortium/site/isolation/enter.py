"""Shut the present process in, as its cell says and the system allows.

Order matters. Namespaces come first, since everything else is arranged in them; the view
before Landlock, which forbids mounting; privileges are dropped when nothing needs them any
more; the filter over calls comes last. Nothing of the task, and no library with threads, is
loaded before this is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from glob import glob

from consortium.site.isolation import kernel, landlock, limits, namespaces, seccomp, view, warden
from consortium.site.isolation.cell import Cell, Held
from consortium.site.isolation.software import software

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_GPUS = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")


def enter(cell: Cell, handles: Iterable[int] = ()) -> Held:
    """Returns in the process that may run the task; it may be a grandchild of the one that
    called. `handles` are open files for that process alone."""
    held = Held()
    if cell.is_closed and kernel.IS_LINUX:
        cell = replace(cell, readable=(*cell.readable, *software()))
        _look_for_secrets(cell, held)
        namespaces.take(held, cell.without)
        kernel.die_with_parent()  # again: a new user namespace may forget it
        if "pid" in held.has:
            _split(cell, held, tuple(handles))
        else:
            _change_view(cell, held)
        _confine(cell, held)
    limits.apply(cell, held)
    if cell.is_closed and kernel.IS_LINUX:
        _filter(cell, held)
    os.chdir(cell.folder)
    os.environ["TMPDIR"] = os.environ["HOME"] = temporary(cell, held)
    return held


def temporary(cell: Cell, held: Held) -> str:
    """The task's private folder, as the task's process calls it."""
    return view.TEMPORARY if "view" in held.has else cell.temporary


def _look_for_secrets(cell: Cell, held: Held) -> None:
    """A folder that the task may read must not have the site's home in it: neither Landlock nor
    the view can give a folder without a part of it."""
    for path in (*cell.readable, *cell.writable):
        real = os.path.realpath(path)
        if cell.secret and os.path.commonpath([real, cell.secret]) == real:
            held.why["files"] = f"the task may read {path}, which contains {cell.secret}"


def _split(cell: Cell, held: Held, handles: tuple[int, ...]) -> None:
    """Only a child is in the new process namespace, and its first process is not the task."""
    lifeline = os.pipe()
    if init := os.fork():
        os.close(lifeline[0])
        warden.stand_for(init, handles)
    warden.begin(lifeline)
    _change_view(cell, held)
    if task := os.fork():
        can_look = "proc" in held.has
        warden.watch(task, cell, handles, can_look=can_look)
    os.close(lifeline[0])
    warden.leave_mask()
    kernel.die_with_parent()


def _change_view(cell: Cell, held: Held) -> None:
    if "mount" not in held.has or "view" in cell.without:
        return
    try:
        view.enter(cell, _devices(), held)
    except OSError as error:
        held.note("view", error)


def _devices() -> list[str]:
    return [*_DEVICES, *(path for pattern in _GPUS for path in sorted(glob(pattern)))]


def _confine(cell: Cell, held: Held) -> None:
    try:
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        held.note("privileges")
    except OSError as error:
        held.note("privileges", error)
    if "landlock" in cell.without:
        return
    own = ["/dev/shm"] if "view" in held.has else []  # else it is everybody's
    writable = [*cell.writable, temporary(cell, held), *own, *_devices()]
    try:
        found = landlock.restrict([*cell.readable, "/proc"], writable)
    except OSError as error:
        held.note("landlock", error)
        return
    held.note("landlock")
    if found >= landlock.SCOPES_SINCE:
        held.note("scopes")


def _filter(cell: Cell, held: Held) -> None:
    if "seccomp" in cell.without:
        return
    # Local sockets lead to other programs, unless those are neither among the files that can
    # be seen nor in the same network.
    is_alone = "view" in held.has and bool(held.has & {"net", "scopes"})
    try:
        seccomp.restrict(may_have_sockets=is_alone, may_share="ipc" in held.has)
    except OSError as error:
        held.note("seccomp", error)
        return
    held.note("seccomp")
    if is_alone:
        held.note("sockets")
