"""What a site would be told now, and whether that is news to it.

An answer carries a mark, which the site gives back with its next question. The mark has a
part for each thing that may be news by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from consortium.core import duties as d

_MARK = 16  # digits of a part


@dataclass(frozen=True, slots=True)
class News:
    """What a site would be told now."""

    duty: d.SiteDuty | None
    settled: tuple[int, bool] | None  # a round, and whether this site counted in it
    version: int
    is_finished: bool

    @property
    def mark(self) -> str:
        """Of each of its parts: the duty, the rest, how a round ended."""
        return "".join(_mark(part) for part in self._parts())

    def is_known(self, have: str, *, has_answered: bool) -> bool:
        """Whether a site that has this mark would learn nothing. That its invitation is gone
        is no news to one that has answered it, nor that it has settled what it was told."""
        parts = [have[at : at + _MARK] for at in range(0, 3 * _MARK, _MARK)]
        duty, rest, settled = (
            _mark(now) == then for now, then in zip(self._parts(), parts, strict=True)
        )
        if self.duty is None and has_answered:
            duty = True
        return duty and rest and (settled or self.settled is None)

    def _parts(self) -> tuple[object, object, object]:
        return self.duty, (self.version, self.is_finished), self.settled


def _mark(of: object) -> str:
    return sha256(repr(of).encode()).hexdigest()[:_MARK]
