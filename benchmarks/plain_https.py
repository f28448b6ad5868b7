"""The base of `benchmarks.network`: a round's bytes moved by plain HTTPS, hashed and forced to
the disk at both ends, and nothing else. A threaded server of the standard library, and one
process a site with its connection open.

    python -m benchmarks.plain_https server FOLDER     # used by benchmarks.network
    python -m benchmarks.plain_https site FOLDER PORT BLOCK
"""

from __future__ import annotations

import http.client
import os
import ssl
import statistics
import subprocess
import sys
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

from consortium.crypto.authority import Authority

PIECE = 1 << 20
_MODEL, _SERVER, _AUTHORITY = "model", "server.pem", "authority.pem"


PLAIN_BLOCK = 8192  # what http.client takes from a file at a time, unless told otherwise


def time_rounds(
    folder: Path, size: int, sites: int, rounds: int, block: int = PLAIN_BLOCK
) -> float:
    """The median seconds in which every site has fetched `size` bytes and sent as many."""
    folder.mkdir()
    now_ms = time.time_ns() // 1_000_000
    authority = Authority.make(now_ms)
    (folder / _AUTHORITY).write_bytes(authority.pem())
    (folder / _SERVER).write_bytes(authority.issue_server(["localhost"], now_ms).pem().reveal())
    (folder / _MODEL).write_bytes(os.urandom(size))
    server = _start("server", str(folder))
    started = [server]
    try:
        port = _line(server)
        players = [_start("site", str(folder), port, str(block)) for _ in range(sites)]
        started += players
        for player in players:
            _line(player)
        return statistics.median(_round(players) for _ in range(rounds))
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _round(players: list[subprocess.Popen[str]]) -> float:
    begun = time.perf_counter()
    for player in players:
        assert player.stdin is not None
        player.stdin.write("go\n")
        player.stdin.flush()
    for player in players:
        _line(player)
    return time.perf_counter() - begun


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.plain_https", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError("a process of the base has ended")
    return line


def _kept(source: IO[bytes], target: Path, size: int) -> str:
    """Write `size` bytes to a durable file; their hash."""
    digest = sha256()
    with target.open("wb") as file:
        left = size
        while left:
            piece = source.read(min(PIECE, left))
            digest.update(piece)
            file.write(piece)
            left -= len(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        path = self.folder / _MODEL
        self.send_response(200)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                self.wfile.write(piece)

    def do_PUT(self) -> None:
        name = f"{self.client_address[1]}.update"
        found = _kept(self.rfile, self.folder / name, int(self.headers["Content-Length"]))
        self.send_response(200 if found == self.headers["X-Digest"] else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def serve(folder: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / _SERVER)
    _Handler.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def play(folder: Path, port: int, block: int) -> None:
    context = ssl.create_default_context(cafile=str(folder / _AUTHORITY))
    connection = http.client.HTTPSConnection("localhost", port, context=context, blocksize=block)
    connection.connect()
    print("ready", flush=True)
    mine = folder / f"{os.getpid()}.model"
    for _ in sys.stdin:
        connection.request("GET", "/model")
        answer = connection.getresponse()
        _kept(answer, mine, int(answer.headers["Content-Length"]))
        digest = sha256(mine.read_bytes()).hexdigest()
        with mine.open("rb") as file:
            size = str(mine.stat().st_size)
            headers = {"Content-Length": size, "X-Digest": digest}
            connection.request("PUT", "/update", body=file, headers=headers)
        done = connection.getresponse()
        done.read()
        print(done.status, flush=True)


if __name__ == "__main__":
    kind, where, *rest = sys.argv[1:]
    serve(Path(where)) if kind == "server" else play(Path(where), *map(int, rest))
