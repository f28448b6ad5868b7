"""`consortium doctor` at a site that listens: its own port, and whether the coordinator calls.

Nothing here connects outward. A closed network would refuse it, and this site does not need it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

from consortium.cli import checkup, words
from consortium.cli.agent import agent_command
from consortium.cli.checkup import Check
from consortium.errors import ConsortiumError
from consortium.site.home import SiteHome, has_agent
from consortium.site.way import Where, heard_ms, written

_CONNECT_S = 5.0
_LATELY_MS = 120_000  # an agent that works is answered every 25 seconds
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # where to knock for those


def listening(home: SiteHome, where: Where) -> Iterator[Check]:
    """What a site needs to be called at `where`."""
    is_running = has_agent(home.path)
    yield _own_port(home, where) if is_running else _free_port(home, where)
    yield called(heard_ms(home), time.time_ns() // 1_000_000, is_running=is_running)


def _own_port(home: SiteHome, where: Where) -> Check:
    """Whether it is this site that answers where its agent should listen."""
    todo = f"end the agent, then {agent_command(home)} --listen HOST:PORT"
    try:
        shown = _certificate_at((_ANY.get(where[0], where[0]), where[1]))
        own = ssl.PEM_cert_to_DER_cert(home.certificate_file.read_text())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no TLS"
        return checkup.fail("port", f"an agent runs, but not at {written(where)}: {why}", todo)
    if shown != own:
        return checkup.fail("port", f"somebody else answers at {written(where)}", todo)
    return checkup.ok("port", f"the agent listens at {written(where)}")


def _certificate_at(where: Where) -> bytes:
    """What is shown there. Who it is, is seen by comparing it: nothing is told to them."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(where, _CONNECT_S) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        return wrapped.getpeercert(True) or b""


def _free_port(home: SiteHome, where: Where) -> Check:
    """Whether an agent could listen there."""
    from consortium.site.port import take_port

    try:
        take_port(*where).close()
    except ConsortiumError as error:
        return checkup.fail("port", error.message, error.hint)
    found = f"the agent does not run; it could listen at {written(where)}"
    return checkup.warn("port", found, agent_command(home))


def called(last_ms: int | None, now_ms: int, *, is_running: bool) -> Check:
    """Whether the coordinator has called, and answered, lately."""
    found = f"the coordinator last called: {words.ago(last_ms, now_ms)}"
    if not is_running:
        return checkup.warn("calls", found, "it can call when the agent runs")
    if last_ms is None or now_ms - last_ms > _LATELY_MS:
        todo = "ask the lead whether the coordinator runs, knows this site's address (consortium "
        todo += "listens) and gets through; see that the firewall lets it in"
        return checkup.fail("calls", found, todo)
    return checkup.ok("calls", found)
