"""An answer of the coordinator whose body is still on its way."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message
from http.client import HTTPResponse, IncompleteRead

from consortium.errors import UnreachableError, WireError
from consortium.site.refusals import NETWORK_ERRORS, network_error

_PIECE_BYTES = 16 << 10  # a TLS record has at most as much, and one read gives one record


class Response:
    """Status, headers and body. Only a body that came to its announced end looks complete."""

    def __init__(self, answer: HTTPResponse) -> None:
        self._answer = answer
        self.status_code = answer.status
        self.headers: Message = answer.headers  # names in any case
        self._is_whole = answer.length == 0
        if answer.length is None and not answer.chunked:
            # Else it would look complete wherever the line is cut, even in the middle of its head.
            answer.close()
            raise UnreachableError("the coordinator's answer does not say how long it is")

    @property
    def is_spent(self) -> bool:
        """Whether the body was read to its end, and another answer may follow."""
        return self._is_whole and not self._answer.will_close

    def iter_raw(self) -> Iterator[bytes]:
        """The body as it comes. Raises `UnreachableError` when it does not come to its end."""
        while piece := self._read():
            yield piece

    def read_all(self, most_bytes: int) -> bytes:
        """The body, which is small."""
        parts, size = [], 0
        for part in self.iter_raw():
            size += len(part)
            if size > most_bytes:
                raise WireError("the coordinator's answer is too long")
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        self._answer.close()

    def _read(self) -> bytes:
        if self._is_whole:
            return b""
        answer = self._answer
        try:
            piece = answer.read1(_PIECE_BYTES)
            if not piece and answer.length:
                raise IncompleteRead(b"", answer.length)
        except NETWORK_ERRORS as error:
            raise network_error(error) from None
        self._is_whole = not piece or answer.length == 0
        return piece
