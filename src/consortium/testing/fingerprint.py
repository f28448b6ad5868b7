"""Fingerprints of states: hashable, equal for equal states, whatever fields a state has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from consortium.core.roster import Member, Roster
from consortium.core.state import Federation, Round, Sums


def fingerprint(state: Federation) -> object:
    """A hashable value that two states share if and only if they are equal.

    Like equality, it takes no notice of the order in which a dictionary was filled.
    """
    return _FREEZE[Federation](state)


def _frozen(value: Any) -> Any:  # the value of any field of the state
    freeze = _FREEZE.get(type(value))
    return value if freeze is None else freeze(value)


def _frozen_dict(value: dict[Any, Any]) -> object:
    return frozenset([(key, _frozen(item)) for key, item in value.items()])


def _frozen_list(value: list[Any]) -> object:
    return tuple([_frozen(item) for item in value])


def _freezer(kind: type[Any]) -> Callable[[Any], object]:
    values_of = attrgetter(*(field.name for field in fields(kind)))
    return lambda record: tuple([_frozen(value) for value in values_of(record)])


_FREEZE: dict[type[Any], Callable[[Any], object]] = {
    dict: _frozen_dict,
    list: _frozen_list,
    **{kind: _freezer(kind) for kind in (Federation, Round, Roster, Member, Sums)},
}
