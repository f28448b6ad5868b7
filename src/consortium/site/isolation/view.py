"""A root folder of the task's own, in which nothing exists but what its cell lists.

Needs a mount namespace. It hides more than Landlock does: also the sockets of other programs,
which lie among the files. Until the last step nothing is changed for the process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from consortium.site.isolation import kernel
from consortium.site.isolation.cell import Cell, Held

TEMPORARY = "/tmp"  # of the view: a short name, as the names of sockets must be short
_SAFE = kernel.MS_NOSUID | kernel.MS_NODEV
_RECURSIVE, _HERE = 0x8000, -100  # AT_RECURSIVE, AT_FDCWD
_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4  # of mount_setattr


def enter(cell: Cell, devices: Iterable[str], held: Held) -> None:
    """Make the view and go there; raises, and leaves everything as it was, where it cannot."""
    root = f"{cell.scratch}/root"
    kernel.mount("tmpfs", root, "tmpfs", _SAFE, "size=4m,mode=0755")
    try:
        _furnish(root, cell, devices)
        _mount_processes(root, held)
        os.chdir(root)
        kernel.call(kernel.number("pivot_root"), b".", b".")
    except OSError:
        os.chdir("/")
        kernel.umount(root)
        raise
    kernel.umount(".")  # the old root lies on top of the new one
    os.chdir("/")
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _SAFE
    kernel.mount("none", "/", flags=flags)
    held.note("view")


def _furnish(root: str, cell: Cell, devices: Iterable[str]) -> None:
    for path in devices:
        _show(root, path)
    shared = f"{root}/dev/shm"
    os.makedirs(shared, exist_ok=True)
    size = f"size={cell.memory_bytes}," if cell.memory_bytes else ""
    kernel.mount("tmpfs", shared, "tmpfs", _SAFE, f"{size}mode=1777")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")
    _show(root, cell.temporary, TEMPORARY)
    writable = {os.path.realpath(path) for path in cell.writable}
    readable = {os.path.realpath(path) for path in cell.readable} - writable
    for path in sorted(readable | writable):  # a folder comes before what is in it
        _show(root, path)
        _restrict(f"{root}{path}", is_writable=path in writable)
    for path in (*cell.readable, *cell.writable):
        _link(root, path)


def _show(root: str, path: str, name: str = "") -> None:
    """Put a file or a folder with all that is mounted in it where it is, or has this name."""
    target = f"{root}{name or path}"
    if not os.path.exists(path):
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    kernel.mount(path, target, flags=kernel.MS_BIND | kernel.MS_REC)


def _restrict(target: str, *, is_writable: bool) -> None:
    if not os.path.exists(target):
        return
    wanted = _NO_SETUID | _NO_DEVICES | (0 if is_writable else _READ_ONLY)
    attributes = struct.pack("=QQQQ", wanted, 0, 0, 0)
    try:
        place = os.fsencode(target)
        kernel.call(kernel.MOUNT_SETATTR, _HERE, place, _RECURSIVE, attributes, len(attributes))
    except OSError:  # before Linux 5.12: without what is mounted further in
        there = os.statvfs(target).f_flag & (_SAFE | kernel.MS_NOEXEC | kernel.MS_RDONLY)
        flags = there | _SAFE | (0 if is_writable else kernel.MS_RDONLY)
        kernel.mount("none", target, flags=kernel.MS_REMOUNT | kernel.MS_BIND | flags)


def _link(root: str, path: str) -> None:
    """Let a name with a link in it, such as /lib or a virtual environment's, lead to the place."""
    real = os.path.realpath(path)
    if path == real or os.path.lexists(f"{root}{path}"):
        return
    with suppress(OSError):  # its folder may be one that is shown, and cannot be written
        os.makedirs(os.path.dirname(f"{root}{path}"), exist_ok=True)
        os.symlink(real, f"{root}{path}")


def _mount_processes(root: str, held: Held) -> None:
    target = f"{root}/proc"
    os.makedirs(target, exist_ok=True)
    if "pid" in held.has:
        try:
            flags = _SAFE | kernel.MS_NOEXEC | kernel.MS_RDONLY
            kernel.mount("proc", target, "proc", flags)
            held.note("proc")
        except OSError as error:  # some containers hide parts of theirs, and then refuse
            held.note("proc", error)
        else:
            return
    _show(root, "/proc")
    _restrict(target, is_writable=False)
