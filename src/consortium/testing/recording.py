"""What a process did to the files below one folder, read from strace's own words.

    strace -f -y -xx -s 1000000 -e trace=… -o trace -p PID

Every successful call that changes a file, a name or what is durable becomes one `Event`.
A call that would change something and is not known here is an error, not an omission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TRACED = (
    "openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,"
    "fdatasync,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,"
    "link,linkat,symlink,symlinkat"
)
OPTIONS = ["-y", "-xx", "-s", "1000000", "-e", f"trace={TRACED}"]

_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += +(-?\d+)(.*)$")
_HANDLE = re.compile(r"^\d+<([^>]*)>$")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Event:
    """One change, or one promise of the disk (`sync`). Paths are absolute."""

    kind: str  # create, truncate, write, sync, rename, remove, mkdir
    path: str
    other: str = ""  # the new name of `rename`
    offset: int | None = None  # of `write` (None: at the end) and the size of `truncate`
    data: bytes = b""


def read_trace(path: Path, folder: Path) -> list[Event]:
    """The events below `folder`, which is where the scenario and its memory are."""
    found: list[Event] = []
    for line in path.read_text().splitlines():
        match = _LINE.match(line)
        if match is None:
            if "exited with" in line or "+++" in line or "---" in line:
                continue
            if "<unfinished ...>" in line or "= ?" in line:
                continue  # the call that the process was killed in: it did not happen
            raise ValueError(f"strace says something else: {line[:200]}")
        name, arguments, result = match[1], _split(match[2]), int(match[3])
        if result >= 0 and str(folder) in _plain(match[2]) + _plain(match[4]):
            found += _events(name, arguments, result, match[4])
    return found


def _events(name: str, arguments: list[str], result: int, tail: str) -> Iterator[Event]:
    match name:
        case "openat" | "open":
            yield from _opened(arguments[1 if name == "openat" else 0 :], tail)
        case "write" | "writev":
            data = _bytes(arguments[1])
            yield Event("write", _path(arguments[0]), data=data[:result])
        case "pwrite64":
            offset = int(arguments[3], 0)
            yield Event("write", _path(arguments[0]), "", offset, _bytes(arguments[1])[:result])
        case "ftruncate":
            yield Event("truncate", _path(arguments[0]), "", int(arguments[1], 0))
        case "fsync" | "fdatasync":
            yield Event("sync", _path(arguments[0]))
        case "rename":
            yield Event("rename", _plain(arguments[0]), _plain(arguments[1]))
        case "unlink":
            yield Event("remove", _plain(arguments[0]))
        case "mkdir":
            yield Event("mkdir", _plain(arguments[0]))
        case _:
            raise ValueError(f"{name} is not part of the model of a disk")


def _opened(arguments: list[str], tail: str) -> Iterator[Event]:
    flags = arguments[1]
    path = _plain(tail.strip().removeprefix("<").removesuffix(">"))
    if "O_CREAT" in flags:
        yield Event("create", path)
    if "O_TRUNC" in flags:
        yield Event("truncate", path, "", 0)


# ---- strace's notation --------------------------------------------------------------


def _split(text: str) -> list[str]:
    """Arguments at commas outside quotes and brackets. With -xx no quote is escaped."""
    parts, depth, is_quoted, start = [], 0, False, 0
    for at, letter in enumerate(text):
        if letter == '"':
            is_quoted = not is_quoted
        elif not is_quoted and letter in "[{<":
            depth += 1
        elif not is_quoted and letter in "]}>":
            depth -= 1
        elif letter == "," and not is_quoted and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _bytes(text: str) -> bytes:
    """The bytes of a quoted string, or of all in a vector of them."""
    if text.endswith("..."):
        raise ValueError("strace cut the data off")
    quoted = re.findall(r'"((?:\\x[0-9a-f]{2})*)"', text)
    return bytes.fromhex("".join(quoted).replace("\\x", ""))


def _plain(text: str) -> str:
    """A path, with strace's escapes undone."""
    text = text.strip().strip('"')
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def _path(handle: str) -> str:
    match = _HANDLE.match(handle)
    if match is None:
        raise ValueError(f"a handle without a path: {handle[:80]}")
    return _plain(match[1])
