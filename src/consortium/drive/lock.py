"""The lock of a study: what its sites will be asked to approve, and the model they start from.

    plan.lock            plan digest, task hash, shared layout, frozen digest, first model
    model-0.safetensors  the model that round one starts from

Made by the lead, where the task's libraries are; a coordinator needs nothing but these.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.drive.engine import begin, simulated_site
from consortium.drive.local import refuse_unfollowed
from consortium.drive.study import Study
from consortium.errors import ModelFileError, PlanFileError, VerificationError
from consortium.model import Layout, digest_of, load_model, save_model
from consortium.plan.noise import resolved
from consortium.plan.values import Plan

LOCK, MODEL = "plan.lock", "model-0.safetensors"
_VERSION = 1
_NOTE = "# Made by `consortium lock`. Sites approve the task's hash and the plan's digest.\n"


@dataclass(frozen=True, slots=True)
class Noise:
    """How much a private plan takes: the keys of [privacy] that are computed."""

    multiplier: float
    side: float | None

    @classmethod
    def of(cls, plan: Plan) -> Noise | None:
        section = plan.privacy
        if not section.is_on or section.noise_multiplier is None:
            return None
        return cls(section.noise_multiplier, section.side_noise)

    def table(self) -> dict[str, float]:
        side = {} if self.side is None else {"side_noise": self.side}
        return {"noise_multiplier": self.multiplier, **side}

    def applied(self, plan: Plan) -> Plan:
        section = plan.privacy.model_copy(update=self.table())
        return plan.model_copy(update={"privacy": section})


@dataclass(frozen=True, slots=True)
class Lock:
    """What a study is pinned to."""

    plan: Digest
    task: Digest
    entry: str
    metrics: tuple[Metric, ...]
    layout: Layout
    pinned: Digest | None  # of the frozen tensors
    model: Digest
    seed: int
    noise: Noise | None = None  # that was computed for the plan, where it is private

    def text(self) -> str:
        """The lock as TOML."""
        metrics = [
            {"name": metric.name, "higher_is_better": metric.higher_is_better}
            for metric in self.metrics
        ]
        values: dict[str, object] = {
            "version": _VERSION,
            "plan": self.plan.hex(),
            "task": {
                "entry": self.entry,
                "hash": self.task.hex(),
                "frozen": self.pinned.hex() if self.pinned else "",
                "metrics": metrics,
            },
            "model": {
                "file": MODEL,
                "sha256": self.model.hex(),
                "seed": self.seed,
                "layout": self.layout.canonical().decode().splitlines(),
            },
        }
        if self.noise is not None:
            values["noise"] = self.noise.table()
        return _NOTE + tomli_w.dumps(values)

    def applied(self, plan: Plan) -> Plan:
        """The plan with the noise that was computed when it was locked."""
        return plan if self.noise is None else self.noise.applied(plan)


def make_lock(study: Study, seed: int) -> tuple[Lock, bytes]:
    """The lock of a study and the bytes of its first model. Refuses what could not run."""
    refuse_unfollowed(study.task, study.plan)
    plan = resolved(study.plan)
    plan.terms(study.task.metrics)
    local, vector = begin(study.task, plan, study.sites, seed)
    plan.form(
        local.layout, 0, study.task.metrics
    )  # what is masked may leave too little room for noise
    if plan.privacy.is_on:  # what every site would refuse had better be told here
        local.check(simulated_site(study.sites[0], 1, plan, seed, 0, "start"))
    model = save_model(local.layout, vector)
    lock = Lock(
        plan=plan.digest,
        task=study.task_hash,
        entry=plan.task.entry,
        metrics=study.task.metrics,
        layout=local.layout,
        pinned=local.pinned,
        model=digest_of(model),
        seed=seed,
        noise=Noise.of(plan),
    )
    return lock, model


def write_lock(folder: Path, lock: Lock, model: bytes) -> None:
    """Both files, the model first: a lock never names a model that is not there."""
    try:
        (folder / MODEL).write_bytes(model)
        (folder / LOCK).write_text(lock.text())
    except OSError as error:
        raise PlanFileError(f"cannot write {folder / LOCK}: {error.strerror}") from None


def read_lock(folder: Path) -> tuple[Lock, bytes]:
    """The lock in a folder and its model, which must be the one that it names."""
    try:
        data = (folder / LOCK).read_bytes()
        model = (folder / MODEL).read_bytes()
    except OSError as error:
        raise PlanFileError(
            f"cannot read the lock in {folder}: {error.strerror}", hint="consortium lock PLAN"
        ) from None
    lock = parse_lock(data, str(folder / LOCK))
    if digest_of(model) != lock.model or not _has_layout(lock.layout, model):
        raise VerificationError(
            f"{folder / MODEL} is not the model that the lock names", hint="consortium lock PLAN"
        )
    return lock, model


def parse_lock(data: bytes, name: str = "this") -> Lock:
    """The lock in a file's bytes; `name` is what an error calls it."""
    try:
        return _parsed(tomllib.loads(data.decode()))
    except (KeyError, TypeError, ValueError, RecursionError, ModelFileError):
        raise VerificationError(f"{name} is not a lock", hint="consortium lock PLAN") from None


def check_lock(folder: Path, study: Study) -> None:
    """Raise unless the lock is that of the study as it is now."""
    held, _ = read_lock(folder)
    now, _ = make_lock(study, held.seed)
    for what, ours, theirs in (
        ("the plan", held.plan, now.plan),
        ("the task", held.task, now.task),
        ("the first model", held.model, now.model),
        ("the lock itself", held, now),  # what the task's hash covers, spelt out
    ):
        if ours != theirs:
            raise VerificationError(
                f"{what} has changed since the study was locked", hint="consortium lock PLAN"
            )


def _parsed(values: dict[str, object]) -> Lock:
    if values["version"] != _VERSION:
        raise ValueError("a lock of another version")
    task, model = values["task"], values["model"]
    if not (isinstance(task, dict) and isinstance(model, dict) and type(model["seed"]) is int):
        raise TypeError("not the tables of a lock")
    layout = "".join(f"{line}\n" for line in model["layout"]).encode()
    return Lock(
        plan=_digest(values["plan"]),
        task=_digest(task["hash"]),
        entry=str(task["entry"]),
        metrics=tuple(
            Metric(str(metric["name"]), bool(metric["higher_is_better"]))
            for metric in task["metrics"]
        ),
        layout=Layout.from_canonical(layout),
        pinned=_digest(task["frozen"]) if task["frozen"] else None,
        model=_digest(model["sha256"]),
        seed=model["seed"],
        noise=_noise(values.get("noise")),
    )


def _noise(table: object) -> Noise | None:
    if table is None:
        return None
    if not isinstance(table, dict) or not set(table) <= {"noise_multiplier", "side_noise"}:
        raise TypeError("not the noise of a lock")
    if not all(type(number) is float and number > 0 for number in table.values()):
        raise ValueError("noise is a number above zero")
    return Noise(table["noise_multiplier"], table.get("side_noise"))


def _has_layout(layout: Layout, model: bytes) -> bool:
    try:
        load_model(layout, model)
    except ModelFileError:
        return False
    return True


def _digest(text: object) -> Digest:
    data = bytes.fromhex(str(text))
    if len(data) != 32:
        raise ValueError("not a digest")
    return Digest(data)
