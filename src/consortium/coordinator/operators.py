"""Tokens of those who give orders: kept as hashes, under a label, for a role."""

from __future__ import annotations

import hmac
from hashlib import sha256
from sqlite3 import Connection

from consortium.coordinator.rows import OperatorRow, columns
from consortium.core.ids import is_plain_id
from consortium.errors import UsageError
from consortium.wire.token import new_secret

_MAX_LABEL = 64
_CONTEXT = b"consortium/operator/v1\0"


def new_operator(run: Connection, operator: OperatorRow) -> str:
    """Keep a hash; returns the secret, which is not kept."""
    if not is_plain_id(operator.role):
        raise UsageError("a role is 1 to 64 letters, digits, dashes and underscores")
    if not 0 < len(operator.label) <= _MAX_LABEL or not operator.label.isprintable():
        raise UsageError("a label is 1 to 64 printable characters")
    if run.execute("SELECT 1 FROM operators WHERE label = ?", (operator.label,)).fetchone():
        raise UsageError(
            f"there is a token {operator.label} already",
            hint="revoke it first, or choose another label",
        )
    secret = new_secret()
    row = (_hash(secret), operator.label, operator.role, operator.created_ms, operator.expires_ms)
    run.execute("INSERT INTO operators VALUES (?, ?, ?, ?, ?)", row)
    return secret


def operator_of(run: Connection, secret: str, now_ms: int) -> OperatorRow | None:
    """Whose token this is, as long as it holds."""
    wanted = _hash(secret)
    query = f"SELECT hash, {columns(OperatorRow)} FROM operators WHERE hash = ?"
    kept, *rest = run.execute(query, (wanted,)).fetchone() or (bytes(32), "", "", 0, 0)
    found = OperatorRow(*rest)
    is_known = hmac.compare_digest(kept, wanted)
    is_open = found.expires_ms is None or now_ms < found.expires_ms
    return found if is_known and is_open else None


def _hash(secret: str) -> bytes:
    return sha256(_CONTEXT + secret.encode(errors="surrogatepass")).digest()
