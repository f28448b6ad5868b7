"""A publisher on loopback: serves bytes that a test made, or fails as publishers do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Publisher:
    url: str = ""
    body: bytes = b""
    status: int = 200
    cut_at: int | None = None  # close the connection after so many bytes
    has_length: bool = True
    asked: list[str] = field(default_factory=list)


@contextmanager
def publisher() -> Iterator[Publisher]:
    told = Publisher()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            told.asked.append(self.path)
            self.send_response(told.status)
            if told.has_length:
                self.send_header("Content-Length", str(len(told.body)))
            self.end_headers()
            self.wfile.write(told.body[: told.cut_at])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_address[1]}/set.zip"
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
