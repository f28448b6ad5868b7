"""What the operator's commands show, the checks of the doctor, and downloads that are cut."""

from __future__ import annotations

import io
import json
import socket
import sqlite3
import ssl
import threading
from collections.abc import Iterator
from dataclasses import fields
from email.utils import formatdate
from enum import EnumMeta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from rich.console import Console

from consortium.cli import checkup, words
from consortium.cli.checkup import Verdict
from consortium.cli.doctor import checks_grid
from consortium.cli.fetch import fetch
from consortium.cli.happenings import happening
from consortium.cli.hosting import Address
from consortium.cli.listen import parse_listen
from consortium.cli.model import model_sheet, models_grid
from consortium.cli.operator import Operator
from consortium.cli.patients import examine
from consortium.cli.round import round_sheet, table_lines
from consortium.cli.rounds import RoundTable
from consortium.cli.sheet import Grid, Sheet
from consortium.cli.status import last_round, late_scores, sites_grid, status_line, status_sheet
from consortium.cli.told import Model, Site, Status, read_view
from consortium.coordinator.telling import _event
from consortium.core import facts as f
from consortium.core.terms import Metric
from consortium.crypto.authority import SERVER_DAYS, SITE_DAYS, Authority, request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import SystemClock
from consortium.drive.history import RoundRecord
from consortium.errors import (
    CorruptBlobError,
    ModelFileError,
    NotEnrolledError,
    PlanFileError,
    UnreachableError,
    WireError,
)

NOW = 1_800_000_000_000
MINUTE = 60_000


def shown(sheet: Sheet | Grid, width: int = 80) -> list[str]:
    """As a terminal of that width shows it."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(sheet.rich())
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


# ---- words --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0.00 s"),
        (40, "0.04 s"),
        (3_200, "3.2 s"),
        (42_000, "42 s"),
        (125_000, "2 min 5 s"),
        (42 * MINUTE, "42 min"),
        (310 * MINUTE, "5 h 10 min"),
        (72 * 60 * MINUTE, "3 d"),
    ],
)
def test_spans_as_people_say_them(ms: int, text: str) -> None:
    assert words.span(ms) == text


def test_times_are_seen_from_now() -> None:
    assert words.until(NOW + 42 * MINUTE, NOW) == "in 42 min"
    assert words.until(NOW - 3 * MINUTE, NOW) == "3 min ago"
    assert words.ago(None, NOW) == "never"
    assert words.ago(NOW - 300, NOW) == "now"


def test_sizes_codes_and_names() -> None:
    assert [words.size(count) for count in (900, 10**7, 35 * 10**8, 2 * 10**12)] == [
        "900 B",
        "10.0 MB",
        "3.5 GB",
        "2.0 TB",
    ]
    assert words.objection("E0312") == "E0312 not approved"
    assert words.objection("E0999") == "E0999"
    assert words.plain("NO_TEST_DATA") == "no test data"
    assert (words.number(0.51234), words.number(1e30)) == ("0.5123", "1e+30")


# ---- status -------------------------------------------------------------------------


STATUS: dict[str, Any] = {
    "federation": "heart",
    "id": "0" * 32,
    "standing": "a round is open",
    "finished": None,
    "plan": "ab" * 32,
    "task": "cd" * 32,
    "rounds": {"done": 3, "of": 20},
    "round": {
        "number": 3,
        "phase": "TRAINING",
        "step": "sites train; updates come in",
        "deadline_ms": NOW + 42 * MINUTE,
        "quorum": 3,
        "target": 4,
        "invited": ["charite", "ukb", "ukf", "ukm"],
        "received": ["charite"],
        "waiting_for": ["ukb", "ukf"],
        "fallen": {"ukm": "data_quality"},
    },
    "waits": None,
    "next_round_ms": 0,
    "version": 2,
    "model": "3f" * 32,
    "sites": 4,
    "log": {"facts": 57, "key": "5f" * 32},
    "now_ms": NOW,
    "last": {
        "number": 2,
        "version": 1,
        "opened_ms": NOW - 90 * MINUTE,
        "invited": 4,
        "counted": 4,
        "lost": [["ukm", "data quality"]],
        "outcome": "accepted",
        "metrics": {"loss": 0.41234, "accuracy": 0.8},
    },
    "protects": [
        "STAYS: records never leave a site.",
        "NOT PROTECTED: there is no differential privacy and no secure aggregation in this plan.",
        "WARNING: no gate: a worse model replaces a better one.",
    ],
}


def status_of(**changes: Any) -> Status:
    return read_view(Status, STATUS | changes)


def test_the_status_of_an_open_round_in_80_columns() -> None:
    assert shown(status_sheet(status_of())) == [
        "heart: round 3 of 20, TRAINING",
        "now            sites train; updates come in",
        "deadline       in 42 min, quorum 3",
        "answered       1 of 4: charite",
        "waited for     ukb, ukf",
        "fallen         ukm (data quality)",
        "model          version 2, 3f3f3f3f3f3f…",
        "last round     2: accepted, 4 counted, loss 0.4123, accuracy 0.8000",
        "sites          4 enrolled",
        "log            57 facts, key 5f5f5f5f5f5f…",
        "not protected  there is no differential privacy and no secure aggregation in",
        "               this plan.",
        "not protected  no gate: a worse model replaces a better one.",
    ]


def test_a_pipe_gets_whole_lines() -> None:
    sheet = status_sheet(status_of())
    assert "no secure aggregation in this plan." in sheet.plain()[10]
    assert sheet.plain()[0] == "heart: round 3 of 20, TRAINING"


def test_the_status_between_rounds_and_at_the_end() -> None:
    waits = "2 sites have joined; a round needs 3"
    between = status_of(round=None, standing="between rounds", waits=waits)
    assert shown(status_sheet(between))[:2] == [
        "heart: between rounds, 3 of 20 rounds done",
        f"waits          {waits}",
    ]
    later = status_of(round=None, standing="between rounds", next_round_ms=NOW + 5 * MINUTE)
    assert "next round     in 5 min" in shown(status_sheet(later))
    over = status_of(round=None, finished="no_improvement", waits="over", model=None)
    assert shown(status_sheet(over))[:2] == [
        "heart: finished after 3 rounds (no improvement)",
        "model          none yet",
    ]
    held = status_of(standing="on hold")
    assert shown(status_sheet(held))[0].endswith("TRAINING, on hold after this round")


def test_a_line_of_the_status_has_nothing_that_changes_by_itself() -> None:
    line = "heart: round 3 of 20, TRAINING; 1 of 4 answered; waits for ukb, ukf; model 2"
    assert status_line(status_of()) == line
    assert status_line(status_of(now_ms=NOW + MINUTE)) == line


def test_many_names_are_cut_to_a_line() -> None:
    many = STATUS["round"] | {"waiting_for": [f"site-{number}" for number in range(300)]}
    line = status_sheet(status_of(round=many)).plain()[4]
    assert line.endswith("site-7, and 292 more")


SITE: dict[str, Any] = {
    "name": "charite",
    "seat": 1,
    "words": ["cyclone", "furnace", "vacuum", "cherry", "biscuit"],
    "enrolled_ms": NOW,
    "revoked_ms": None,
    "seen_ms": NOW - 12_000,
    "objection": None,
}


def test_sites_with_their_words_in_80_columns() -> None:
    told = [
        SITE,
        SITE | {"name": "ukb", "objection": "E0312"},
        SITE | {"name": "ukf", "revoked_ms": NOW},
        SITE | {"name": "ukm", "seat": None, "seen_ms": None, "words": []},
    ]
    assert shown(sites_grid(read_view(list[Site], told), NOW)) == [
        "site     last seen                     words",
        "charite  12 s ago                      cyclone furnace vacuum cherry biscuit",
        "ukb      12 s ago; E0312 not approved  cyclone furnace vacuum cherry biscuit",
        "ukf      revoked                       cyclone furnace vacuum cherry biscuit",
        "ukm      not yet joined                –",
    ]


def test_an_answer_of_another_form_is_refused() -> None:
    with pytest.raises(WireError, match="rounds"):
        read_view(Status, STATUS | {"rounds": 3})
    with pytest.raises(WireError):
        read_view(list[Site], {"detail": "something else"})


# ---- rounds and models --------------------------------------------------------------


def some(kind: Any) -> Any:
    """A value of a field's type."""
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    if isinstance(kind, EnumMeta):
        return next(iter(kind))
    made = {int: 1, float: 0.5, bytes: b"\1" * 32, str: "text", bool: True}
    origin = getattr(kind, "__supertype__", kind)
    return made[origin] if origin in made else (1, 2) if "Seat" in str(kind) else ()


def made_up(kind: type[Any]) -> Any:
    hints = get_type_hints(kind)
    values = {one.name: some(hints[one.name]) for one in fields(kind)}
    return kind(**values)


@pytest.mark.parametrize("kind", get_args(f.RoundFact), ids=lambda kind: kind.__name__)
def test_every_fact_of_a_round_has_words(kind: type[Any]) -> None:
    event = _event(made_up(kind), 0, {1: "charite", 2: "ukb"})
    text = happening(event, opened_ms=0)
    assert text and text != kind.__name__
    assert "[" not in text and "None" not in text


def test_what_happens_between_rounds_has_words_too() -> None:
    kinds = set(get_args(f.FederationFact)) - {f.FederationFounded, f.PlanAdopted, f.CohortAdmitted}
    for kind in kinds:
        text = happening(_event(made_up(kind), 0, {1: "charite"}), opened_ms=0)
        assert (text is None) == (kind is f.SiteReported)
        assert text != kind.__name__


def test_a_fact_of_a_newer_coordinator_is_shown_by_its_name() -> None:
    assert happening({"fact": "MaskRemoved", "at_ms": 5}, opened_ms=0) == "MaskRemoved"


def test_late_scores_say_of_which_version_they_are() -> None:
    """Under masks a version is scored by the sum of the round after it."""
    record = RoundRecord(3, 2, NOW, counted=4, outcome="accepted", published=3)
    record.base_metrics, record.base_samples, record.has_late_scores = {"loss": 0.5}, 93, True
    events = [
        {"fact": "BaseScored", "at_ms": NOW, "version": 2, "samples": 93},
        {"fact": "BaseScored", "at_ms": NOW, "version": 2, "samples": 0},
    ]
    lines = shown(round_sheet(record, events))
    assert "scores of     version 2  version 3" in lines
    assert "test records         93          –" in lines
    assert "loss             0.5000          –" in lines
    assert lines[-2].endswith("the sum has the scores of version 2: 93 records")
    assert lines[-1].endswith("the sum has no score of version 2")
    assert last_round(record) == "3: accepted, 4 counted"
    assert late_scores(record) == [("scores", "of version 2: loss 0.5000")]
    record.metrics, record.samples = {"loss": 0.25}, 1107
    lines = shown(round_sheet(record, []))
    assert "test records         93      1,107" in lines
    assert "loss             0.5000     0.2500" in lines
    assert late_scores(record) == [("scores", "of version 3: loss 0.2500")]
    record.base_metrics, record.metrics = {}, {}
    assert not any("records" in line for line in shown(round_sheet(record, [])))
    assert late_scores(record) == []


def test_a_table_of_rounds_under_masks_has_each_score_once() -> None:
    """Of the version that came out, where the next sum has told it; a table that is written while
    rounds go on has it in the next line. Both name the version."""
    records = [RoundRecord(n, n - 1, NOW, outcome="accepted", published=n) for n in (1, 2, 3)]
    for record, loss in zip(records, (8.0, 4.0, 2.0), strict=True):
        record.base_metrics, record.has_late_scores = {"loss": loss}, True
    records[0].metrics, records[1].metrics = {"loss": 4.0}, {"loss": 2.0}
    past = [line[34:] for line in table_lines(records)]
    assert past == [
        " scores of      loss  outcome",
        " version 1    4.0000  accepted",
        " version 2    2.0000  accepted",
        "         –         –  accepted",
    ]
    live = RoundTable((Metric("loss", False),), is_late=True)
    assert [live.row(record)[34:] for record in records] == [
        " version 0    8.0000  accepted",
        " version 1    4.0000  accepted",
        " version 2    2.0000  accepted",
    ]
    kept = RoundRecord(4, 3, NOW, outcome="kept", metrics={"loss": 3.0})  # by a plan without masks
    assert table_lines([*records, kept])[-1].endswith(" candidate    3.0000  kept")


def test_a_masked_round_has_neither_evaluation_nor_gate() -> None:
    events = [
        {"fact": "KeysClosed", "at_ms": NOW, "seats": ["charite", "ukb"], "quorum": 2},
        {"fact": "EvaluationClosed", "at_ms": NOW, "evaluations": 0},
        {"fact": "Judged", "at_ms": NOW, "outcome": "accepted"},
    ]
    record = RoundRecord(3, 2, NOW, counted=4, outcome="accepted", published=3)
    masked, plain = (shown(round_sheet(record, told)) for told in (events, events[1:]))
    assert masked[-1].endswith("2 sites mask with each other, a sum takes 2: charite, ukb")
    assert plain[-2].endswith("evaluation closed with 0 answers")
    assert plain[-1].endswith("the gate says: accepted")


def test_a_round_in_80_columns() -> None:
    record = RoundRecord(
        3,
        2,
        NOW,
        invited=4,
        counted=2,
        dropped=1,
        silent=1,
        backups=1,
        lost=[("ukm", "data quality")],
        outcome="kept",
        samples=93,
        metrics={"loss": 0.5},
        base_metrics={"loss": 0.4},
        ended_ms=NOW + 125_000,
    )
    events = [
        {"fact": "RoundOpened", "at_ms": NOW, "version": 2, "quorum": 2, "deadline_ms": NOW},
        {"fact": "SiteDropped", "at_ms": NOW + 61_000, "site": "ukm", "failure": "data_quality"},
        {"fact": "SiteReported", "at_ms": NOW + 62_000, "site": "ukb", "report": []},
    ]
    lines = shown(round_sheet(record, events))
    assert lines[0] == "round 3: kept"
    assert lines[1].startswith("opened        20") and lines[1].endswith(", took 2 min 5 s")
    assert lines[2:] == [
        "started from  version 2",
        "sites         4 invited and 1 backups, 2 counted, 1 silent",
        "lost          ukm (data quality)",
        "",
        "over 93 records  candidate    base   change",
        "loss                0.5000  0.4000  +0.1000",
        "",
        "  after  site  what happened",
        "+0.00 s        opened from version 2, quorum 2",
        "  +61 s  ukm   fell out: data quality",
    ]


MODEL: dict[str, Any] = {
    "version": 1,
    "digest": "a5" * 32,
    "round": 1,
    "is_current": True,
    "published_ms": NOW,
    "metrics": {"loss": 0.5999, "accuracy": 0.8172},
    "bytes": 10_000_000,
    "tensors": [{"name": "weights", "dtype": "F32", "shape": [6, 2]}],
}


def test_models_fit_into_80_columns() -> None:
    first = MODEL | {"version": 0, "round": 0, "is_current": False, "metrics": {}}
    models = read_view(list[Model], [first, MODEL])
    lines = shown(models_grid(models))
    assert lines[0] == ("version    round  published            size    loss  accuracy  sha256")
    assert lines[1].startswith("0              –  20")
    assert lines[2].startswith("1 current      1  20")
    assert lines[2].endswith("10.0 MB  0.5999    0.8172  a5a5a5a5a5a5…")
    assert len(lines) == 3
    assert "size       10.0 MB, 12 numbers" in shown(model_sheet(models[1]))


# ---- the doctor ---------------------------------------------------------------------


def test_a_clock_that_is_a_minute_off_is_told() -> None:
    date = formatdate(1_800_000_000, usegmt=True)
    assert checkup.clock(date, 1_800_000_001.5).verdict is Verdict.OK
    assert checkup.clock(date, 1_800_000_050).verdict is Verdict.OK
    off = checkup.clock(date, 1_800_000_000 - 90)
    assert (off.verdict, off.found) == (Verdict.WARN, "90 s apart from the coordinator's")
    assert checkup.clock("", 0.0).verdict is Verdict.WARN


def test_a_damaged_log_fails(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    assert checkup.database(path).verdict is Verdict.FAIL
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [("y" * 500,)] * 100)
    connection.close()
    assert checkup.database(path).verdict is Verdict.OK
    data = bytearray(path.read_bytes())
    data[4096:4200] = b"\xff" * 104
    path.write_bytes(data)
    assert checkup.database(path).verdict is Verdict.FAIL
    path.write_bytes(b"no database at all" * 100)
    assert checkup.database(path).verdict is Verdict.FAIL


def test_a_secret_that_others_can_read_fails(tmp_path: Path) -> None:
    paths = [tmp_path / "a.key", tmp_path / "b.key"]
    for path in paths:
        path.touch(0o600)
    assert checkup.secrets(paths).verdict is Verdict.OK
    paths[1].chmod(0o640)
    found = checkup.secrets(paths)
    assert (found.verdict, found.todo.startswith(f"chmod 600 {paths[1]}")) == (Verdict.FAIL, True)
    paths[1].unlink()
    assert checkup.secrets(paths).verdict is Verdict.FAIL


def test_certificates_warn_when_a_third_is_left_and_fail_at_the_end(tmp_path: Path) -> None:
    path, request = tmp_path / "certificate.pem", request_certificate(SigningKey.generate())
    authority, now = Authority.make(0), SystemClock().now_ms()
    for age_days, verdict in ((0, Verdict.OK), (250, Verdict.WARN), (400, Verdict.FAIL)):
        made_ms = now - age_days * 86_400_000
        path.write_bytes(authority.issue_site(request, "charite", made_ms))
        found = checkup.certificate("certificate", path, "renew it")
        assert (found.verdict, bool(found.todo)) == (verdict, verdict is not Verdict.OK)
    assert SITE_DAYS == 365
    path.write_bytes(b"no certificate")
    assert checkup.certificate("certificate", path, "").verdict is Verdict.FAIL


def test_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkup.disk(tmp_path).verdict is Verdict.OK
    monkeypatch.setattr(checkup, "_DISK_BYTES", 1 << 60)
    assert checkup.disk(tmp_path).verdict is Verdict.WARN
    assert checkup.memory().verdict is Verdict.OK
    monkeypatch.setattr(checkup, "_MEMORY_BYTES", 1 << 60)
    assert checkup.memory().verdict is Verdict.WARN


def test_a_check_says_below_what_to_do() -> None:
    lines = shown(checks_grid([checkup.ok("disk", "75 GB free"), checkup.fail("port", "x", "y")]))
    assert lines == [
        "      check  found",
        "ok    disk   75 GB free",
        "FAIL  port   x",
        "             → y",
    ]


def test_nobody_to_look_at_is_exit_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotEnrolledError):
        list(examine(None, None))


# ---- a coordinator that cuts the line -----------------------------------------------


class Cutting(BaseHTTPRequestHandler):
    """Sends a file by Range, and breaks off where it is told to."""

    server: Coordinator
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        self.server.asked.append(start)
        assert not asked or self.headers["If-Range"] == f'"{self.server.digest}"'
        assert self.path == "/health" or self.headers["Authorization"] == "Bearer secret-token"
        body = self.server.body[start if self.server.has_ranges else 0 :]
        is_part = bool(asked) and self.server.has_ranges
        self.send_response(206 if is_part else 200)
        if is_part:
            whole = len(self.server.body)
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        count = self.server.cuts.pop(0) if self.server.cuts else len(body)
        self.wfile.write(body[:count])
        if count < len(body):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class Coordinator(ThreadingHTTPServer):
    """A TLS port with one file behind it."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        super().__init__(("127.0.0.1", 0), Cutting)
        self.body = bytes(range(256)) * 4096  # 1 MiB
        self.digest = sha256(self.body).hexdigest()
        self.has_ranges, self.cuts, self.asked = True, list[int](), list[int]()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        chain = folder / "server.pem"
        identity = authority.issue_server(["127.0.0.1"], SystemClock().now_ms())
        chain.write_bytes(identity.pem().reveal())
        context.load_cert_chain(chain)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, *_: object) -> None:
        pass  # a client that hangs up


@pytest.fixture
def line(tmp_path: Path) -> Iterator[tuple[Coordinator, Operator]]:
    authority = Authority.make(SystemClock().now_ms())
    server = Coordinator(tmp_path, authority)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    access = {"url": f"https://127.0.0.1:{server.server_port}", "token": "secret-token"}
    access["authority"] = authority.pem().decode()
    path = tmp_path / "operator.json"
    path.touch(0o600)
    path.write_text(json.dumps(access))
    operator = Operator(tmp_path)
    yield server, operator
    operator.close()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("body", [b"{", b"[" * 5000, b"9" * 5000], ids=["cut", "depth", "digits"])
def test_an_answer_that_is_not_json_is_refused(
    line: tuple[Coordinator, Operator], body: bytes
) -> None:
    server, operator = line
    server.body = body
    with pytest.raises(WireError, match="not JSON"):
        operator.get("/file")


def fetched(line: tuple[Coordinator, Operator], target: Path) -> None:
    server, operator = line
    size = len(server.body)
    fetch(operator, "/file", target, digest=server.digest, size_bytes=size)


def test_a_download_goes_on_where_it_was_cut(
    line: tuple[Coordinator, Operator], tmp_path: Path
) -> None:
    server, _ = line
    server.cuts = [300_000, 200_000]
    fetched(line, tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == server.body
    assert server.asked == [0, 300_000, 500_000]
    assert not list(tmp_path.glob("*.part"))


def test_another_command_goes_on_with_what_has_come(
    line: tuple[Coordinator, Operator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = line
    monkeypatch.setattr("consortium.cli.fetch._PAUSE_S", 0.0)
    server.cuts = [400_000, 0, 0, 0, 0, 0]
    with pytest.raises(UnreachableError):
        fetched(line, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    server.asked.clear()
    fetched(line, tmp_path / "model")
    assert server.asked == [400_000]
    assert (tmp_path / "model").read_bytes() == server.body


def test_bytes_of_another_digest_never_get_the_name(
    line: tuple[Coordinator, Operator], tmp_path: Path
) -> None:
    server, _ = line
    server.body = server.body[:-1] + b"x"
    with pytest.raises(CorruptBlobError):
        fetched(line, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert not list(tmp_path.glob("*.part"))


def test_a_coordinator_without_ranges_sends_everything_again(
    line: tuple[Coordinator, Operator], tmp_path: Path
) -> None:
    server, _ = line
    server.has_ranges, server.cuts = False, [300_000]
    fetched(line, tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == server.body


def test_the_way_to_a_coordinator_is_looked_at_step_by_step(
    line: tuple[Coordinator, Operator], tmp_path: Path
) -> None:
    found = {check.name: check for check in examine(tmp_path, None)}
    for name in ("name", "port", "tls", "answer", "clock", "disk", "memory", "versions"):
        assert found[name].verdict is Verdict.OK, found[name]
    assert f"certificate holds {SERVER_DAYS - 1} days" in found["tls"].found
    assert found["authority"].verdict is Verdict.FAIL  # this folder has nothing else


def test_an_authority_of_somebody_else_fails_at_tls(
    line: tuple[Coordinator, Operator], tmp_path: Path
) -> None:
    path = tmp_path / "operator.json"
    other = Authority.make(SystemClock().now_ms()).pem().decode()

    path.write_text(json.dumps(json.loads(path.read_text()) | {"authority": other}))
    found = {check.name: check for check in examine(tmp_path, None)}
    assert (found["port"].verdict, found["tls"].verdict) == (Verdict.OK, Verdict.FAIL)
    assert "the certificate is refused" in found["tls"].found
    assert "answer" not in found


# ---- ONNX ---------------------------------------------------------------------------


def torch_study(folder: Path, *, is_private: bool) -> Path:
    """A locked study of a network; its plan."""
    pytest.importorskip("onnxruntime")
    from typer.testing import CliRunner

    from consortium.cli.app import app

    run = CliRunner()
    assert run.invoke(app, ["init", str(folder), "--torch"]).exit_code == 0
    task = folder / "task.py"
    if not is_private:
        task.write_text(task.read_text().replace("co.private(", "("))
    plan = folder / "consortium.toml"
    assert run.invoke(app, ["lock", str(plan), "--seed", "1"]).exit_code == 0
    return plan


def test_a_model_without_private_layers_is_written_as_onnx(tmp_path: Path) -> None:
    import onnxruntime

    from consortium.cli.to_onnx import write_onnx
    from consortium.drive.lock import read_lock
    from consortium.tensors import load_tensors

    plan = torch_study(tmp_path / "study", is_private=False)
    lock, model = read_lock(plan.parent)
    out = tmp_path / "model.onnx"
    write_onnx(model, out, plan, None, task=lock.task.hex())
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    rows = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    (found,) = session.run(["outputs"], {"inputs": rows})
    tensors = load_tensors(model)
    hidden = rows
    for name in ("adapter", "shared.1", "shared.3"):
        hidden = hidden @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
        hidden = hidden if name == "shared.3" else np.maximum(hidden, 0)
    assert np.allclose(found, hidden, atol=1e-5)


def test_a_model_with_private_layers_is_for_its_sites_to_export(tmp_path: Path) -> None:
    from consortium.cli.to_onnx import write_onnx
    from consortium.drive.lock import read_lock

    plan = torch_study(tmp_path / "study", is_private=True)
    lock, model = read_lock(plan.parent)
    with pytest.raises(ModelFileError, match="stay at the sites") as told:
        write_onnx(model, tmp_path / "model.onnx", plan, None, task=lock.task.hex())
    assert "consortium site export" in told.value.hint
    assert not (tmp_path / "model.onnx").exists()


# ---- addresses ----------------------------------------------------------------------


def test_where_sites_are_told_to_go(tmp_path: Path) -> None:
    plan = tmp_path / "consortium.toml"
    plan.write_text("[federation]\nrounds = 1\n")
    everywhere = Address(*parse_listen("0.0.0.0:8443"))
    assert everywhere.url([plan], 8443) == f"https://{socket.gethostname()}:8443"
    assert everywhere.here(8443) == "https://127.0.0.1:8443"
    assert everywhere.is_guessed([plan])
    named = Address("0.0.0.0", 8443, ("fl.example.org", "10.0.0.1"))
    assert named.url([plan], 8443) == "https://fl.example.org:8443"
    assert {"fl.example.org", "10.0.0.1", "localhost", "127.0.0.1"} <= set(named.certified([plan]))
    assert "0.0.0.0" not in named.certified([plan])
    assert not named.is_guessed([plan])
    six = Address(*parse_listen("[::1]:0"))
    assert six.url([plan], 5000) == six.here(5000) == "https://[::1]:5000"
    plan.write_text('[federation]\nserver = "https://fl.other.org/"\n')
    assert named.url([plan], 8443) == "https://fl.other.org"
    assert "fl.other.org" in named.certified([plan])
    plan.write_text('[federation]\nserver = "fl.other.org:8443"\n')
    with pytest.raises(PlanFileError, match="is not an https address"):
        named.url([plan], 8443)
