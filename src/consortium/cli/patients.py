"""Whom `consortium doctor` looks at: a coordinator's folder and a site's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from consortium.cli import checkup
from consortium.cli.checkup import Check
from consortium.cli.operator import DEFAULT_FOLDER, OPERATOR_FILE, read_access
from consortium.cli.site_checkup import listening
from consortium.coordinator.uploads import RESERVE_BYTES
from consortium.errors import ConsortiumError, NotEnrolledError
from consortium.site.home import DEFAULT_HOME, SiteHome, is_home
from consortium.site.transport import Client, verified_context
from consortium.site.way import listens_at

_START = "consortium serve"
_RENEW = "consortium agent renews it while it runs; if it has expired, join again in a new home"
_NEW_AUTHORITY = "found a new coordinator, and invite the sites again"


def examine(coordinator: Path | None, home: Path | None) -> Iterator[Check]:
    """Every check of the folders that are meant: the given ones, or those that are here."""
    if coordinator is None and home is None:
        coordinator = DEFAULT_FOLDER if (DEFAULT_FOLDER / OPERATOR_FILE).exists() else None
        home = DEFAULT_HOME if is_home(DEFAULT_HOME) else None
        if coordinator is None and home is None:
            raise NotEnrolledError(
                "there is neither a coordinator nor a site here",
                hint="--coordinator DIR or --home DIR says where",
            )
    yield checkup.versions()
    yield checkup.memory()
    if coordinator is not None:
        yield from _coordinator(coordinator)
    if home is not None:
        yield from _site(home)


def _coordinator(folder: Path) -> Iterator[Check]:
    access = read_access(folder)
    authority = access.authority.encode()
    client = Client(access.url, verified_context(authority))
    try:
        yield from checkup.reachability(
            access.url, lambda: verified_context(authority), client, _START
        )
    finally:
        client.close()
    yield checkup.disk(folder, RESERVE_BYTES)
    yield checkup.certificate("authority", folder / "authority.pem", _NEW_AUTHORITY)
    yield checkup.database(folder / "log.sqlite")
    yield checkup.database(folder / "registry.sqlite")
    keys = sorted((folder / "keys").glob("*.key"))
    yield checkup.secrets([folder / "authority.key", folder / OPERATOR_FILE, *keys])


def _site(folder: Path) -> Iterator[Check]:
    home = SiteHome.open(folder)
    where = listens_at(home)
    yield from _reaching(home) if where is None else listening(home, where)
    yield checkup.disk(folder)
    yield checkup.certificate("authority", home.authority_file, _NEW_AUTHORITY)
    yield checkup.certificate("certificate", home.certificate_file, _RENEW)
    yield checkup.database(folder / "log.sqlite")
    yield checkup.secrets([folder / "site.toml", *sorted((folder / "keys").iterdir())])
    yield _records(home.enrolment.data)
    yield from _isolation(home)


def _reaching(home: SiteHome) -> Iterator[Check]:
    """What a site needs that connects outward."""
    url, authority = home.enrolment.url, home.authority_file.read_bytes()
    client = Client(url, verified_context(authority))
    try:
        client.show(home.certificate_file, home.key_file)
    except ConsortiumError as error:
        yield checkup.fail("certificate", error.message, error.hint)
    try:
        start = "ask the lead whether the coordinator runs"
        yield from checkup.reachability(url, lambda: verified_context(authority), client, start)
    finally:
        client.close()


def _isolation(home: SiteHome) -> Iterator[Check]:
    from consortium.site.cells import examine as try_out
    from consortium.site.policy import read_policy

    try:
        is_required = read_policy(home.policy_file).isolation == "required"
        yield from checkup.isolation(try_out(home), is_required=is_required)
    except ConsortiumError as error:
        yield checkup.fail("task", error.message, error.hint)


def _records(data: str) -> Check:
    if not data:
        return checkup.warn("records", "none were given yet", "consortium join … --data FILE")
    if not Path(data).exists():
        return checkup.fail("records", f"{data} is not there", "put the site's records there")
    return checkup.ok("records", f"{data} is there")
