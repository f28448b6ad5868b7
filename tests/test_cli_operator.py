"""The operator's commands as a lead meets them: against real coordinators, with real sites."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from consortium.cli.app import app
from consortium.cli.operator import Operator
from consortium.cli.status import names, round_pairs, sites_grid
from consortium.cli.told import OpenRound, Site, read_view
from consortium.coordinator.evidence import Evidence, Tally
from consortium.core import facts as f
from consortium.core.codec import decode, encode
from consortium.core.evolve import evolve
from consortium.core.ids import Digest
from consortium.core.state import Federation
from consortium.crypto.authority import Authority
from consortium.crypto.recipes import SigningKey
from consortium.drive.verify import Audit, verify_directory
from consortium.model import digest_of
from consortium.site.home import SiteHome
from consortium.store.files import FileBlobs
from consortium.wire.messages import Submission
from consortium.wire.signing import RequestLine, parse, read_envelope, sign
from consortium.wire.token import read_token
from tests.test_verify import rows, write_row

SITES = ("east", "north", "south")


def call(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """A command in this process."""
    return CliRunner(env={"NO_COLOR": "1", **(env or {})}).invoke(app, list(arguments))


@dataclass
class Process:
    """A command in a process of its own; what it says goes to two files."""

    arguments: list[str]
    folder: Path
    name: str
    popen: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        with self.file("out").open("wb") as out, self.file("err").open("wb") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "consortium", *self.arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "NO_COLOR": "1"},
                # Whoever runs the tests in the background ignores Ctrl-C, and so would this.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.name}.{kind}"

    @property
    def out(self) -> str:
        return self.file("out").read_text()

    @property
    def err(self) -> str:
        return self.file("err").read_text()

    def wait_for(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        ends = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < ends, f"{self.arguments}: {self.out}{self.err}"
            time.sleep(0.05)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        return self.popen.wait(20)


def serve(folder: Path, *options: str, name: str = "serve") -> Process:
    """A coordinator that takes orders."""
    process = Process(["serve", "--listen", "127.0.0.1:0", *options], folder, name)
    process.wait_for(lambda: "invite a site:" in process.err or process.popen.poll() is not None)
    return process


def new_study(folder: Path, changes: dict[str, str] | None = None) -> Path:
    assert call("init", str(folder)).exit_code == 0
    plan = folder / "consortium.toml"
    text = plan.read_text()
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    plan.write_text(text)
    return folder


@dataclass
class Finished:
    """A federation that three sites have gone through."""

    folder: Path
    serve: Process
    watch: Process
    exit_code: int
    invited: Result

    @property
    def data(self) -> Path:
        return self.folder / "coordinator"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = new_study(tmp_path_factory.mktemp("finished") / "study", {"rounds = 10": "rounds = 2"})
    serving = serve(folder, "--once", "--seed", "1")
    where = ("--coordinator", str(folder / "coordinator"))
    watch = Process(["status", "--watch", *where], folder, "watch")
    task = json.loads(call("--json", "status", *where).stdout)["data"]["federations"][0]["task"]
    agents = []
    for name in SITES:
        invited = call("invite", name, *where)
        token = invited.stdout.split()[2]
        options = ["--data", f"data/{name}.csv", "--home", name, "--approve", task]
        agents.append(Process(["join", token, *options, "--until-finished"], folder, name))
    exit_code = serving.popen.wait(90)
    assert [agent.end() for agent in agents] == [0, 0, 0], [agent.err for agent in agents]
    watch.popen.wait(20)
    return Finished(folder, serving, watch, exit_code, invited)


@pytest.fixture(scope="module")
def served(finished: Finished) -> Iterator[Path]:
    """The same federation, after a restart; the folder of its coordinator."""
    process = serve(finished.folder, name="again")
    yield finished.data
    assert process.end() == 0
    assert "Traceback" not in process.err


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two federations that nobody has joined; the folder of their coordinator."""
    folder = tmp_path_factory.mktemp("fresh")
    for name in ("first", "second"):
        new_study(folder / name, {'name = "first-study"': f'name = "{name}"'})
    plans = ["first/consortium.toml", "second/consortium.toml"]
    process = serve(folder, *plans, "--data", "both", "--name", "localhost")
    assert process.popen.poll() is None, process.err
    yield folder / "both"
    assert process.end(signal.SIGINT) == 0


# ---- serve and invite ---------------------------------------------------------------


def test_serve_locks_tells_and_ends_when_all_is_done(finished: Finished) -> None:
    told = finished.serve
    assert finished.exit_code == 0, told.err
    lines = told.out.splitlines()
    assert lines[0].split()[:4] == ["round", "invited", "counted", "dropped"]
    assert [line.split()[:4] for line in lines[1:]] == [["1", "3", "3", "0"], ["2", "3", "3", "0"]]
    assert all(line.endswith("accepted") for line in lines[1:])
    assert "is not locked yet: consortium lock consortium.toml" in told.err
    assert "first-study: 0 of 2 rounds done" in told.err
    assert "NOT PROTECTED" in told.err
    assert "serving at https://127.0.0.1:" in told.err
    assert told.err.count(" joined; its words: ") == 3
    lock = (finished.folder / "plan.lock").read_text()
    for label in ("plan", "task"):
        (digest,) = [line.split()[1] for line in told.err.splitlines() if line.startswith(label)][
            -1:
        ]
        assert digest in lock


def test_invite_prints_one_line_and_talks_beside_it(finished: Finished) -> None:
    assert finished.invited.stdout.startswith("consortium join cj1.")
    assert finished.invited.stdout.count("\n") == 1
    assert "For south alone: works once, until 20" in finished.invited.stderr


def test_serve_goes_on_after_kill_9(finished: Finished, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path / "copy")
    process = serve(tmp_path / "copy")
    maps = Path(f"/proc/{process.popen.pid}/maps").read_text()
    assert "_ssl" in maps and "torch" not in maps  # a coordinator runs without it
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    again = serve(tmp_path / "copy", "--log-json", name="again")
    assert again.end() == 0
    lines = [json.loads(line)["message"] for line in again.err.splitlines()]
    assert "first-study: 2 of 2 rounds done" in lines


@pytest.mark.parametrize(
    "listen",
    ["8443", ":8443", "127.0.0.1:", "127.0.0.1:99999", pytest.param("h:" + "9" * 5000, id="h:9…")],
)
def test_serve_says_what_an_address_is(listen: str) -> None:
    done = call("serve", "--listen", listen)
    assert (done.exit_code, "is not HOST:PORT" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["nowhere.toml"], 3, "cannot read"),
        (["--name", "not a name"], 2, "neither a host name nor an address"),
    ],
)
def test_serve_says_what_is_wrong(
    finished: Finished, options: list[str], code: int, says: str
) -> None:
    process = Process(["serve", *options, "--data", "never"], finished.folder, "wrong")
    assert process.popen.wait(20) == code
    assert says in process.err
    assert "Traceback" not in process.err


def test_serve_needs_a_plan(tmp_path: Path) -> None:
    process = Process(["serve"], tmp_path, "none")
    assert process.popen.wait(20) == 2
    assert "there is no consortium.toml here" in process.err


def test_serve_shows_why_a_plan_cannot_be_locked(tmp_path: Path) -> None:
    folder = new_study(tmp_path / "study", {"task.py:study": "task.py:stdy"})
    process = Process(["serve"], folder, "bad")
    assert process.popen.wait(20) == 3
    assert "error[E0201]" in process.err
    told = Process(["--json", "serve"], folder, "json")
    assert told.popen.wait(20) == 3
    assert json.loads(told.out)["error"]["code"] == "E0201"


def test_serve_refuses_a_study_that_changed_after_its_lock(
    finished: Finished, tmp_path: Path
) -> None:
    shutil.copytree(finished.folder, tmp_path / "copy")
    plan = tmp_path / "copy" / "consortium.toml"
    plan.write_text(plan.read_text().replace("rounds = 2", "rounds = 3"))
    process = Process(["serve", "--listen", "127.0.0.1:0"], tmp_path / "copy", "changed")
    assert process.popen.wait(20) == 7
    assert "consortium lock consortium.toml" in process.err


def test_a_federation_without_a_completed_round_is_exit_8(tmp_path: Path) -> None:
    """Nobody who was invited answers: the only round fails, and the federation is over."""
    changes = {"rounds = 10": "rounds = 1", "quorum = 3": "quorum = 1"}
    folder = new_study(tmp_path / "study", changes)
    plan = folder / "consortium.toml"
    plan.write_text(plan.read_text() + '\n[round]\nduration = "1s"\nmax_extensions = 0\n')
    serving = serve(folder, "--once")
    where = ("--coordinator", str(folder / "coordinator"))
    token = call("invite", "silent", *where).stdout.split()[2]
    joined = Process(
        ["join", token, "--data", "data/east.csv", "--home", "silent", "--no-start"],
        folder,
        "silent",
    )
    assert joined.popen.wait(20) == 0, joined.err
    assert serving.popen.wait(30) == 8, serving.err
    assert "error[E0306]" in serving.err
    assert "failed (no_quorum)" in serving.out


# ---- status -------------------------------------------------------------------------


def test_watching_in_a_pipe_is_a_line_a_change_and_ends_with_the_federation(
    finished: Finished,
) -> None:
    assert finished.watch.popen.returncode == 0
    lines = [line.partition(" ")[2] for line in finished.watch.out.splitlines()]
    assert lines[0].startswith("first-study: between rounds, 0 of 2 rounds done; 0 sites have")
    assert lines[-1] == "first-study: finished after 2 rounds (rounds done); model 2"
    assert len(lines) == len(set(lines))


def test_ctrl_c_ends_watching_without_an_error(fresh: Path) -> None:
    process = Process(["status", "--watch", "--coordinator", str(fresh)], fresh.parent, "watch")
    process.wait_for(lambda: "second: between rounds" in process.out)  # line by line, in a file
    assert process.end(signal.SIGINT) == 0
    assert process.err == ""


def test_status_tells_where_the_federation_is(served: Path) -> None:
    done = call("status", "--sites", "--coordinator", str(served))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "first-study: finished after 2 rounds (rounds done)"
    assert any(line.startswith("model          version 2, ") for line in lines)
    assert any(line.startswith("last round     2: accepted, 3 counted, loss 0.") for line in lines)
    for name, line in zip(SITES, sorted(lines[-3:]), strict=True):
        words = SiteHome.open(served.parent / name).enrolment.words
        assert line.startswith(f"{name} ") and line.endswith(" ".join(words))


def test_status_as_json_has_everything(served: Path) -> None:
    told = json.loads(call("--json", "status", "--sites", "--coordinator", str(served)).stdout)
    (one,) = told["data"]["federations"]
    assert (told["ok"], told["command"]) == (True, "status")
    assert (one["finished"], one["version"], len(one["roster"])) == ("rounds_done", 2, 3)


def test_status_shows_every_federation(fresh: Path) -> None:
    done = call("status", "--coordinator", str(fresh))
    heads = [line for line in done.stdout.splitlines() if "rounds done" in line]
    assert heads == [
        "first: between rounds, 0 of 10 rounds done",
        "second: between rounds, 0 of 10 rounds done",
    ]
    only = call("status", "--federation", "second", "--coordinator", str(fresh))
    assert "first" not in only.stdout


def test_sites_that_are_out_or_cannot_be_called_in_words() -> None:
    here = {"name": "ukb", "seat": 1, "words": [], "enrolled_ms": 0, "revoked_ms": None}
    here |= {"seen_ms": 100_000, "objection": None, "listens": "https://ukb.example:1"}
    unreached = {"since_ms": 10_000, "why": "Connection refused"}
    told = [
        here | {"unreached": unreached},
        here | {"unreached": unreached, "objection": "E0312"},
        here,
        here | {"revoked_ms": 5, "departure": "left"},
        here | {"revoked_ms": 5, "departure": "revoked"},
        here | {"revoked_ms": 5},  # as an older coordinator says it
    ]
    seen = [row[1] for row in sites_grid(read_view(list[Site], told), 100_000).rows]
    there = "now; cannot be called at https://ukb.example:1 for 90 s: Connection refused"
    assert seen == [
        there,
        f"{there}; E0312 not approved",
        "now, called at https://ukb.example:1",
        *("left", "revoked", "revoked"),
    ]


def test_an_open_round_without_the_names_of_sites() -> None:
    values = {"number": 3, "phase": "TRAINING", "step": "sites train", "deadline_ms": 0}
    values |= {"quorum": 2, "target": 4, "invited": ["a site"] * 5, "received": ["a site"] * 2}
    told = values | {"waiting_for": ["a site"], "fallen": {"2 sites": "data_quality, training"}}
    assert round_pairs(read_view(OpenRound, told), 0)[2:] == [
        ("answered", "2 of 5"),
        ("waited for", "a site"),
        ("fallen", "2 sites (data quality, training)"),
    ]
    assert names(["a site"] * 12) == "12 sites"


# ---- rounds and models --------------------------------------------------------------


def test_round_list_is_the_table_of_a_simulation(finished: Finished, served: Path) -> None:
    done = call("round", "list", "--coordinator", str(served))
    assert done.stdout == finished.serve.out


def test_round_show_tells_every_event_in_words(served: Path) -> None:
    done = call("round", "show", "2", "--coordinator", str(served))
    assert done.exit_code == 0
    text = done.stdout
    assert text.startswith("round 2: accepted\n")
    told = json.loads(call("--json", "status", "--sites", "--coordinator", str(served)).stdout)
    names = ", ".join(site["name"] for site in told["data"]["federations"][0]["roster"])
    for words in (
        f"3 of 3 invited: {names}; deadline +60 min",
        "update accepted: weight ",
        f"closed with 3 members: {names}",
        "the gate says: accepted",
        "version 2 published: ",
        "over 93 records  candidate    base   change",
    ):
        assert words in text
    assert text.count("update received: ") == 3
    missing = call("round", "show", "9", "--coordinator", str(served))
    assert (missing.exit_code, "error[E0303]" in missing.stderr) == (5, True)


def test_a_viewer_sees_rounds_and_no_sites(served: Path, tmp_path: Path) -> None:
    where, file = ("--coordinator", str(served)), tmp_path / "eve.json"
    wanted = ("--label", "eve", "--role", "viewer", "--everywhere")
    assert call("token", "new", *wanted, "--out", str(file), *where).exit_code == 0
    mine = ("--operator", str(file))
    told = [
        call(*words, *mine) for words in (["status"], ["round", "list"], ["round", "show", "2"])
    ]
    assert [one.exit_code for one in told] == [0, 0, 0]
    assert not [name for name in SITES for one in told if name in one.stdout]
    text = told[2].stdout
    for words in (
        "3 of 3 invited; deadline +60 min",
        "a site  update received\n",
        "a site  update accepted\n",
        "closed with 3 members\n",
        "a site  evaluated\n",
        "over 93 records  candidate    base   change",
    ):
        assert words in text
    assert "weight" not in text and "norm" not in text
    assert call("status", "--sites", *mine).exit_code == 4
    assert call("token", "revoke", "eve", *where).exit_code == 0


def test_models_are_listed_and_shown(served: Path) -> None:
    listed = call("model", "list", "--coordinator", str(served)).stdout.splitlines()
    assert len(listed) == 4
    assert listed[-1].startswith("2 current ")
    shown = call("model", "show", "1", "--coordinator", str(served))
    assert "round 1" in shown.stdout
    assert "weights        F32       6" in shown.stdout
    wrong = call("model", "show", "7", "--coordinator", str(served))
    assert (wrong.exit_code, "error[E0309]" in wrong.stderr) == (5, True)


def test_a_model_is_downloaded_and_verified(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("model", "download", "2", "--coordinator", str(served))
    assert done.stdout == "first-study-v2.safetensors\n"
    digest = digest_of((tmp_path / "first-study-v2.safetensors").read_bytes()).hex()
    assert digest in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["first-study-v2.safetensors"]
    told = json.loads(
        call("--json", "model", "download", "2", "--out", "m", "--coordinator", str(served)).stdout
    )
    assert told["data"] == {"file": "m", "sha256": digest}


def test_a_rollback_is_told(served: Path) -> None:
    done = call("model", "rollback", "1", "--coordinator", str(served))
    assert done.stdout.startswith("sites move to version 1, ")
    assert done.stdout.endswith("; the federation is finished: no round follows\n")
    assert "1 current" in call("model", "list", "--coordinator", str(served)).stdout
    assert call("model", "rollback", "2", "--coordinator", str(served)).exit_code == 0


def test_a_plain_numpy_task_has_nothing_to_export(served: Path, tmp_path: Path) -> None:
    plan = str(served.parent / "consortium.toml")
    out = tmp_path / "model.onnx"
    done = call("model", "export", "2", str(out), "--plan", plan, "--coordinator", str(served))
    assert (done.exit_code, "plain NumPy" in done.stderr, out.exists()) == (1, True, False)


def test_another_task_is_not_exported(served: Path, tmp_path: Path) -> None:
    folder = new_study(tmp_path / "other")
    (folder / "task.py").write_text((folder / "task.py").read_text() + "\n# changed\n")
    plan = str(folder / "consortium.toml")
    done = call("model", "export", "2", "x.onnx", "--plan", plan, "--coordinator", str(served))
    assert (done.exit_code, "is not the one that the federation runs" in done.stderr) == (7, True)


# ---- orders -------------------------------------------------------------------------


def test_a_finished_federation_is_not_resumed(served: Path) -> None:
    for order in ("open", "resume"):
        done = call("round", order, "--coordinator", str(served))
        assert (done.exit_code != 0, "error[E0310]" in done.stderr, done.stdout) == (True, True, "")


def test_an_invitation_is_voided(fresh: Path) -> None:
    where = ("--federation", "first", "--coordinator", str(fresh))
    token = call("invite", "mistake", *where).stdout.split()[2]
    for _ in range(2):
        done = call("revoke", "mistake", *where)
        assert done.stdout == "mistake has not joined: its invitation is void\n"
    records = fresh.parent / "first" / "data" / "east.csv"
    joined = Process(
        ["join", token, "--data", str(records), "--home", "mistake", "--no-start"],
        fresh.parent,
        "mistake",
    )
    assert joined.popen.wait(20) != 0
    assert "error[E0813]" in joined.err


def test_a_rollback_before_the_end_is_for_the_next_round(fresh: Path) -> None:
    where = ("--federation", "second", "--coordinator", str(fresh))
    done = call("model", "rollback", "0", *where)
    assert done.stdout.startswith("the next round starts from version 0, ")


def test_orders_hold_resume_and_stop(fresh: Path) -> None:
    where = ("--federation", "second", "--coordinator", str(fresh))
    assert call("round", "hold", *where).exit_code == 0
    assert "second: on hold" in call("status", *where).stdout
    assert call("round", "resume", *where).exit_code == 0
    assert "second: between rounds" in call("status", *where).stdout
    assert call("round", "open", *where).exit_code == 8  # nobody is there
    refused = call("round", "stop", *where)
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    assert "second: between rounds" in call("status", *where).stdout


def test_a_revoked_site_is_out(fresh: Path) -> None:
    where = ("--federation", "first", "--coordinator", str(fresh))
    token = call("invite", "passing", *where).stdout.split()[2]
    records = fresh.parent / "first" / "data" / "east.csv"
    joined = Process(
        ["join", token, "--data", str(records), "--home", "passing", "--no-start"],
        fresh.parent,
        "passing",
    )
    assert joined.popen.wait(20) == 0, joined.err
    assert "passing" in call("status", "--sites", *where).stdout
    looked = call("doctor", "--home", str(fresh.parent / "passing"))
    assert looked.exit_code == 0, looked.stdout
    told = " ".join(looked.stdout.split())
    assert "ok records" in told and "ok certificate holds 364 days" in told
    assert "task: network" in told and "enforced: " in told
    assert call("revoke", "passing", *where).stdout == "passing is out\n"
    assert "passing  revoked" in call("status", "--sites", *where).stdout
    again = call("revoke", "passing", *where)
    assert (again.exit_code, "there is no site `passing`" in again.stderr) == (4, True)


def test_of_several_federations_one_must_be_named(fresh: Path) -> None:
    done = call("invite", "charite", "--coordinator", str(fresh))
    assert done.exit_code == 2
    assert "there are 2 federations here" in done.stderr
    assert "--federation first    # or: second" in done.stderr
    unknown = call("round", "list", "--federation", "third", "--coordinator", str(fresh))
    assert (unknown.exit_code, "error[E0819]" in unknown.stderr) == (1, True)


# ---- access -------------------------------------------------------------------------


def copied_access(fresh: Path, folder: Path, **changes: str) -> Path:
    folder.mkdir()
    values = json.loads((fresh / "operator.json").read_text()) | changes
    (folder / "operator.json").write_text(json.dumps(values))
    (folder / "operator.json").chmod(0o600)
    return folder


def test_the_folder_may_come_from_the_environment(fresh: Path) -> None:
    done = call("status", env={"CONSORTIUM_COORDINATOR": str(fresh)})
    assert done.exit_code == 0


def test_without_access_it_is_exit_4(tmp_path: Path) -> None:
    done = call("status", "--coordinator", str(tmp_path))
    assert (done.exit_code, "error[E0812]" in done.stderr) == (4, True)
    assert "hint: consortium serve writes it" in done.stderr
    for text in ("[]", "[" * 5000, "9" * 5000):
        (tmp_path / "operator.json").write_text(text)
        (tmp_path / "operator.json").chmod(0o600)
        assert call("status", "--coordinator", str(tmp_path)).exit_code == 4


def test_access_that_others_can_read_is_refused(fresh: Path, tmp_path: Path) -> None:
    folder = copied_access(fresh, tmp_path / "open")
    (folder / "operator.json").chmod(0o644)
    done = call("status", "--coordinator", str(folder))
    assert (done.exit_code, "can be read by others" in done.stderr) == (1, True)


def test_another_token_is_exit_4(fresh: Path, tmp_path: Path) -> None:
    folder = copied_access(fresh, tmp_path / "other", token="x" * 27)
    done = call("status", "--coordinator", str(folder))
    assert (done.exit_code, "error[E0812]" in done.stderr) == (4, True)


def test_no_other_authority_is_trusted(fresh: Path, tmp_path: Path) -> None:
    other = Authority.make(time.time_ns() // 1_000_000).pem().decode()
    folder = copied_access(fresh, tmp_path / "other", authority=other)
    done = call("status", "--coordinator", str(folder))
    assert (done.exit_code, "error[E0818]" in done.stderr) == (4, True)


def test_a_coordinator_that_does_not_run_is_exit_6(fresh: Path, tmp_path: Path) -> None:
    folder = copied_access(fresh, tmp_path / "gone", url="https://127.0.0.1:9")
    done = call("status", "--coordinator", str(folder))
    assert (done.exit_code, "error[E0811]" in done.stderr) == (6, True)
    assert "hint: start it: consortium serve" in done.stderr
    told = json.loads(call("--json", "status", "--coordinator", str(folder)).stdout)
    assert (told["ok"], told["error"]["code"]) == (False, "E0811")


def test_the_operator_here_needs_no_public_name(fresh: Path) -> None:
    """Sites are told of localhost, as --name says; the file for this machine has the address
    that is listened at."""
    assert json.loads((fresh / "operator.json").read_text())["url"].startswith("https://127.0.0.1:")
    line = call("invite", "x", "--federation", "first", "--coordinator", str(fresh)).stdout
    assert read_token(line.split()[2]).url.startswith("https://localhost:")


def test_the_token_is_in_no_text_form(fresh: Path) -> None:
    from consortium.cli.operator import read_access

    access = read_access(fresh)
    assert access.token and access.token not in repr(access)


def test_the_doctor_finds_a_coordinator_well(fresh: Path) -> None:
    done = call("doctor", "--coordinator", str(fresh))
    assert done.exit_code == 0, done.stdout
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"ok"}


def test_the_doctor_fails_where_something_is_wrong(finished: Finished, tmp_path: Path) -> None:
    """The coordinator has ended, and somebody has opened its keys to all."""
    shutil.copytree(finished.data, tmp_path / "data")
    (tmp_path / "data" / "authority.key").chmod(0o644)
    access = json.loads((tmp_path / "data" / "operator.json").read_text())
    access["url"] = "https://127.0.0.1:9"
    (tmp_path / "data" / "operator.json").write_text(json.dumps(access))
    done = call("doctor", "--coordinator", str(tmp_path / "data"))
    assert (done.exit_code, done.stdout.count("FAIL")) == (1, 2)
    assert "→ consortium serve" in done.stdout
    assert "2 of 9 checks failed" in done.stderr
    told = json.loads(call("--json", "doctor", "--coordinator", str(tmp_path / "data")).stdout)
    failed = {one["check"] for one in told["data"]["checks"] if one["verdict"] == "FAIL"}
    assert (told["ok"], failed) == (False, {"port", "secrets"})


# ---- tokens -------------------------------------------------------------------------


def test_a_lead_on_another_machine_uses_the_same_commands(fresh: Path, tmp_path: Path) -> None:
    where, file = ("--coordinator", str(fresh)), tmp_path / "anna.json"
    wanted = ("--label", "anna", "--role", "lead", "--federation", "first", "--days", "30")
    done = call("token", "new", *wanted, "--out", str(file), *where)
    assert (done.exit_code, done.stdout) == (0, f"{file}\n"), done.stderr
    access = json.loads(file.read_text())
    assert access["url"].startswith("https://localhost:")  # as sites are told, not from here
    assert file.stat().st_mode & 0o777 == 0o600
    assert access["token"] not in done.stdout + done.stderr
    mine = ("--operator", str(file))
    assert call("invite", "passing-by", *mine).exit_code == 0  # there is only one for her
    assert call("status", env={"CONSORTIUM_OPERATOR": str(file)}).stdout.startswith("first: ")
    hidden = call("round", "list", "--federation", "second", *mine)
    unknown = call("round", "list", "--federation", "third", *mine)
    assert (hidden.exit_code, hidden.stderr) == (1, unknown.stderr.replace("third", "second"))
    refused = call("token", "list", *mine)
    assert (refused.exit_code, "error[E0820]" in refused.stderr) == (4, True)
    lines = call("token", "list", *where).stdout.splitlines()
    assert any(line.split()[:3] == ["anna", "lead", "first"] for line in lines)
    assert any(line.split()[:3] == ["local", "admin", "everything"] for line in lines)
    told = json.loads(call("--json", "token", "list", *where).stdout)["data"]["tokens"]
    assert {one["label"] for one in told} == {"anna", "local"}
    assert call("token", "revoke", "anna", *where).stdout == "the token anna is void\n"
    gone = call("status", *mine)
    assert (gone.exit_code, "error[E0812]" in gone.stderr) == (4, True)
    assert "consortium token new" in gone.stderr
    again = call("token", "revoke", "anna", *where)
    assert (again.exit_code, "there is no token anna" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (("--role", "lead"), "say what the token is for"),
        (("--role", "lead", "--federation", "first", "--everywhere"), "say what the token is for"),
        (("--role", "lead", "--federation", "third"), "there is no federation `third`"),
        (("--role", "lead", "--tenant", "third"), "no federation belongs to a tenant third"),
        (("--role", "boss", "--everywhere"), "role"),
    ],
)
def test_a_token_that_cannot_be(
    fresh: Path, tmp_path: Path, wanted: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "x.json"
    where = ("--out", str(file), "--coordinator", str(fresh))
    done = call("token", "new", "--label", "x", *wanted, *where)
    assert (done.exit_code != 0, said in done.stderr) == (True, True), done.stderr
    assert not file.exists()


def test_a_token_does_not_replace_a_file(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("mine")
    where = ("--out", str(tmp_path / "x.json"), "--coordinator", str(fresh))
    done = call("token", "new", "--label", "x", "--role", "viewer", "--everywhere", *where)
    assert (done.exit_code, "is there already" in done.stderr) == (2, True)
    assert "x" not in call("token", "list", "--coordinator", str(fresh)).stdout.split()


# ---- the audit of signatures --------------------------------------------------------


def test_every_signed_request_of_a_real_federation_is_verified(finished: Finished) -> None:
    done = call("audit", "verify", str(finished.data))
    assert done.exit_code == 0, done.stdout
    assert "12 requests of sites are signed by the keys that were admitted" in done.stdout
    told = json.loads(call("--json", "audit", "verify", str(finished.data)).stdout)
    assert told["data"]["signatures"] == 12  # updates and scores of three sites in two rounds


@dataclass
class Planted:
    """A copy of the finished directory, in which evidence is forged."""

    data: Path
    folder: Path

    @property
    def blobs(self) -> FileBlobs:
        return FileBlobs(self.data / "blobs")

    def facts(self, kind: type[Any]) -> list[tuple[str, int, Any]]:
        """(stream, position, fact) of every fact of that kind."""
        found = [
            (stream, at, record) for stream, at, record in rows(self.data) if "/" not in stream
        ]
        told = [(stream, at, decode(record)) for stream, at, record in sorted(found)]
        return [entry for entry in told if isinstance(entry[2], kind)]

    def rewrite(self, place: tuple[str, int, Any], **changes: Any) -> None:
        stream, position, fact = place
        write_row(self.data, stream, position, encode(replace(fact, **changes)))

    def envelope(self, digest: Digest) -> RequestLine:
        return read_envelope(self.blobs.get(digest)).line

    def signed(self, line: RequestLine, key: SigningKey) -> Digest:
        """The blob of an envelope that this key has signed."""
        signed = parse(line.method, line.path, sign(line, key))
        return self.blobs.put(signed.envelope())

    def key_of(self, site: str) -> SigningKey:
        homes = [SiteHome.open(self.folder / name) for name in SITES]
        return next(home.key for home in homes if home.enrolment.site == site)

    def audit(self) -> Audit:
        return verify_directory(self.data, checks=[lambda blobs: Evidence(blobs, Tally())])


@pytest.fixture
def planted(finished: Finished, tmp_path: Path) -> Planted:
    shutil.copytree(finished.data, tmp_path / "data")
    return Planted(tmp_path / "data", finished.folder)


def first_finding(audit: Audit) -> str:
    return audit.findings[0].what if audit.findings else ""


def test_an_untouched_copy_is_clean(planted: Planted) -> None:
    assert planted.audit().is_clean


def test_an_answer_without_a_signature_is_found(planted: Planted) -> None:
    planted.rewrite(planted.facts(f.UpdateReceived)[0], envelope=None)
    assert "no signed request stands behind it" in first_finding(planted.audit())


@pytest.mark.parametrize("kind", [f.UpdateReceived, f.Evaluated])
def test_a_signature_of_another_key_is_found(planted: Planted, kind: type[Any]) -> None:
    place = planted.facts(kind)[0]
    forged = planted.signed(planted.envelope(place[2].envelope), SigningKey.generate())
    planted.rewrite(place, envelope=forged)
    assert "does not hold: the signature does not fit" in first_finding(planted.audit())


def test_the_envelope_of_another_site_is_found(planted: Planted) -> None:
    first, second = planted.facts(f.UpdateReceived)[:2]
    planted.rewrite(first, envelope=second[2].envelope)
    assert "does not hold" in first_finding(planted.audit())


def test_a_signature_in_another_sites_name_is_found(planted: Planted) -> None:
    first, second = planted.facts(f.UpdateReceived)[:2]
    line = planted.envelope(first[2].envelope)
    other = replace(line, site=planted.envelope(second[2].envelope).site)
    planted.rewrite(first, envelope=planted.signed(other, planted.key_of(line.site)))
    assert "in another site's name" in first_finding(planted.audit())


def test_another_update_in_the_place_of_the_signed_one_is_found(planted: Planted) -> None:
    """The coordinator stores an update of its own under the site's genuine signature."""
    place = planted.facts(f.UpdateReceived)[0]
    data = bytearray(planted.blobs.get(place[2].update))
    data[-1] ^= 1
    planted.rewrite(place, update=planted.blobs.put(bytes(data)))
    assert "signed something else than the fact says" in first_finding(planted.audit())


def test_another_score_than_the_signed_one_is_found(planted: Planted) -> None:
    place = planted.facts(f.Evaluated)[0]
    better = tuple(2 * value for value in place[2].candidate)
    planted.rewrite(place, candidate=better)
    assert "signed something else than the fact says" in first_finding(planted.audit())


def test_a_request_of_another_round_is_found(planted: Planted) -> None:
    place = planted.facts(f.UpdateReceived)[0]
    line = planted.envelope(place[2].envelope)
    other = replace(line, path="/v1/rounds/7/update", round=7)
    planted.rewrite(place, envelope=planted.signed(other, planted.key_of(line.site)))
    assert "of another request" in first_finding(planted.audit())


def test_a_request_to_another_coordinator_is_found(planted: Planted) -> None:
    place = planted.facts(f.UpdateReceived)[1]
    line = planted.envelope(place[2].envelope)
    other = replace(line, audience="ab" * 16)
    planted.rewrite(place, envelope=planted.signed(other, planted.key_of(line.site)))
    assert "another coordinator" in first_finding(planted.audit())


def test_a_failure_that_nobody_told_is_found(planted: Planted) -> None:
    """In the place of an update stands a failure with the update's own signed request."""
    stream, position, fact = planted.facts(f.UpdateReceived)[0]
    drop = f.SiteDropped(fact.round, fact.seat, f.Failure.TRAINING, fact.envelope, fact.at_ms)
    write_row(planted.data, stream, position, encode(drop))
    assert "of another request" in first_finding(planted.audit())


def test_one_request_cannot_stand_behind_two_facts(planted: Planted) -> None:
    evidence, state = Evidence(planted.blobs, tally := Tally()), Federation()
    for _, _, fact in planted.facts(object):
        if isinstance(fact, f.UpdateReceived):
            assert evidence.complaint(state, fact) is None
            assert "another fact already" in (evidence.complaint(state, fact) or "")
            break
        evolve(state, fact)
    assert tally.count == 1


def test_the_body_that_sites_sign_can_be_made_again_from_the_fact(planted: Planted) -> None:
    """What the audit rests on: the exact bytes of a submission follow from its fact."""
    _, _, fact = planted.facts(f.UpdateReceived)[0]
    size = planted.blobs.size(fact.update)
    body = Submission(update=fact.update.hex(), size_bytes=size).model_dump_json().encode()
    assert planted.envelope(fact.envelope).digest == digest_of(body).hex()


def test_the_operators_client_can_be_used_by_others(served: Path) -> None:
    found = Operator(served)
    try:
        assert found.federations() == ["first-study"]
        assert found.get(found.federation(None))["version"] == 2
    finally:
        found.close()
