"""Seconds a round of `simulate`, beside a plain torch loop that does the same work.

    python -m benchmarks.simulation --json
    python -m benchmarks.simulation --only W2 --peer flwr=/path/to/its/python

Evaluation is off and the log is in memory. W1 to W3 are told in `benchmarks.workloads`, the
hospitals in `benchmarks.hospitals`, the base in `benchmarks.plain_torch`. Rounds of ours and of
the base take turns, so that a busy machine slows both alike; W2's are short, so ten at a time,
because right after somebody else a cache is not what it is in a run. Both count as the median
after the first rounds. What models came to is measured on the same held-out records.

A peer is a framework in an environment of its own (`benchmarks.peers`). Its base is the peer.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

import consortium as co
from benchmarks.hospitals import SETTING as HOSPITALS
from benchmarks.hospitals import hospitals
from benchmarks.peers import PEERS, Peer, measured
from benchmarks.plain_torch import PROCESSES, PlainLoop
from benchmarks.report import Line, parser, show
from benchmarks.workloads import SETTINGS, Setting, Study, count_right, study_of
from consortium.drive.history import RoundRecord
from consortium.drive.simulate import Options, Run, simulate
from consortium.torch import TorchTask

ROOT = Path(__file__).resolve().parent.parent
NAMES = (*SETTINGS, HOSPITALS.name)
FIRST_ROUND = "first round"
FIRST_ROUND_LIMIT_S = 8.0
SEED = 1
Play = Callable[[], float]  # a round of something else; the seconds that it took


@dataclass(slots=True)
class Turns:
    """Seconds of our rounds. After some of them somebody else has as many."""

    other: Play
    at_a_time: int
    ours: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    begun: float = field(default_factory=time.perf_counter)

    def __call__(self, _: RoundRecord) -> None:
        self.ours.append(time.perf_counter() - self.begun)
        if len(self.ours) % self.at_a_time == 0:
            self.others += [self.other() for _ in range(self.at_a_time)]
        self.begun = time.perf_counter()


@dataclass(frozen=True, slots=True)
class Measured:
    """Rounds after the warm-up, and the accuracy after the last."""

    seconds: Sequence[float]
    accuracy: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def told(self, who: str) -> str:
        least, most = min(self.seconds), max(self.seconds)
        return f"{who} {least:.4g} to {most:.4g} s, accuracy {self.accuracy:.3f}"


# ---- ours ---------------------------------------------------------------------------


def task_of(study: Study) -> TorchTask:
    """The task as a user writes it."""

    @co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
    def client(site: co.Site) -> tuple[nn.Module, object, object]:
        train, test = site.data
        return study.build(train[0]), train, test

    return client


def plan_of(setting: Setting) -> co.Plan:
    return co.Plan.model_validate(
        {
            "federation": {"rounds": setting.rounds, "quorum": setting.cohort},
            "selection": {"target": setting.cohort, "wait_for": setting.clients},
            "training": {
                "epochs": setting.epochs,
                "batch_size": setting.batch_size,
                "lr": setting.lr,
                "momentum": 0.0,
            },
            "evaluation": {"enabled": False, "gate": False},
        }
    )


def sites_of(study: Study) -> list[co.SimulatedSite]:
    return [
        co.SimulatedSite(_name(client), (records, study.site_test(client)))
        for client, records in enumerate(study.train)
    ]


def simulated(study: Study, options: Options) -> Run:
    plan = plan_of(study.setting)
    return simulate(task_of(study), plan, sites_of(study), seed=SEED, options=options)


def accuracy_of(run: Run, study: Study) -> float:
    """Of the held-out records, each by the model of the client that it belongs to."""
    right = sum(
        count_right(run.at(_name(client)).module, records)
        for client, records in study.held_out.items()
    )
    return right / sum(len(targets) for _, targets in study.held_out.values())


def _name(client: int) -> str:
    return f"client-{client}"


# ---- lines --------------------------------------------------------------------------


def in_turns(study: Study, options: Options) -> tuple[Measured, Measured]:
    """Ours and the base in turn."""
    warm_up = study.setting.warm_up
    with PlainLoop(study) as base:
        turns = Turns(base.play, study.setting.turn)
        run = simulated(study, replace(options, on_round=turns))
        accuracies = accuracy_of(run, study), base.accuracy()
    ours, others = turns.ours[warm_up:], turns.others[warm_up:]
    return Measured(ours, accuracies[0]), Measured(others, accuracies[1])


def lines_of(study: Study, options: Options, peers: Sequence[Peer]) -> Iterator[Line]:
    """Ours beside the base, then beside each peer."""
    setting = study.setting
    ours, base = in_turns(study, options)
    size = sum(parameter.numel() for parameter in study.build(study.train[0][0]).parameters())
    work = (
        f"{setting.cohort} of {setting.clients} clients a round, {setting.records} records each, "
        f"{size:,} parameters; rounds {setting.warm_up + 1} to {setting.rounds}; "
        f"{ours.told('ours')}; "
    )
    told = base.told(f"base: plain torch in {PROCESSES} processes,")
    yield Line(setting.name, ours.median, base.median, "s/round", work + told)
    if study.private:
        return  # the peers' scripts know of models that are shared as a whole
    for peer in peers:
        result = measured(peer, setting)
        theirs = Measured(result.seconds[setting.warm_up :], result.accuracy)
        told = theirs.told(f"base: {peer.name} {result.version}, {result.how},")
        told += f"; its first round ended after {result.first_round_s:.1f} s"
        name = f"{setting.name} against {peer.name}"
        yield Line(name, ours.median, theirs.median, "s/round", work + told)


def first_round() -> Line:
    """From the start of a fresh Python to the end of W2's first round."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.first_round"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        taken = time.perf_counter() - begun
    if process.returncode or not said:
        raise SystemExit("benchmarks.first_round has failed")
    detail = "W2, from the start of a fresh Python; base: the limit that we set ourselves"
    return Line(FIRST_ROUND, taken, FIRST_ROUND_LIMIT_S, "s", detail)


def measure(names: Sequence[str], options: Options, peers: Sequence[Peer]) -> Iterator[Line]:
    for name in names:
        if name == FIRST_ROUND:
            yield first_round()
            continue
        study = hospitals() if name == HOSPITALS.name else study_of(SETTINGS[name])
        yield from lines_of(study, options, peers)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", action="append", choices=(*NAMES, FIRST_ROUND), metavar="NAME")
    options.add_argument(
        "--engine", default=Options().engine, metavar="NAME", help="as in simulate's own options"
    )
    options.add_argument(
        "--peer",
        action="append",
        default=[],
        type=Peer.parse,
        metavar="NAME=PYTHON",
        help=f"measure a peer, too: {', '.join(PEERS)}, and the Python that has it",
    )
    given = options.parse_args()
    missing = sorted(set(PEERS) - {peer.name for peer in given.peer})
    if missing:
        print(f"not measured, see --peer: {', '.join(missing)}", file=sys.stderr)
    names = given.only or (*NAMES, FIRST_ROUND)
    show(measure(names, Options(engine=given.engine), given.peer), as_json=given.json)


if __name__ == "__main__":
    main()
