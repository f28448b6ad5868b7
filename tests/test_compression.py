"""Compressed updates through a whole federation: blocks and single sites, audits, leftovers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortium.core.codec import decode
from consortium.core.facts import UpdateReceived
from consortium.core.ids import Seat
from consortium.drive.directory import DataDirectory
from consortium.drive.engine import SimulatedSite
from consortium.drive.leaving import HELD_BACK
from consortium.drive.simulate import Options, Run, simulate
from consortium.drive.verify import verify_directory
from consortium.model import Update, load_update, save_update
from consortium.plan import Plan, parse_plan
from consortium.store.files import FileBlobs
from consortium.tasks import Site, Trained, numpy_task
from consortium.tensors import load_tensors

WIDTH = 700
PLANS = {
    "4 bits": "bits = 4",
    "8 bits, no feedback": "bits = 8\nerror_feedback = false",
    "top": "keep = 0.05",
    "top, 4 bits": "keep = 0.1\nbits = 4",
    "random": 'keep = 0.2\nby = "random"',
    "random, 4 bits, feedback": 'keep = 0.2\nby = "random"\nbits = 4\nerror_feedback = true',
    "clip": "bits = 4\nerror_feedback = false\n[strategy]\nclip = 0.05",
    "clip, random": 'keep = 0.2\nby = "random"\n[strategy]\nclip = 0.05',
    "fednova": 'bits = 4\n[strategy]\nname = "fednova"',
    "adam": 'bits = 8\n[strategy]\nname = "fedadam"',
}
ROBUST = {
    "median": 'keep = 0.2\nby = "random"\nbits = 8\n[strategy]\nrule = "median"',
    "geometric median": 'keep = 0.2\n[strategy]\nrule = "geometric_median"',
    "screen": 'bits = 4\n[strategy]\nanomalies = "exclude"',
    "buffer": "keep = 0.1\nbits = 4\n[asynchronous]\nbuffer = 3",
}


def start(rng: np.random.Generator) -> dict[str, Any]:
    return {"w": np.zeros(WIDTH, np.float32), "b": np.zeros((), np.float32)}


def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
    features, target = site.data
    error = features @ shared["w"] + shared["b"] - target
    return {"loss": float((error**2).mean())}, len(target)


@numpy_task(start=start, evaluate=evaluate, metrics=["loss"])
def task(site: Site, shared: dict[str, Any]) -> Trained:
    features, target = site.data
    for _ in range(3):
        error = features @ shared["w"] + shared["b"] - target
        shared["w"] -= np.float32(0.01) * (error @ features / len(target)).astype(np.float32)
        shared["b"] -= np.float32(0.01 * error.mean())
    return Trained(shared, len(target), steps=3.0)


def sites(count: int = 6) -> list[SimulatedSite]:
    truth = np.random.default_rng(99).normal(size=WIDTH)
    made = []
    for number in range(count):
        features = np.random.default_rng(number).normal(size=(20 + number, WIDTH))
        made.append(SimulatedSite(f"site-{number}", (features, features @ truth)))
    return made


def plan_of(text: str) -> Plan:
    return parse_plan(
        "[federation]\nrounds = 4\n[selection]\nfraction = 1.0\n[evaluation]\ngate = false\n"
        f"[compression]\n{text}"
    )


def run_of(text: str, **options: Any) -> Run:
    return simulate(task, plan_of(text), sites(), seed=5, options=Options(**options))


@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
def test_blocks_and_single_updates_give_one_model_and_the_same_bytes(
    text: str, tmp_path: Path
) -> None:
    blocks = run_of(text)
    directory = DataDirectory(tmp_path / "data")
    single = run_of(text, record=True, directory=directory)
    sizes: dict[int, int] = {}
    for record in single.records:
        fact = decode(record)
        if isinstance(fact, UpdateReceived):
            size = directory.blobs.size(fact.update)
            sizes[fact.round] = sizes.get(fact.round, 0) + size
    directory.close()
    assert blocks.model_digest == single.model_digest
    assert [record.outcome for record in blocks.history.rounds] == ["accepted"] * 4
    for run in (blocks, single):
        assert [record.bytes_sent for record in run.history.rounds] == list(sizes.values())
        assert [record.updates_sent for record in run.history.rounds] == [6] * 4
    plain = run_of("", record=True).history.rounds[0].bytes_sent
    assert sizes[1] < 0.45 * plain


@pytest.mark.parametrize("text", [*PLANS.values(), *ROBUST.values()], ids=[*PLANS, *ROBUST])
def test_an_audit_of_compressed_updates_finds_nothing(text: str, tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    run = run_of(text, record=True, directory=directory)
    directory.close()
    assert run.history.rounds[-1].outcome == "accepted"
    assert verify_directory(tmp_path / "data").findings == []


def test_an_audit_finds_a_compressed_update_that_was_exchanged(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    run = run_of("bits = 4", record=True, directory=directory)
    directory.close()
    received = [decode(record) for record in run.records]
    (update, *_) = [fact.update for fact in received if isinstance(fact, UpdateReceived)]
    blobs, form = FileBlobs(tmp_path / "data" / "blobs"), run.plan.form(run.layout, 1)
    good = load_update(blobs.get(update), form)
    packed = bytes(blobs.get(update)[-form.size_bytes :])
    turned = packed[:4] + bytes([packed[4] ^ 0x33 or 0x11]) + packed[5:]
    other = save_update(Update(good.row, good.weight, good.base, turned), form)
    path = blobs.path(update)
    path.chmod(0o600)
    path.write_bytes(other)
    assert verify_directory(tmp_path / "data").findings != []


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("name", ["top, 4 bits", "random"])
def test_workers_change_nothing(name: str, record: bool) -> None:
    loop = run_of(PLANS[name], record=record, workers=0)
    assert run_of(PLANS[name], record=record, workers=2).model_digest == loop.model_digest


# ---- what is held back --------------------------------------------------------------


def held_back(run: Run, seat: int) -> Any:
    state = run.states.current(Seat(seat))
    return None if state is None else load_tensors(state).get(HELD_BACK)


def test_a_site_keeps_what_was_left_and_nobody_else_has_it() -> None:
    run = run_of("keep = 0.05")
    kept = held_back(run, 1)
    assert kept is not None and kept.shape == (WIDTH + 1,)
    assert np.count_nonzero(kept) == WIDTH + 1 - round(0.05 * (WIDTH + 1))
    assert held_back(run_of("bits = 8\nerror_feedback = false"), 1) is None


def test_what_was_left_is_kept_only_with_an_update_that_counted() -> None:
    """A site that falls out of the last round has what it had after the one before."""

    def falls_out(number: int, site: str) -> bool:
        return number == 4 and site == "site-0"

    whole = run_of("keep = 0.05")
    lost = run_of("keep = 0.05", drops=falls_out)
    short = simulate(
        task,
        plan_of("keep = 0.05").model_copy(
            update={"federation": plan_of("").federation.model_copy(update={"rounds": 3})}
        ),
        sites(),
        seed=5,
    )
    assert (held_back(lost, 1) == held_back(short, 1)).all()
    assert (held_back(lost, 1) != held_back(whole, 1)).any()
    assert (held_back(lost, 2) == held_back(whole, 2)).all()


def test_all_that_was_trained_is_sent_in_the_end() -> None:
    """With error feedback a tenth of the numbers comes as far as all of them."""
    losses = {
        text: run_of(text).history.rounds[-1].metrics["loss"]
        for text in ("", "keep = 0.1", "keep = 0.1\nerror_feedback = false")
    }
    assert losses["keep = 0.1"] < losses["keep = 0.1\nerror_feedback = false"]


def test_a_step_that_overflows_with_what_was_held_back_falls_out() -> None:
    @numpy_task(start=start, evaluate=evaluate, metrics=["loss"])
    def huge(site: Site, shared: dict[str, Any]) -> Trained:
        shared["w"] += np.float32(3e38 if site.name == "site-0" else 0.0)
        return Trained(shared, 1)

    plan = parse_plan(
        "[federation]\nrounds = 3\n[selection]\nfraction = 1.0\n[evaluation]\nenabled = false\n"
        "[compression]\nkeep = 0.01\n[strategy]\nweight = 'uniform'\nserver_lr = 1e-9\n"
    )
    run = simulate(huge, plan, sites(), seed=5)
    assert ("site-0", "training") in run.history.rounds[1].lost
