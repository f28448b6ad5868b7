"""The task's process is shut in: hostile tasks in real processes, and a probe that does not lie.

What the system that runs these tests does not offer is not skipped: then the findings must say
that it is not enforced. `WITHOUT` takes mechanisms away, so that each is tried alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from consortium.cli import checkup
from consortium.cli.checkup import Verdict
from consortium.core.facts import Failure
from consortium.errors import (
    ConsortiumError,
    IsolationError,
    ResourceLimitError,
    TaskResultError,
)
from consortium.site import cells, workshop
from consortium.site.cells import cell_of, examine, longest_s, memory_bytes
from consortium.site.failures import failure_of
from consortium.site.home import SiteHome
from consortium.site.isolation import findings as f
from consortium.site.isolation.cell import Cell, read_cell
from consortium.site.isolation.environment import environment
from consortium.site.isolation.probe import probe
from consortium.site.policy import Policy, parse_policy
from consortium.site.scratch import Scratch
from consortium.site.workshop import Use, Workshop
from tests.site.homes import SEAT, Lab, enrolled, lab

NAMESPACES = ("user", "net", "mount", "ipc", "pid")
WITHOUT: dict[str, tuple[str, ...]] = {
    "all": (),
    "namespaces alone": ("landlock", "seccomp"),
    "landlock alone": (*NAMESPACES, "seccomp"),
    "seccomp alone": (*NAMESPACES, "landlock"),
    "landlock and seccomp, as in a container": NAMESPACES,
    "no process namespace": ("pid",),
    "no mount namespace": ("mount",),
    "no network namespace": ("net",),
    "nothing": (*NAMESPACES, "landlock", "seccomp"),
}
# Which mechanisms make which promise; one of a row is enough.
PROMISES: dict[str, tuple[set[str], ...]] = {
    "network": ({"net"}, {"seccomp"}),
    "files": ({"view"}, {"landlock"}),
    "programs": ({"seccomp"}, {"view", "net"}, {"view", "scopes"}),
    "processes": ({"pid"}, {"scopes"}),
}
BREACHES = {
    "network": {"connect", "datagram"},
    "files": {"read", "write"},
    "programs": {"unix", "abstract"},
    "processes": {"signal", "look"},
}

HOSTILE = '''
import ctypes, json, os, resource, signal, socket, subprocess, sys, time
import numpy as np
import consortium as co


def start(rng):
    return {"w": np.zeros(3, np.float32)}


def evaluate(site, shared):
    return {"loss": 1.0, "accuracy": 0.5}, 4


def connect(address, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as made:
        made.settimeout(1)
        made.connect(address)
        made.send(b"records")


def write(path):
    """Whether it could: where isolation fails, nothing must be lost."""
    os.close(os.open(path, os.O_WRONLY))


def unshare():
    if ctypes.CDLL(None).unshare(0x10000000):
        raise PermissionError


def trace(pid):
    """PTRACE_SEIZE, which does not stop the other one."""
    if ctypes.CDLL(None, use_errno=True).ptrace(0x4206, pid, None, None):
        raise PermissionError


def end_warden():
    if os.getpid() > 9:
        raise PermissionError  # it has none, and the machine's first process is not to be tried
    os.kill(1, signal.SIGKILL)
    time.sleep(0.1)
    raise PermissionError  # it is still there, else nobody would say so


def raise_limit():
    resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))


def acts(site, told):
    home, agent = told["home"], told["agent"]
    return {
        "read the key": lambda: open(f"{home}/keys/site.key", "rb").read(),
        "read the key as PEM": lambda: open(f"{home}/keys/site.pem", "rb").read(),
        "read the policy": lambda: open(f"{home}/policy.toml").read(),
        "read the sheet": lambda: open(f"{home}/site.toml").read(),
        "read the log": lambda: open(f"{home}/log.sqlite", "rb").read(),
        "read by way of the agent": lambda: open(f"/proc/{agent}/root{home}/keys/site.key").read(),
        "read by way of a link": lambda: (
            os.symlink(f"{home}/keys/site.key", "/tmp/link"), open("/tmp/link", "rb").read()
        ),
        "read the user's files": lambda: open(told["file"]).read(),
        "read the accounts": lambda: open("/etc/shadow", "rb").read(),
        "list the home": lambda: os.listdir(f"{home}/keys"),
        "write the records": lambda: write(site.data),
        "write the policy": lambda: write(f"{home}/policy.toml"),
        "write a blob": lambda: write(told["blob"]),
        "remove a blob": lambda: os.unlink(told["blob"]),
        "write its own files": lambda: write(__file__),
        # Opened and left as it is: where nothing holds the task back, this is our own software.
        "write software": lambda: os.close(os.open(np.__file__, os.O_WRONLY)),
        "connect": lambda: connect(("127.0.0.1", told["tcp"])),
        "send a datagram": lambda: connect(
            ("127.0.0.1", told["udp"]), kind=socket.SOCK_DGRAM
        ),
        "connect to a program": lambda: connect(told["unix"], socket.AF_UNIX),
        "connect to an abstract name": lambda: connect(told["abstract"], socket.AF_UNIX),
        "open a raw socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "signal the agent": lambda: os.kill(agent, 0),
        "end its warden": end_warden,
        "trace the agent": lambda: trace(agent),
        "read the agent's environment": lambda: open(f"/proc/{agent}/environ", "rb").read(),
        "make a namespace": unshare,
        "raise its limit": raise_limit,
    }


@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"])
def study(site, shared):
    told = json.loads(site.data.read_text().splitlines()[0])
    if told.get("do") == "eat":
        kept = [np.ones(1 << 24) for _ in range(100)]  # 128 MB each
    if told.get("do") == "eat torch":
        import torch
        kept = [torch.ones(1 << 24) for _ in range(200)]
    if told.get("do") == "eat together":
        for _ in range(8):  # each of them stays below the limit for one
            if os.fork() == 0:
                kept = np.ones(1 << 25)
                time.sleep(60)
        time.sleep(60)
    if told.get("do") == "fork":
        while True:
            try:
                if os.fork() == 0:
                    time.sleep(60)
            except OSError:
                time.sleep(0.01)
    if told.get("do") == "sleep":
        time.sleep(60)
    if told.get("do") == "write":
        with open(f"{os.environ['TMPDIR']}/large", "wb") as file:
            for _ in range(1000):
                file.write(bytes(1 << 20))
    if told.get("do") == "talk":
        os.write(int(sys.argv[1]), (1 << 30).to_bytes(4, "big") + b"x" * (1 << 16))
        time.sleep(60)
    if told.get("do") == "escape":
        raise co.ConsortiumError("\\x1b[2Jgone")
    if told.get("do") == "environment":
        print(json.dumps(dict(os.environ)), flush=True)
    if "agent" in told:
        done = []
        for name, act in acts(site, told).items():
            if name not in told.get("acts", [name]):
                continue
            try:
                act()
            except (OSError, ValueError):
                continue
            done.append(name)
        print("done " + json.dumps(done), flush=True)
    return shared, 4
'''


@dataclass
class Ward:
    """A hostile task's home."""

    made: Lab
    shop: Workshop

    def order(self, **words: object) -> None:
        Path(self.made.home.enrolment.data).write_text(json.dumps(words) + "\n")

    def train(self) -> None:
        self.shop.train(1, SEAT, self.made.first)

    def rule(self, **values: object) -> None:
        parse_policy(values).write(self.made.home.policy_file)

    def log(self) -> str:
        self.shop.close()  # what it printed is written down by then
        return self.made.home.child_log.read_text()


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    made = lab(tmp_path, task=HOSTILE)
    shop = Workshop(made.home, made.reviewed)
    try:
        yield Ward(made, shop)
    finally:
        shop.close()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, f.Finding]:
    """What this system enforces, by the probe."""
    home = enrolled(tmp_path_factory.mktemp("probed") / "home")
    return {one.measure: one for one in examine(home)}


@contextmanager
def listening() -> Iterator[dict[str, object]]:
    """A coordinator, and programs of the same user."""
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        path, name = f"/tmp/c-{os.getpid()}.sock", f"\0c-{os.getpid()}"
        unix.bind(path)
        abstract.bind(name)
        unix.listen()
        abstract.listen()
        ports = {"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}
        try:
            yield {**ports, "unix": path, "abstract": name, "agent": os.getpid()}
        finally:
            os.unlink(path)


# ---- hostile tasks ------------------------------------------------------------------

NEEDS = {
    "network": {"connect", "send a datagram", "open a raw socket"},
    "programs": {"connect to a program", "connect to an abstract name"},
    "processes": {
        "signal the agent",
        "end its warden",
        "trace the agent",
        "read the agent's environment",
    },
    "memory": {"raise its limit"},
    "privileges": {"make a namespace"},
}


def _done(ward: Ward, tmp_path: Path, **more: object) -> set[str]:
    """What a task that tries everything gets away with."""
    ward.made.home.log  # noqa: B018  # it is there before anybody looks for it
    (tmp_path / "file").write_text("of the user")
    home, blob = ward.made.home, ward.made.home.blobs.path(ward.made.first)
    with listening() as told:
        files = {"home": str(home.path), "file": str(tmp_path / "file"), "blob": str(blob)}
        ward.order(**files, **told, **more)
        ward.train()
    line = next(line for line in ward.log().splitlines() if line.startswith("done "))
    return set(json.loads(line.removeprefix("done ")))


def test_a_hostile_task_gets_away_with_nothing_that_is_enforced(
    ward: Ward, tmp_path: Path, found: dict[str, f.Finding]
) -> None:
    ward.rule(min_sites=3)
    done = _done(ward, tmp_path)
    elsewhere = set().union(*NEEDS.values())
    for measure, finding in found.items():
        if finding.is_enforced and measure in NEEDS:
            assert not done & NEEDS[measure], measure
        if finding.is_enforced and measure == "files":
            assert not done - elsewhere


GENTLE = [
    "read the key",
    "read the policy",
    "list the home",
    "write the records",
    "remove a blob",
    "connect",
    "send a datagram",
    "connect to a program",
    "connect to an abstract name",
    "signal the agent",
]


def test_the_same_task_gets_away_with_it_where_isolation_is_off(ward: Ward, tmp_path: Path) -> None:
    """So the acts themselves work, and it is the isolation that stops them."""
    ward.rule(isolation="off")
    assert _done(ward, tmp_path, acts=GENTLE) == set(GENTLE)


def test_the_environment_has_no_secret_of_the_agents(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONSORTIUM_HOME", "HTTPS_PROXY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ward.order(do="environment")
    ward.train()
    told = json.loads(ward.log().splitlines()[-1])
    assert "secret" not in told.values()
    assert told["OMP_NUM_THREADS"] == "1" and "PATH" in told
    assert told["HOME"] == told["TMPDIR"] != os.environ.get("HOME")
    assert set(environment({"A": "1", "LANG": "C", "MKL_X": "2"})) == {
        "LANG",
        "MKL_X",
        "USER",
        "LOGNAME",
    }


# ---- limits -------------------------------------------------------------------------


@pytest.mark.parametrize("do", ["eat", "eat torch"])
def test_a_task_that_needs_too_much_memory_fails_for_want_of_it(ward: Ward, do: str) -> None:
    ward.rule(memory="2GB")
    ward.order(do=do)
    with pytest.raises(ConsortiumError) as caught:
        ward.train()
    assert failure_of(caught.value) is Failure.RESOURCES
    ward.order(do="nothing")
    ward.train()  # the next one works


def test_processes_that_need_too_much_memory_together_are_ended(
    ward: Ward, found: dict[str, f.Finding]
) -> None:
    if "together" not in found["memory"].found or "not bounded" in found["memory"].found:
        assert "not bounded" in found["memory"].found or not found["memory"].is_enforced
        return
    ward.rule(memory="1GB")
    ward.order(do="eat together")
    with pytest.raises(ResourceLimitError, match="more memory") as caught:
        ward.train()
    assert failure_of(caught.value) is Failure.RESOURCES and "memory=" in caught.value.hint


def test_a_fork_bomb_is_ended(
    ward: Ward, found: dict[str, f.Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not found["forks"].is_enforced:
        assert found["forks"].todo
        return
    few = lambda *given: replace(cell_of(*given), most_processes=40)  # noqa: E731
    monkeypatch.setattr(workshop, "cell_of", few)
    ward.rule(time="4s")
    ward.order(do="fork")
    with pytest.raises(ResourceLimitError) as caught:
        ward.train()
    assert failure_of(caught.value) is Failure.RESOURCES


def test_a_task_that_takes_too_long_is_ended(ward: Ward) -> None:
    ward.rule(time="2s")
    ward.order(do="sleep")
    began = time.monotonic()
    with pytest.raises(ResourceLimitError, match="longer") as caught:
        ward.train()
    assert time.monotonic() - began < 8
    assert failure_of(caught.value) is Failure.RESOURCES and "time=" in caught.value.hint
    assert ward.shop.pid is None


def test_no_task_may_work_longer_than_a_round_lasts(ward: Ward) -> None:
    plan = ward.made.study.plan
    unset, short, long = (longest_s(Policy(time=time), plan) for time in (None, "5s", "9d"))
    assert short == 5 and long == unset
    assert unset >= 3600  # the plan's rounds last an hour, and may be extended


def test_a_file_that_is_too_large_cannot_be_written(ward: Ward) -> None:
    ward.rule(memory="500MB")
    ward.order(do="write")
    with pytest.raises(ConsortiumError, match="OSError"):
        ward.train()


def test_the_memory_is_the_policys_or_a_share_of_the_machines() -> None:
    assert memory_bytes(Policy(memory="3GiB")) == 3 << 30
    assert 0 < memory_bytes(Policy()) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ---- what the process says ----------------------------------------------------------


def test_a_process_that_talks_nonsense_is_ended(ward: Ward) -> None:
    """An answer with more bytes than any answer has would fill the agent's memory."""
    ward.order(do="talk")
    with pytest.raises(ConsortiumError) as caught:
        ward.train()
    assert failure_of(caught.value) is Failure.RESOURCES


def test_an_error_of_the_task_cannot_speak_to_a_terminal(ward: Ward) -> None:
    ward.order(do="escape")
    with pytest.raises(ConsortiumError) as caught:
        ward.train()
    assert "\x1b" not in caught.value.message and "\\x1b" in caught.value.message


def _scratch(tmp_path: Path) -> Scratch:
    (tmp_path / "home").mkdir()
    return Scratch.new(tmp_path / "home")


def test_of_what_was_made_only_ordinary_files_are_taken(tmp_path: Path) -> None:
    scratch, secret = _scratch(tmp_path), tmp_path / "secret"
    secret.write_text("the key")
    (scratch.made / "out" / "link.csv").symlink_to(secret)
    os.mkfifo(scratch.made / "out" / "pipe.csv")
    for name in ("link.csv", "pipe.csv", "none.csv"):
        with pytest.raises(TaskResultError):
            scratch.copy_to(tmp_path / name)
        assert not (tmp_path / name).exists()
    assert not list(tmp_path.glob("*.new"))


def test_an_update_that_is_too_large_is_not_taken(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "site")
    scratch = Scratch.new(home.path)
    (scratch.made / "update").write_bytes(b"x" * 100)
    with pytest.raises(TaskResultError, match="may have 99"):
        scratch.move_to(home.blobs, "update", 99)
    digest, marks = scratch.move_to(home.blobs, "update", 100)
    assert (home.blobs.get(digest), max(marks)) == (b"x" * 100, 100)
    assert marks[100] == digest


def test_the_folder_goes_with_its_process_and_leftovers_with_the_next(
    ward: Ward, tmp_path: Path
) -> None:
    work = ward.made.home.path / "work"
    (work / "aa.999999999.new" / "tmp").mkdir(parents=True)
    ward.order(do="nothing")
    ward.train()
    (left,) = work.iterdir()
    assert left.name != "aa.999999999.new"
    ward.shop.close()
    assert not list(work.iterdir())


# ---- the probe does not lie ---------------------------------------------------------


def _cell(tmp_path: Path, **changes: object) -> Cell:
    scratch = _scratch(tmp_path)
    made = Cell(str(scratch.made), str(scratch.path), (str(scratch.made),), memory_bytes=2 << 30)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WITHOUT)
def test_what_is_reported_as_enforced_withstands_the_attack(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[set[str], set[str]]] = []

    def spy(has: list[str], why: dict[str, str], done: list[str]) -> list[f.Finding]:
        told.append((set(has), set(done)))
        return f.findings(has, why, done)

    monkeypatch.setattr("consortium.site.isolation.probe.findings", spy)
    found = {one.measure: one for one in probe(_cell(tmp_path, without=WITHOUT[name]))}
    ((has, done),) = told
    assert not has & set(WITHOUT[name])
    for measure, ways in PROMISES.items():
        is_promised = any(way <= has for way in ways)
        assert found[measure].is_enforced == is_promised, measure
        assert is_promised != bool(done & BREACHES[measure]), (measure, done)
    assert ("memory" in has) == ("memory" not in done)
    for one in found.values():
        assert one.is_enforced or one.todo


def test_a_promise_that_is_broken_is_not_repeated(tmp_path: Path) -> None:
    """Planted: every mechanism claims to be in force, and the attack gets through."""
    has = ["net", "seccomp", "view", "landlock", "pid", "proc", "memory", "sockets", "nproc"]
    assert all(one.is_enforced for one in f.findings(has, {}) if one.measure in f._ATTACKS)
    for measure, attacks in f._ATTACKS.items():
        for attack in attacks:
            found = {one.measure: one for one in f.findings(has, {}, [attack])}
            assert not found[measure].is_enforced and attack in found[measure].found


def test_a_home_inside_of_what_a_task_may_read_is_told(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "records" / "site", data=str(tmp_path / "records"))
    found = {one.measure: one for one in examine(home)}
    assert not found["files"].is_enforced and str(home.path) in found["files"].found
    parse_policy({"isolation": "required"}).write(home.policy_file)
    checks = list(checkup.isolation(list(found.values()), is_required=True))
    assert [one.name for one in checks if one.verdict is Verdict.FAIL] == ["task: files"]


# ---- what a site demands ------------------------------------------------------------


@pytest.mark.parametrize("without", [(), ("net", "seccomp"), ("mount", "landlock")])
def test_a_site_can_demand_isolation(
    ward: Ward, monkeypatch: pytest.MonkeyPatch, without: tuple[str, ...]
) -> None:
    lesser = lambda *given: replace(cell_of(*given), without=without)  # noqa: E731
    monkeypatch.setattr(workshop, "cell_of", lesser)
    ward.rule(isolation="required")
    ward.order(do="nothing")
    home, refused = ward.made.home, None
    try:
        ward.train()
    except IsolationError as error:
        refused = error
    if refused is not None:
        assert refused.code == "E0316" and refused.hint
        assert failure_of(refused) is Failure.POLICY
        assert not home.child_log.exists() and ward.shop.pid is None
    is_open = refused is not None
    monkeypatch.setattr(cells, "cell_of", lesser)
    assert is_open == bool(f.missing(examine(home)))
    assert is_open or not without
    ward.rule(isolation="available")
    ward.train()


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"memory": "much"}, "a size is"),
        ({"time": "0s"}, "no time"),
        ({"time": "soon"}, "a duration is"),
        ({"readable": ["models"]}, "does not begin with /"),
        ({"isolation": "maybe"}, "should be"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(values: dict[str, object], what: str) -> None:
    with pytest.raises(ConsortiumError, match=what):
        parse_policy(values)


# ---- innocent tasks -----------------------------------------------------------------

LOADING = """
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
import consortium as co

def start(rng):
    return {"w": np.zeros(3, np.float32)}

def evaluate(site, shared):
    return {"loss": 1.0, "accuracy": 0.5}, 4

@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"])
def study(site, shared):
    data = TensorDataset(torch.randn(64, 6))
    for workers in (0, 2):
        rows = sum(len(row) for row, in DataLoader(data, batch_size=8, num_workers=workers))
        print(workers, rows, flush=True)
    return shared, 4
"""


def test_a_loader_with_processes_of_its_own_works(
    tmp_path: Path, found: dict[str, f.Finding]
) -> None:
    made = lab(tmp_path, task=LOADING)
    shop = Workshop(made.home, made.reviewed)
    try:
        shop.train(1, SEAT, made.first)
    except ConsortiumError:
        assert "num_workers" in found["programs"].found
    finally:
        shop.close()
    assert "0 64" in made.home.child_log.read_text()


def test_more_can_be_made_readable(ward: Ward, tmp_path: Path) -> None:
    """New records for predictions are read by the process that is started for them."""
    (tmp_path / "weights").write_text("of the user")
    ward.rule(readable=[str(tmp_path / "weights")])
    nowhere = dict.fromkeys(("home", "blob", "unix", "abstract"), "/nowhere")
    file = str(tmp_path / "weights")
    ward.order(agent=0, tcp=0, udp=0, file=file, acts=["read the user's files"], **nowhere)
    ward.train()
    assert 'done ["read the user\'s files"]' in ward.log()


def test_records_that_were_replaced_are_read_anew(ward: Ward, tmp_path: Path) -> None:
    ward.order(do="nothing")
    ward.train()
    first = ward.shop.pid
    ward.train()
    assert ward.shop.pid == first
    (tmp_path / "new").write_text('{"do": "escape"}\n')
    (tmp_path / "new").replace(ward.made.home.enrolment.data)
    with pytest.raises(ConsortiumError, match="gone"):
        ward.train()


def test_what_is_exported_goes_where_somebody_wants_it(ward: Ward, tmp_path: Path) -> None:
    ward.order(do="nothing")
    out = tmp_path / "elsewhere" / "model.safetensors"
    with pytest.raises(ConsortiumError, match="No such file"):
        ward.shop.export(Use(ward.made.first, 0, None), out)
    out.parent.mkdir()
    ward.shop.export(Use(ward.made.first, 0, None), out)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


# ---- in words -----------------------------------------------------------------------


def test_a_cell_is_written_and_read() -> None:
    cell = Cell("/a", "/b", ("/c",), ("/d",), secret="/e", memory_bytes=1, without=("net",))
    assert read_cell(cell.text()) == cell


@pytest.mark.parametrize(
    ("name", "value", "todo"),
    [
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor"),
        ("kernel/nothing", "1", "Landlock"),
    ],
)
def test_what_is_missing_comes_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, todo: str
) -> None:
    monkeypatch.setattr(f, "SETTINGS", tmp_path)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(value + "\n")
    found = f.findings([], {"user": "operation not permitted", "landlock": "not supported"})
    network = found[0]
    assert not network.is_enforced and todo in network.todo
    assert "operation not permitted" in network.found
    line = f.in_one_line(found)
    assert "NOT enforced: network, files" in line and "consortium doctor" in line


def test_elsewhere_than_on_linux_only_limits_are_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f, "IS_LINUX", False)
    found = f.findings(["fsize"], {})
    assert [one.measure for one in found if one.is_enforced] == ["file size"]
    assert all("Linux" in one.found for one in f.missing(found))


def test_the_doctor_warns_of_what_is_not_enforced(found: dict[str, f.Finding]) -> None:
    checks = list(checkup.isolation(list(found.values()), is_required=False))
    for check, one in zip(checks, found.values(), strict=True):
        assert check.name == f"task: {one.measure}"
        assert check.verdict is (Verdict.OK if one.is_enforced else Verdict.WARN)
        assert check.found.startswith("enforced" if one.is_enforced else "not enforced")
    lacking = f.findings([], {"user": "no"})
    checks = list(checkup.isolation(lacking, is_required=True))
    failed = [check.name for check in checks if check.verdict is Verdict.FAIL]
    assert failed == ["task: network", "task: files", "task: programs"]


def test_signals_reach_the_task_and_its_end_is_told(ward: Ward) -> None:
    """The processes in between pass on how the task ended."""
    ward.order(do="sleep")
    ends = threading.Timer(2.0, lambda: os.kill(_youngest(ward), signal.SIGTERM))
    ends.start()
    with pytest.raises(ConsortiumError, match="signal 15"):
        ward.train()


def _youngest(ward: Ward) -> int:
    assert ward.shop.pid is not None
    found = [ward.shop.pid]
    for pid in found:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        found += [int(child) for child in text.split()]
    return found[-1]


def test_a_home_without_records_is_examined_too(tmp_path: Path) -> None:
    home = SiteHome.open(enrolled(tmp_path / "home").path)
    assert {one.measure for one in examine(home)} >= {"network", "files"}
