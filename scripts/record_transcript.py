"""Write down what one site and its coordinator say to each other in a round, for tests that
replay it against later versions.

    PYTHONPATH=OLD/src python scripts/record_transcript.py tests/transcripts/v1

`OLD` is a copy of the version to record. Two files come of it: `coordinator.tar.gz`, the
coordinator's folder when the site had joined and nothing else had happened, and `said.json`:
each request of the site with its answer, in order. The keys in there are of nobody else.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from consortium.coordinator import serve
from consortium.coordinator.office import Office
from consortium.drive.clock import SystemClock
from consortium.testing.processes import PLAN, TASK, run

SIZE = 8  # numbers of the model
_LATE = "365d"  # a round that stays open
_KEPT = ("consortium-", "content-", "range", "if-range")


class Recorder:
    """Writes down what passes, between the server and the application."""

    def __init__(self, app: Any, said: list[dict[str, Any]]) -> None:
        self._app, self._said, self.state = app, said, app.state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, answer, status = bytearray(), bytearray(), [0]

        async def heard() -> Any:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def told(message: Any) -> None:
            status[0] = message.get("status", status[0])
            answer.extend(message.get("body", b""))
            await send(message)

        scope.get("extensions", {}).get("consortium", {}).pop("inflow", None)
        await self._app(scope, heard, told)
        target = scope["raw_path"] + (
            b"?" + scope["query_string"] if scope["query_string"] else b""
        )
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self._said.append(
            {
                "method": scope["method"],
                "target": target.decode(),
                "headers": {k: v for k, v in headers.items() if k.startswith(_KEPT)},
                "body": base64.b64encode(bytes(body)).decode(),
                "status": status[0],
                "answer": base64.b64encode(bytes(answer)).decode(),
                "at_ms": SystemClock().now_ms(),
            }
        )


def main(out: Path) -> None:
    """Record one round of two sites; what is written down is the second one's."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plan = _study(folder / "study")
        said: list[dict[str, Any]] = []
        with _Coordinator(folder / "c", plan, said) as first:
            names = ("site-0", "site-1")
            for name in names:
                _join(folder, first, name)
        _pack(folder / "c", out / "coordinator.tar.gz")
        with _Coordinator(folder / "c", plan, said) as second:
            agents = [_agent(folder, second, name) for name in names]
            for agent in agents:
                agent.wait(60)
    text = json.dumps({"said": said}, indent=1)
    (out / "said.json").write_text(text + "\n")
    print(f"{len(said)} requests")


def _study(folder: Path) -> Path:
    folder.mkdir()
    (folder / "task.py").write_text(TASK.format(size=SIZE, pace_s=0))
    told = {"selection": "fraction = 1.0", "duration": _LATE, "wait_for": 2}
    plan = PLAN.format(rounds=1, quorum=2, **told).replace("enabled = false", "enabled = true")
    (folder / "consortium.toml").write_text(plan)
    (folder / "sample.txt").write_text("0")
    run(["lock", "consortium.toml", "--seed", "1", "--sample", "sample.txt"], folder)
    return folder / "consortium.toml"


class _Coordinator:
    """A coordinator with a port, whose conversation is written down."""

    def __init__(self, folder: Path, plan: Path, said: list[dict[str, Any]]) -> None:
        self.office = Office(folder, SystemClock(), seed=1)
        self.office.host(plan)
        made = serve.make_app
        serve.make_app = lambda office: Recorder(made(office), said)  # type: ignore[assignment,return-value]
        try:
            self.server = serve.Server(self.office)
        finally:
            serve.make_app = made
        self.office.url = f"https://127.0.0.1:{self.server.port}"

    def __enter__(self) -> _Coordinator:
        self.office.start(lambda error: print(error.message, file=sys.stderr))
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        time.sleep(1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self._thread.join()
        self.office.close()


def _join(folder: Path, coordinator: _Coordinator, name: str) -> None:
    federation = coordinator.office.tellers()[0]
    token, _ = coordinator.office.invite(federation.desk.name, name)
    (folder / f"{name}.txt").write_text(name.partition("-")[2])
    words = ["join", token, "--data", f"{name}.txt", "--home", name, "--no-start"]
    task = federation.status()["task"]
    run([*words, "--approve", task], folder)


def _agent(folder: Path, coordinator: _Coordinator, name: str) -> subprocess.Popen[bytes]:
    words = ["agent", "--home", name, "--until-finished", "--url", coordinator.office.url]
    return subprocess.Popen(
        [sys.executable, "-m", "consortium", *words], cwd=folder, env=dict(os.environ)
    )


def _pack(folder: Path, file: Path) -> None:
    with tarfile.open(file, "w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "operator.json":
                tar.add(path, path.relative_to(folder).as_posix())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
