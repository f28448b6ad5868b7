"""Flower on a workload: its simulation engine, which runs every client in a Ray actor.

One CPU a client, so as many actors as there are cores, each on one thread. A client is sent
the model as a message, trains it with plain torch and sends it back.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator, no-untyped-call"
# The peer is installed in another environment than the one that checks types.

from __future__ import annotations

import itertools
import json
import os
import time
from dataclasses import asdict
from functools import lru_cache
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.peers import Result, seconds_since_start
from benchmarks.workloads import Setting, Study, count_right, study_of

app = ClientApp()


@lru_cache(maxsize=1)
def _study(text: str) -> Study:
    """Made once in each actor, in the first round, which is not timed."""
    return study_of(Setting(**json.loads(text)))


def _built(study: Study) -> nn.Module:
    return study.build(study.train[0][0])


@app.train()
def train(message: Message, context: Context) -> Message:
    study = _study(str(message.content["config"]["setting"]))
    inputs, targets = study.train[int(context.node_config["partition-id"])]
    model = _built(study)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=study.setting.lr)
    for _ in range(study.setting.epochs):
        for rows in torch.split(torch.randperm(len(targets)), study.setting.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(targets)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def run(setting: Setting) -> Result:
    text, ended, last = json.dumps(asdict(setting)), list[float](), dict[str, Any]()
    server = ServerApp()

    def note(number: int, arrays: ArrayRecord) -> None:
        """Flower asks for an evaluation at the server after each round, and before the first."""
        ended.append(time.perf_counter())
        if number == 1:
            last["first_round_s"] = seconds_since_start()
        last["arrays"] = arrays

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = FedAvg(
            fraction_train=setting.cohort / setting.clients,
            fraction_evaluate=0.0,
            min_train_nodes=setting.cohort,
            min_available_nodes=setting.clients,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(_built(_study(text)).state_dict()),
            num_rounds=setting.rounds,
            train_config=ConfigRecord({"setting": text}),
            evaluate_fn=note,
        )

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(server, app, setting.clients, backend_config={"client_resources": resources})
    study = _study(text)
    model = _built(study)
    model.load_state_dict(last["arrays"].to_torch_state_dict())
    right = count_right(model, study.held_out[0])
    return Result(
        version=flwr.__version__,
        how=f"{os.cpu_count()} Ray actors of one thread",
        seconds=[after - before for before, after in itertools.pairwise(ended)],
        accuracy=right / len(study.held_out[0][1]),
        first_round_s=last["first_round_s"],
    )
