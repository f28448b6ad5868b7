"""The few calls of Linux that Python does not offer. Each raises `OSError` where it fails."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Any

IS_LINUX = sys.platform.startswith("linux")

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x0002_0000, 0x0800_0000, 0x1000_0000
CLONE_NEWPID, CLONE_NEWNET = 0x2000_0000, 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47

# By machine: numbers of calls that are not the same everywhere.
_NUMBERS = {
    "x86_64": {"pivot_root": 155, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "seccomp": 277},
}
LANDLOCK_CREATE, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT, MOUNT_SETATTR = 444, 445, 446, 442

_libc = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def machine() -> str:
    """The kind of processor, if it is one whose calls we know; else nothing."""
    found = platform.machine()
    # A 32-bit Python on a 64-bit kernel makes other calls than the kernel's name says.
    return found if found in _NUMBERS and sys.maxsize > 1 << 32 else ""


def number(name: str) -> int:
    """A call's number here; raises where we do not know it."""
    known = _NUMBERS.get(machine())
    if known is None:
        raise OSError(38, "this kind of processor is not known")
    return known[name]


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def call(what: int, *arguments: Any) -> int:
    """A system call by its number. Integers go as whole words, as the kernel takes them."""
    if _libc is None:
        raise OSError(38, "this is not Linux")
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_libc.syscall(ctypes.c_long(what), *words), f"call {what}")


def prctl(option: int, value: int = 0) -> None:
    if _libc is None:
        raise OSError(38, "this is not Linux")
    words = [ctypes.c_ulong(word) for word in (value, 0, 0, 0)]
    _checked(_libc.prctl(ctypes.c_int(option), *words), f"prctl {option}")


def unshare(flags: int) -> None:
    if _libc is None:
        raise OSError(38, "this is not Linux")
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    assert _libc is not None
    words = [os.fsencode(source), os.fsencode(target), kind.encode() or None]
    told = options.encode() or None
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), told), f"mount {target}")


def umount(target: str) -> None:
    assert _libc is not None
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def drop_capabilities() -> None:
    """Give up every privilege, for good and for whatever is started from here."""
    assert _libc is not None
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # the system has no more of them, or there is none to drop them with
            break
    _libc.prctl(PR_CAP_AMBIENT, ctypes.c_ulong(4), *[ctypes.c_ulong(0)] * 3)  # clear all
    header = (ctypes.c_uint32 * 2)(0x2008_0522, 0)  # version 3, this process
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def die_with_parent() -> None:
    """End with the thread that started this process, where the system does so."""
    if IS_LINUX:
        prctl(PR_SET_PDEATHSIG, 9)
