"""Other frameworks on the workloads of `benchmarks.simulation`, each in its own environment.

    python -m venv peers/flwr && peers/flwr/bin/pip install torch==2.13.0 'flwr[simulation]'
    python -m venv peers/pfl && peers/pfl/bin/pip install torch==2.13.0 pfl

A peer runs as `python -m benchmarks.peers NAME SETTING` with the Python of its environment,
where consortium is not installed, and prints its result as one JSON object in the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from benchmarks.workloads import Setting

ROOT = Path(__file__).resolve().parents[2]
# name -> what stands between its Python and our module. pfl is faster on two processes, which
# torch's own launcher starts; Flower starts its processes itself.
PEERS: Mapping[str, Sequence[str]] = {
    "flwr": (),
    "pfl": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
}
_LAST_LINES = 20


_STARTED = "BENCHMARK_STARTED"  # in the environment: when the command was given


@dataclass(frozen=True, slots=True)
class Result:
    """What a peer's script found out."""

    version: str
    how: str  # it runs clients
    seconds: Sequence[float]  # of each round
    accuracy: float
    first_round_s: float  # from the command to the end of the first round


@dataclass(frozen=True, slots=True)
class Peer:
    """A framework, and the Python of the environment that has it."""

    name: str
    python: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        """`flwr=/path/to/python`."""
        name, _, path = text.partition("=")
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"no peer {name}; there are: {', '.join(PEERS)}")
        python = Path(path).expanduser().absolute()  # a link stays one: it names the environment
        if not os.access(python, os.X_OK):
            raise argparse.ArgumentTypeError(f"no Python of {name} at {path or 'an empty path'}")
        return cls(name, python)


def seconds_since_start() -> float:
    """In a peer's process, wherever it was started from: since the command."""
    return time.time() - float(os.environ[_STARTED])


def measured(peer: Peer, setting: Setting) -> Result:
    """Run a peer on a workload."""
    wanted = [peer.name, json.dumps(asdict(setting))]
    done = subprocess.run(
        [str(peer.python), *PEERS[peer.name], "-m", "benchmarks.peers", *wanted],
        cwd=ROOT,
        env=os.environ | {_STARTED: str(time.time()), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    said = done.stdout.splitlines()
    if done.returncode or not said:
        last = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
        raise SystemExit(f"{peer.name} on {setting.name} has failed:\n{last}")
    return Result(**json.loads(said[-1]))
