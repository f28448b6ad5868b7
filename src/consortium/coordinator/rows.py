"""What the registry holds: its tables, a row of each as a value, and how rows are found."""

from __future__ import annotations

from dataclasses import dataclass, fields
from sqlite3 import Connection
from typing import Any

FORMAT = 3  # PRAGMA user_version
_OPERATORS = """CREATE TABLE operators (
        hash BLOB PRIMARY KEY, label TEXT NOT NULL UNIQUE, role TEXT NOT NULL,
        tenant TEXT, federations TEXT,
        created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL) STRICT"""
# By name: an address may be told before the site has joined.
_LISTENING = """CREATE TABLE listening (
        federation TEXT NOT NULL, name TEXT NOT NULL, url TEXT NOT NULL,
        PRIMARY KEY (federation, name)) STRICT"""
SCHEMA = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    """CREATE TABLE federations (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
        created_ms INTEGER NOT NULL) STRICT""",
    """CREATE TABLE studies (
        federation TEXT NOT NULL, plan TEXT NOT NULL, task TEXT NOT NULL,
        bundle TEXT NOT NULL, lock TEXT NOT NULL, added_ms INTEGER NOT NULL,
        PRIMARY KEY (federation, plan, task)) STRICT""",
    """CREATE TABLE invites (
        hash BLOB PRIMARY KEY, federation TEXT NOT NULL, name TEXT NOT NULL,
        created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
        used_ms INTEGER, site TEXT) STRICT""",
    """CREATE TABLE sites (
        id TEXT PRIMARY KEY, federation TEXT NOT NULL, name TEXT NOT NULL, key BLOB NOT NULL,
        seat INTEGER, enrolled_ms INTEGER NOT NULL, revoked_ms INTEGER,
        certificate_serial TEXT, words TEXT NOT NULL, certificate TEXT) STRICT""",
    "CREATE UNIQUE INDEX site_names ON sites (federation, name) WHERE revoked_ms IS NULL",
    "CREATE UNIQUE INDEX site_keys ON sites (federation, key)",
    "CREATE UNIQUE INDEX site_seats ON sites (federation, seat) WHERE seat IS NOT NULL",
    """CREATE TABLE answers (
        site TEXT NOT NULL, nonce TEXT NOT NULL, request_digest TEXT NOT NULL,
        status INTEGER NOT NULL, body BLOB NOT NULL, kept_ms INTEGER NOT NULL,
        PRIMARY KEY (site, nonce)) STRICT""",
    "CREATE INDEX answer_times ON answers (kept_ms)",
    """CREATE TABLE notes (
        site TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL, objection TEXT,
        own_size INTEGER NOT NULL, cosignature TEXT NOT NULL) STRICT""",
    _OPERATORS,
    _LISTENING,
)
# What makes the next format of each older one. Tokens of format 1 were for everything and for
# ever: they end here, and `serve` writes a new one for the operator of its machine.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: ("DROP TABLE operators", _OPERATORS),
    2: (_LISTENING,),
}


@dataclass(frozen=True, slots=True)
class FederationRow:
    """A federation: its id in the log, and what people call it."""

    id: str
    name: str
    tenant: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class StudyRow:
    """Which blobs hold a study: the task's bundle and the lock. Digests, in hexadecimal."""

    federation: str
    plan: str
    task: str
    bundle: str
    lock: str
    added_ms: int


@dataclass(frozen=True, slots=True)
class InviteRow:
    """An invitation to join, without its secret. `site` is who used it."""

    federation: str
    name: str
    created_ms: int
    expires_ms: int
    used_ms: int | None
    site: str | None


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A site that has joined. `key` is its raw Ed25519 key; `certificate` is PEM."""

    id: str
    federation: str
    name: str
    key: bytes
    seat: int | None
    enrolled_ms: int
    revoked_ms: int | None
    certificate_serial: str | None
    words: tuple[str, ...]
    certificate: str | None

    @property
    def is_revoked(self) -> bool:
        return self.revoked_ms is not None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a signed request was answered with. The digest is of the whole request."""

    request_digest: str
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class SiteNote:
    """What is known of a site: when it was heard of, why it refuses to work (an error's code),
    how long its own log was at its longest, the newest checkpoint that it cosigned."""

    site: str
    seen_ms: int
    objection: str | None = None
    own_size: int = 0
    cosignature: str = ""


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """Somebody with a token: its label, the role, the scope (None: not bounded by that; the
    federations by their ids), and until when it holds."""

    label: str
    role: str
    tenant: str | None
    federations: tuple[str, ...] | None
    created_ms: int
    expires_ms: int


_SITE_COLUMNS = [field.name for field in fields(SiteRow)]


def columns(kind: type[Any]) -> str:
    """The columns of a row, in the order of its fields: `SELECT {columns(SiteRow)} FROM …`."""
    return ", ".join(field.name for field in fields(kind))


def site_row(row: tuple[Any, ...]) -> SiteRow:
    """A row of `sites`: the words are kept as one text."""
    values = dict(zip(_SITE_COLUMNS, row, strict=True))
    return SiteRow(**values | {"words": tuple(values["words"].split())})


def find_site(run: Connection, site_id: str) -> SiteRow | None:
    query = f"SELECT {columns(SiteRow)} FROM sites WHERE id = ?"
    row = run.execute(query, (site_id,)).fetchone()
    return site_row(row) if row else None


def find_study(run: Connection, federation: str, plan: str, task: str) -> StudyRow | None:
    where = "WHERE federation = ? AND plan = ? AND task = ?"
    query = f"SELECT {columns(StudyRow)} FROM studies {where}"
    row = run.execute(query, (federation, plan, task)).fetchone()
    return StudyRow(*row) if row else None


def find_answer(run: Connection, site: str, nonce: str) -> Answer | None:
    query = f"SELECT {columns(Answer)} FROM answers WHERE site = ? AND nonce = ?"
    row = run.execute(query, (site, nonce)).fetchone()
    return Answer(*row) if row else None
