"""Try, from inside, what a task must not be able to do.

    python -m consortium.site.isolation.attack CELL TARGETS

It shuts itself in exactly as the task's process does, and then behaves badly. What it could
do is told as a line of JSON. `probe` starts it.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import socket
import sys
from collections.abc import Callable

from consortium.site.isolation import kernel
from consortium.site.isolation.cell import read_cell
from consortium.site.isolation.enter import enter

_WAIT_S = 0.5
_FORKS = 16


def _connects(family: int, kind: int, address: object) -> None:
    with socket.socket(family, kind) as ours:
        ours.settimeout(_WAIT_S)
        ours.connect(address)  # type: ignore[arg-type]  # a name or a pair, as the family has it
        ours.send(b"?")


def _binds() -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))


def _reads(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _writes(folder: str) -> None:
    path = f"{folder}/written-by-the-probe"
    with open(path, "wb") as file:
        file.write(b"?")
    os.unlink(path)


def _allocates(size_bytes: int) -> None:
    mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()


def _forks() -> None:
    """With a limit that is soon reached, whatever the real one is."""
    resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))
    ours, theirs = os.pipe()
    for _ in range(_FORKS):
        if os.fork() == 0:
            os.close(theirs)
            os.read(ours, 1)  # until this process has ended
            os._exit(0)


def attempts(told: dict[str, str], memory_bytes: int) -> dict[str, Callable[[], None]]:
    """Everything that is tried, by name; what succeeds is not prevented."""
    tcp, udp = int(told["tcp"]), int(told["udp"])
    return {
        "connect": lambda: _connects(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", tcp)),
        "datagram": lambda: _connects(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", udp)),
        "bind": _binds,
        "unix": lambda: _connects(socket.AF_UNIX, socket.SOCK_STREAM, told["unix"]),
        "abstract": lambda: _connects(socket.AF_UNIX, socket.SOCK_STREAM, told["abstract"]),
        "read": lambda: _reads(told["canary"]),
        "write": lambda: _writes(told["folder"]),
        "signal": lambda: os.kill(int(told["agent"]), 0),
        "look": lambda: _reads(f"/proc/{told['agent']}/environ"),
        "memory": lambda: _allocates(memory_bytes + (64 << 20)),
        "fork": _forks,
    }


def main() -> None:
    cell, told = read_cell(sys.argv[1]), json.loads(sys.argv[2])
    kernel.die_with_parent()
    held = enter(cell)
    done = []
    for name, attempt in attempts(told, cell.memory_bytes).items():
        try:
            attempt()
        except (OSError, MemoryError):
            continue
        done.append(name)
    answer = {"has": sorted(held.has), "why": held.why, "done": done}
    os.write(1, json.dumps(answer).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
