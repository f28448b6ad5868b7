"""How the parts of a federation speak to each other: one JSON line and some bytes, each way.

Sockets are written with `sendto`, which no campaign breaks: what fails is a disk.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

Words = dict[str, Any]  # JSON: numbers, texts, lists
_PATIENCE_S = 60.0  # for an answer; a part that takes longer hangs


class GoneError(ConnectionError):
    """Whoever was spoken to is not there any more."""


def say(to: socket.socket, words: Words, data: bytes = b"") -> None:
    """One message."""
    try:
        to.sendall(json.dumps({**words, "bytes": len(data)}).encode() + b"\n" + data)
    except OSError as error:
        raise GoneError(str(error)) from None


def hear(source: socket.socket) -> tuple[Words, bytes]:
    """The next message."""
    try:
        with source.makefile("rb") as file:
            line = file.readline()
            words: Words = json.loads(line) if line.endswith(b"\n") else {}
            data = file.read(words.get("bytes", 0))
    except TimeoutError:
        raise
    except OSError as error:
        raise GoneError(str(error)) from None
    if not words or len(data) != words["bytes"]:
        raise GoneError("it hung up")
    return words, data


def request(path: Path, words: Words, data: bytes) -> tuple[Words, bytes]:
    """One question to whoever listens at `path`, and its answer."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_PATIENCE_S)
        try:
            line.connect(str(path))
        except OSError as error:
            raise GoneError(str(error)) from None
        say(line, words, data)
        return hear(line)


def listening(path: Path) -> socket.socket:
    """A socket at `path`; one that a dead process left there is replaced."""
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


def pair() -> tuple[socket.socket, socket.socket]:
    """Between a part and whoever says what is next: (ours, the part's)."""
    ours, theirs = socket.socketpair()
    ours.settimeout(_PATIENCE_S)
    return ours, theirs


class Notes:
    """What was seen from outside, in a file: one JSON object a line. Written with `writev`,
    which no campaign breaks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **note: Any) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.writev(handle, [json.dumps(note).encode() + b"\n"])
        finally:
            os.close(handle)

    def read(self) -> list[Words]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]
