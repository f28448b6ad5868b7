"""Small sites and models for the tests of torch tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consortium.plan.values import PersonalSection, TrainingSection
from consortium.tasks import LocalRules, Site
from consortium.torch import TorchTask, private, task

Arrays = dict[str, Any]


def data(n_features: int = 4, n: int = 37, seed: int = 0) -> tuple[Any, Any]:
    """Records of two classes that a line separates, but for some noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, n_features)).astype(np.float32)
    y = (x[:, 0] - x[:, 1] + 0.3 * rng.normal(size=n) > 0).astype(np.int64)
    return x, y


def site(
    *,
    name: str = "a",
    data: Any = None,
    round: int = 1,
    seed: int = 1,
    personal: PersonalSection | None = None,
    rules: LocalRules | None = None,
    state: Any = None,
    own_seed: int = 5,
    **training: Any,
) -> Site:
    training = {"epochs": 2, "batch_size": 8, "lr": 0.1, **training}
    return Site(
        name=name,
        data=DATA if data is None else data,
        round=round,
        rng=np.random.default_rng(seed),
        training=TrainingSection(**training),
        personal=personal or PersonalSection(),
        rules=rules or LocalRules(),
        state=state,
        own_seed=own_seed,
    )


DATA = data()


class Net(nn.Module):
    """A private layer in, shared layers with BatchNorm after it."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.adapter = private(nn.Sequential(nn.Linear(n_features, 6), nn.BatchNorm1d(6)))
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.2))
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.adapter(x)))
        return logits


@task(loss=nn.CrossEntropyLoss(), metrics=["accuracy", "auroc"])
def mixed(site: Site) -> Any:
    x, y = site.data
    return Net(x.shape[1]), (x, y), (x, y)


@task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def linear(site: Site) -> Any:
    x, y = site.data
    return nn.Linear(x.shape[1], 2), (x, y), (x, y)


def first(made: TorchTask, at: Site | None = None) -> Arrays:
    return made.first(at or site())


def same(one: Any, other: Any) -> bool:
    """Whether two sets of arrays are equal, bit for bit."""
    return sorted(one) == sorted(other) and all(
        np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes() for name in one
    )


def plain_sgd(model: nn.Module, at: Site, adjust: Any = None) -> int:
    """A loop as anybody would write it; the number of steps."""
    x, y = (torch.as_tensor(part) for part in at.data)
    plan = at.training
    torch.manual_seed(int(at.rng.integers(2**63)))
    optimizer = torch.optim.SGD(
        model.parameters(), plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay
    )
    loss_function, steps = nn.CrossEntropyLoss(), 0
    model.train()
    for _ in range(plan.epochs):
        order = torch.as_tensor(at.rng.permutation(len(x)))
        for part in order.split(plan.batch_size):
            optimizer.zero_grad()
            loss_function(model(x[part]), y[part]).backward()
            if adjust is not None:
                adjust(model)
            optimizer.step()
            steps += 1
    return steps


def loaded(model: nn.Module, shared: Any) -> nn.Module:
    tensors = {name: torch.tensor(array) for name, array in shared.items()}
    model.load_state_dict(tensors, strict=False)
    return model


def arrays(model: nn.Module, names: Any) -> dict[str, Any]:
    state = model.state_dict()
    return {name: state[name].numpy() for name in names}
