"""Inviting and redeeming: how a name on a list becomes a site with a key.

Both run inside one write transaction, which is all that makes a token work once: whoever
comes second finds it used. The coordinator keeps a hash of each secret, never the secret.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from sqlite3 import Connection

from consortium.coordinator.rows import SiteRow, find_site
from consortium.crypto.recipes import check_public_key
from consortium.errors import BadTokenError, UsageError
from consortium.wire.token import is_site_name, new_secret, token_hash

# One text for unknown, used and expired: an answer must not tell which.
USED = "the token is unknown, used or expired"
_NO_INVITE = (bytes(32), "", 1 << 62, None, "")  # no hash of a text

_NO_KEY = bytes(32)  # of small order: nobody joins with it


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Who redeems a token: the id that it gets if it wins, its key, the name that it says it
    was invited under (None: it did not say)."""

    id: str
    key: bytes
    name: str | None = None


def invite(run: Connection, federation: str, name: str, now_ms: int, lifetime_ms: int) -> str:
    """Keep a place under `name`; returns the secret, which is not kept."""
    if not is_site_name(name):
        raise UsageError(
            "a site's name is 1 to 64 letters, digits, dashes and underscores",
            hint="for example charite, or tenant.location with one dot",
        )
    if lifetime_ms <= 0:
        raise UsageError("an invitation must last for some time")
    taken = "SELECT 1 FROM sites WHERE federation = ? AND name = ? AND revoked_ms IS NULL"
    if run.execute(taken, (federation, name)).fetchone():
        raise UsageError(
            f"{name} has joined already",
            hint=f"revoke {name} before you invite it again, or choose another name",
        )
    older = "DELETE FROM invites WHERE federation = ? AND name = ? AND used_ms IS NULL"
    run.execute(older, (federation, name))
    secret = new_secret()
    row = (token_hash(secret), federation, name, now_ms, now_ms + lifetime_ms)
    run.execute("INSERT INTO invites VALUES (?, ?, ?, ?, ?, NULL, NULL)", row)
    return secret


def redeem(
    run: Connection, federation: str, secret: str, newcomer: Newcomer, now_ms: int
) -> SiteRow:
    """The place that the token was for. The same key again gets the same place, whatever id
    it brings and whenever it comes: its first answer may have been lost."""
    check_public_key(newcomer.key)
    wanted = token_hash(secret)
    query = "SELECT hash, name, expires_ms, used_ms, site FROM invites WHERE federation = ? "
    found = run.execute(query + "AND hash = ?", (federation, wanted)).fetchone()
    kept, name, expires_ms, used_ms, site = found or _NO_INVITE
    # From here on an unknown, a used and an expired token cost the same.
    holder = find_site(run, site or "")
    is_meant = hmac.compare_digest(kept, wanted) and newcomer.name in (None, name)
    is_open = used_ms is None and now_ms < expires_ms
    is_same = hmac.compare_digest(holder.key if holder else _NO_KEY, newcomer.key)
    if is_meant and is_same and holder is not None and not holder.is_revoked:
        return holder
    if not is_meant or not is_open:
        raise BadTokenError(USED)
    return _admit(run, federation, replace(newcomer, name=name), wanted, now_ms)


def _admit(
    run: Connection, federation: str, newcomer: Newcomer, token: bytes, now_ms: int
) -> SiteRow:
    used_key = "SELECT 1 FROM sites WHERE federation = ? AND key = ?"
    if run.execute(used_key, (federation, newcomer.key)).fetchone():
        raise UsageError(
            "this key belongs to a site that has joined before",
            hint="make a new key: each site has its own, and a revoked one does not come back",
        )
    row = (newcomer.id, federation, newcomer.name, newcomer.key, now_ms)
    names = "id, federation, name, key, enrolled_ms, words"  # its words come with its seat
    run.execute(f"INSERT INTO sites ({names}) VALUES (?, ?, ?, ?, ?, '')", row)
    used = "UPDATE invites SET used_ms = ?, site = ? WHERE hash = ?"
    run.execute(used, (now_ms, newcomer.id, token))
    made = find_site(run, newcomer.id)
    assert made is not None
    return made
