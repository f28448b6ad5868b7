"""What a newcomer with a model and CSV files of their own gets wrong: each mistake is told
with a code, a hint and an exit code, and neither a traceback nor a value from the data.

The command runs in this process, because torch takes seconds to import; three cases at the
end run as a stranger's shell runs them.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consortium.cli.report import Voice
from consortium.cli.simulate import simulate as simulate_command

SECRET = "patient-4711"

TASK = """
import consortium as co
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def study(site):
    train, test = co.read_csv(site.data, label="label")
    return nn.Linear(train.n_features, 2), train, test
"""
HEAD = '@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])'
MODEL = "nn.Linear(train.n_features, 2)"
RETURNED = f"return {MODEL}, train, test"

NUMPY_TASK = """
import numpy as np
import consortium as co


def start(rng):
    return {"w": np.zeros(3, np.float32)}


def load(site):
    table = np.loadtxt(site.data, delimiter=",", skiprows=1, dtype=np.float32, ndmin=2)
    return table[:, :3], table[:, 3]


def evaluate(site, shared):
    x, y = load(site)
    return {"loss": float(((x @ shared["w"] - y) ** 2).mean())}, len(y)


@co.numpy_task(start=start, evaluate=evaluate)
def study(site, shared):
    x, y = load(site)
    shared["w"] -= np.float32(0.1) * (x.T @ (x @ shared["w"] - y)) / np.float32(len(y))
    return shared, len(y)
"""

PLAN = """
[task]
entry = "task.py:study"
[federation]
rounds = 2
sites = "data/*.csv"
[selection]
fraction = 1.0
[training]
epochs = 1
"""

# Records of a task that reads its files by itself, with a layer that looks at whole batches.
OWN_READER = TASK.replace(
    'train, test = co.read_csv(site.data, label="label")',
    'table = __import__("numpy").loadtxt(site.data, delimiter=",", skiprows=1, ndmin=2)\n'
    "    train = test = table[:, :3], table[:, 3].astype(int)",
).replace(MODEL, "nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))")


# ---- studies ------------------------------------------------------------------------


def csv(
    seed: int = 0,
    *,
    columns: tuple[str, ...] = ("age", "dose", "weight"),
    label: str = "label",
    classes: int = 2,
    records: int = 24,
) -> str:
    values = np.random.default_rng(seed).normal(size=(records, len(columns)))
    lines = [",".join([*columns, label])]
    lines += [
        ",".join([*(f"{value:.6f}" for value in row), str(number % classes)])
        for number, row in enumerate(values)
    ]
    return "\n".join(lines) + "\n"


def with_line(line: str, seed: int = 1) -> str:
    """A good file with one more record at its beginning: line 2."""
    return csv(seed).replace("\n", f"\n{line}\n", 1)


GOOD = {f"s{number}": csv(number) for number in range(3)}


@dataclass(frozen=True)
class Told:
    """What a stranger sees."""

    exit_code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """One thread; and what a task does to torch or to the command's voice stays in its test."""
    threads, voice = torch.get_num_threads(), (Voice.json, Voice.verbosity)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    Voice.json, Voice.verbosity = voice


def write_study(
    folder: Path, task: str = TASK, plan: str = PLAN, data: dict[str, str] | None = None
) -> Path:
    (folder / "data").mkdir()
    for name, text in (GOOD if data is None else {**GOOD, **data}).items():
        if text:
            (folder / "data" / f"{name}.csv").write_text("" if text == EMPTY else text)
    (folder / "task.py").write_text(task)
    (folder / "consortium.toml").write_text(plan)
    return folder / "consortium.toml"


EMPTY, ABSENT = "an empty file", ""


def run(folder: Path, *, workers: int = 0, **study: Any) -> Told:
    plan, out, err = write_study(folder, **study), io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            simulate_command(plan, seed=1, workers=workers, runs=folder / "runs")
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    told = Told(code, out.getvalue(), err.getvalue())
    check_manners(told, folder)
    return told


def check_manners(told: Told, folder: Path) -> None:
    """No traceback, no value of a record, and a hint for every error."""
    text = told.out + told.err
    assert "Traceback" not in text
    assert SECRET not in text
    cells = {
        cell
        for file in (folder / "data").glob("*.csv")
        for line in file.read_text().splitlines()[1:]
        for cell in line.split(",")
        if len(cell) > 6
    }
    assert not [cell for cell in cells if cell in text]
    if told.exit_code:
        error, hint = message_of(told)
        assert error.startswith("error[E") and hint.startswith("hint: "), told.err


def message_of(told: Told) -> tuple[str, str]:
    """The error and its hint; between them may stand a line of the plan."""
    lines = told.err.splitlines()
    return next((line for line in lines if line.startswith("error")), ""), lines[-1]


def refused(folder: Path, exit_code: int, code: str, says: str, hint: str, **study: Any) -> None:
    told = run(folder, **study)
    error, help_line = message_of(told)
    assert told.exit_code == exit_code, told.err
    assert f"error[{code}]: " in error
    assert says in error
    assert hint in help_line


@pytest.mark.parametrize(
    "err",
    [
        "Traceback (most recent call last)\nerror[E0204]: x\nhint: y",
        f"error[E0204]: could not read {SECRET}\nhint: y",
        f"error[E0204]: could not read {csv(1).splitlines()[3].split(',')[1]}\nhint: y",
        "error[E0204]: something is wrong",
        "something is wrong\nhint: mend it",
    ],
)
def test_bad_manners_are_noticed(tmp_path: Path, err: str) -> None:
    write_study(tmp_path)
    with pytest.raises(AssertionError):
        check_manners(Told(1, "", err), tmp_path)


# ---- the data -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "says", "hint"),
    [
        (
            {"s1": csv(columns=("age", "dose", "weight", "sex"))},
            "E0203",
            "site s1: shared tensors differ: `weight` is F32 [2, 4], expected F32 [2, 3] "
            "(as at site s0)",
            "co.private(layer)",
        ),
        ({"s1": csv(label="lable")}, "E0206", "site s1: ", "did you mean lable?"),
        ({"s0": csv(label="lable")}, "E0206", "site s0: ", "did you mean lable?"),
        ({"s1": csv(label="outcome")}, "E0206", "no column `label`", "the file's first line"),
        ({"s1": csv(1).split("\n", 1)[1]}, "E0206", "no column `label`", "header=[...]"),
        ({"s1": csv(1).replace(",", ";")}, "E0206", "no column `label`", "with commas"),
        ({"s1": with_line(",0.5,0.5,1")}, "E0208", "site s1: values are missing: age 1", "drop"),
        ({"s1": with_line("NaN,0.5,0.5,1")}, "E0208", "values are missing: age 1", "mean"),
        (
            {"s1": with_line(f"{SECRET},0.5,0.5,1")},
            "E0207",
            "site s1: line 2, column `age`: not a number",
            "categories={'age': [...]}",
        ),
        (
            {"s1": with_line(f"0.5,0.5,0.5,{SECRET}")},
            "E0207",
            "line 2, column `label`: not a number",
            "positive=",
        ),
        ({"s1": with_line("inf,0.5,0.5,1")}, "E0207", "the number is infinite", "missing"),
        ({"s1": with_line(f"{SECRET},0.5,0.5,0.5,1")}, "E0205", "5 cells instead of 4", "quotes"),
        ({"s1": EMPTY}, "E0205", "s1.csv is empty", "names of the columns"),
        ({"s1": "age,dose,weight,label\n"}, "E0210", "site s1: 0 usable records", "leave the"),
        ({"s1": "age,dose,weight,label\n1,2,3,0\n"}, "E0210", "site s1: 1 usable", "leave the"),
        ({"s1": csv(1, classes=3)}, "E0206", "site s1: a label is not below 2", "one output for"),
        ({"s0": csv().replace(",0\n", ",-1\n")}, "E0206", "site s0: the labels are", "positive="),
        ({"s0": csv().replace(",0\n", ",5000\n")}, "E0206", "not classes 0..k-1", "'number'"),
        ({"s0": csv().replace(",0\n", ",0.5\n")}, "E0206", "the loss is for classes", "MSELoss"),
    ],
)
def test_a_mistake_in_a_file(
    tmp_path: Path, data: dict[str, str], code: str, says: str, hint: str
) -> None:
    refused(tmp_path, 3, code, says, hint, data=data)


def test_a_site_without_a_class_must_know_of_it(tmp_path: Path) -> None:
    """With as many outputs as the file has classes, a site that lacks one has another model."""
    task = TASK.replace(MODEL, "nn.Linear(train.n_features, train.n_classes)")
    says = "site s1: shared tensors differ: `bias` is F32 [1], expected F32 [2]"
    refused(tmp_path, 3, "E0203", says, "also the label's", task=task, data={"s1": csv(classes=1)})


def test_sites_that_are_too_few_or_not_found(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    refused(
        tmp_path / "0",
        8,
        "E0306",
        "2 sites, but the plan's quorum is 3",
        "lower quorum",
        data={"s2": ABSENT},
    )
    elsewhere = PLAN.replace("data/*", "daten/*")
    refused(tmp_path / "1", 3, "E0117", "no file matches", "beside the plan", plan=elsewhere)


@pytest.mark.parametrize(
    ("data", "exit_code", "code", "says", "hint"),
    [
        ({"s1": "a,b,c,d\n1,2,3,0\n"}, 3, "E0205", "site s1: one record is too few", "LayerNorm"),
        ({"s1": with_line("nan,1,2,0")}, 3, "E0205", "site s1: the training data: 1 of 75", "fill"),
        ({"s1": with_line(f"{SECRET},1,2,0")}, 1, "E0204", "ValueError in task.py:", "-vv"),
        ({"s0": with_line(f"{SECRET},1,2,0")}, 1, "E0204", "site s0: ValueError in", "-vv"),
    ],
)
def test_a_mistake_in_a_file_that_the_task_reads_itself(
    tmp_path: Path, data: dict[str, str], exit_code: int, code: str, says: str, hint: str
) -> None:
    refused(tmp_path, exit_code, code, says, hint, task=OWN_READER, data=data)


# ---- the task -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("tusk.py:study", "there is no file"),
        ("task.py:stdy", "has no `stdy`"),
        ("task.study", "is not of the form file.py:name"),
        ("task.py:nn", "is a module, not a task"),
    ],
)
def test_an_entry_that_leads_nowhere(tmp_path: Path, entry: str, says: str) -> None:
    plan = PLAN.replace("task.py:study", entry)
    refused(tmp_path, 3, "E0201", says, "task.py:name", plan=plan)


@pytest.mark.parametrize(
    ("task", "code", "says", "hint"),
    [
        (TASK.replace(HEAD, ""), "E0201", "is a function, not a task", "put @co.task(loss=...)"),
        (TASK.replace(HEAD, "@co.task"), "E0201", "TypeError in line 8", "shows where"),
        ("import nowhere_to_be_found", "E0201", "No module named 'nowhere", "shows where"),
        (TASK + "def x(:\n", "E0201", "SyntaxError: invalid syntax", "shows where"),
        (TASK + "x = nameless\n", "E0201", "NameError: name 'nameless'", "shows where"),
        (TASK + f"int('{SECRET}')\n", "E0201", "ValueError in line 12", "shows where"),
        (TASK + "raise SystemExit\n", "E0201", "SystemExit in line 12", "shows where"),
        (TASK.replace("Loss()", "Loss"), "E0201", "loss is a class", "nn.CrossEntropyLoss()"),
        (TASK.replace("nn.CrossEntropyLoss()", "'mse'"), "E0201", "loss is a str", "nn.Cross"),
        (TASK.replace('["accuracy"]', '"accuracy"'), "E0201", "metrics is a text", '["accuracy"]'),
    ],
)
def test_a_file_that_is_no_task(tmp_path: Path, task: str, code: str, says: str, hint: str) -> None:
    refused(tmp_path, 3, code, says, hint, task=task)


@pytest.mark.parametrize(
    ("returned", "says", "hint"),
    [
        ("pass", "the task returned a NoneType", "(model, train, test)"),
        ("return nn.Linear(3, 2)", "returned a Linear", "(model, train, test)"),
        ("return nn.Linear(3, 2), train", "returned (Linear, Table)", "(model, train, test)"),
        ("return train, test, nn.Linear(3, 2)", "returned (Table, Table, Lin", "(model, train"),
        ("return nn.Linear, train, test", "returned (type, Table, Table)", "nn.Module"),
        ("return nn.Linear(3, 2), site.data, test", "data is a PosixPath", "a torch Dataset"),
        ("return nn.Linear(3, 2), train.features, test", "data is a ndarray", "(inputs, targets)"),
        ("return nn.Linear(3, 2), train, None", "the test data is a NoneType", "a torch Dataset"),
        ("return nn.Linear(4, 2), train, test", "site s0: RuntimeError in", "-vv"),
        ("return nn.LSTM(3, 2), train, test", "the model returned a tuple", "task(step=...)"),
    ],
)
def test_a_task_that_returns_the_wrong_thing(
    tmp_path: Path, returned: str, says: str, hint: str
) -> None:
    refused(tmp_path, 1, "E0204", says, hint, task=TASK.replace(RETURNED, returned))


def test_no_test_records(tmp_path: Path) -> None:
    task = TASK.replace(RETURNED, f"return {MODEL}, train, test.rows(slice(0))")
    refused(tmp_path, 3, "E0205", "no record in the test data", "splits", task=task)


@pytest.mark.parametrize(
    ("task", "says", "hint"),
    [
        (TASK.replace("CrossEntropy", "BCEWithLogits"), "gives [18, 2] outputs for [18]", "CrossE"),
        (TASK.replace('["accuracy"]', '["acuracy"]'), "`acuracy` is not known", "accuracy?"),
        (TASK.replace('["accuracy"]', '["brier"]'), "`brier` is not known", "consortium.Metric("),
        (TASK.replace('["accuracy"]', '["mae"]'), "`mae` does not fit a model", "accuracy, f1"),
        (
            TASK.replace('["accuracy"]', '[("accuracy", lambda o, t: o)]'),
            "`accuracy` returned a Tensor",
            "as a float",
        ),
        (
            TASK.replace(MODEL, "nn.Linear(3, 2).requires_grad_(False)"),
            "no parameter is left to train",
            "co.frozen(layer)",
        ),
    ],
)
def test_a_loss_or_a_metric_that_does_not_fit(
    tmp_path: Path, task: str, says: str, hint: str
) -> None:
    refused(tmp_path, 1, "E0204", says, hint, task=task)


def test_one_output_where_the_loss_wants_one_for_each_class(tmp_path: Path) -> None:
    task = TASK.replace(MODEL, "nn.Linear(3, 1)")
    refused(tmp_path, 3, "E0206", "a label is not below 1", "one output for each", task=task)


# A model that counts: in a buffer, or in a parameter.
COUNTING = """
class Counting(nn.Linear):
    def __init__(self, is_parameter):
        super().__init__(3, 2)
        count = torch.zeros(1, dtype=torch.int64)
        if is_parameter:
            self.count = nn.Parameter(count, requires_grad=False)
        else:
            self.register_buffer("count", count)

    def forward(self, x):
        self.count += 1
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("model", "says", "hint"),
    [
        ("co.private(nn.Linear(3, 2))", "the model shares no tensor at all", "neither private"),
        ("co.frozen(nn.Linear(3, 2))", "the model shares no tensor at all", "neither private"),
        ("nn.Linear(3, 2).bfloat16()", "type torch.bfloat16", "use float32"),
        ("Counting(True)", "`count` has type int64, which cannot be averaged", "float32"),
    ],
)
def test_a_model_that_cannot_be_shared(tmp_path: Path, model: str, says: str, hint: str) -> None:
    task = TASK.replace(MODEL, model).replace(HEAD, COUNTING + HEAD)
    refused(tmp_path, 3, "E0203", says, hint, task=task)


# Records as torch people have them.
ROWS = """
class Rows({base}):
    def __init__(self, table):
        self.table = table

    def {length}(self):
        return len(self.table)

    def __getitem__(self, i):
        return {item}

    def __iter__(self):
        return iter([self[0]])
"""
PAIR = "torch.tensor(self.table.features[i]), int(self.table.labels[i])"


def torch_data(
    *, base: str = "Dataset", length: str = "__len__", item: str = PAIR, wrap: str = "{}"
) -> str:
    rows = ROWS.format(base=base, length=length, item=item)
    parts = ", ".join(wrap.format(f"Rows({part})") for part in ("train", "test"))
    return TASK.replace(HEAD, rows + HEAD).replace(RETURNED, f"return {MODEL}, {parts}")


@pytest.mark.parametrize(
    ("form", "exit_code", "code", "says", "hint"),
    [
        ({"length": "size"}, 1, "E0204", "the training data is a Rows", "give it __len__"),
        (
            {"base": "IterableDataset", "wrap": "DataLoader({})"},
            3,
            "E0205",
            "does not say how many",
            "__len__",
        ),
        ({"item": "(0, 1, 2)"}, 1, "E0204", "not a pair", "(inputs, targets)"),
        ({"item": "{'x': 0, 'y': 1}"}, 1, "E0204", "not a pair", "(inputs, targets)"),
        ({"item": f"('{SECRET}', 1)"}, 1, "E0204", "site s0: TypeError in", "-vv"),
        ({"item": f"int('{SECRET}')"}, 1, "E0204", "site s0: ValueError in task.py:", "-vv"),
    ],
)
def test_a_data_set_that_cannot_be_used(
    tmp_path: Path, form: dict[str, str], exit_code: int, code: str, says: str, hint: str
) -> None:
    refused(tmp_path, exit_code, code, says, hint, task=torch_data(**form))


def test_a_numpy_task_that_returns_the_wrong_thing(tmp_path: Path) -> None:
    task = NUMPY_TASK.replace("return shared, len(y)", "return shared")
    refused(tmp_path, 1, "E0204", "train returned dict", "(shared, records)", task=task)


# ---- the plan -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "exit_code", "code", "says", "hint"),
    [
        ("[evaluation]\nmetric = 'auroc'", 3, "E0114", "`auroc`, which the task", "loss, accuracy"),
        (
            "[personal]\nname = 'fedper'\nlayers = ['haed']",
            3,
            "E0114",
            "the layer `haed`",
            "are: weight, bias",
        ),
        ("[personal]\nlayers = ['bias']", 3, "E0114", "layers has no effect", "fedper"),
        ("[personal]\nname = 'fedper'", 3, "E0114", "and the model has none", "layers = ["),
        ("[personal]\nname = 'fedrep'", 3, "E0114", "and the model has none", "private(...)"),
        ("[personal]\nname = 'fedbn'", 3, "E0114", "the model has none", "no BatchNorm layer"),
        (
            "[personal]\nname = 'fedper'\nlayers = ['weight', 'bias']",
            3,
            "E0203",
            "shares no tensor",
            "neither",
        ),
        ("[stop]\npatiense = 3", 3, "E0112", "unknown key `patiense`", "did you mean patience?"),
    ],
)
def test_a_plan_that_does_not_fit_the_task(
    tmp_path: Path, more: str, exit_code: int, code: str, says: str, hint: str
) -> None:
    refused(tmp_path, exit_code, code, says, hint, plan=PLAN + more)


@pytest.mark.parametrize(
    ("more", "exit_code", "code", "says", "hint"),
    [
        ("[strategy]\nname = 'fedprox'", 3, "E0114", "`fedprox` changes", "follows_rules=True"),
        ("[strategy]\nname = 'scaffold'", 3, "E0114", "`scaffold` changes", "rules.adjusted("),
        ("[strategy]\nname = 'fednova'", 1, "E0204", "how many steps", "Trained(shared, records"),
        ("[personal]\nname = 'fedper'\nlayers = ['w']", 3, "E0114", "of torch models", "leave ["),
        ("[personal]\nname = 'finetune'", 3, "E0114", "layers of torch models", "Trained(state"),
    ],
)
def test_a_plan_that_asks_too_much_of_a_numpy_task(
    tmp_path: Path, more: str, exit_code: int, code: str, says: str, hint: str
) -> None:
    """What the plan keeps private would be sent, if the task did not know of it."""
    refused(tmp_path, exit_code, code, says, hint, task=NUMPY_TASK, plan=PLAN + more)


# ---- training that goes wrong -------------------------------------------------------


DEEP = TASK.replace(
    MODEL, "nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2))"
)


@pytest.mark.parametrize("workers", [0, 2])
def test_training_that_diverges_ends_without_a_model_and_says_why(
    tmp_path: Path, workers: int
) -> None:
    plan = PLAN.replace("epochs = 1", "epochs = 20\nlr = 1e20")
    told = run(tmp_path, task=DEEP, plan=plan, workers=workers)
    assert told.exit_code == 8
    assert told.out.count("failed (no_quorum); lost s") == 2
    assert "error[E0306]: no round completed: lost s" in told.err
    assert "hint: training: its numbers were not finite: lower lr" in told.err


def test_a_model_too_wild_to_be_evaluated_is_told(tmp_path: Path) -> None:
    """Its numbers are finite, those of its losses are not: it counts as the worst there is."""
    told = run(tmp_path, task=DEEP, plan=PLAN.replace("epochs = 1", "epochs = 1\nlr = 1e15"))
    assert told.exit_code == 0
    assert told.out.count(" kept") == 2
    assert "1e+30" in told.out
    assert "no candidate was accepted: this is the model that the study started" in told.err


def test_a_model_that_gets_worse_is_kept_out_and_said_to_be(tmp_path: Path) -> None:
    told = run(tmp_path, plan=PLAN.replace("epochs = 1", "epochs = 1\nlr = 1e5"))
    assert told.exit_code == 0
    assert told.out.count(" kept") == 2
    assert "no candidate was accepted: this is the model that the study started" in told.err


def test_missing_values_in_a_data_set_end_with_a_word_about_them(tmp_path: Path) -> None:
    item = "torch.full((3,), float('nan')), int(self.table.labels[i])"
    told = run(tmp_path, task=torch_data(item=item))
    assert told.exit_code == 8
    assert "look for missing values in the records" in told.err


def test_an_error_in_a_worker_says_how_to_see_it(tmp_path: Path) -> None:
    """Its traceback stays in the process that had it."""
    task = TASK.replace(MODEL, "nn.Linear(4, 2)")
    told = run(tmp_path, task=task, workers=2)
    assert "simulate with --workers 0 for that" in told.err.splitlines()[-1]


# ---- what looks like a mistake and works --------------------------------------------


@pytest.mark.parametrize(
    "study",
    [
        pytest.param({"data": {"s1": csv(classes=1)}}, id="one class at one site"),
        pytest.param({"data": dict.fromkeys(GOOD, csv(classes=1))}, id="one class everywhere"),
        pytest.param({"plan": PLAN + "max_seconds = 1e-9\n"}, id="no time to train"),
        pytest.param({"task": TASK.replace(MODEL, "nn.Linear(3, 2).double()")}, id="double"),
        pytest.param({"task": TASK.replace(MODEL, "nn.Linear(3, 2).half()")}, id="half"),
        pytest.param(
            {"task": TASK.replace(MODEL, "Counting(False)").replace(HEAD, COUNTING + HEAD)},
            id="a buffer of whole numbers",
        ),
        pytest.param({"task": torch_data()}, id="a torch Dataset"),
        pytest.param({"task": torch_data(wrap="DataLoader({}, batch_size=4)")}, id="a DataLoader"),
        pytest.param(
            {
                "task": OWN_READER.replace("nn.BatchNorm1d(4)", "nn.LayerNorm(4)"),
                "data": {"s1": "a,b,c,d\n1,2,3,0\n"},
            },
            id="one record and no BatchNorm",
        ),
        pytest.param({"task": NUMPY_TASK}, id="NumPy"),
    ],
)
def test_what_looks_like_a_mistake_and_works(tmp_path: Path, study: dict[str, Any]) -> None:
    told = run(tmp_path, **study)
    assert told.exit_code == 0, told.err
    assert told.out.splitlines()[-1].startswith("model ")
    assert len([line for line in told.out.splitlines() if " accepted" in line]) == 2


# ---- as a stranger's shell runs it --------------------------------------------------


def shell(plan: Path, *before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "consortium", *before, "simulate", plan.name],
        cwd=plan.parent,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        timeout=120,
    )


def test_different_columns_in_a_shell(tmp_path: Path) -> None:
    """The mistake that everybody makes first."""
    wider = csv(columns=("age", "dose", "weight", "sex"))
    done = shell(write_study(tmp_path, data={"s2": wider}))
    check_manners(Told(done.returncode, done.stdout, done.stderr), tmp_path)
    assert done.returncode == 3
    assert "site s2: shared tensors differ: `weight` is F32 [2, 4]" in done.stderr
    assert "(as at site s0)" in done.stderr


def test_text_among_the_numbers_in_a_shell(tmp_path: Path) -> None:
    plan = write_study(tmp_path, NUMPY_TASK, data={"s1": with_line(f"{SECRET},1,2,0")})
    done = shell(plan, "--json")
    told = json.loads(done.stdout)["error"]
    assert (done.returncode, told["code"]) == (1, "E0204")
    assert told["message"].startswith("site s1: train failed: ValueError in task.py:")
    assert "-vv" in told["hint"]
    assert SECRET not in done.stdout + done.stderr
    loud = shell(plan, "-vv").stderr
    assert "Traceback" in loud and SECRET in loud  # asked for, at one's own machine


def test_data_read_by_the_tasks_file_in_a_shell(tmp_path: Path) -> None:
    plan = write_study(tmp_path, NUMPY_TASK + f"float('{SECRET}')\n")
    done = shell(plan)
    check_manners(Told(done.returncode, done.stdout, done.stderr), tmp_path)
    line = len(plan.with_name("task.py").read_text().splitlines())
    assert done.returncode == 3
    assert f"task.py cannot be run: ValueError in line {line}" in done.stderr


def test_the_same_columns_in_another_order_are_noticed(tmp_path: Path) -> None:
    """Where no layer is private the model would take one column for another."""
    rows = [line.split(",") for line in csv(1).splitlines()]
    swapped = [",".join([row[1], row[0], *row[2:]]) for row in rows]
    files = {"s1": "\n".join(swapped) + "\n"}
    refused(tmp_path, 3, "E0209", "in another order", "columns=[", data=files)
