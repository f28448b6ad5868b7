"""Landlock: a process gives up, for itself and all that it starts, every file that is not
listed. It needs no privileges and no namespace.

https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from consortium.site.isolation import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
_READ = _READ_FILE | _READ_DIR | _EXECUTE
# Version 1 has 13 rights over files; 2 adds moving between folders, 3 truncating. What device
# files can be told (5) is left open: only those that are listed can be opened at all.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_TCP_SINCE, _BIND_AND_CONNECT = 4, 3
SCOPES_SINCE, _ABSTRACT_SOCKETS_AND_SIGNALS = 6, 3
_VERSION, _PATH_BENEATH = 1, 1


def version() -> int:
    """Which Landlock this kernel has; raises where it has none."""
    return kernel.call(kernel.LANDLOCK_CREATE, None, 0, _VERSION)


def restrict(readable: Iterable[str], writable: Iterable[str]) -> int:
    """Give up all files but these, and, where the kernel knows how, TCP and signals to others.
    Returns Landlock's version. The process must have no new privileges."""
    found = version()
    rights = _RIGHTS[min(found, 3)]
    net = _BIND_AND_CONNECT if found >= _TCP_SINCE else 0
    scopes = _ABSTRACT_SOCKETS_AND_SIGNALS if found >= SCOPES_SINCE else 0
    words = 1 + (found >= _TCP_SINCE) + (found >= SCOPES_SINCE)
    attributes = struct.pack("=QQQ", rights, net, scopes)[: 8 * words]
    ruleset = kernel.call(kernel.LANDLOCK_CREATE, attributes, len(attributes), 0)
    try:
        for path in readable:
            _allow(ruleset, path, rights & _READ)
        for path in writable:
            _allow(ruleset, path, rights & ~_EXECUTE)
        kernel.call(kernel.LANDLOCK_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
    return found


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no permission
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, handle))
        kernel.call(kernel.LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(handle)
