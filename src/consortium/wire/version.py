"""Which version of the wire somebody speaks.

Whoever asks and whoever answers says it in a header. Version 1 said nothing: a missing header
is version 1, for as long as that is the previous one. A peer of this version or of the one
before is understood; any other is refused, with a code, before anything has an effect.

House rule: the number goes up when a peer of the version before would misunderstand something.
What only adds a field to an answer, or a route, leaves it alone (docs/adr/0040).
"""

from __future__ import annotations

import re

from consortium.errors import ProtocolVersionError

PROTOCOL = "Consortium-Protocol"
PRESENT = 2
_FIRST = 1  # did not say so
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")


def check_version(told: str | None, who: str) -> int:
    """The version that a peer speaks; raises unless it is ours or the one before. `who` is the
    peer, as in "the agent".

    >>> check_version("2", "the agent"), check_version(None, "the agent")
    (2, 1)
    """
    number = _FIRST if told is None else _read(told, who)
    if number > PRESENT:
        raise ProtocolVersionError(
            f"{who} speaks version {number} of the protocol; this side speaks {PRESENT}",
            hint=f"update this side, or go back with {who}",
        )
    if number < PRESENT - 1:
        raise ProtocolVersionError(
            f"{who} speaks version {number} of the protocol; here it must be at least"
            f" {PRESENT - 1}",
            hint=f"update {who}",
        )
    return number


def _read(told: str, who: str) -> int:
    if not _NUMBER.fullmatch(told):
        raise ProtocolVersionError(f"{who} does not say its version as a number")
    return int(told)
