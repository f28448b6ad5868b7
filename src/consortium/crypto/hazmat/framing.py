"""WARNING: sharp tool. Two meanings that share one encoding share one key.

What is hashed, signed, sealed or derived from starts with a context string that has a version,
then come the fields, each behind its length. So no two lists of fields give the same bytes,
and bytes that were made for one purpose fit no other.
"""

from __future__ import annotations

CONTEXT = "consortium/secure-sum/v1/"

Field = bytes | str | int


def framed(purpose: str, *fields: Field) -> bytes:
    """The bytes of `fields` for one purpose. Whole numbers are eight bytes, big-endian.

    >>> framed("pair", "a", 1)
    b'consortium/secure-sum/v1/pair\\x00\\x00\\x00\\x00\\x01a\\x00\\x00\\x00\\x08\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01'
    """
    parts = [CONTEXT.encode(), purpose.encode(), b"\0"]
    for field in fields:
        raw = _raw(field)
        parts += (len(raw).to_bytes(4, "big"), raw)
    return b"".join(parts)


def _raw(field: Field) -> bytes:
    if isinstance(field, bytes):
        return field
    if isinstance(field, str):
        return field.encode()
    return field.to_bytes(8, "big")
