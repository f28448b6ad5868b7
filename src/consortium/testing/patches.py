"""How a bug is put into the running core, and taken out again.

Patches replace a rule, a record or a table's entry in this process only. They reach into
private names of the core on purpose: a bug sits where code is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from consortium.core import evolve as records
from consortium.core import facts as f
from consortium.core import federation
from consortium.core.state import Federation
from consortium.testing.federations import Small

Facts = tuple[f.Fact, ...]
# It takes the original first, then what the original takes, whatever that is.
Wrapper = Callable[..., Any]


@dataclass(slots=True)
class Patches:
    """What has been replaced, and how to put it back."""

    undo: list[Callable[[], object]] = field(default_factory=list)

    def attribute(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Call `wrapper(original, ...)` wherever `owner.name` is called."""
        original = getattr(owner, name)
        self.undo.append(lambda: setattr(owner, name, original))
        setattr(owner, name, lambda *args, **options: wrapper(original, *args, **options))

    def move(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Put `value` into a table."""
        had, original = key in table, table.get(key)
        self.undo.append(lambda: table.update({key: original}) if had else table.pop(key))
        table[key] = value

    def rule(self, kind: type[Any], wrapper: Wrapper) -> None:
        """Call `wrapper(original, ...)` for one kind of input."""
        is_of_round = kind in federation._ROUND_RULES
        table: dict[Any, Any] = (
            federation._ROUND_RULES if is_of_round else federation._FEDERATION_RULES
        )
        original = table[kind]
        self.move(table, kind, lambda *args: wrapper(original, *args))

    def record(self, kind: type[Any], wrapper: Wrapper) -> None:
        """Call `wrapper(original, ...)` when one kind of fact is recorded."""
        original = records._RECORD[kind]
        self.move(records._RECORD, kind, lambda *args: wrapper(original, *args))


Plant = Callable[[Patches], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug, and the federation in which it shows after few states."""

    name: str
    where: Small
    plant: Plant


class Planted(Protocol):
    """Any bug that knows how to be planted."""

    @property
    def plant(self) -> Plant: ...


@contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """The running code with this bug in it."""
    patches = Patches()
    try:
        bug.plant(patches)
        yield
    finally:
        for undo in reversed(patches.undo):
            undo()


def believing(state: Federation, **changes: Any) -> Federation:
    """The same state, but the open round has other values in some fields."""
    copy = state.clone()
    if copy.round is not None:
        for name, value in changes.items():
            setattr(copy.round, name, value)
    return copy


def nothing(*_: object, **__: object) -> Facts:
    """In place of a rule: no facts, whatever happens."""
    return ()
