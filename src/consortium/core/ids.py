"""The names by which facts speak of things: digests, seats, site ids.

A *seat* is a site's number on one federation's roster: 1, 2, 3 … in order of admission,
never reused. Facts name sites by seat, so they stay small and carry nothing personal;
who sits there is in the directory beside the log.
"""

from __future__ import annotations

from typing import NewType

Digest = NewType("Digest", bytes)
Seat = NewType("Seat", int)
SiteId = NewType("SiteId", str)

# Strictly ascending seats. The codec stores runs, so a cohort of all costs four bytes.
Seats = tuple[Seat, ...]

DIGEST_BYTES = 32


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def is_plain_id(text: str) -> bool:
    """Whether `text` can name a federation or a site: it may become part of a file's name."""
    return 0 < len(text) <= 64 and _PLAIN.issuperset(text)


class Secret:
    """A value that must never be written down: noise seeds, masks, private keys.

    It has no encoding: the codec refuses it, and its text form hides it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"
