"""Flower's SecAgg+ on a cohort: how long its server computes. It runs in Flower's environment.

    python -m venv peers/flwr && peers/flwr/bin/pip install flwr

`benchmarks.secagg --peer flwr=peers/flwr/bin/python` starts it. Server and clients are Flower's
own workflow and its own modifier, in one process: its messages are carried by a grid that calls
the clients one after the other. Time that passes inside the grid is the clients' and does not
count; neither does the strategy, which only takes what was unmasked. Some clients fall silent
after they have shared their keys. The mean that comes out is checked.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"
# The peer is installed in another environment than the one that checks types.

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported

import flwr
import flwr.compat.common.recorddict_compat as compat
import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.task_identity import TaskIdentity

EXAMPLES = 500  # of each client: all weigh the same


class Client:
    """What the server knows of a client: a number. Messages go by the grid."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id


class Taking(FedAvg):
    """Asks every client, and takes the mean that SecAgg+ gives it."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.clients, self.mean = [Client(at + 1) for at in range(clients)], np.zeros(0)

    def configure_fit(self, _: int, parameters: Any, __: Any) -> list[tuple[Any, Any]]:
        return [(client, FitIns(parameters, {})) for client in self.clients]

    def aggregate_fit(self, _: int, results: Any, __: Any) -> tuple[Any, dict[str, Any]]:
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


class Direct:
    """A grid that calls clients by itself, and knows how long that took."""

    def __init__(self, rows: dict[int, Any], dropped: set[int]) -> None:
        self.rows, self.dropped = rows, dropped
        self.contexts = {node: _context(node) for node in rows}
        self.worked = self.clock = 0.0
        self.sent_bytes = 0  # of one masked row

    def send_and_receive(self, messages: Iterable[Any], **_: Any) -> list[Any]:
        begun, worked = time.perf_counter(), time.process_time()
        replies = [self._called(copy.deepcopy(message)) for message in messages]
        self.clock += time.perf_counter() - begun
        self.worked += time.process_time() - worked
        return [reply for reply in replies if reply is not None]

    def _called(self, message: Any) -> Any:
        node = message.metadata.dst_node_id
        asks_for_row = Key.CIPHERTEXT_LIST in message.content.config_records[RECORD_KEY_CONFIGS]
        if node in self.dropped and asks_for_row:
            return None
        reply = secaggplus_mod(message, self.contexts[node], self._trained)
        if asks_for_row:
            said = reply.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
            self.sent_bytes = sum(map(len, said))
        return reply

    def _trained(self, message: Any, context: Any) -> Any:
        parameters = ndarrays_to_parameters([self.rows[context.node_id]])
        trained = FitRes(Status(Code.OK, ""), parameters, EXAMPLES, {})
        return Message(compat.fitres_to_recorddict(trained, keep_input=False), reply_to=message)


def _context(node: int) -> Any:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    begun, worked = time.perf_counter(), time.process_time()
    call()
    return time.process_time() - worked, time.perf_counter() - begun


def run(clients: int, size: int, dropped: int, threshold: int) -> dict[str, Any]:
    """One round, everybody masking with everybody; the last ones drop."""
    TaskIdentity.run_id = TaskIdentity.task_id = 1  # as its own processes do when they start
    TaskIdentity.node_id = 0
    rng = np.random.default_rng(0)
    rows = {at + 1: rng.uniform(-1, 1, size).astype(np.float32) for at in range(clients)}
    gone = set(range(clients - dropped + 1, clients + 1))
    grid, strategy = Direct(rows, gone), Taking(clients)
    context = LegacyContext(_context(0), strategy=strategy)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    start = ndarrays_to_parameters([np.zeros(size, np.float32)])
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(start, False)
    workflow = SecAggPlusWorkflow(clients, threshold)
    worked, clock = _timed(lambda: workflow(grid, context))
    wanted = np.mean([row for node, row in rows.items() if node not in gone], axis=0)
    if strategy.mean.shape != wanted.shape or np.abs(strategy.mean - wanted).max() > 1e-3:
        raise SystemExit("the mean that Flower unmasked is not that of the survivors")
    return {
        "version": flwr.__version__,
        "worked": worked - grid.worked,
        "clock": clock - grid.clock,
        "bytes": grid.sent_bytes / size,
    }


if __name__ == "__main__":
    print(json.dumps(run(*map(int, sys.argv[1:]))), flush=True)
