"""A site's commands as its people meet them: joining at a terminal, looking, holding, leaving."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from consortium.cli.operator import Operator
from consortium.core import site_facts as s
from consortium.tensors import load_tensors
from tests.site.federation import Process, Site, Small, found, wait_for

CONSORTIUM = [sys.executable, "-m", "consortium"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    made = found(tmp_path_factory.mktemp("federation"), rounds=2, quorum=2)
    yield made
    made.end()


def invited(small: Small, name: str) -> str:
    operator = Operator(small.data)
    try:
        token = operator.post(f"{operator.federation(None)}/invites", {"name": name})["token"]
    finally:
        operator.close()
    assert isinstance(token, str)
    return token


def quietly(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command without a terminal."""
    return subprocess.run(
        [*CONSORTIUM, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


class Terminal:
    """A person at a terminal of 80 columns."""

    def __init__(self, *arguments: str) -> None:
        self.screen = ""
        master, slave = pty.openpty()
        environment = {**os.environ, "COLUMNS": "80", "LINES": "50", "TERM": "dumb"}
        self.running = subprocess.Popen(
            [*CONSORTIUM, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._master = master

    def sees(self, text: str, seconds: float = 30.0) -> None:
        ends = time.monotonic() + seconds
        while text not in self.screen:
            assert time.monotonic() < ends, self.screen
            self._read(0.1)

    def types(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ends(self, number: int) -> int:
        """Send a signal; the exit code."""
        self.running.send_signal(number)
        while self.running.poll() is None:
            self._read(0.1)
        os.close(self._master)
        return self.running.returncode

    def _read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            try:
                self.screen += os.read(self._master, 65536).decode()
            except OSError:  # nobody writes any more
                time.sleep(seconds)


def test_joining_at_a_terminal_shows_the_study_and_asks(small: Small) -> None:
    home, data = small.folder / "asked", small.folder / "asked.csv"
    data.write_text("x\n1\n")
    token = invited(small, "asked")
    terminal = Terminal("join", token, "--data", str(data), "--home", str(home))
    terminal.sees("Approve? [y/N]")
    for word in ("compare these words", "WHO", "TASK", "PLAN", "LEAVES", "STAYS", "COST"):
        assert word in terminal.screen
    review = terminal.screen[terminal.screen.index("WHO") :]
    assert max(len(line.rstrip("\r")) for line in review.split("\n")) <= 80
    terminal.types("y\n")
    terminal.sees("approved: task")
    terminal.sees("connected to")
    begin = time.monotonic()
    assert terminal.ends(signal.SIGINT) == 130
    assert time.monotonic() - begin < 2.5
    site = Site("asked", home, data, Process([], small.folder / "none"))
    assert any(isinstance(fact, s.TaskApproved) for fact in site.facts())


def test_no_is_no(small: Small) -> None:
    home, data = small.folder / "no", small.folder / "no.csv"
    data.write_text("x\n1\n")
    token = invited(small, "no")
    terminal = Terminal("join", token, "--data", str(data), "--home", str(home))
    terminal.sees("Approve? [y/N]")
    terminal.types("\n")
    terminal.sees("consortium site approve")
    terminal.sees("connected to")
    assert terminal.ends(signal.SIGTERM) == 0
    site = Site("no", home, data, Process([], small.folder / "none"))
    assert not any(isinstance(fact, s.TaskApproved) for fact in site.facts())
    left = site.command("site", "leave", "--yes")
    assert left.returncode == 0, left.stderr
    assert site.command("agent").returncode == 4
    assert "has left" in site.command("site", "status").stdout


def test_without_a_terminal_nothing_is_approved(small: Small) -> None:
    home, data = small.folder / "quiet", small.folder / "quiet.csv"
    data.write_text("x\n1\n")
    arguments = ["join", invited(small, "quiet"), "--data", str(data), "--no-start"]
    done = quietly("--json", *arguments, "--home", str(home))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["data"]
    assert (told["site"], told["federation"]) == ("quiet", "small")
    assert len(told["words"]) == 5
    site = Site("quiet", home, data, Process([], small.folder / "none"))
    assert site.command("site", "approve").returncode == 2  # nobody can be asked
    shown = site.command("site", "review", "--show", "task.py")
    assert "co.numpy_task" in shown.stdout
    assert site.command("site", "review", "--show", "other.py").returncode == 2
    again = quietly(*arguments, "--home", str(home))
    assert again.returncode == 0
    assert "is already in small" in again.stderr
    assert site.command("site", "leave", "--yes").returncode == 0


def test_a_policy_that_refuses_the_study_comes_with_what_to_type(small: Small) -> None:
    home, data = small.folder / "strict", small.folder / "strict.csv"
    data.write_text("x\n1\n")
    arguments = ["join", invited(small, "strict"), "--data", str(data), "--no-start"]

    def join() -> str:
        done = quietly(*arguments, "--home", str(home))
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "site approve" in join()
    site = Site("strict", home, data, Process([], small.folder / "none"))
    assert site.command("site", "policy", "--set", "may_leave=scores").returncode == 0
    told = join()
    assert "policy refuses this study" in told and "site approve" not in told
    remedy = next(line.split() for line in told.splitlines() if "site policy --home" in line)
    shown = site.command("site", "review").stderr
    assert "policy refuses this study: consortium site policy --set may_leave=" in shown
    done = quietly(*remedy[1:])
    assert done.returncode == 0, done.stderr
    assert "site approve" in join()


def test_hash_of_another_task_approves_nothing(small: Small) -> None:
    home, data = small.folder / "other", small.folder / "other.csv"
    data.write_text("x\n1\n")
    arguments = ["join", invited(small, "other"), "--data", str(data), "--approve", "0" * 64]
    done = quietly(*arguments, "--home", str(home))
    assert done.returncode == 5
    assert "E0312" in done.stderr
    site = Site("other", home, data, Process([], small.folder / "none"))
    assert site.command("site", "leave", "--yes").returncode == 0


@pytest.mark.parametrize(
    ("token", "code", "exit_code"),
    [("cj1.nonsense", "E0813", 4), ("something", "E0813", 4)],
)
def test_token_that_is_none_is_told(tmp_path: Path, token: str, code: str, exit_code: int) -> None:
    data = tmp_path / "data.csv"
    data.write_text("x\n")
    done = subprocess.run(
        [*CONSORTIUM, "join", token, "--data", str(data), "--home", str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == exit_code
    assert code in done.stderr
    assert not (tmp_path / "home").exists()


def test_commands_need_a_home(tmp_path: Path) -> None:
    for arguments in (["agent"], ["site", "status"], ["site", "hold"], ["site", "review"]):
        done = subprocess.run(
            [*CONSORTIUM, *arguments, "--home", str(tmp_path / "none")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 4
        assert "E0812" in done.stderr


def test_policy_is_shown_changed_and_checked(small: Small) -> None:
    site = small.add("rules", is_approved=False)
    shown = site.command("--json", "site", "policy", "--set", "min_sites=2", "--set", "approve=ask")
    assert json.loads(shown.stdout)["data"]["min_sites"] == 2
    wrong = site.command("site", "policy", "--set", "min_site=2")
    assert wrong.returncode == 3
    assert "did you mean min_sites?" in wrong.stderr
    listed = site.command("--json", "site", "policy", "--set", "may_leave=update, scores")
    assert json.loads(listed.stdout)["data"]["may_leave"] == ["update", "scores"]
    listed = site.command("--json", "site", "policy", "--set", 'may_leave=["update"]')
    assert json.loads(listed.stdout)["data"]["may_leave"] == ["update"]
    listed = site.command("--json", "site", "policy", "--set", "may_leave=")
    assert json.loads(listed.stdout)["data"]["may_leave"] == ["update", "weight", "scores"]
    assert site.command("site", "policy", "--set", "may_leave=updates").returncode == 3
    assert site.command("site", "policy", "--set", "max_rounds=1").returncode == 0
    refused = site.command("site", "approve", "--task", "0" * 64)
    assert refused.returncode == 5
    assert "E0314" in refused.stderr
    back = site.command("--json", "site", "policy", "--set", "max_rounds=")
    assert json.loads(back.stdout)["data"]["max_rounds"] is None
    assert site.command("site", "leave", "--yes").returncode == 0


def test_privacy_budget_is_set_by_the_policy(small: Small) -> None:
    site = small.add("saver", is_approved=False)
    keys = ("epsilon_weekly=3.5", "epsilon_lifetime=40", "dataset=heart", "ledger=/srv/ledger")
    changes = [word for key in keys for word in ("--set", key)]
    told = json.loads(site.command("--json", "site", "policy", *changes).stdout)["data"]
    assert (told["epsilon_weekly"], told["epsilon_monthly"]) == (3.5, None)
    assert (told["epsilon_lifetime"], told["dataset"]) == (40.0, "heart")
    assert (told["ledger"], told["delta"]) == ("/srv/ledger", 1e-5)
    for wrong in ("epsilon_weekly=0", "dataset=a b", "ledger=here", "delta=1"):
        assert site.command("site", "policy", "--set", wrong).returncode == 3
    back = site.command("--json", "site", "policy", "--set", "epsilon_weekly=", "--set", "ledger=")
    told = json.loads(back.stdout)["data"]
    assert (told["epsilon_weekly"], told["ledger"]) == (None, None)
    assert site.command("site", "leave", "--yes").returncode == 0


def test_outbox_model_and_hold(tmp_path: Path) -> None:
    small = found(tmp_path, rounds=2, quorum=2)
    try:
        sites = [small.add(name, options=("--until-finished",)) for name in ("one", "two")]
        assert "no model yet" in sites[0].command("site", "export", "x.safetensors").stderr
        for site in sites:
            site.agent.start()
        assert [site.agent.wait() for site in sites] == [0, 0]
        _look_at(sites[0], tmp_path)
    finally:
        small.end()


def test_status_tells_what_is_wrong_until_it_is_over(tmp_path: Path) -> None:
    small = found(tmp_path, rounds=900, quorum=1)
    try:
        site = small.add("one")
        assert site.command("site", "policy", "--set", "min_sites=1").returncode == 0
        site.data.unlink()
        site.agent.start()
        wait_for(lambda: "E0204" in site.agent.log.read_text())
        assert re.search(r"trouble +\[E0204\] round \d+: site one: train failed", _status(site))
        told = [json.loads(line) for line in site.agent.log.read_text().splitlines()]
        failed = [one["text"] for one in told if one["code"] == "E0204"]
        assert str(site.home.resolve() / "child.log") in failed[0]
        assert "Traceback" in (site.home / "child.log").read_text()
        once = [(one["round"], one["text"]) for one in told if one["round"]]
        assert len(set(once)) == len(once)  # each is said once a round
        site.data.write_text("x\n1\n")
        wait_for(lambda: "trouble" not in _status(site))
        _revoke(small, "one")
        wait_for(lambda: re.search(r"trouble +\[E08\d\d\] ", _status(site)), 40.0)
    finally:
        small.end()


def _status(site: Site) -> str:
    return site.command("site", "status").stdout


def _revoke(small: Small, name: str) -> None:
    words = ["revoke", name, "--coordinator", str(small.data)]
    done = subprocess.run([*CONSORTIUM, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def _look_at(site: Site, folder: Path) -> None:
    listed = json.loads(site.command("--json", "site", "outbox").stdout)["data"]["entries"]
    assert listed.pop(0)["what"] == "report"
    assert [(entry["what"], entry["round"], entry["heard"]) for entry in listed] == [
        ("update", 1, True),
        ("score", 1, True),
        ("update", 2, True),
        ("score", 2, True),
    ]
    out = folder / "update.safetensors"
    taken = site.command("site", "outbox", "--file", "2", "--out", str(out))
    assert taken.returncode == 0
    assert out.stat().st_size == listed[2]["bytes"]
    assert site.command("site", "outbox", "--file", "9", "--out", str(out)).returncode == 2
    model = folder / "model.safetensors"
    exported = site.command("--json", "site", "export", str(model))
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["data"]["version"] == 2
    assert set(load_tensors(model.read_bytes())) == {"w"}
    assert site.command("site", "export", str(folder / "model.pt")).returncode == 2
    status = site.command("site", "status").stdout
    assert re.search(r"model +version 2", status)
    assert "waiting to be asked" in status
    assert site.command("site", "hold").returncode == 0
    assert "on hold" in site.command("site", "status").stdout
    assert site.command("site", "resume").returncode == 0
    assert site.command("site", "withdraw").stdout.startswith("withdrawn: task ")
    assert site.command("site", "export", str(model)).returncode == 5
    wait_for(lambda: "NOT approved" in site.command("site", "status").stdout)
