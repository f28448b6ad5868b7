"""Performs the cells of docs/reference/access.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from consortium.coordinator.access import Role
from consortium.coordinator.matrix import Person, Reach, read_table
from tests.coordinator.access_world import ALPHA, Told, Wanted, World

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "access.md"
_CODES = {
    "401": {"E0812", "E0814", ""},  # HEAD has no body
    "403": {"E0820", "E0301", ""},
    "404": {"E0819", "E0602", ""},
}


def complaints(world: World) -> Iterator[str]:
    """Where somebody hears something else than the page says, or a refusal has an effect."""
    for method, path in read_table(PAGE.read_text()):
        yield from complaints_of(world, method, path)


def complaints_of(world: World, method: str, path: str) -> Iterator[str]:
    """Of one route. Those who are refused come first: what they must not do can be done then."""
    people = read_table(PAGE.read_text())[method, path]
    for person, answer in sorted(people.items(), key=lambda item: item[1] == "yes"):
        complaint = _complaint(world, Wanted(method, path), person, answer)
        if complaint is not None:
            yield f"{method} {path} as {person}: {complaint}"


def _complaint(world: World, route: Wanted, person: Person, answer: str) -> str | None:
    wanted = world.wanted(route.method, route.path, person)
    before = _standing(world)
    if route.path == "/v1/leave" and answer == "yes":  # the others are needed again
        told = world.signed(world.enrol(ALPHA, world.fresh("leaver")), wanted)
    else:
        told = world.ask(person, wanted)
    if answer == "yes":
        if told.status >= 300 and told.status != 409:
            return f"refused with {told.status}: {told.body!r}"
        return _leak(person, wanted, told) or _named_site(world, person, told)
    if str(told.status) != answer or told.code not in _CODES[answer]:
        return f"{told.status} instead of {answer}: {told.body[:200]!r}"
    if _standing(world) != before:
        return "it was refused, and had an effect"
    return None


def _leak(person: Person, wanted: Wanted, told: Told) -> str | None:
    """Lists tell nothing of what is out of scope."""
    is_list = wanted.path in ("/v1/federations", "/federated/server/status")
    if not is_list or person.role is Role.SITE:
        return None
    is_seen = f'"{ALPHA}"'.encode() in told.body
    should = person.reach is not Reach.OTHER
    return None if is_seen is should else f"alpha is {'seen' if is_seen else 'hidden'} in the list"


def _named_site(world: World, person: Person, told: Told) -> str | None:
    """A viewer hears of no site by its name, whatever it asks."""
    if person.role is not Role.VIEWER:
        return None
    named = [one.row.name for sites in world.sites.values() for one in sites]
    heard = [name for name in named if f'"{name}"'.encode() in told.body]
    return f"the names of sites: {heard}" if heard else None


def _standing(world: World) -> tuple[object, ...]:
    """What a refused request must not change."""
    desk, registry = world.office.teller_named(ALPHA).desk, world.office.registry
    invites = len(registry.invites(desk.id))
    return desk.size, invites, len(registry.operators()), len(registry.sites(desk.id))
