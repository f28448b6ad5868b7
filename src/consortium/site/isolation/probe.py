"""Whether a cell holds: a process is shut in as the task's would be, and behaves badly.

What it gets away with is reported as not enforced, whatever the mechanisms promise.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from consortium.errors import InternalError
from consortium.site.isolation.cell import Cell
from consortium.site.isolation.environment import environment
from consortium.site.isolation.findings import Finding, findings

_LIMIT_S = 30.0
_MOST_NAME = 60  # bytes, of the folder for temporary files


def probe(cell: Cell, secret: Path | None = None) -> list[Finding]:
    """Every measure, tried. `secret` is a file that the task must not read; without one, the
    probe makes its own."""
    with _targets(secret) as targets:
        command = [sys.executable, "-P", "-m", "consortium.site.isolation.attack"]
        try:
            done = subprocess.run(
                [*command, cell.text(), json.dumps(targets)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environment(os.environ),
                start_new_session=True,
                timeout=_LIMIT_S,
            )
            told = json.loads(done.stdout)
        except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            raise InternalError(f"the probe came to nothing: {type(error).__name__}") from error
    return findings(told["has"], told["why"], told["done"])


@contextmanager
def _targets(secret: Path | None) -> Iterator[dict[str, str]]:
    """Somebody who listens in every way, and a file, all of which must stay out of reach."""
    with ExitStack() as stack:
        # The name of a socket has at most 108 bytes, and what cannot be named is not attacked.
        is_long = len(tempfile.gettempdir()) > _MOST_NAME
        place = "/tmp" if is_long else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place)))
        canary = folder / "canary"
        canary.write_text("out of reach")
        abstract = f"\0consortium-{secrets.token_hex(8)}"
        tcp = _listening(stack, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        udp = _listening(stack, socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        _listening(stack, socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket"))
        if sys.platform == "linux":
            _listening(stack, socket.AF_UNIX, socket.SOCK_STREAM, abstract)
        yield {
            "tcp": str(tcp.getsockname()[1]),
            "udp": str(udp.getsockname()[1]),
            "unix": str(folder / "socket"),
            "abstract": abstract,
            "canary": str(secret or canary),
            "folder": str(folder),
            "agent": str(os.getpid()),
        }


def _listening(stack: ExitStack, family: int, kind: int, address: object) -> socket.socket:
    made = stack.enter_context(socket.socket(family, kind))
    made.bind(address)  # type: ignore[arg-type]  # a name or a pair, as the family has it
    if kind == socket.SOCK_STREAM:
        made.listen()
    return made
