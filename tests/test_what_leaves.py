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
from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consortium.cli.simulate import simulate as simulate_command
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode
from consortium.core.ids import Seat
from consortium.drive.cohort import Cohort
from consortium.drive.driver import Driver
from consortium.drive.engine import SimulatedSite, simulated_site
from consortium.drive.local import LocalWork
from consortium.drive.lock import make_lock
from consortium.drive.study import load_study
from consortium.errors import FormatError, LayoutError
from consortium.model import STEP, Layout, digest_of
from consortium.plan.strategy import VARIATE
from consortium.store.files import FileBlobs
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
ALIKE = replace(HERE, widths=(37, 37, 37))
ALIKE_ELSEWHERE = replace(ELSEWHERE, widths=(41, 41, 41))


def write_study(folder: Path, world: World, more: str = "", rounds: int = 2) -> Path:
    (folder / "data").mkdir(parents=True)
    for place, name in enumerate(NAMES):
        (folder / "data" / f"{name}.csv").write_text(world.csv(place))
    (folder / "task.py").write_text(TASK)
    plan = folder / "consortium.toml"
    plan.write_text(PLAN.format(rounds=rounds, more=more))
    return plan


# ---- what is captured ---------------------------------------------------------------


@dataclass
class Capture:
    """All that the coordinator got and kept, in the order in which it came."""

    inputs: list[i.Input]
    blobs: list[bytes]
    facts: list[bytes]
    files: dict[str, bytes]  # of the run folder and the data directory, but for `sites/`
    text: str  # stdout and stderr
    exit_code: int

    def everything(self) -> Iterator[tuple[str, bytes]]:
        yield from ((type(item).__name__, repr(item).encode()) for item in self.inputs)
        yield from ((f"blob {place}", blob) for place, blob in enumerate(self.blobs))
        yield from ((f"fact {place}", fact) for place, fact in enumerate(self.facts))
        for name, data in self.files.items():
            if "/blobs/" not in name:  # they were put there, and stand above
                yield name, data
        yield "the printed text", self.text.encode()


def capture(plan: Path, plant: Callable[[pytest.MonkeyPatch], None], **options: Any) -> Capture:
    """Run a study as `consortium simulate --record --data` does, and listen."""
    inputs: list[i.Input] = []
    blobs: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        _listen(patch, inputs, blobs)
        talk, code = io.StringIO(), 0
        given = {"seed": SEED, "record": True, "workers": 0, "directory": plan.parent / "kept"}
        with redirect_stdout(talk), redirect_stderr(talk):
            try:
                simulate_command(plan, runs=plan.parent / "runs", **{**given, **options})
            except SystemExit as ended:
                code = int(ended.code or 0)
    facts = _log_of(plan.parent / "kept")
    return Capture(inputs, blobs, facts, _files(plan.parent), talk.getvalue(), code)


def _listen(patch: pytest.MonkeyPatch, inputs: list[Any], blobs: list[bytes]) -> None:
    """All that reaches a coordinator passes its driver or its blob store."""
    feed, put = Driver.feed, FileBlobs.put

    def heard(self: Driver, item: i.Input) -> Any:
        inputs.append(item)
        return feed(self, item)

    def stored(self: FileBlobs, data: bytes) -> Any:
        if data not in blobs:
            blobs.append(data)
        return put(self, data)

    patch.setattr(Driver, "feed", heard)
    patch.setattr(FileBlobs, "put", stored)


def _log_of(directory: Path) -> list[bytes]:
    from consortium.drive.directory import DataDirectory
    from consortium.drive.rng import seed_bytes

    kept = DataDirectory(directory)
    records = list(kept.log.read(seed_bytes(SEED, "federation", 0)[:16].hex()))
    kept.close()
    return records


def _files(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = path.relative_to(folder)
        if place.parts[0] == "runs":
            found["run folder/" + "/".join(place.parts[2:])] = path.read_bytes()
        elif place.parts[0] == "kept" and place.parts[1] != "sites":
            name = str(place)
            if place.parts[1] == "blobs":  # its own digest: other numbers, another name
                name = f"kept/blobs/{len([known for known in found if '/blobs/' in known])}"
            found[name] = path.read_bytes()
    return found


# ---- what must not be in it ---------------------------------------------------------


@dataclass
class Secrets:
    """What stays: the values of private tensors, words, and numbers that are a width."""

    arrays: list[np.ndarray]
    words: set[str]
    widths: set[int]


def secrets_of(plan: Path, world: World) -> Secrets:
    """By the task as it was written, with what the sites kept in each round."""
    study = load_study(plan)
    arrays: list[np.ndarray] = []
    words = {world.word, *world.kinds}
    assert isinstance(study.task, TorchTask)
    for seat, site in enumerate(study.sites, start=1):
        here = simulated_site(site, seat, study.plan, SEED, 0, "start")
        names = {spec.name for spec in study.task.inventory(here).private}
        words |= names
        first = study.task.new_model(here).state_dict()
        values = [{name: first[name].numpy() for name in names}]
        for file in sorted((plan.parent / "kept" / "sites" / str(seat)).glob("*.safetensors")):
            kept = load_tensors(file.read_bytes())
            values.append({name: kept[f"task/{name}"] for name in names})
        arrays += [array for held in values for array in held.values()]
        arrays += [
            after[name] - before[name]
            for before, after in zip(values, values[1:], strict=False)
            for name in names
        ]
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
                (field.name, _field_form(field.name, getattr(value, field.name), known))
                for field in fields(value)
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
        f"{name} has another form elsewhere"
        for (name, mine), (_, yours) in zip(ours, theirs, strict=True)
        if mine != yours
    ]


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
    **options: Any,
) -> Pair:
    plans = [
        write_study(folder / f"world-{place}", world, more, rounds)
        for place, world in enumerate(worlds)
    ]
    here, elsewhere = (capture(plan, plant, **options) for plan in plans)
    secrets = secrets_of(plans[0], worlds[0])
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
    pair = examined(tmp_path, away=["west:1"], rounds=3)
    assert pair.complaints == {}
    assert pair.here.exit_code == 0 and pair.here.text.count("accepted") == 3
    assert (len(of(pair.here, i.Submit)), len(of(pair.here, i.Score))) == (8, 8)
    assert {item.failure for item in of(pair.here, i.Fail)} == {f.Failure.RESOURCES}
    assert of(pair.here, i.Report)
