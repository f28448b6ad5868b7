"""Nothing of a site's feature space leaves it: not a byte of a private tensor, no name, no
shape, no width, no count (L5).

A federation of hospitals that measure different things runs through the command line, and
all that the coordinator gets or keeps is captured: every input, every blob, the log, the run
folder, the data directory but for `sites/`, and what is printed. The same federation then
runs in another world, with other widths, columns, categories and private layers. All that
was captured must have the same form in both; what may differ are the numbers of updates,
models and metrics. What those numbers tell about records is not asked here.

Every checker is shown planted leaks that it must catch.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import sha256
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consortium.cli.simulate import simulate as simulate_command
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode, encode
from consortium.core.ids import Seat
from consortium.drive.cohort import Cohort
from consortium.drive.driver import Driver
from consortium.drive.engine import SimulatedSite, simulated_site
from consortium.drive.local import LocalWork
from consortium.drive.lock import make_lock
from consortium.drive.states import FileStates, MemoryStates
from consortium.drive.study import load_study
from consortium.errors import FormatError, LayoutError
from consortium.model import STEP, Layout, digest_of
from consortium.plan.strategy import VARIATE
from consortium.store.files import FileBlobs, _FileWriter
from consortium.store.memory import MemoryBlobs
from consortium.tensors import load_tensors, read_header
from consortium.torch import TorchTask

SEED = 5
NAMES = ("north", "south", "west")
RECORDS = (64, 72, 80)

# One file for both worlds: widths, names and the number of private layers follow the data.
TASK = '''
import consortium as co
from consortium.torch import HospitalNet
from torch import nn


class Ward(HospitalNet):
    """The seed's model behind private layers that are named after what the hospital measures."""

    def __init__(self, columns):
        super().__init__(len(columns))
        self.own = [f"reader_{n}_of_{columns[-1]}" for n in range(1 + len(columns) % 3)]
        for name in self.own:
            self.add_module(name, co.private(nn.Linear(len(columns), len(columns))))

    def forward(self, features):
        for name in self.own:
            features = features + getattr(self, name)(features)
        return super().forward(features)


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def study(site):
    head, *rows = site.data.read_text().splitlines()
    kind, *_, label = head.split(",")
    kinds = sorted({row.split(",")[0] for row in rows})
    train, test = co.read_csv(site.data, label=label, categories={kind: kinds})
    return Ward(train.columns), train, test
'''

# Without a gate: what the gate decides is a function of the metrics, and they may differ.
PLAN = """
[task]
entry = "task.py:study"
[federation]
name = "hospitals"
rounds = {rounds}
quorum = 2
sites = "data/*.csv"
[selection]
fraction = 1.0
[training]
epochs = 1
[evaluation]
gate = false
{more}
"""


# ---- worlds -------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What hospitals measure: how much, and how they call it."""

    widths: tuple[int, int, int]  # of the model's input
    word: str  # in every column's name
    kinds: tuple[str, str, str]  # the values of a column of text: three of the features

    def csv(self, place: int) -> str:
        rng = np.random.default_rng(place)
        name, count = NAMES[place], RECORDS[place]
        numbers = self.widths[place] - len(self.kinds)
        columns = [f"{self.word}_{name}_{number}" for number in range(numbers)]
        lines = [",".join([f"{self.word}_kind", *columns, f"{self.word}_outcome"])]
        for row, values in enumerate(rng.normal(size=(count, numbers))):
            cells = [self.kinds[row % 3], *(f"{value:.5f}" for value in values), str(row % 2)]
            lines.append(",".join(cells))
        return "\n".join(lines) + "\n"


HERE = World((37, 41, 53), "zincum", ("quokka", "quagga", "quetzal"))
ELSEWHERE = World((11, 90, 128), "ferritinometry", ("axolotl", "aye", "aardwolf"))
# All hospitals alike: there the model of a task that keeps nothing private runs at all.


def write_study(
    folder: Path, world: World, more: str = "", rounds: int = 2, task: str = TASK
) -> Path:
    (folder / "data").mkdir(parents=True)
    for place, name in enumerate(NAMES):
        (folder / "data" / f"{name}.csv").write_text(world.csv(place))
    (folder / "task.py").write_text(task)
    plan = folder / "consortium.toml"
    plan.write_text(PLAN.format(rounds=rounds, more=more))
    return plan


# ---- what is captured ---------------------------------------------------------------


@dataclass
class Capture:
    """All that the coordinator got and kept, in the order in which it came."""

    inputs: list[i.Input] = field(default_factory=list)
    blobs: list[bytes] = field(default_factory=list)
    facts: list[bytes] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)  # see `_files`
    text: str = ""  # stdout and stderr
    exit_code: int = 0
    states: list[tuple[int, bytes]] = field(default_factory=list)  # (seat, what it kept): stays

    def everything(self) -> Iterator[tuple[str, bytes]]:
        yield from ((type(item).__name__, repr(item).encode()) for item in self.inputs)
        yield from ((f"blob {place}", blob) for place, blob in enumerate(self.blobs))
        yield from ((f"fact {place}", fact) for place, fact in enumerate(self.facts))
        for name, data in self.files.items():
            if "/blobs/" not in name:  # they were put there, and stand above
                yield name, data
        yield "the printed text", self.text.encode()


def capture(plan: Path, plant: Callable[[pytest.MonkeyPatch], None], **options: Any) -> Capture:
    """Run a study as `consortium simulate --record` does, and listen."""
    captured, talk = Capture(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(talk), redirect_stderr(talk):
        plant(patch)
        _listen(patch, captured)
        given = {"seed": SEED, "record": True, "workers": 0, "runs": plan.parent / "runs"}
        try:
            simulate_command(plan, **{**given, **options})
        except SystemExit as ended:
            captured.exit_code = int(ended.code or 0)
    captured.text, captured.files = talk.getvalue(), _files(plan.parent)
    return captured


def _listen(patch: pytest.MonkeyPatch, captured: Capture) -> None:
    """All that reaches a coordinator passes its driver or its blob store. What a site keeps
    passes its states."""
    feed = Driver.feed

    def heard(self: Driver, item: i.Input) -> Any:
        captured.inputs.append(item)
        facts = feed(self, item)
        captured.facts += [encode(fact) for fact in facts]
        return facts

    patch.setattr(Driver, "feed", heard)
    for blobs in (MemoryBlobs, FileBlobs):
        patch.setattr(blobs, "put", _stored(blobs.put, captured))
    patch.setattr(_FileWriter, "finish", _written(_FileWriter.finish, captured))
    for states in (MemoryStates, FileStates):
        patch.setattr(states, "keep", _kept(states.keep, captured))


def _stored(put: Any, captured: Capture) -> Any:
    def stored(self: Any, data: bytes) -> Any:
        if data not in captured.blobs:
            captured.blobs.append(data)
        return put(self, data)

    return stored


def _written(finish: Any, captured: Capture) -> Any:
    def written(self: Any) -> Any:
        digest = finish(self)
        data = self._blobs.get(digest)
        if data not in captured.blobs:
            captured.blobs.append(data)
        return digest

    return written


def _kept(keep: Any, captured: Capture) -> Any:
    def kept(self: Any, seat: int, number: int, state: bytes) -> None:
        captured.states.append((seat, state))
        keep(self, seat, number, state)

    return kept


def _files(folder: Path) -> dict[str, bytes]:
    """The run folder, and the data directory `kept` but for `sites/`."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = path.relative_to(folder)
        if place.parts[0] == "runs":
            found["run folder/" + "/".join(place.parts[2:])] = path.read_bytes()
        elif place.parts[0] == "kept" and place.parts[1] != "sites":
            name = str(place)
            if place.parts[1] in ("blobs", "keys"):  # named by a digest, or by a key
                name = f"kept/{place.parts[1]}/{len(found)}"
            found[name] = path.read_bytes()
    return found


# ---- what must not be in it ---------------------------------------------------------


@dataclass
class Secrets:
    """What stays: the values of private tensors, words, and numbers that are a width."""

    arrays: list[np.ndarray]
    words: set[str]
    widths: set[int]


def secrets_of(plan: Path, world: World, states: list[tuple[int, bytes]]) -> Secrets:
    """By the task as it is without a plant: all values of what it keeps private, as they were
    first and after each round, and how they changed."""
    (plan.parent / "task.py").write_text(TASK)
    study = load_study(plan)
    assert isinstance(study.task, TorchTask)
    arrays: list[np.ndarray] = []
    words = {world.word, *world.kinds}
    for seat, site in enumerate(study.sites, start=1):
        here = simulated_site(site, seat, study.plan, SEED, 0, "start")
        names = {spec.name for spec in study.task.inventory(here).private}
        words |= names
        first = study.task.new_model(here).state_dict()
        values = [{f"task/{name}": first[name].numpy() for name in names}]
        values += [load_tensors(state) for owner, state in states if owner == seat]
        for before, after in pairwise(values):
            both = [name for name in before.keys() & after.keys() if name.startswith("task/")]
            arrays += [array for name in both for array in (before[name], after[name])]
            arrays += [after[name] - before[name] for name in both]
    # Also the columns of the file: one for all kinds, and the label.
    widths = {width + more for width in world.widths for more in (0, -1)}
    return Secrets(arrays, words, widths)


def found_bytes(captured: Capture, secrets: Secrets) -> list[str]:
    """Where four numbers in a row of a private tensor occur, at any place in any bytes."""
    wanted = np.concatenate([_windows(array) for array in secrets.arrays])
    assert len(wanted) > 10_000
    hashes = _hashed(wanted)
    order = np.argsort(hashes)
    sieve = np.zeros(1 << 24, bool)
    sieve[hashes >> 40] = True
    found = []
    for where, data in captured.everything():
        for shift in range(min(4, len(data))):
            words = np.frombuffer(data, "<u4", (len(data) - shift) // 4, shift)
            if len(words) < 4:
                continue
            rows = np.lib.stride_tricks.sliding_window_view(words, 4)
            likely = rows[sieve[_hashed(rows) >> 40]]
            places = np.searchsorted(hashes, _hashed(likely), sorter=order)
            nearest = wanted[order[np.minimum(places, len(order) - 1)]]
            if (nearest == likely).all(axis=1).any():
                found.append(f"{where} has numbers of a private tensor")
                break
    return found


def _windows(array: np.ndarray) -> np.ndarray:
    """Every 16 bytes of an array, as float32 and as float64 either way round; but for runs of
    one value, which belong to nobody."""
    if array.dtype != np.float32 or array.size < 4:
        return np.zeros((0, 4), np.uint32)
    found = []
    for kind, step in (("<f4", 1), ("<f8", 2), (">f8", 2)):
        words = np.frombuffer(array.reshape(-1).astype(kind).tobytes(), "<u4")
        rows = np.lib.stride_tricks.sliding_window_view(words, 4)[::step]
        found.append(rows[(rows[:, :2] != rows[:, 2:]).any(axis=1)])
    return np.concatenate(found)


def _hashed(rows: np.ndarray) -> np.ndarray:
    """A hash of rows of four words; its upper bits are the better ones."""
    odd = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
    total = np.zeros(len(rows), np.uint64)
    for place, factor in enumerate(odd):
        total += rows[:, place].astype(np.uint64) * np.uint64(factor)
    return total


def found_words(captured: Capture, secrets: Secrets) -> list[str]:
    """Where the name of a private tensor, a column or a category occurs."""
    return [
        f"{where} has the name {word}"
        for where, data in captured.everything()
        for lowered in [data.lower()]
        for word in secrets.words
        if word.lower().encode() in lowered
    ]


def found_counts(captured: Capture, secrets: Secrets) -> list[str]:
    """Where a whole number is a width. The other numbers here are none, by choice."""
    return [
        f"{where} has the number {leaf}"
        for where, value in forms_of(captured)
        for leaf in _leaves(value)
        if leaf in secrets.widths
    ]


def _leaves(value: Any) -> Iterator[float]:
    """The whole numbers in a form, also those in the text of a header."""
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, bytes):
        yield from (int(number) for number in re.findall(rb"(?<![\w.])\d{1,6}(?![\w])", value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


# ---- the form of what was captured --------------------------------------------------

# Numbers that training and evaluation give, and keys that are drawn.
FREE = {"norm", "candidate", "base", "is_improvement", "key"}
NUMBER = "a number"


def forms_of(captured: Capture) -> list[tuple[str, Any]]:
    """Everything, with the numbers of updates, models and metrics left out."""
    known = {digest_of(blob): f"blob {place}" for place, blob in enumerate(captured.blobs)}
    forms = [(type(item).__name__, _form(item, known)) for item in captured.inputs]
    forms += [
        (f"blob {place}", _blob_form(blob, known)) for place, blob in enumerate(captured.blobs)
    ]
    for record in captured.facts:
        fact = decode(record)
        forms.append((type(fact).__name__, (_size(record), _form(fact, known))))
    forms += [(name, _file_form(name, data, known)) for name, data in captured.files.items()]
    return [*forms, ("the printed text", _text_form(captured.text, known))]


def _form(value: Any, known: dict[Any, str]) -> Any:
    if is_dataclass(value):
        return (
            type(value).__name__,
            *(
                (part.name, _field_form(part.name, getattr(value, part.name), known))
                for part in fields(value)
            ),
        )
    if isinstance(value, tuple):
        return tuple(_form(item, known) for item in value)
    return known.get(value, value) if isinstance(value, bytes) else value


def _field_form(name: str, value: Any, known: dict[Any, str]) -> Any:
    if name not in FREE or value is None or value in known:
        return _form(value, known)
    if isinstance(value, tuple):
        return (NUMBER,) * len(value)
    return (NUMBER, _size(value)) if isinstance(value, bytes) else NUMBER


def _blob_form(data: bytes, known: dict[Any, str]) -> Any:
    """A tensor file's whole header, and of an update all numbers but step and variate. Other
    blobs are plans and layouts: they are all form."""
    try:
        specs, about, start = read_header(data)
    except FormatError:
        return data
    header, exact, at = data[:start], [], start
    for digest, name in known.items():
        header = header.replace(digest.hex().encode(), name.encode())
    for spec in specs:
        if "base" in about and spec.name not in (STEP, VARIATE):
            exact.append(data[at : at + spec.size_bytes])
        at += spec.size_bytes
    return _size(data), header, tuple(exact)


def _file_form(name: str, data: bytes, known: dict[Any, str]) -> Any:
    if "/blobs/" in name:
        return name  # these are the blobs, and they are compared as such
    if name.endswith((".toml", ".txt")):
        return data
    if name.endswith(".safetensors"):
        return _blob_form(data, known)
    if name.endswith((".json", ".jsonl")):
        lines = data.splitlines() if name.endswith(".jsonl") else [data]
        return tuple(_json_form("", json.loads(line), known) for line in lines)
    return _size(data)  # the log, seen above as facts, and what is signed


def _size(data: bytes) -> str:
    return f"{len(data)} bytes"


def _json_form(key: str, value: Any, known: dict[Any, str]) -> Any:
    if isinstance(value, dict):
        return tuple((name, _json_form(name, item, known)) for name, item in value.items())
    if isinstance(value, list):  # of the worst site: which one it is, the metrics say
        return tuple(
            "a site" if item in NAMES and len(value) == 2 else _json_form(key, item, known)
            for item in value
        )
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return known.get(bytes.fromhex(value), value)
    return NUMBER if isinstance(value, float) else value


def _text_form(text: str, known: dict[Any, str]) -> str:
    for digest, name in known.items():
        text = text.replace(digest.hex(), name)
    text = re.sub(r"\S*runs/\S+", "the folder", text)
    return re.sub(r"\d+\.\d+", NUMBER, text)


def differences(one: Capture, other: Capture) -> list[str]:
    """What has another form in the other world."""
    ours, theirs = forms_of(one), forms_of(other)
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return [f"{len(ours)} things here, {len(theirs)} elsewhere, or in another order"]
    return [
        f"{name} has another form elsewhere{_first_difference(mine, yours)}"
        for (name, mine), (_, yours) in zip(ours, theirs, strict=True)
        if mine != yours
    ]


def _first_difference(mine: Any, yours: Any) -> str:
    """Where two texts part, for whoever has to find out why."""
    if not isinstance(mine, str) or not isinstance(yours, str):
        return ""
    pairs = zip_longest(mine.splitlines(), yours.splitlines())
    return next(f": {one!r} and {other!r}" for one, other in pairs if one != other)


def found_in_first_model(one: Capture, other: Capture) -> list[str]:
    """The first model's values must not depend on what the first site measures."""
    models = [
        item.model
        for captured in (one, other)
        for item in captured.inputs
        if isinstance(item, i.InstallModel)
    ]
    return [] if len(models) == 2 and models[0] == models[1] else ["the first model differs"]


# ---- all of it together -------------------------------------------------------------


@dataclass
class Pair:
    """One federation in two worlds, and what the checkers say."""

    here: Capture
    elsewhere: Capture
    complaints: dict[str, list[str]]


def no_plant(patch: pytest.MonkeyPatch) -> None:
    """Everything as it is."""


def examined(
    folder: Path,
    more: str = "",
    *,
    worlds: tuple[World, World] = (HERE, ELSEWHERE),
    plant: Callable[[pytest.MonkeyPatch], None] = no_plant,
    rounds: int = 2,
    task: str = TASK,
    is_kept: bool = False,  # on a data directory
    **options: Any,
) -> Pair:
    plans = [
        write_study(folder / f"world-{place}", world, more, rounds, task)
        for place, world in enumerate(worlds)
    ]
    here, elsewhere = (
        capture(plan, plant, directory=plan.parent / "kept" if is_kept else None, **options)
        for plan in plans
    )
    secrets = secrets_of(plans[0], worlds[0], here.states)
    complaints = {
        "bytes": found_bytes(here, secrets),
        "words": found_words(here, secrets),
        "counts": found_counts(here, secrets),
        "form": differences(here, elsewhere),
        "first model": found_in_first_model(here, elsewhere),
    }
    return Pair(here, elsewhere, {name: told for name, told in complaints.items() if told})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def of(captured: Capture, kind: type[Any]) -> list[Any]:
    return [item for item in captured.inputs if isinstance(item, kind)]


# ---- honest federations -------------------------------------------------------------


def test_nothing_private_leaves_a_hospital(tmp_path: Path) -> None:
    """Every site answers on its own; west joins in the second round and warms up."""
    pair = examined(tmp_path, is_kept=True, away=["west:1"], rounds=3)
    assert pair.complaints == {}
    assert pair.here.exit_code == 0 and pair.here.text.count("accepted") == 3
    assert (len(of(pair.here, i.Submit)), len(of(pair.here, i.Score))) == (8, 8)
    assert {item.failure for item in of(pair.here, i.Fail)} == {f.Failure.RESOURCES}
    assert of(pair.here, i.Report)
    assert set(pair.here.blobs) == {
        data for name, data in pair.here.files.items() if "/blobs/" in name
    }


@pytest.mark.parametrize(
    ("personal", "strategy"),
    [
        ('name = "fedper"\nlayers = ["head"]', 'name = "fedavg"'),
        ('name = "fedrep"', 'name = "fednova"'),
        ('name = "fedbn"', 'name = "scaffold"'),
        ('name = "finetune"', 'name = "fedadam"\nclip = 1.0\nmu = 0.1'),
    ],
)
def test_nothing_private_leaves_by_any_method(tmp_path: Path, personal: str, strategy: str) -> None:
    pair = examined(tmp_path, f"[personal]\n{personal}\n[strategy]\n{strategy}")
    assert pair.complaints == {}
    assert pair.here.exit_code == 0 and len(of(pair.here, i.Submit)) == 6


@pytest.mark.parametrize("options", [{"record": False}, {"record": False, "workers": 2}])
def test_nothing_private_leaves_in_blocks_and_from_workers(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    pair = examined(tmp_path, **options)
    assert pair.complaints == {}
    assert of(pair.here, i.TrainedCohort) and of(pair.here, i.ScoredCohort)


def test_control_variates_and_updates_cover_shared_tensors_only(tmp_path: Path) -> None:
    plan = write_study(tmp_path / "here", HERE, '[strategy]\nname = "scaffold"', rounds=1)
    captured = capture(plan, no_plant)
    size = _layout_of(captured).size
    updates = [read_header(blob)[0] for blob in captured.blobs if b'"weight"' in blob[:400]]
    forms = [{spec.name: spec.shape for spec in specs} for specs in updates]
    assert forms == [{STEP: (size,), VARIATE: (size,)}] * 3
    assert [load_tensors(state)[VARIATE].shape for _, state in captured.states] == [(size,)] * 3


def test_batch_norms_share_their_parameters_and_keep_their_statistics(tmp_path: Path) -> None:
    """They stay although they have one shape everywhere: they describe the site's records."""
    plan = write_study(tmp_path / "here", HERE, rounds=1)
    captured = capture(plan, no_plant)
    names = {spec.name for spec in _layout_of(captured).specs}
    assert {"encoder.2.weight", "encoder.2.bias", "encoder.6.weight"} <= names
    assert not any("running" in name or "num_batches" in name for name in names)
    kept = load_tensors(captured.states[0][1])
    assert kept["task/encoder.2.running_mean"].any()
    secrets = secrets_of(plan, HERE, captured.states)
    assert "encoder.2.running_mean" in secrets.words
    assert any(array.shape == (256,) for array in secrets.arrays)


def _layout_of(captured: Capture) -> Layout:
    (blob,) = (blob for blob in captured.blobs if blob.startswith(b"consortium/layout"))
    return Layout.from_canonical(blob)


def test_the_lock_and_the_first_model_are_the_same_in_every_world(tmp_path: Path) -> None:
    """Whatever the first site measures; a private layer of 128 has the shape of a shared one."""
    worlds = [
        HERE,
        ELSEWHERE,
        replace(HERE, widths=(128, 64, 256)),
        replace(HERE, widths=(64,) * 3),
    ]
    locks = set()
    for place, world in enumerate(worlds):
        lock, model = make_lock(load_study(write_study(tmp_path / str(place), world)), SEED)
        locks.add((lock.text(), model))
    assert len(locks) == 1


# ---- sites that fail ----------------------------------------------------------------

QUALITY = """
    rules = co.Quality(min_records=len(train) + (site.name == "west"))
    co.check_quality(train, rules=rules).demand()
"""
DIVERGING = """
        if "_west_" in self.own[0]:
            nn.init.constant_(self.get_submodule(self.own[0]).weight, 3e38)
"""
RAISING = """
        if self.training and "_west_" in self.own[0]:
            raise ValueError(f"patient {features[0]} has {len(self.own)} layers: {self.own}")
"""


def before(line: str, added: str) -> str:
    """The task with lines added."""
    assert line in TASK
    return TASK.replace(line, added.strip("\n") + "\n" + line)


def test_a_site_that_sits_out_says_so_and_nothing_else(tmp_path: Path) -> None:
    pair = examined(tmp_path, task=before("    return Ward", QUALITY))
    assert pair.complaints == {}
    assert {(item.seat, item.failure, item.envelope) for item in of(pair.here, i.Fail)} == {
        (Seat(3), f.Failure.DATA_QUALITY, None)
    }
    assert "west (data quality)" in pair.here.text


def test_training_that_diverges_leaves_a_code(tmp_path: Path) -> None:
    pair = examined(tmp_path, task=before("\n    def forward", DIVERGING))
    assert pair.complaints == {}
    assert {(item.seat, item.failure, item.envelope) for item in of(pair.here, i.Fail)} == {
        (Seat(3), f.Failure.TRAINING, None)
    }
    assert "west (training)" in pair.here.text


def test_the_text_of_a_sites_error_is_not_written_down(tmp_path: Path) -> None:
    """The error ends a simulation in the middle, and is told by its type and place."""
    pair = examined(tmp_path, task=before("        for name in self.own:\n            f", RAISING))
    assert pair.here.exit_code == 1 and len(of(pair.here, i.Submit)) == 2
    assert "site west: ValueError in task.py:" in pair.here.text
    assert pair.complaints == {}


def test_an_error_of_the_data_is_told_on_the_spot_and_not_sent(tmp_path: Path) -> None:
    """Who runs a simulation has all data; the coordinator's files still have none of it."""
    plan = write_study(tmp_path / "here", HERE, rounds=1)
    secrets = secrets_of(plan, HERE, capture(plan, no_plant).states)
    file = plan.parent / "data" / "west.csv"
    file.write_text(file.read_text() + HERE.kinds[0] + "," * (HERE.widths[2] - 2) + "1\n")
    captured = capture(plan, no_plant, directory=plan.parent / "kept")
    assert (captured.exit_code, "values are missing: zincum" in captured.text) == (3, True)
    silent = replace(captured, text="")
    assert found_bytes(silent, secrets) == found_words(silent, secrets) == []
    assert found_counts(silent, secrets) == []


# ---- planted leaks ------------------------------------------------------------------


def width_of(site: Any) -> int:
    """As the task sees it: a column of text is three features."""
    names = Path(site.data).read_text().partition("\n")[0].split(",")
    return len(names) + 1


def statistics_are_shared(patch: pytest.MonkeyPatch) -> None:
    from consortium.torch.marks import sort_tensors
    from consortium.torch.training import phases

    def sort(model: Any, personal: Any) -> Any:
        parts = sort_tensors(model, personal)
        added = tuple(
            name for name in parts.buffers if name.startswith("encoder") and "run" in name
        )
        buffers = tuple(name for name in parts.buffers if name not in added)
        return replace(parts, shared=tuple(sorted(parts.shared + added)), buffers=buffers)

    def learning(parts: Any, site: Any) -> Iterator[Any]:
        for phase in phases(parts, site):  # by gradients learn parameters only
            yield replace(phase, names=tuple(n for n in phase.names if "running" not in n))

    patch.setattr("consortium.torch.workshop.sort_tensors", sort)
    patch.setattr("consortium.torch.training.phases", learning)


def update_has_a_width_in_its_header(patch: pytest.MonkeyPatch) -> None:
    from consortium.model import write_header

    train, widths = LocalWork.train, [0]

    def watched(self: LocalWork, site: Any, *rest: Any) -> Any:
        widths[0] = width_of(site)
        return train(self, site, *rest)

    def talkative(specs: Any, about: Any) -> bytes:
        return write_header(specs, {**about, "n_features": str(widths[0])} if about else about)

    patch.setattr(LocalWork, "train", watched)
    patch.setattr("consortium.model.write_header", talkative)


def state_is_sent_as_a_blob(patch: pytest.MonkeyPatch) -> None:
    told = Cohort.told

    def generous(self: Cohort, duty: Any, result: Any, now_ms: int) -> Any:
        self._hands.blobs.put(result.state)
        return told(self, duty, result, now_ms)

    patch.setattr(Cohort, "told", generous)


def adapter_hides_in_the_step(patch: pytest.MonkeyPatch) -> None:
    fill = LocalWork._fill

    def smuggled(self: LocalWork, row: Any, made: Any, *given: Any) -> None:
        fill(self, row, made, *given)
        row[1000:1005] = made.kept["task/adapter.0.weight"].reshape(-1)[:5]

    patch.setattr(LocalWork, "_fill", smuggled)


def records_are_a_width(patch: pytest.MonkeyPatch) -> None:
    train = TorchTask.train
    patch.setattr(
        TorchTask,
        "train",
        lambda self, site, shared: replace(train(self, site, shared), records=width_of(site)),
    )


def scored_records_are_a_width(patch: pytest.MonkeyPatch) -> None:
    evaluate = TorchTask.evaluate
    patch.setattr(
        TorchTask,
        "evaluate",
        lambda self, site, shared: (evaluate(self, site, shared)[0], width_of(site)),
    )


def steps_count_the_columns(patch: pytest.MonkeyPatch) -> None:
    train = TorchTask.train
    patch.setattr(
        TorchTask,
        "train",
        lambda self, site, shared: replace(train(self, site, shared), steps=100 + width_of(site)),
    )


def report_tells_the_width(patch: pytest.MonkeyPatch) -> None:
    from consortium.drive import study

    find = study._sites

    def talkative(*given: Any) -> list[SimulatedSite]:
        return [replace(site, report=(("inputs", width_of(site)),)) for site in find(*given)]

    patch.setattr(study, "_sites", talkative)


def answer_has_a_digest_of_the_columns(patch: pytest.MonkeyPatch) -> None:
    answer = Cohort.answer

    def marked(self: Cohort, *given: Any) -> Any:
        said = answer(self, *given)
        if not isinstance(said, i.Submit):
            return said
        header = Path(self._engine.sites[said.seat - 1].data).read_bytes().partition(b"\n")[0]
        return replace(said, envelope=sha256(header).digest())

    patch.setattr(Cohort, "answer", marked)


def first_values_follow_the_widths(patch: pytest.MonkeyPatch) -> None:
    def plainly(make: Callable[[], Any], seed: int, _: Any) -> Any:
        torch.manual_seed(seed)
        return make()

    patch.setattr("consortium.torch.workshop.built_apart", plainly)


def a_column_is_printed(patch: pytest.MonkeyPatch) -> None:
    train = TorchTask.train

    def loud(self: TorchTask, site: Any, shared: Any) -> Any:
        print(Path(site.data).read_text().split(",")[1])
        return train(self, site, shared)

    patch.setattr(TorchTask, "train", loud)


@pytest.mark.parametrize(
    ("plant", "caught_by"),
    [
        (statistics_are_shared, {"words"}),
        (update_has_a_width_in_its_header, {"counts", "form"}),
        (state_is_sent_as_a_blob, {"bytes", "words", "counts", "form"}),
        (adapter_hides_in_the_step, {"bytes"}),
        (records_are_a_width, {"counts", "form"}),
        (scored_records_are_a_width, {"counts", "form"}),
        (steps_count_the_columns, {"form"}),
        (report_tells_the_width, {"counts", "form"}),
        (answer_has_a_digest_of_the_columns, {"form"}),
        (first_values_follow_the_widths, {"first model"}),
        (a_column_is_printed, {"words", "form"}),
    ],
)
def test_a_planted_leak_is_caught(
    tmp_path: Path, plant: Callable[[pytest.MonkeyPatch], None], caught_by: set[str]
) -> None:
    more = '[strategy]\nname = "fednova"' if plant is steps_count_the_columns else ""
    pair = examined(tmp_path, more, plant=plant, rounds=1)
    assert set(pair.complaints) == caught_by
    assert len(of(pair.here, i.Submit)) >= 2  # the plant did not just break the run


def adapter_is_shared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("consortium.torch.hospital.private", lambda layer: layer)


def test_a_shared_adapter_of_different_widths_is_refused(tmp_path: Path) -> None:
    plan = write_study(tmp_path / "here", HERE)
    captured = capture(plan, adapter_is_shared)
    assert captured.exit_code == LayoutError.exit_code
    assert "shared tensors differ: `adapter.0.weight`" in captured.text
