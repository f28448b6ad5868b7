"""Who may do what: one table and one function. What the table does not allow is refused.

A federation outside of somebody's scope does not exist for them: they hear what they would
hear of a name that nobody has. Only about what they can see does a refusal speak of roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from consortium.coordinator.rows import FederationRow
from consortium.errors import ForbiddenError, UnknownFederationError


class Role(StrEnum):
    """Who somebody is to this coordinator. All but the first two are operators, with a token."""

    ANYBODY = "anybody"
    SITE = "site"
    VIEWER = "viewer"
    OFFICER = "officer"
    LEAD = "lead"
    ADMIN = "admin"


class Action(StrEnum):
    """What routes do. Each route names one where it is declared."""

    GREET = "greet"  # is it there, whose authority is it, which routes are there
    JOIN = "join"  # a place for a token
    TAKE_PART = "take part"
    UPLOAD = "upload"
    LEAVE = "leave"
    LOOK = "look"  # status, rounds, which versions there are
    INSPECT = "inspect"  # the sites: when they were heard of, their words, their reports
    DOWNLOAD = "download"  # a model's numbers
    HOLD = "hold"
    REVOKE = "revoke"
    INVITE = "invite"
    RUN = "run"  # resume, open, cancel, roll back, stop
    MEASURE = "measure"  # counters of the whole coordinator
    GRANT = "grant"  # tokens of operators


@dataclass(frozen=True, slots=True)
class Rule:
    """The roles that may; `is_whole` asks for a scope that is not bounded."""

    roles: frozenset[Role]
    is_whole: bool = False


def _rule(*roles: Role, is_whole: bool = False) -> Rule:
    return Rule(frozenset(roles), is_whole)


_OPERATORS = (Role.VIEWER, Role.OFFICER, Role.LEAD, Role.ADMIN)

# The officer may stop what goes on and start nothing: hold, and put a site out.
RULES: dict[Action, Rule] = {
    Action.GREET: _rule(Role.ANYBODY),
    Action.JOIN: _rule(Role.ANYBODY),
    Action.TAKE_PART: _rule(Role.SITE),
    Action.UPLOAD: _rule(Role.SITE),
    Action.LEAVE: _rule(Role.SITE),
    Action.LOOK: _rule(*_OPERATORS),
    Action.INSPECT: _rule(Role.OFFICER, Role.LEAD, Role.ADMIN),
    Action.DOWNLOAD: _rule(Role.OFFICER, Role.LEAD, Role.ADMIN),
    Action.HOLD: _rule(Role.OFFICER, Role.LEAD, Role.ADMIN),
    Action.REVOKE: _rule(Role.OFFICER, Role.LEAD, Role.ADMIN),
    Action.INVITE: _rule(Role.LEAD, Role.ADMIN),
    Action.RUN: _rule(Role.LEAD, Role.ADMIN),
    Action.MEASURE: _rule(Role.OFFICER, Role.ADMIN, is_whole=True),
    Action.GRANT: _rule(Role.ADMIN, is_whole=True),
}
_NOBODY = Rule(frozenset())


@dataclass(frozen=True, slots=True)
class Scope:
    """The federations that an operator's token is for: those of a tenant, those of a list of
    ids, or those of both; without either, all that this coordinator has and will have."""

    tenant: str | None = None
    federations: frozenset[str] | None = None

    def covers(self, place: FederationRow) -> bool:
        is_of_tenant = self.tenant is None or place.tenant == self.tenant
        return is_of_tenant and (self.federations is None or place.id in self.federations)

    @property
    def is_whole(self) -> bool:
        return self.tenant is None and self.federations is None


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody who asks. `label` is that of an operator's token."""

    role: Role
    scope: Scope = Scope()
    label: str = ""


def allowed(who: Who, action: Action, place: FederationRow | None) -> bool:
    """Whether `who` may do `action` there. With no place, whether there may be one at all:
    who asks for a list is told of the places that it may see."""
    rule = RULES.get(action, _NOBODY)
    is_inside = place is None or who.scope.covers(place)
    return is_inside and who.role in rule.roles and (who.scope.is_whole or not rule.is_whole)


def check(who: Who, action: Action, place: FederationRow | None) -> None:
    """Returns when `allowed`; raises otherwise, and tells nothing of what is out of scope."""
    if allowed(who, action, place):
        return
    if place is not None and not who.scope.covers(place):
        raise not_here(place.name)
    raise ForbiddenError(f"{_told(who)} may not do this", hint="a token of another role may")


def _told(who: Who) -> str:
    bounds = "" if who.scope.is_whole else " of a part of this coordinator"
    return f"the role {who.role}{bounds}"


def not_here(name: str) -> UnknownFederationError:
    """The same for a name that nobody has and for one that is not for this caller."""
    return UnknownFederationError(
        f"there is no federation `{name}`", hint="consortium status shows those that there are"
    )
