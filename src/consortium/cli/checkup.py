"""The checks of `consortium doctor`: each looks at one thing and says what to do about it."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from consortium.cli import words
from consortium.errors import ConsortiumError

if TYPE_CHECKING:
    from consortium.site.isolation.findings import Finding
    from consortium.site.transport import Client

_DAY_MS = 86_400_000
_CLOCK_S = 60
_DISK_BYTES = 1 << 30
_MEMORY_BYTES = 512 << 20
_CONNECT_S = 5.0
_HTTPS = 443
_MEMORY_FILE = Path("/proc/meminfo")


class Verdict(Enum):
    """How a check ended. Only FAIL makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `todo` says what to do next, unless it is fine."""

    name: str
    verdict: Verdict
    found: str
    todo: str = ""


def ok(name: str, found: str) -> Check:
    return Check(name, Verdict.OK, found)


def warn(name: str, found: str, todo: str) -> Check:
    return Check(name, Verdict.WARN, found, todo)


def fail(name: str, found: str, todo: str) -> Check:
    return Check(name, Verdict.FAIL, found, todo)


# ---- the way there ------------------------------------------------------------------


def reachability(
    url: str, context: Callable[[], ssl.SSLContext], client: Client, start: str
) -> Iterator[Check]:
    """Name, port, TLS, answer and clock of a coordinator, until one of them fails. `start` is
    what to do when nothing listens there."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _HTTPS
    for step in (_name(host, port), _port(host, port, start), _tls(host, port, context)):
        yield step
        if step.verdict is Verdict.FAIL:
            return
    yield from _answer(client)


def _name(host: str, port: int) -> Check:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return fail("name", f"{host} has no address", "see that the address is spelt right")
    addresses = sorted({str(entry[4][0]) for entry in found})
    return ok("name", f"{host} is {', '.join(addresses)}")


def _port(host: str, port: int, start: str) -> Check:
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except ConnectionRefusedError:
        return fail("port", f"nothing listens at {host}:{port}", start)
    except OSError as error:
        why = error.strerror or "no answer"
        todo = "see that no firewall or proxy is between"
        return fail("port", f"{host}:{port}: {why.lower()}", todo)
    return ok("port", f"{host}:{port} takes connections")


def _tls(host: str, port: int, context: Callable[[], ssl.SSLContext]) -> Check:
    from consortium.crypto.authority import needs_renewal, remaining_ms

    try:
        with (
            socket.create_connection((host, port), _CONNECT_S) as plain,
            context().wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            shown = wrapped.getpeercert(True)
            version = wrapped.version()
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message.lower()
        todo = "start consortium serve with --name HOST, or look who answers there"
        return fail("tls", f"the certificate is refused: {why}", todo)
    except OSError as error:
        return fail("tls", f"no TLS: {error.strerror or error}", "see that nothing is between")
    except ConsortiumError as error:
        return fail("tls", error.message, error.hint)
    assert shown is not None  # it was verified
    certificate = ssl.DER_cert_to_PEM_cert(shown).encode()
    found = f"{version}, server certificate holds {_days(remaining_ms(certificate, _now_ms()))}"
    if needs_renewal(certificate, _now_ms()):
        return warn("tls", found, "start consortium serve again: it renews its certificate")
    return ok("tls", found)


def _answer(client: Client) -> Iterator[Check]:
    """`GET /health`, and the clock by the date of its answer."""
    try:
        began = time.monotonic()
        with client.open(client.prepare("GET", "/health")) as response:
            for _ in response.iter_raw():
                pass
            took_ms = round(1000 * (time.monotonic() - began))
            told = response.headers.get("Date", "")
    except ConsortiumError as error:
        yield fail("answer", error.message, error.hint)
        return
    yield ok("answer", f"the coordinator answers in {took_ms} ms")
    yield clock(told, time.time())


def clock(date: str, now_s: float) -> Check:
    """This machine's clock against the date of an answer."""
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return warn("clock", "the answer has no date", "compare the clocks by hand")
    apart = abs(now_s - theirs)
    found = f"{words.span(round(1000 * apart))} apart from the coordinator's"
    if apart > _CLOCK_S:
        return warn("clock", found, "let both machines follow NTP")
    return ok("clock", "as the coordinator's" if apart < 2 else found)  # a date has whole seconds


# ---- what lies here -----------------------------------------------------------------


def disk(folder: Path, least_bytes: int = 0) -> Check:
    """Room for models and updates. With less than `least_bytes` it does not work any more."""
    free = shutil.disk_usage(folder).free
    if free < least_bytes:
        return fail("disk", f"{words.size(free)} free", f"make room on the disk of {folder}")
    if free < _DISK_BYTES:
        return warn("disk", f"{words.size(free)} free", f"make room on the disk of {folder}")
    return ok("disk", f"{words.size(free)} free")


def memory() -> Check:
    """Memory that could be used now, where the system tells."""
    try:
        lines = _MEMORY_FILE.read_text().splitlines()
    except OSError:
        return ok("memory", "this system does not tell")
    values = {line.split(":")[0]: line.split()[1] for line in lines}
    free = int(values.get("MemAvailable", "0")) << 10
    found = f"{words.size(free)} of {words.size(int(values['MemTotal']) << 10)} available"
    if free < _MEMORY_BYTES:
        return warn("memory", found, "end something else, or take a larger machine")
    return ok("memory", found)


def certificate(name: str, path: Path, todo: str) -> Check:
    """A certificate that lies here: how long it holds."""
    from consortium.crypto.authority import needs_renewal, remaining_ms

    try:
        pem = path.read_bytes()
        left_ms = remaining_ms(pem, _now_ms())
    except OSError as error:
        return fail(name, f"{path}: {error.strerror}", "put the folder's newest backup back")
    except ConsortiumError as error:
        return fail(name, f"{path}: {error.message}", "put the folder's newest backup back")
    if left_ms <= 0:
        return fail(name, f"expired {words.span(-left_ms)} ago", todo)
    if needs_renewal(pem, _now_ms()):
        return warn(name, f"holds {_days(left_ms)}", todo)
    return ok(name, f"holds {_days(left_ms)}")


def database(path: Path) -> Check:
    """SQLite's own quick check of a file; it may be in use."""
    todo = "put the newest backup back, and let the sites compare checkpoints"
    if not path.is_file():
        return fail(path.name, "it is missing", todo)
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        return fail(path.name, f"{error}", todo)
    if answer != "ok":
        return fail(path.name, "it is damaged", todo)
    return ok(path.name, f"{words.size(path.stat().st_size)}, sound")


def secrets(paths: list[Path]) -> Check:
    """Whether secret files are for their owner alone."""
    open_ones = [path for path in paths if path.exists() and _mode(path) & 0o077]
    missing = [path for path in paths if not path.exists()]
    if open_ones:
        names = " ".join(str(path) for path in open_ones)
        todo = f"chmod 600 {names}, and take new keys if somebody may have read them"
        return fail("secrets", f"others can read {len(open_ones)} of {len(paths)}", todo)
    if missing:
        return fail("secrets", f"{missing[0]} is missing", "put the newest backup back")
    return ok("secrets", f"{len(paths)} files, for their owner alone")


def isolation(found: list[Finding], *, is_required: bool) -> Iterator[Check]:
    """What a task is kept from at a site. What is missing fails where the policy demands it."""
    from consortium.site.isolation.findings import missing

    demanded = missing(found) if is_required else []
    for one in found:
        name = f"task: {one.measure}"
        if one.is_enforced:
            yield ok(name, f"enforced: {one.found}")
        elif one in demanded:
            yield fail(name, f"not enforced, so that no task runs: {one.found}", one.todo)
        else:
            yield warn(name, f"not enforced: {one.found}", one.todo)


def versions() -> Check:
    """What runs here."""
    import platform

    from consortium import __version__

    found = f"consortium {__version__}, Python {platform.python_version()}, "
    found += f"SQLite {sqlite3.sqlite_version}, {' '.join(ssl.OPENSSL_VERSION.split()[:2])}"
    return ok("versions", found)


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def _days(ms: int) -> str:
    return f"{ms // _DAY_MS} days"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
