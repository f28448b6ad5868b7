"""Tokens for operators, as an admin asks for them: names of federations become ids."""

from __future__ import annotations

from collections.abc import Iterable

from consortium.coordinator.access import Scope, not_here
from consortium.coordinator.office import Office
from consortium.coordinator.rows import OperatorRow
from consortium.core.terms import DAY_MS
from consortium.errors import UsageError
from consortium.wire.messages import NewToken, TokenMade, TokenTold


def new_token(office: Office, body: NewToken) -> TokenMade:
    """Make a token. What it is for must be said, and must be there."""
    scope, now_ms = _scope(office, body), office.clock.now_ms()
    lifetime_ms = body.days * DAY_MS
    token = office.registry.new_operator(body.role, body.label, now_ms, lifetime_ms, scope)
    row = next(one for one in office.registry.operators() if one.label == body.label)
    return TokenMade(**_told(row, _names(office)).model_dump(), token=token, url=office.url)


def tokens(office: Office) -> list[TokenTold]:
    """All that were made and not revoked, expired ones too."""
    names = _names(office)
    return [_told(row, names) for row in office.registry.operators()]


def _scope(office: Office, body: NewToken) -> Scope:
    has_bounds = body.tenant is not None or body.federations is not None
    if has_bounds == body.everywhere:
        raise UsageError(
            "say what the token is for, in one way",
            hint="--federation NAME, --tenant NAME, or both; or --everywhere",
        )
    tenants = {row.tenant for row in office.federations()}
    if body.tenant is not None and body.tenant not in tenants:
        raise UsageError(
            f"no federation belongs to a tenant {body.tenant}",
            hint=f"there are: {', '.join(sorted(tenants))}",
        )
    listed = None if body.federations is None else frozenset(_ids(office, body.federations))
    return Scope(body.tenant, listed)


def _ids(office: Office, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        row = office.federation(name)
        if row is None:
            raise not_here(name)
        yield row.id


def _names(office: Office) -> dict[str, str]:
    return {row.id: row.name for row in office.federations()}


def _told(row: OperatorRow, names: dict[str, str]) -> TokenTold:
    listed = None if row.federations is None else [names.get(one, one) for one in row.federations]
    return TokenTold(
        label=row.label,
        role=row.role,
        tenant=row.tenant,
        federations=listed,
        created_ms=row.created_ms,
        expires_ms=row.expires_ms,
    )
