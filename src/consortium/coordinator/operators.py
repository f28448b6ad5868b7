"""Tokens of operators: kept as hashes, under a label, for a role, a scope and a time.

    co1.pY9n…    160 random bits, in base64url

The hash covers the id of the coordinator that made the token, so a row that finds its way
into another coordinator's registry fits no token there.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from sqlite3 import Connection
from typing import Any

from consortium.coordinator.access import Role
from consortium.coordinator.rows import OperatorRow, columns
from consortium.core.ids import is_plain_id
from consortium.core.terms import DAY_MS
from consortium.errors import UsageError
from consortium.wire.token import new_secret

LIFETIME_MS, MAX_LIFETIME_MS = 90 * DAY_MS, 366 * DAY_MS
ROLES = (Role.VIEWER, Role.OFFICER, Role.LEAD, Role.ADMIN)
_PREFIX = "co1."
_CONTEXT = "consortium/operator/v2"
_NOBODY = (bytes(32), "", "", None, None, 0, 1 << 62)  # no hash of a text


def new_operator(run: Connection, operator: OperatorRow, audience: str) -> str:
    """Keep a hash; returns the token, which is not kept."""
    _check(operator)
    if run.execute("SELECT 1 FROM operators WHERE label = ?", (operator.label,)).fetchone():
        raise UsageError(
            f"there is a token {operator.label} already",
            hint="revoke it first, or choose another label",
        )
    token = _PREFIX + new_secret()
    listed = None if operator.federations is None else " ".join(operator.federations)
    row = (operator.label, operator.role, operator.tenant, listed)
    times = (operator.created_ms, operator.expires_ms)
    run.execute(
        "INSERT INTO operators VALUES (?, ?, ?, ?, ?, ?, ?)",
        (token_key(token, audience), *row, *times),
    )
    return token


def _check(operator: OperatorRow) -> None:
    if operator.role not in ROLES:
        raise UsageError(f"a role is one of {', '.join(ROLES)}")
    if not is_plain_id(operator.label):
        raise UsageError("a label is 1 to 64 letters, digits, dashes and underscores")
    if not 0 < operator.expires_ms - operator.created_ms <= MAX_LIFETIME_MS:
        raise UsageError(f"a token lasts for 1 to {MAX_LIFETIME_MS // DAY_MS} days")


def operator_of(run: Connection, token: str, audience: str, now_ms: int) -> OperatorRow | None:
    """Whose token this is, as long as it holds. Unknown, revoked and expired ones, and those
    of another coordinator, cost the same: one query and one comparison."""
    wanted = token_key(token, audience)
    query = f"SELECT hash, {columns(OperatorRow)} FROM operators WHERE hash = ?"
    kept, *rest = run.execute(query, (wanted,)).fetchone() or _NOBODY
    found = operator_row(tuple(rest))
    is_known = hmac.compare_digest(kept, wanted)
    is_open = now_ms < found.expires_ms
    return found if is_known and is_open else None


def operator_row(row: tuple[Any, ...]) -> OperatorRow:
    """A row of `operators`: the federations are kept as one text."""
    label, role, tenant, listed, created_ms, expires_ms = row
    federations = None if listed is None else tuple(listed.split())
    return OperatorRow(label, role, tenant, federations, created_ms, expires_ms)


def token_key(token: str, audience: str) -> bytes:
    """What a coordinator keeps of a token. Any text has one: what is no token fits none."""
    parts = (_CONTEXT, audience, token)
    return sha256("\0".join(parts).encode(errors="surrogatepass")).digest()
