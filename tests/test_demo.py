"""The demo, as a viewer has it: real processes, killed and started again, and none left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from consortium.cli.demo.interrupts import Interrupts
from consortium.cli.demo.network import free_port
from consortium.cli.demo.processes import Processes
from consortium.cli.demo.records import COMMON, HOSPITALS, LABEL, Records, write_records
from consortium.cli.demo.results import Comparison, everywhere_words, home_words
from consortium.cli.demo.show import Show, folded, shell_line
from consortium.errors import InternalError

WIDTH = 80
END_S = 5.0  # for everything to be gone
PATIENCE_S = 150.0
MARK = "DEMO_OF_THIS_TEST"
NAMES = [hospital.name for hospital in HOSPITALS]


def demo(
    folder: Path, *options: str, said: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """The command, with a place for temporary files; a mark goes to all its processes."""
    folder.mkdir(exist_ok=True)
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-m", "consortium", *options, "demo"],
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        env=plain | {"TMPDIR": str(folder), MARK: str(folder)},
    )


def left_of(folder: Path, besides: int = 0) -> list[str]:
    """The processes that have the mark, wherever they hang in the tree."""
    mark, found = f"{MARK}={folder}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.name != str(besides) and mark in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def wait_until_gone(folder: Path, besides: int = 0) -> None:
    ends = time.monotonic() + END_S
    while left_of(folder, besides) and time.monotonic() < ends:
        time.sleep(0.02)
    assert left_of(folder, besides) == []


# ---- the whole of it ----------------------------------------------------------------


def test_the_demo_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    process = demo(tmp_path / "place", "--json")
    printed, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, printed + said
    assert said == ""
    told = json.loads(printed)["data"]
    assert sum(found["records"] for found in told["hospitals"].values()) == 569
    common, adapters = told["common"]["accuracy"], told["adapters"]["accuracy"]
    assert list(common) == list(adapters) == NAMES
    for row in common.values():
        assert row["together_elsewhere"] > row["alone_elsewhere"], "what the demo is about"
    assert told["audit"]["receipts"] == 2 * 4 * 8, "two runs, four hospitals, eight rounds"
    assert left_of(tmp_path / "place") == []
    assert list((tmp_path / "place").iterdir()) == []


@pytest.mark.slow
def test_the_demo_tells_what_it_does(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "consortium", "demo", "--folder", "kept"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert process.returncode == 0, process.stderr
    rounds = [line.split() for line in process.stdout.splitlines() if " accepted" in line]
    assert [(row[0], row[2]) for row in rounds] == [(str(n), "4") for n in range(1, 9)] * 2
    assert process.stderr.count("the same model, bit for bit: ") == 2
    assert re.search(r"# kill -9 county: round \d waits for it; it has \d of 4", process.stderr)
    assert re.search(r"# kill -9 coordinator: round \d is open; its log has \d", process.stderr)
    lines = [*process.stdout.splitlines(), *process.stderr.splitlines()]
    assert max(len(line) for line in lines) <= WIDTH
    again = [sys.executable, "-m", "consortium", "lock", "--check", "common/consortium.toml"]
    assert subprocess.run(again, cwd=tmp_path / "kept").returncode == 0


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    arguments = [sys.executable, "-m", "consortium", "demo", "--folder", str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 3
    assert "exists and is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


# ---- ended on the way ---------------------------------------------------------------


def follow(process: subprocess.Popen[str], moment: str) -> Iterator[str]:
    """What it says, up to and including the line that begins so."""
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if line.startswith(moment):
            return
    raise AssertionError(f"it never said: {moment}")


SLOW = pytest.mark.slow
MOMENTS = [
    pytest.param("Four hospitals", signal.SIGINT, marks=SLOW),
    pytest.param("$ consortium lock adapters", signal.SIGTERM, marks=SLOW),
    pytest.param("$ consortium serve", signal.SIGINT, marks=SLOW),
    pytest.param("    county", signal.SIGINT),
    pytest.param("RUN ONE", signal.SIGTERM, marks=SLOW),
    pytest.param("# kill -9 county", signal.SIGINT, marks=SLOW),
    pytest.param("# kill -9 coordinator", signal.SIGINT),
    pytest.param("RUN TWO", signal.SIGHUP, marks=SLOW),
    pytest.param("The four have joined", signal.SIGINT, marks=SLOW),
    pytest.param("THE AUDIT", signal.SIGINT, marks=SLOW),
]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")
@pytest.mark.parametrize(("moment", "number"), MOMENTS)
def test_ctrl_c_at_any_moment_leaves_nothing(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    place = tmp_path / "place"
    process = demo(place)
    lines = list(follow(process, moment))
    assert left_of(place), "the mark is seen, so an empty list means something"
    process.send_signal(number)
    wait_until_gone(place, besides=process.pid)
    _, rest = process.communicate(timeout=PATIENCE_S)  # removing files can take long on some disks
    assert process.returncode == 130
    assert rest.endswith("interrupted\n")
    assert left_of(place) == []
    assert list(place.iterdir()) == []
    assert max(len(line.rstrip("\n")) for line in lines) <= WIDTH


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux ends them")
def test_even_kill_9_of_the_demo_ends_its_processes(tmp_path: Path) -> None:
    place = tmp_path / "place"
    process = demo(place)
    list(follow(process, "    city"))
    assert len(left_of(place)) > 2
    process.kill()
    process.communicate()
    wait_until_gone(place)


# ---- its parts ----------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Interrupts() as interrupts, Processes(tmp_path, interrupts, lambda: None) as made:
        yield made


def test_a_command_that_fails_says_why(processes: Processes) -> None:
    with pytest.raises(InternalError, match=r"E0117: cannot read nowhere\.toml"):
        processes.run("lock", ["lock", "nowhere.toml"])


def test_whoever_waits_hears_that_a_lasting_command_failed(processes: Processes) -> None:
    processes.start_lasting("agent", ["agent", "--home", "nowhere"])
    with pytest.raises(InternalError, match="no site has joined a federation in nowhere"):
        processes.wait_for(lambda: False, "what never happens")


def test_leaving_the_block_ends_what_still_runs(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "plan.toml").write_text('[task]\nentry = "task.py:study"\n')
    with Interrupts() as interrupts, Processes(tmp_path, interrupts, lambda: None) as made:
        process = made.start("lock", ["lock", "plan.toml", "--sample", "task.py"])
        assert not process.is_over
    assert process.popen.returncode == -signal.SIGKILL


def test_one_interrupt_is_raised_and_later_ones_change_nothing() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # while things are being cleaned up
        interrupts.ignore()
        interrupts.check()


def test_an_interrupt_waits_until_a_process_is_on_the_list() -> None:
    steps = []

    def start() -> None:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("on the list")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        start()
    assert steps == ["on the list"]


def test_an_interrupt_that_python_dropped_is_found_by_whoever_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unlucky:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # the handler runs in here, and its exception goes nowhere

    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda about: dropped.append(about.exc_type))
    with Interrupts() as interrupts:
        Unlucky()
        assert dropped == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_every_record_is_at_one_hospital_and_unchanged(tmp_path: Path) -> None:
    from sklearn.datasets import load_breast_cancer

    told = write_records(tmp_path / "records")
    bunch = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in bunch.feature_names]
    places = [names.index(name) for name in COMMON]
    rows = []
    for found in told:
        lines = (tmp_path / "records" / f"{found.hospital.name}.csv").read_text().splitlines()
        header = lines[0].split(",")
        assert tuple(header[: len(COMMON)]) == COMMON
        assert header[-1] == LABEL
        cells = [line.split(",") for line in lines[1:]]
        assert len(cells) == found.count
        assert sum(int(row[-1]) for row in cells) == found.malignant
        rows += [(*map(float, row[: len(COMMON)]), int(row[-1])) for row in cells]
    pairs = zip(bunch.data[:, places], bunch.target, strict=True)
    expected = [(*(float(f"{x:.6g}") for x in row), int(label == 0)) for row, label in pairs]
    assert sorted(rows) == sorted(expected)
    assert len({len(found.hospital.columns) for found in told}) == len(told), "widths differ"


def test_hospitals_stand_in_the_order_in_which_a_simulation_seats_them() -> None:
    assert sorted(NAMES) == NAMES


Right = tuple[int | None, int | None]


def compared(own: tuple[Right, Right], common: tuple[int, int]) -> Comparison:
    """Two hospitals, with ten and with twenty test records."""
    return Comparison(("one", "two"), (10, 20), own, common)


def test_a_comparison_counts_cases() -> None:
    told = {"sites": ["one", "two"], "own": [[0.8, None], [None, 0.9]], "common": [0.8, 0.75]}
    records = [
        Records(hospital, 40, 1, n) for hospital, n in zip(HOSPITALS, (10, 20), strict=False)
    ]
    assert Comparison.of(told, records) == compared(((8, None), (None, 18)), (8, 15))


def test_the_words_say_where_it_helps_and_where_not() -> None:
    text = everywhere_words(compared(((8, 10), (7, 18)), (8, 16)))
    # Away: one is tried at two (10 of 20; 16), two at one (7 of 10; 8).
    assert "own model is right in 60.0% of cases, the common one in 80.0%" in text
    assert "At home the common one is not better: 24 of 30 cases, 26" in text
    assert "(one ±0, two -2)" in text
    assert "is better: 27 of 30" in everywhere_words(compared(((8, 10), (7, 18)), (8, 19)))


def test_private_columns_that_pay_and_that_do_not() -> None:
    lost = home_words(compared(((8, None), (None, 18)), (8, 16)))
    assert lost.startswith("Alone, 26 of 30 cases are right; together 24 (one ±0, two -2).")
    assert "gain nothing at home" in lost
    won = home_words(compared(((8, None), (None, 18)), (9, 19)))
    assert won == "Alone, 26 of 30 cases are right; together 28 (one +1, two +1)."


def test_long_commands_are_folded_between_options() -> None:
    line = shell_line(["serve", "plan.toml", "--data", "d" * 40, "--listen", "127.0.0.1:1"])
    assert line.splitlines() == [
        f"$ consortium serve plan.toml --data {'d' * 40} \\",
        "    --listen 127.0.0.1:1",
    ]
    assert max(len(part) for part in folded("word " * 100).splitlines()) < WIDTH


def test_the_port_is_not_one_that_systems_give_to_outgoing_connections() -> None:
    assert 20_000 <= free_port() < 30_000


def test_a_terminal_that_is_gone_does_not_stop_the_cleaning_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.openpty()
    terminal = os.fdopen(theirs, "w")
    monkeypatch.setattr(sys, "stderr", terminal)
    show = Show(time.monotonic())
    show.doing("working")
    os.close(ours)
    with pytest.raises(OSError, match="Input/output"):
        print("to nobody", file=terminal, flush=True)
    show.doing("removing the temporary folder")
    show.__exit__(None, None, None)
    monkeypatch.undo()
    with suppress(OSError):
        terminal.close()
