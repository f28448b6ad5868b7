"""pfl on a workload: each process trains its part of the cohort client after client, and the
processes add up what came out (torch.distributed). Started by torch's launcher.
"""

# mypy: disable-error-code="import-not-found, misc"
# The peer is installed in another environment than the one that checks types.

from __future__ import annotations

import os
import time
from importlib.metadata import version
from types import MethodType
from typing import Any

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")  # read when pfl is imported

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

from benchmarks.peers import Result, seconds_since_start
from benchmarks.workloads import SEED, Setting, Study, count_right, study_of


class _Watch(TrainingProcessCallback):
    """Seconds of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.first_round_s = 0.0
        self._begun = 0.0

    def on_train_begin(self, *, model: Any) -> Metrics:  # noqa: ARG002
        self._begun = time.perf_counter()
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        now = time.perf_counter()
        self.seconds.append(now - self._begun)
        self._begun = now
        if len(self.seconds) == 1:
            self.first_round_s = seconds_since_start()
        return False, Metrics()


def _model(study: Study) -> Any:
    """A module as pfl wants it: with its loss and its metrics as methods."""
    module: Any = study.build(study.train[0][0])

    def loss(self: nn.Module, inputs: Any, targets: Any, **_: Any) -> Any:
        return nn.functional.cross_entropy(self(inputs), targets)

    module.loss = MethodType(loss, module)
    module.metrics = MethodType(lambda *_, **__: {}, module)  # nobody evaluates
    return module


def run(setting: Setting) -> Result | None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    study, watch = study_of(setting), _Watch()
    module = _model(study)
    clients = FederatedDataset.from_slices(
        dict(enumerate(study.train)), get_user_sampler("random", range(setting.clients))
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=setting.rounds,
            evaluation_frequency=10**6,
            train_cohort_size=setting.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=clients, val_data=clients, postprocessors=[WeightByDatapoints()]
        ),
        model=PyTorchModel(
            module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=setting.lr,
            local_num_epochs=setting.epochs,
            local_batch_size=setting.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[watch],
        send_metrics_to_platform=False,
    )
    processes = get_default_framework_module().distributed
    if processes.global_rank:
        return None
    right = count_right(module, study.held_out[0])
    return Result(
        version=version("pfl"),
        how=f"{processes.world_size} processes of one thread",
        seconds=watch.seconds,
        accuracy=right / len(study.held_out[0][1]),
        first_round_s=watch.first_round_s,
    )
