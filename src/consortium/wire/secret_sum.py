"""What sites and coordinator say to each other in a round whose sum is secret.

What a site is told are records of the coordinator's own log, as they stand there, in hexadecimal:
the site makes its session of them, and can ask later whether the log has them.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from pydantic import Field, StringConstraints

from consortium.errors import WireError
from consortium.wire.messages import Hex16, Hex32, Message, Reply

Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
Record = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}){1,4096}$")]
Octets = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=700_000)]


class KeysNote(Message):
    """A site's public keys for one round. Its identity signs them: everybody who masks with the
    site verifies that."""

    mask_key: Hex32
    seal_key: Hex32
    commitment: Hex32
    signature: Hex64


class SharesNote(Message):
    """A site's seeds in shares, one after the other in the order of its neighbours' ids, each
    sealed for its neighbour."""

    session: Hex32
    sealed: Octets


class ConsentNote(Message):
    """A member's signature on who is in the sum and who is not: on the session, all who shared, and
    the members, as this site was told of them."""

    split: Hex32
    signature: Hex64


class AnswerNote(Message):
    """A member's shares of all who shared with it, in the order of their ids: of who is in the
    sum, that of its own seed; of who dropped out, that of its pairwise one."""

    split: Hex32
    shares: Octets


class Identity(Reply):
    """Who sits on a seat: the key that its keys of the round are signed with."""

    seat: Annotated[int, Field(ge=1, lt=1 << 62)]
    site: Hex16
    key: Hex32


class SessionSheet(Reply):
    """Those who mask with each other: `keys` are records of `KeysReceived`, `closed` is that of
    `KeysClosed`."""

    seed: Hex32  # of the round
    sites: list[Identity]
    keys: list[Record]
    closed: Record


class Sealed(Reply):
    site: Hex16
    shares: Octets


class SharingSheet(Reply):
    """Those whose shares are with their holders (the record of `SharesClosed`), and the shares of
    them that this site holds."""

    closed: Record
    sealed: list[Sealed]


class SplitSheet(Reply):
    """Who is in the sum: the record of `RoundClosed`."""

    closed: Record


class ConsentSheet(Reply):
    """Who has signed it: records of `ConsentReceived`."""

    consents: list[Record]


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise WireError("shares are not in base64") from None
