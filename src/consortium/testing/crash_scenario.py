"""A small federation on a real data directory, made to be killed and started again.

    python -m consortium.testing.crash_scenario DIR --acks FILE

Five sites, two rounds, one fact a site. Time and every choice are functions of the log
alone, so that a run that was interrupted anywhere ends with the facts of one that was
not. Every start first compares the sites' memory with the log (exit 9: something that
was acknowledged is gone), then answers whoever never got an answer, then goes on. A
store that refuses ends the run with exit 1 and a coded message.

Standard output and the memory are written with `writev`: what the campaigns count and
break are the coordinator's own `write`s and `fsync`s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode, encode
from consortium.core.facts import Failure
from consortium.core.federation import decide
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.state import Federation
from consortium.core.tables import Step
from consortium.core.terms import Metric
from consortium.drive.clock import ManualClock
from consortium.drive.coordinate import Coordinator, checkpoints_of
from consortium.drive.directory import DataDirectory
from consortium.drive.hands import CoordinatorHands
from consortium.errors import ConsortiumError, InternalError, StoreFailedError
from consortium.model import Layout, Update, digest_of, save_model, save_update
from consortium.plan.values import FederationSection, Plan, SelectionSection
from consortium.testing.acks import Ack, Memory, broken_promises
from consortium.testing.crash_plants import PLANTS, plant

STREAM = "0123456789abcdef"
EXIT_LOST = 9
SITES, ROUNDS = 5, 2
_SIZE = 512  # numbers in the model: half a page of a disk, so that writes can tear
_STEP_MS = 1000
_MAX_STEPS = 1000
_FAILS = (2, Seat(4))  # (round, seat) of a site that falls out
_METRICS = (Metric("accuracy", higher_is_better=True),)
_LAYOUT = Layout.of({"w": np.zeros(_SIZE, np.float32)})
_PLAN = Plan().model_copy(
    update={
        "federation": FederationSection(rounds=ROUNDS, quorum=3),
        "selection": SelectionSection(wait_for=SITES, target=SITES),
        "evaluation": Plan().evaluation.model_copy(update={"metric": "accuracy"}),
    }
)


def _text_digest(text: str) -> Digest:
    return digest_of(f"consortium/crash-scenario/{text}".encode())


class Scenario:
    """Coordinator and sites in one process, one step at a time."""

    def __init__(self, directory: DataDirectory, memory: Memory, planted: str) -> None:
        self._directory, self._memory, self._planted = directory, memory, planted
        self._log, self._blobs = directory.log, directory.blobs
        facts = list(self.facts())
        self._clock = ManualClock(max((fact.at_ms for fact in facts), default=0))
        self._answered = 0
        self._coordinator = Coordinator(directory, STREAM, self._clock)
        self._hands = CoordinatorHands(
            _LAYOUT,
            _PLAN.strategy,
            self._blobs,
            self._clock,
            lambda number: bytes(_text_digest(f"seed {number}")),
        )

    @property
    def state(self) -> Federation:
        return self._coordinator.driver.state

    def facts(self) -> Iterator[f.Fact]:
        return (decode(record) for record in self._log.read(STREAM))

    def step(self) -> bool:
        """Answer whoever waits for an answer; then one duty, or one site's next word.
        False when the federation is over and everybody has been answered."""
        self._hand_out()
        if self.state.finished is not None:
            return False
        *_, last = self.facts()
        self._clock.advance_to(last.at_ms + _STEP_MS)
        item = self._setting_up() or self._site_says()
        if item is None:
            if not self._coordinator.work(self._hands):
                raise InternalError("the scenario stands still")
        elif self._planted == "early-ack" and isinstance(item, i.Submit):
            self._answer(decide(self.state, item)[0], self._coordinator.driver.position)
            self._coordinator.feed(item)
        else:
            self._coordinator.feed(item)
        return True

    # ---- what the lead and the sites say --------------------------------------------

    def _setting_up(self) -> i.Input | None:
        state, now_ms = self.state, self._clock.now_ms()
        if state.plan is None:
            plan, layout = self._blobs.put(_PLAN.canonical()), self._blobs.put(_LAYOUT.canonical())
            terms = _PLAN.terms(_METRICS)
            return i.AdoptPlan(plan, _text_digest("task"), layout, terms, now_ms)
        if not state.versions:
            model = self._blobs.put(save_model(_LAYOUT, np.zeros(_SIZE, np.float32)))
            return i.InstallModel(model, now_ms)
        joined = len(state.roster.members)
        if joined < SITES:
            site = SiteId(_text_digest(f"site {joined}").hex()[:32])
            return i.Admit(site, bytes(_text_digest(f"key {joined}")), now_ms)
        return None

    def _site_says(self) -> i.Input | None:
        """The next site's answer, but not before every update that came has been checked."""
        open_round, now_ms = self.state.round, self._clock.now_ms()
        if open_round is None or open_round.unchecked:
            return None
        number = open_round.number
        if open_round.step is Step.TRAINING and open_round.waiting:
            seat = min(open_round.waiting)
            if (number, seat) == _FAILS:
                return i.Fail(number, seat, Failure.TRAINING, None, now_ms)
            update = self._blobs.put(self._update(number, seat, open_round.base))
            return i.Submit(number, seat, update, None, now_ms)
        if open_round.step is Step.EVALUATING and open_round.unheard:
            seat, model = min(open_round.unheard), open_round.model
            assert model is not None
            scores = (50.0 + number,), (50.0,)
            return i.Score(number, seat, model, 100, *scores, None, now_ms)
        return None

    @staticmethod
    def _update(number: int, seat: Seat, base: Digest) -> bytes:
        """One-hot, so that the model shows how often each site was counted."""
        step = np.zeros(_SIZE, np.float32)
        step[seat] = np.float32(number)
        return save_update(Update(step, 1.0, base))

    # ---- answers --------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Answer for every fact that somebody waits for and has no answer to. After a
        restart the sites ask again, and get the same answer without a new fact."""
        for index, fact in enumerate(self.facts()):
            if index < self._answered:
                continue
            name = _answer_name(fact)
            if name is not None and name not in self._memory.names:
                self._ask_again(fact)
                self._answer(fact, index)
            self._answered = index + 1

    def _ask_again(self, fact: f.Fact) -> None:
        if isinstance(fact, f.UpdateReceived):
            again = i.Submit(fact.round, fact.seat, fact.update, None, self._clock.now_ms())
            if self._coordinator.feed(again):
                raise InternalError("the same update brought about a second fact")

    def _answer(self, fact: f.Fact, index: int) -> None:
        name = _answer_name(fact)
        assert name is not None
        kind, record, blob = name[0], encode(fact), _blob_of(fact)
        if kind == "checkpoint":
            self._coordinator.keep_checkpoint()
            record, index = self._newest_checkpoint()
        note = self._coordinator.checkpoint()
        self._memory.add(Ack(*name, index, record.hex(), blob.hex(), note))

    def _newest_checkpoint(self) -> tuple[bytes, int]:
        kept = list(self._log.read(checkpoints_of(STREAM)))
        return kept[-1], len(kept) - 1

    def summary(self) -> dict[str, object]:
        """What every run must end with, however often it was interrupted."""
        facts = list(self.facts())
        closed = [fact for fact in facts if isinstance(fact, f.RoundClosed)]
        published = [fact for fact in facts if isinstance(fact, f.ModelPublished)]
        same = b"".join(encode(_without_key(fact)) for fact in facts)
        assert self.state.finished is not None
        return {
            "finished": self.state.finished.name,
            "models": [fact.model.hex() for fact in published],
            "members": [list(fact.members) for fact in closed],
            "facts": len(facts),
            "log_bytes": sum(len(record) for record in self._log.read(STREAM)),
            "log_digest": sha256(same).hexdigest(),
            "acks": sorted(self._memory.names),
        }


def _answer_name(fact: f.Fact) -> tuple[str, int, int] | None:
    """What the one who caused this fact is answered; None when nobody waits for it."""
    match fact:
        case f.UpdateReceived():
            return "receipt", fact.round, fact.seat
        case f.Evaluated():
            return "score", fact.round, fact.seat
        case f.ModelPublished():
            return "model", fact.round, 0
        case f.RoundCompleted():
            return "checkpoint", fact.round, 0
    return None


def _blob_of(fact: f.Fact) -> bytes:
    if isinstance(fact, f.UpdateReceived):
        return fact.update
    return fact.model if isinstance(fact, f.ModelPublished) else b""


def _without_key(fact: f.Fact) -> f.Fact:
    """The log's key is random, and all that differs between two runs."""
    return replace(fact, key=bytes(32)) if isinstance(fact, f.LogKeyAdopted) else fact


# ---- the process --------------------------------------------------------------------


def run(path: Path, acks: Path, planted: str = "", retries: int = 0) -> int:
    """Run, or go on, to the end. A store that refuses is asked again `retries` times."""
    refusals = 0
    memory = Memory(acks)
    while True:
        try:
            return _run_once(path, memory, planted, retries, refusals)
        except StoreFailedError:
            refusals += 1
            if refusals > retries:
                raise


def _run_once(path: Path, memory: Memory, planted: str, retries: int, refusals: int) -> int:
    with closing(DataDirectory(path)) as directory:
        lost = broken_promises(memory.acks, directory.log, directory.blobs, STREAM)
        if lost:
            _say(2, "lost: " + "; ".join(lost[:3]))
            return EXIT_LOST
        scenario = Scenario(directory, memory, planted)
        for _ in range(_MAX_STEPS):
            try:
                if not scenario.step():
                    _say(1, json.dumps({**scenario.summary(), "refusals": refusals}))
                    return 0
            except StoreFailedError:
                # The same process, the same connection: it must go on when space returns.
                refusals += 1
                if refusals > retries:
                    raise
    raise InternalError("the scenario does not end")


def _say(handle: int, line: str) -> None:
    os.writev(handle, [line.encode() + b"\n"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="consortium.testing.crash_scenario")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--acks", type=Path, required=True, help="outside the directory")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="", help="a bug")
    parser.add_argument("--retries", type=int, default=0, help="after a refusal of the store")
    options = parser.parse_args(arguments)
    plant(options.plant)
    try:
        return run(options.directory, options.acks, options.plant, options.retries)
    except ConsortiumError as error:
        _say(2, f"error {error.code}: {error.message}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
