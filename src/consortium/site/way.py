"""How a site and its coordinator meet: who connects to whom, and when they last spoke.

    listen.json   where this site waits for calls; absent, or null: it connects outward
    heard         empty; its time is when the coordinator last answered

The agent writes both, and people's commands read them.
"""

from __future__ import annotations

import json
from contextlib import suppress

from consortium.errors import CorruptStoreError
from consortium.site.home import SiteHome
from consortium.store.files import write_durably

Where = tuple[str, int]  # host and port
_LISTEN, _HEARD = "listen.json", "heard"
_MAX_PORT = 65_535


def listens_at(home: SiteHome) -> Where | None:
    """Where the last agent of this home waited for calls; None: it connected outward."""
    path = home.path / _LISTEN
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
        return None if found is None else _where(found["host"], found["port"])
    except (ValueError, TypeError, KeyError, RecursionError):
        # To connect outward instead would be what this site was told not to do.
        raise CorruptStoreError(
            f"{path} does not say where this site listens",
            hint="consortium agent --listen HOST:PORT, or --listen none",
        ) from None


def _where(host: object, port: object) -> Where:
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port <= _MAX_PORT:
        raise ValueError
    return host, port


def keep_way(home: SiteHome, where: Where | None) -> None:
    """Remember it for the next agent. What is as it was is not written again."""
    with suppress(CorruptStoreError):
        if listens_at(home) == where:
            return
    told = None if where is None else {"host": where[0], "port": where[1]}
    write_durably(home.path / _LISTEN, json.dumps(told).encode())


def note_heard(home: SiteHome) -> None:
    """The coordinator has answered. Not worth a failure, nor a wait for the disk."""
    with suppress(OSError):
        (home.path / _HEARD).touch()


def heard_ms(home: SiteHome) -> int | None:
    """When the coordinator last answered, by this machine's clock; None: never."""
    try:
        return (home.path / _HEARD).stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def written(where: Where) -> str:
    """As `--listen` takes it.

    >>> written(("0.0.0.0", 8444)), written(("::", 8444))
    ('0.0.0.0:8444', '[::]:8444')
    """
    host, port = where
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
