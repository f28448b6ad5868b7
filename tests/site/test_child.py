"""The task's process: the same bytes as in a simulation, and what happens when it goes wrong."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortium.core.facts import Failure
from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.drive.combine import server_state_of
from consortium.errors import (
    ConsortiumError,
    CorruptStoreError,
    DeadlineExpiredError,
    InternalError,
    OnHoldError,
    SiteDataError,
    TaskResultError,
    VerificationError,
)
from consortium.model import Layout, digest_of, load_model, load_update, save_model
from consortium.plan.strategy import VARIATE
from consortium.site import jobs as j
from consortium.site import process
from consortium.site.home import HERE, SiteHome
from consortium.site.workshop import Use, Workshop, failure_of
from consortium.tensors import CODES, TensorSpec, load_tensors
from tests.site.homes import SCORED, SEAT, TARGET, Lab, lab

ROOT = Path(__file__).parents[2]
PERSONAL = '\n[personal]\nname = "fedper"\nlayers = ["shared.3"]\n'


@contextmanager
def workshop(made: Lab) -> Iterator[Workshop]:
    shop = Workshop(made.home, made.reviewed)
    try:
        yield shop
    finally:
        shop.close()


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _until(is_so: Callable[[], bool], limit_s: float = 20.0) -> None:
    ends = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


# ---- the same bytes -----------------------------------------------------------------


def _same_as_simulated(made: Lab, rounds: int = 3) -> None:
    """Train and evaluate as the loop engine does; every candidate is the mean of one."""
    engine, seat, layout = made.engine, SEAT, made.lock.layout
    model, base = made.first, load_model(layout, made.home.blobs.get(made.first))
    base_round, private, state = 0, None, None
    with workshop(made) as shop:
        for number in range(1, rounds + 1):
            made_here = shop.train(number, seat, model, None, private)
            wanted = engine.train_one(seat, number, base, None, state)
            sent = made.home.blobs.get(made_here.update)
            assert sent == made.update(wanted.row, wanted.records, model)
            assert made_here.size_bytes == len(sent)
            assert made_here.private_state == (wanted.state and digest_of(wanted.state))

            candidate = (base + wanted.row).astype(base.dtype)
            after = made.home.blobs.put(save_model(layout, candidate))
            told = shop.evaluate(
                number, seat, after, (model, base_round), (private, made_here.private_state)
            )
            sums, samples = engine.evaluate_one(seat, number, candidate, wanted.state)
            before = wanted.state if state is None else state
            of_base, _ = engine.evaluate_one(seat, base_round, base, before)
            assert (told.samples, list(told.candidate)) == (samples, sums)
            assert list(told.base) == of_base

            made.home.settle(number, is_counted=True)
            private, state = made_here.private_state, wanted.state
            model, base, base_round = after, candidate, number


def test_a_numpy_task_gives_the_bytes_of_a_simulation(tmp_path: Path) -> None:
    _same_as_simulated(lab(tmp_path, plan="\n[strategy]\nclip = 0.05\n"))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_scores_inside_a_masked_update_are_those_of_a_simulation(tmp_path: Path, kind: str) -> None:
    """The levels that are to be masked, of the update, the weight and the scores."""
    made = lab(tmp_path, kind, change=TARGET, plan=SCORED)
    metrics, layout = made.reviewed.reported, made.lock.layout
    form = made.reviewed.plan.form(layout, 1, metrics)
    assert form.size == layout.size + 1 + len(metrics) + 1
    base = load_model(layout, made.home.blobs.get(made.first))
    with workshop(made) as shop:
        made_here = shop.train(1, SEAT, made.first, None, None)
    wanted = made.engine.train_one(SEAT, 1, base, None, None)
    sent = load_update(made.home.blobs.get(made_here.update), form)
    assert wanted.packed is not None and sent.row[:].tobytes() == wanted.packed
    assert wanted.row[-1] > 0, "how many test records"


def test_a_torch_task_gives_the_bytes_of_a_simulation(tmp_path: Path) -> None:
    """With private layers, of the task and of the plan, that go on from round to round."""
    _same_as_simulated(lab(tmp_path, "torch", plan=PERSONAL))


RULED = """
import numpy as np
import consortium as co

def start(rng):
    return {"w": np.zeros(6, np.float32)}

def evaluate(site, shared):
    return {"loss": float(np.square(shared["w"]).sum()), "accuracy": 0.5}, 3

@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"], follows_rules=True)
def study(site, shared):
    table = np.loadtxt(site.data, delimiter=",", skiprows=1, dtype=np.float32)
    for row in site.rng.permutation(table)[:8]:
        gradient = {"w": (row[:-1] @ shared["w"] - row[-1]) * row[:-1]}
        step = site.rules.adjusted(shared, gradient)["w"]
        shared["w"] -= np.float32(site.training.lr) * step
    return co.Trained(shared, len(table), steps=8)
"""


def test_variates_of_server_and_site_are_used(tmp_path: Path) -> None:
    made = lab(tmp_path, plan='\n[strategy]\nname = "scaffold"\n', task=RULED)
    layout, blobs, strategy = made.lock.layout, made.home.blobs, made.study.plan.strategy
    base = load_model(layout, blobs.get(made.first))
    form = Layout((TensorSpec(VARIATE, (layout.size,), CODES[layout.dtype]),))
    server = blobs.put(save_model(form, np.linspace(-1, 1, layout.size, dtype=np.float32)))
    state = None
    with workshop(made) as shop:
        for number, given in ((1, None), (2, server)):
            told = server_state_of(strategy, layout, blobs, given)[VARIATE]
            variate = np.array(told[0 : layout.size])
            kept = None if state is None else digest_of(state)
            made_here = shop.train(number, SEAT, made.first, given, kept)
            wanted = made.engine.train_one(SEAT, number, base, variate, state)
            sent = blobs.get(made_here.update)
            assert sent == made.update(wanted.row, wanted.records, made.first)
            state = wanted.state
            assert state is not None and made.home.states.pending(HERE, number) == state
            made.home.settle(number, is_counted=True)


DRAWING = """
import numpy as np
import consortium as co
import more

def start(rng):
    return {"w": np.zeros(6, np.float32)}

def evaluate(site, shared):
    return {"loss": site.round + float(site.rng.random()), "accuracy": 0.5}, 3

@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"])
def study(site, shared):
    return more.moved(shared, site.rng), 3
"""
MORE = """
def moved(shared, rng):
    return {"w": shared["w"] + rng.normal(size=6).astype("f4")}
"""


def test_a_model_is_tried_with_the_draws_of_the_round_that_made_it(tmp_path: Path) -> None:
    _same_as_simulated(lab(tmp_path, task=DRAWING, more=MORE))


def test_the_tasks_folder_has_the_tasks_files_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    made = lab(tmp_path, task=DRAWING, more=MORE)
    with workshop(made) as shop:
        shop.train(1, SEAT, made.first)
    folder = made.home.path / "tasks" / made.lock.task.hex()
    assert sorted(path.name for path in folder.rglob("*")) == ["more.py", "task.py"]


def test_without_a_seed_nobody_can_foresee_an_update(tmp_path: Path) -> None:
    made = lab(tmp_path, seed=None)
    with workshop(made) as shop:
        updates = {shop.train(1, SEAT, made.first).update for _ in range(3)}
    assert len(updates) == 3


def test_what_stays_starts_from_the_sites_own_number(tmp_path: Path) -> None:
    """Unseeded, a torch site's private layer has the same first values in every process."""
    made = lab(tmp_path, "torch", seed=None, plan="\n[personal]\nwarmup = 0\n")
    scores = []
    for _ in range(2):
        with workshop(made) as shop:
            scores.append(shop.evaluate(1, SEAT, made.first, (made.first, 0), (None, None)))
    assert scores[0] == scores[1]


def test_the_process_stays_from_round_to_round(tmp_path: Path) -> None:
    made = lab(tmp_path)
    with workshop(made) as shop:
        assert shop.pid is None
        pids = []
        # A thread that ends must not take the process with it.
        for number in (1, 2):
            thread = threading.Thread(target=shop.train, args=(number, SEAT, made.first))
            thread.start()
            thread.join()
            time.sleep(0.05)
            pids.append(shop.pid)
        assert pids[0] is not None and pids[0] == pids[1]
    _until(lambda: not _is_running(pids[0]))
    assert shop.pid is None


def test_a_numpy_task_does_not_load_torch(tmp_path: Path) -> None:
    shown = "import sys; print('torch' in sys.modules)\n"
    made = lab(tmp_path, task=RULED + shown)
    with workshop(made) as shop:
        shop.check()
        _until(made.home.child_log.exists)
    assert made.home.child_log.read_text() == "False\n"


# ---- when it goes wrong -------------------------------------------------------------

TROUBLE = """
import os
import re
import subprocess
import sys
import time

import numpy as np

import consortium as co
from consortium.errors import QualityError, SchemaError, TooFewRecordsError


def start(rng):
    return {"w": np.zeros(3, np.float32)}


def act(site):
    word = site.data.read_text().split()[0]
    if word == "value":
        raise ValueError("patient 4711 has a secret")
    if word == "memory":
        np.zeros(1 << 60, np.uint8)
    if word == "exit":
        sys.exit(3)
    if word == "die":
        os._exit(3)
    if word == "quality":
        raise QualityError("a column is missing in most records")
    if word == "schema":
        raise SchemaError("there is no column `age`")
    if word == "few":
        raise TooFewRecordsError("2 records")
    if word == "print":
        print("x" * 100_000)
    if word == "spin":  # nothing else in this process gets a turn
        print("at work", flush=True)
        re.match("(a+)+$", "a" * 60 + "b")
    if word == "sleep":
        # As far away as a process can go from the one that started it.
        code = "import time; print('at work', flush=True); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        time.sleep(600)
    return word


def evaluate(site, shared):
    word = act(site)
    return {"loss": 1.0, "accuracy": 0.5}, 0 if word == "empty" else 4


@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"])
def study(site, shared):
    word = act(site)
    if word == "nan":
        shared["w"][:] = np.nan
    if word == "shape":
        return {"w": np.zeros(4, np.float32)}, 4
    if word == "text":
        return "done"
    return shared, 4
"""


@pytest.fixture
def trouble(tmp_path: Path) -> Iterator[tuple[Lab, Workshop, Callable[[str], None]]]:
    made = lab(tmp_path, task=TROUBLE)

    def order(word: str) -> None:
        Path(made.home.enrolment.data).write_text(f"{word}\n")

    with workshop(made) as shop:
        yield made, shop, order


Trouble = tuple[Lab, Workshop, Callable[[str], None]]


@pytest.mark.parametrize(
    ("word", "code", "failure"),
    [
        ("value", "E0204", Failure.TRAINING),
        ("exit", "E0204", Failure.TRAINING),
        ("text", "E0204", Failure.TRAINING),
        ("nan", "E0204", Failure.TRAINING),
        ("memory", "E0204", Failure.RESOURCES),
        ("quality", "E0213", Failure.DATA_QUALITY),
        ("schema", "E0209", Failure.REQUIREMENTS),
        ("few", "E0210", Failure.REQUIREMENTS),
        ("shape", "E0203", Failure.MODEL),
        ("die", "E0001", Failure.RESOURCES),
    ],
)
def test_a_failed_training_has_a_code_and_the_next_one_works(
    trouble: Trouble, word: str, code: str, failure: Failure
) -> None:
    made, shop, order = trouble
    order(word)
    with pytest.raises(ConsortiumError) as caught:
        shop.train(1, SEAT, made.first)
    assert caught.value.code == code
    assert failure_of(caught.value) is failure
    order("fine")
    assert shop.train(2, SEAT, made.first).records == 4


@pytest.mark.parametrize(
    ("word", "failure"),
    [
        ("empty", Failure.NO_TEST_DATA),
        ("few", Failure.NO_TEST_DATA),
        ("quality", Failure.DATA_QUALITY),
        ("value", Failure.TRAINING),
        ("memory", Failure.RESOURCES),
    ],
)
def test_a_failed_evaluation_has_a_code(trouble: Trouble, word: str, failure: Failure) -> None:
    made, shop, order = trouble
    order(word)
    with pytest.raises(ConsortiumError) as caught:
        shop.evaluate(1, SEAT, made.first, (made.first, 0), (None, None))
    assert failure_of(caught.value) is failure


def test_what_the_task_says_of_records_stays_in_the_log_here(trouble: Trouble) -> None:
    made, shop, order = trouble
    order("value")
    with pytest.raises(TaskResultError) as caught:
        shop.train(1, SEAT, made.first)
    assert "4711" not in f"{caught.value.message} {caught.value.hint} {caught.value.details}"
    assert "ValueError in task.py:" in caught.value.message
    log = made.home.child_log  # another thread writes it, and makes it
    _until(lambda: log.exists() and "4711" in log.read_text())
    assert stat.S_IMODE(made.home.child_log.stat().st_mode) == 0o600


def test_what_the_task_prints_is_kept_up_to_a_limit(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, shop, order = trouble
    monkeypatch.setattr(process, "MAX_LOG_BYTES", 200_000)
    order("print")
    for number in range(1, 12):
        shop.train(number, SEAT, made.first)
    shop.close()
    sizes = [path.stat().st_size for path in made.home.path.glob("child.log*")]
    assert len(sizes) == 2 and 100_000 < sum(sizes) < 550_000


def test_a_process_that_is_killed_at_work_is_replaced_for_the_next(trouble: Trouble) -> None:
    made, shop, order = trouble
    order("sleep")
    killer = threading.Thread(target=lambda: os.kill(_processes(made, shop)[-2], signal.SIGKILL))
    killer.start()  # of the task's own process: the last one is what it started
    with pytest.raises(InternalError, match="signal 9") as caught:
        shop.train(1, SEAT, made.first)
    killer.join()
    assert failure_of(caught.value) is Failure.RESOURCES
    order("fine")
    assert shop.train(2, SEAT, made.first).records == 4


def test_a_process_that_died_between_rounds_is_replaced_without_a_word(trouble: Trouble) -> None:
    made, shop, order = trouble
    order("fine")
    shop.train(1, SEAT, made.first)
    first = shop.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    _until(lambda: not Path(f"/proc/{first}").exists())
    time.sleep(0.2)  # its end is noticed a moment later
    assert shop.train(2, SEAT, made.first).records == 4
    assert shop.pid != first


def _descendants(pid: int) -> list[int]:
    """Whoever was started by this process, or by one of those; the youngest comes last. A task
    may have another number for itself than the one by which it is known here."""
    found = [pid]
    for parent in found:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in path.read_text().split()]
    return found[1:]


def _until_at_work(made: Lab) -> None:
    log = made.home.child_log
    _until(lambda: log.exists() and "at work" in log.read_text())


def _processes(made: Lab, shop: Workshop) -> list[int]:
    """Of a task that has come to its work: the agent's child and all that came of it."""
    _until_at_work(made)
    assert shop.pid is not None
    return [shop.pid, *_descendants(shop.pid)]


@pytest.mark.parametrize("why", [None, DeadlineExpiredError("the deadline is over")])
def test_work_can_be_cancelled_from_another_thread(
    trouble: Trouble, why: ConsortiumError | None
) -> None:
    made, shop, order = trouble
    assert not shop.cancel(), "there is nothing to cancel"
    order("sleep")
    raised: list[ConsortiumError] = []

    def train() -> None:
        try:
            shop.train(1, SEAT, made.first)
        except ConsortiumError as error:
            raised.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    pids = _processes(made, shop)
    assert len(pids) > 1 and shop.cancel(why)
    thread.join(20)
    assert type(raised[0]) is (OnHoldError if why is None else DeadlineExpiredError)
    for pid in pids:  # also what the task itself had started
        _until(lambda pid=pid: not _is_running(pid))  # type: ignore[misc]
    order("fine")
    assert shop.train(2, SEAT, made.first).records == 4


_ALONE = """
import sys, threading
from pathlib import Path
from consortium.core.ids import Digest
from consortium.site.home import SiteHome
from consortium.site.review import verify_study
from consortium.site.workshop import Workshop
from consortium.wire.messages import StudySheet

home = SiteHome.open(Path(sys.argv[1]))
sheet = StudySheet.model_validate_json(sys.argv[2])
parts = (sheet.plan, sheet.layout, sheet.bundle, sheet.lock)
study = verify_study(sheet, *(home.blobs.get(Digest(bytes.fromhex(part))) for part in parts))
Workshop(home, study).train(1, 2, Digest(bytes.fromhex(sys.argv[3])))
"""


@pytest.mark.parametrize("word", ["sleep", "spin"])
def test_the_process_ends_with_its_parent(trouble: Trouble, word: str) -> None:
    made, _, order = trouble
    order(word)
    sheet = made.reviewed.sheet.model_dump_json()
    command = [sys.executable, "-c", _ALONE, str(made.home.path), sheet, made.first.hex()]
    with subprocess.Popen(command, cwd=ROOT) as agent:
        _until_at_work(made)
        pids = _descendants(agent.pid)
        assert pids and all(_is_running(pid) for pid in pids)
        agent.kill()
    has_namespace = len(pids) > 2  # else what the task itself starts outlives it
    try:
        for pid in pids if has_namespace else pids[:1]:
            _until(lambda pid=pid: not _is_running(pid))  # type: ignore[misc]
    finally:
        for left in filter(_is_running, pids):
            os.kill(left, signal.SIGKILL)


def test_a_task_that_cannot_be_loaded_says_what_the_site_lacks(tmp_path: Path) -> None:
    broken = "import os\nif os.environ.get('USER') == 'task':\n    import no_such_library\n"
    made = lab(tmp_path, task=broken + RULED)
    with workshop(made) as shop, pytest.raises(ConsortiumError) as caught:
        shop.train(1, SEAT, made.first)
    assert caught.value.code == "E0201" and "no_such_library" in caught.value.message
    assert failure_of(caught.value) is Failure.REQUIREMENTS
    assert shop.pid is None


def test_a_task_with_other_metrics_than_approved_does_not_run(tmp_path: Path) -> None:
    made = lab(tmp_path)
    lock = replace(made.lock, metrics=(Metric("loss", higher_is_better=False),))
    shop = Workshop(made.home, replace(made.reviewed, lock=lock))
    with pytest.raises(VerificationError):
        shop.train(1, SEAT, made.first)
    shop.close()


def test_what_runs_is_what_was_approved_whatever_lies_in_the_folder(tmp_path: Path) -> None:
    made = lab(tmp_path)
    folder = made.home.unpack(made.reviewed.bundle, made.reviewed.task_hash)
    (folder / "task.py").write_text("raise SystemExit('not this one')\n")
    (folder / "numpy.py").write_text("raise SystemExit('nor this one')\n")
    with workshop(made) as shop:
        shop.train(1, SEAT, made.first)
    assert sorted(path.name for path in folder.rglob("*")) == ["task.py"]


def test_a_state_that_the_log_does_not_name_is_not_used(tmp_path: Path) -> None:
    made = lab(tmp_path)
    with workshop(made) as shop:
        plain = shop.train(1, SEAT, made.first)
        made.home.states.keep(HERE, 1, b"not of this log")
        made.home.settle(1, is_counted=True)
        assert shop.train(1, SEAT, made.first) == plain
        with pytest.raises(CorruptStoreError) as caught:
            shop.train(1, SEAT, made.first, None, Digest(b"\5" * 32))
    assert failure_of(caught.value) is Failure.RESOURCES


def test_a_site_without_records_says_so(tmp_path: Path) -> None:
    made = lab(tmp_path)
    sheet = made.home.path / "site.toml"
    sheet.write_text(re.sub("data = .*", 'data = ""', sheet.read_text()))
    shop = Workshop(SiteHome.open(made.home.path), made.reviewed)
    with pytest.raises(SiteDataError):
        shop.train(1, SEAT, made.first)


# ---- using the model at the site ----------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Workshop, Use]]:
    """A torch site that has trained one round, and its process."""
    made = lab(tmp_path_factory.mktemp("network"), "torch")
    with workshop(made) as shop:
        kept = shop.train(1, SEAT, made.first).private_state
        made.home.settle(1, is_counted=True)
        yield made, shop, Use(made.first, 1, kept, SEAT)


Network = tuple[Lab, Workshop, Use]


def _simulated(made: Lab) -> Any:
    """The same complete model, as a simulation gives it."""
    engine, base = made.engine, load_model(made.lock.layout, made.home.blobs.get(made.first))
    state = engine.train_one(SEAT, 1, base, None, None).state
    return engine.local.complete(engine.site(SEAT, 1, "evaluate"), base, state)


def test_the_check_names_what_leaves_and_what_stays(network: Network) -> None:
    made, shop, _ = network
    found = shop.check(SEAT)
    assert found.leaves == made.lock.layout.specs
    assert [spec.name for spec in found.private] == ["adapter.bias", "adapter.weight"]


def test_the_complete_model_predicts_at_the_site(network: Network, tmp_path: Path) -> None:
    made, shop, use = network
    records, model = Path(made.home.enrolment.data), _simulated(made)
    shop.predict(use, records, tmp_path / "out.csv")
    table = np.loadtxt(records, delimiter=",", skiprows=1)
    mean, std = model.trained_on.mean, model.trained_on.std
    wanted = model.predict(((table[:, :-1] - mean) / std).astype(np.float32))
    found = np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1)
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "0,1"
    assert found.shape == wanted.shape == (len(table), 2)
    assert np.allclose(found, wanted, atol=1e-6)


def test_the_complete_model_is_exported_at_the_site(network: Network, tmp_path: Path) -> None:
    made, shop, use = network
    shop.export(use, tmp_path / "model.safetensors")
    arrays = load_tensors((tmp_path / "model.safetensors").read_bytes())
    wanted = _simulated(made).module.state_dict()
    assert arrays.keys() == wanted.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, wanted[name].numpy()), name


@pytest.mark.slow  # torch's exporter takes some seconds to load
def test_the_complete_model_is_exported_as_onnx(network: Network, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    made, shop, use = network
    shop.export(use, tmp_path / "model.onnx")
    records = np.ones((5, 6), np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(["outputs"], {"inputs": records})
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.allclose(chances, _simulated(made).predict(records), atol=1e-4)


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        ("x1,x2\n1,2\n", "E0209", "no column `x3`"),
        ("x1,x2,x3,x4,x5,x6\n1,2,,4,5,6\n", "E0208", "x3 1"),
        ("x1,x2,x3,x4,x5,x6\n", "E0205", "no record"),
    ],
)
def test_records_that_the_model_cannot_take_are_refused(
    network: Network, tmp_path: Path, text: str, code: str, what: str
) -> None:
    _, shop, use = network
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(ConsortiumError, match=what) as caught:
        shop.predict(use, tmp_path / "new.csv", tmp_path / "out.csv")
    assert caught.value.code == code
    assert not (tmp_path / "out.csv").exists()


def test_the_arrays_of_a_numpy_task_are_exported(tmp_path: Path) -> None:
    made = lab(tmp_path)
    use = Use(made.first, 0, None)
    with workshop(made) as shop:
        shop.export(use, tmp_path / "model.safetensors")
        with pytest.raises(TaskResultError, match="no complete models"):
            shop.predict(use, Path(made.home.enrolment.data), tmp_path / "out.csv")
    arrays = load_tensors((tmp_path / "model.safetensors").read_bytes())
    assert sorted(arrays) == ["bias", "weights"]


def test_more_scores_than_were_approved_do_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's process is not believed: numbers beyond its metrics could carry anything."""
    made = lab(tmp_path)
    shop = Workshop(made.home, made.reviewed)
    sums = [0.5] * len(made.lock.metrics)
    for candidate, base in ((sums, sums), ([*sums, 4711.0], sums), (sums, [])):
        scores = j.Scores(samples=3, candidate=candidate, base=base)
        monkeypatch.setattr(shop, "_answered", lambda _, told=scores: told)
        if candidate == base:
            assert shop.evaluate(1, SEAT, made.first, (made.first, 0), (None, None)).samples == 3
            continue
        with pytest.raises(TaskResultError, match="other scores"):
            shop.evaluate(1, SEAT, made.first, (made.first, 0), (None, None))
