"""TLS for the listening port: non-blocking `ssl.SSLSocket`s on the event loop.

asyncio's own TLS copies every byte through memory of each connection. Here OpenSSL reads from
the socket, into one buffer that all connections share: the loop has one thread, and what was
read is used up before the next connection has its turn (docs/adr/0035).

    SHAKING -> OPEN -> FLUSHING -> LINGERING -> ENDED     (from each of them: ENDED)

House rule: nobody is waited for without a deadline, unless the protocol says so. A peer that
does not take what was written for it has one, too (`patience.py`). Peers that nobody knows have
so many places and no more (`rooms.py`).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import ssl
import struct
import termios
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from hashlib import sha256
from typing import Any
from weakref import WeakSet

from consortium.coordinator.patience import Patience
from consortium.coordinator.rates import network_of
from consortium.coordinator.rooms import Place, Rooms

READ_BYTES = 256 << 10  # at a time, at most; then other connections have a turn
LITTLE_BYTES = 16 << 10  # a record of TLS, at most
RECORDS = 64  # at a time: a peer may send them with a byte in each
HANDSHAKE_S = 15.0
FLUSH_S = 5.0  # at the end, for a peer to take what we still have to say
LINGER_S = 1.0  # and to read it: a socket that is closed too early takes it back
ACCEPTED_AT_ONCE = 100
PAUSE_S = 1.0  # when no more connections can be taken
HIGH_BYTES = 64 << 10  # waits to be sent before the protocol is asked to pause

_NOBODY = asyncio.Protocol()
_log = logging.getLogger(__name__)

MakeProtocol = Callable[[], asyncio.Protocol]


class _Phase(Enum):
    SHAKING = "the handshake is not over"
    OPEN = "as usual"
    FLUSHING = "closed by us, but not everything is sent"
    LINGERING = "everything is sent; what still comes is thrown away until the peer hangs up"
    ENDED = "over"


class Acceptor:
    """Takes connections from a listening socket until it is closed. Made in a running loop;
    has what uvicorn expects of an `asyncio.Server`."""

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, make_protocol: MakeProtocol
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener, self._context, self._make_protocol = listener, context, make_protocol
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._transports: WeakSet[Transport] = WeakSet()
        self.rooms = Rooms()
        self._pause: asyncio.TimerHandle | None = None
        self.sockets = (listener,)
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Take no more, and end what is not a connection yet. The socket is its owner's."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        for transport in list(self._transports):
            transport.end_unless_open()

    async def wait_closed(self) -> None:
        """Connections are their protocols' matter."""

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more files: the port stays readable all the same
                _log.warning("cannot take connections now: %s", error.strerror or error)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_S, self._resume)
                return
            self._greet(sock, address)

    def _greet(self, sock: socket.socket, address: Any) -> None:  # which depends on the family
        sock.setblocking(False)
        try:
            tls = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:  # it is gone already
            sock.close()
            return
        told = {"peername": address, "sockname": tls.getsockname()}
        transport = Transport(self._loop, tls, self._buffer, self._make_protocol, told)
        self._transports.add(transport)
        transport.begin(self.rooms)


class Transport(asyncio.Transport):
    """One connection. Its protocol is made when the handshake is over.

    `read_bytes` is how much the protocol is given at a time: it has to keep what it cannot
    use at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLSocket,
        buffer: memoryview,
        make_protocol: MakeProtocol,
        told: dict[str, Any],
    ) -> None:
        known = {"socket": tls, "ssl_object": tls, "sslcontext": tls.context}
        super().__init__(told | known)
        self._loop, self._tls, self._buffer = loop, tls, buffer
        self._make_protocol, self._protocol = make_protocol, _NOBODY
        self._handle = tls.fileno()
        self.read_bytes = LITTLE_BYTES
        self._phase, self._is_known = _Phase.SHAKING, False
        self._has_spoken = False
        self._is_read = self._is_written = False  # what the loop watches the socket for
        self._is_paused = self._is_full = False  # reading, and the protocol's writing
        self.resumed_s = 0.0  # when we last began to listen again
        # TLS may have to write in order to read, and the other way round (RFC 8446, 4.6.3).
        self._read_needs_write = self._write_needs_read = False
        self._part = memoryview(b"")  # is being sent: OpenSSL may want the same bytes again
        self._queue: deque[bytes] = deque()  # is sent after it
        self._queued = 0
        self._is_flush_due = False
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._deadline = loop.call_later(HANDSHAKE_S, self.abort)
        self._stall = Patience(loop, self._look_at_stall)
        self._sent = self._left = 0  # to the system, and of it not yet to the peer
        self._rooms: Rooms | None = None

    def begin(self, rooms: Rooms) -> None:
        """Shake hands, among so many others who do."""
        self._rooms = rooms
        self._move(Place.SILENT)
        self._watch()  # until it has sent something: then it is elsewhere

    @property
    def is_accepted(self) -> bool:
        """Whether the peer has connected to us, and not we to it."""
        return self._rooms is not None

    def trust(self, who: str) -> None:
        """The peer has shown who it is: it need no longer make room for others."""
        if self._rooms is not None and self._rooms.place_of(self) is Place.STRANGER:
            self._rooms.move(self, Place.KNOWN, who)

    def _move(self, place: Place) -> None:
        peer = self.get_extra_info("peername")
        key = network_of(peer[0]) if isinstance(peer, tuple) else ""
        shown = self._tls.getpeercert(binary_form=True) if place is Place.STRANGER else None
        if shown is not None:
            place, key = Place.KNOWN, sha256(shown).hexdigest()
        if self._rooms is not None:
            self._rooms.move(self, place, key)

    # ---- what a protocol asks -------------------------------------------------------

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._phase not in (_Phase.SHAKING, _Phase.OPEN)

    def is_reading(self) -> bool:
        return self._phase is _Phase.OPEN and not self._is_paused

    def pause_reading(self) -> None:
        self._is_paused = True
        self._watch()

    def resume_reading(self) -> None:
        if self._is_paused:
            self.resumed_s = self._loop.time()
        self._is_paused = False
        self._watch()
        self._read_what_is_pending()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._queued

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_BYTES if low is None else 4 * low
        low = high // 4 if low is None else low
        if not high >= low >= 0:
            raise ValueError(f"it must be that {high} >= {low} >= 0")
        self._high, self._low = high, low
        self._tell_fill()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._phase is not _Phase.OPEN or not data:
            return
        self._queue.append(bytes(data))  # of bytes, this is not a copy
        self._queued += len(data)
        if self._queued >= LITTLE_BYTES and not self._part:
            self._flush()
        elif not self._part and not self._is_flush_due:  # an answer's head: wait for its body
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        self._tell_fill()

    def close(self) -> None:
        """Send what was written, say goodbye, and wait a moment for the peer to see it."""
        if self._phase is not _Phase.OPEN:
            return
        self._phase = _Phase.FLUSHING
        self._rearm(FLUSH_S)
        self._flush()

    def abort(self) -> None:
        self._end(None)

    def end_unless_open(self) -> None:
        """End, unless there is a protocol that knows of it."""
        if not self._is_known:
            self._end(None)

    # ---- the socket is ready --------------------------------------------------------

    def _watch(self) -> None:
        """Let the loop watch for what can go on."""
        if self._phase is _Phase.SHAKING:
            read, write = not self._read_needs_write, self._read_needs_write
        else:
            lingers, has_more = self._phase is _Phase.LINGERING, self._queued > 0
            read = self.is_reading() or self._write_needs_read or lingers
            write = self._read_needs_write or (has_more and not self._write_needs_read)
        if self._phase is _Phase.ENDED:
            read = write = False
        if read != self._is_read:
            self._is_read = read
            if read:
                self._loop.add_reader(self._handle, self._on_readable)
            else:
                self._loop.remove_reader(self._handle)
        if write != self._is_written:
            self._is_written = write
            if write:
                self._loop.add_writer(self._handle, self._on_writable)
            else:
                self._loop.remove_writer(self._handle)

    def _on_readable(self) -> None:
        if self._phase is _Phase.SHAKING:
            if not self._has_spoken:
                self._has_spoken = True
                self._move(Place.SHAKING)
            self._shake()
        elif self._phase is _Phase.LINGERING:
            self._discard()
        if self._write_needs_read:
            self._flush()
        if self.is_reading():
            self._read()

    def _on_writable(self) -> None:
        if self._phase is _Phase.SHAKING:
            self._shake()
            return
        if self._read_needs_write:
            self._read_needs_write = False
            self._watch()
            if self.is_reading():
                self._read()
        if self._queued:
            self._flush()

    def _shake(self) -> None:
        self._read_needs_write = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._watch()
            return
        except ssl.SSLWantWriteError:
            self._read_needs_write = True
            self._watch()
            return
        except OSError as error:
            _log.debug("a handshake failed: %s", error)
            self._linger()  # OpenSSL has told the peer why
            return
        self._deadline.cancel()
        self._phase = _Phase.OPEN
        self._move(Place.STRANGER)
        self._watch()
        self._call(self._begin)
        self._read_what_is_pending()

    def _begin(self) -> None:
        self._protocol, self._is_known = self._make_protocol(), True
        self._protocol.connection_made(self)

    def _read(self) -> None:
        """All that is there and allowed, as one piece. The protocol must not keep it: the
        buffer is everybody's."""
        size, is_over, most = 0, False, min(self.read_bytes, len(self._buffer))
        failure: OSError | None = None
        try:
            for _ in range(RECORDS):
                count = self._tls.recv_into(self._buffer[size:most])  # of one record
                size, is_over = size + count, not count
                if is_over or size == most:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._read_needs_write = True
            self._watch()
        except OSError as error:
            failure = error
        if size:
            self._call(self._protocol.data_received, self._buffer[:size])
        if failure is not None:
            self._end(failure)
        elif is_over and self._phase is _Phase.OPEN:
            self._call(self._protocol.eof_received)
            self.close()
        else:
            self._read_what_is_pending()

    def _read_what_is_pending(self) -> None:
        """Of bytes that OpenSSL has taken from the socket, the loop will not tell us."""
        if self.is_reading() and self._tls.pending():
            self._loop.call_soon(self._on_readable)

    def _flush(self) -> None:
        if self._phase not in (_Phase.OPEN, _Phase.FLUSHING):
            return
        self._is_flush_due = self._write_needs_read = False
        try:
            while self._queued:
                if not self._part:
                    self._part = memoryview(self._take_part())
                sent = self._tls.send(self._part)  # as one record
                self._part = self._part[sent:]
                self._queued -= sent
                self._sent += sent
        except ssl.SSLWantWriteError:
            pass
        except ssl.SSLWantReadError:
            self._write_needs_read = True
        except OSError as error:
            self._end(error)
            return
        self._watch()
        self._tell_fill()
        self._wait_for_reader()
        if self._phase is _Phase.FLUSHING and not self._queued:
            self._linger()

    def _wait_for_reader(self) -> None:
        """For a peer that takes what is written for it, at the rate of `patience.py`."""
        if not self._queued:
            self._stall.stop()
        elif not self._stall.is_waiting:
            self._sent, self._left = 0, _unread(self._handle)
            self._stall.wait()

    def _look_at_stall(self) -> None:
        """The system tells us of room when a third of megabytes is free, which on a slow line
        takes minutes; so it is asked how much the peer has really taken."""
        left = _unread(self._handle)
        moved = self._sent + self._left - left
        self._sent, self._left = 0, left
        self._stall.wait(0.0)
        self._stall.credit(moved)
        if moved <= 0:
            self._end(None)

    def _take_part(self) -> bytes:
        """The next piece; what is little goes together with what is behind it."""
        if len(self._queue) == 1 or len(self._queue[0]) >= LITTLE_BYTES:
            return self._queue.popleft()
        joined = b"".join(self._queue)
        self._queue.clear()
        return joined

    def _tell_fill(self) -> None:
        if not self._is_full and self._queued > self._high:
            self._is_full = True
            self._call(self._protocol.pause_writing)
        elif self._is_full and self._queued <= self._low and self._phase is not _Phase.ENDED:
            self._is_full = False
            self._call(self._protocol.resume_writing)

    def _call(self, tell: Callable[..., object], *args: object) -> None:
        """A protocol that fails has lost its connection, and nothing else has."""
        try:
            tell(*args)
        except Exception as error:
            told = {"message": "a protocol failed", "exception": error, "transport": self}
            self._loop.call_exception_handler(told)
            self._end(error)

    # ---- the end --------------------------------------------------------------------

    def _linger(self) -> None:
        """Say goodbye, to TLS and to TCP. Were the socket closed while bytes come in, the
        system would reset the connection, and our last answer might not be read."""
        self._phase = _Phase.LINGERING
        self._rearm(LINGER_S)
        with suppress(OSError, ValueError):
            self._tls.unwrap()  # does not wait for the peer's, and says so
        with suppress(OSError):
            self._tls.shutdown(socket.SHUT_WR)  # plain from here on
        self._read_needs_write = self._write_needs_read = False
        self._watch()
        self._discard()

    def _discard(self) -> None:
        try:
            if not self._tls.recv_into(self._buffer):
                self._end(None)
        except BlockingIOError:
            pass
        except OSError:
            self._end(None)  # our side was done

    def _rearm(self, seconds: float) -> None:
        self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self.abort)

    def _end(self, error: Exception | None) -> None:
        if self._phase is _Phase.ENDED:
            return
        self._phase = _Phase.ENDED
        self._deadline.cancel()
        self._stall.end()
        if self._rooms is not None:
            self._rooms.leave(self)
        self._watch()
        self._queue.clear()
        self._part, self._queued = memoryview(b""), 0
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        try:
            if self._is_known:
                self._protocol.connection_lost(error)
        finally:
            self._protocol = _NOBODY  # it has us, too
            self._tls.close()


def _unread(handle: int) -> int:
    """Bytes that the system has for a peer, sent or not, which the peer has not confirmed."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(handle, termios.TIOCOUTQ, bytes(4)))
    except OSError:  # not everywhere; then what the system takes from us must do
        return 0
    return int(count)
