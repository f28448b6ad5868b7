"""The models and the made-up data of `benchmarks.simulation`, all from a seed.

W1 to W3 are the workloads that others measure, too: a convolutional network on 28 x 28 images,
a small network on ten numbers, and the small CIFAR-10 network of pfl's own benchmark. Labels
follow a rule that can be learnt, so that accuracy means something.

House rule: torch and the standard library only. Peers run this in environments of their own,
where consortium is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Records = tuple[Tensor, Tensor]  # inputs (n, ...), classes (n,)
HELD_OUT = 2000  # records that no client trains on
SITE_TEST = 10  # of them a simulated site has some, although nobody evaluates
SEED = 7
CONTRAST = 2.5  # of a class's pattern at its clearest, in noise of one


@dataclass(frozen=True, slots=True)
class Setting:
    """How large a workload is, and how clients train. Rounds that warm up are not timed."""

    name: str
    clients: int
    cohort: int  # clients a round
    records: int  # a client
    rounds: int
    warm_up: int = 1
    lr: float = 0.1
    batch_size: int = 10
    epochs: int = 1
    turn: int = 1  # rounds after which the other has its turn; all rounds are whole turns


@dataclass(frozen=True, slots=True)
class Study:
    """A workload with its data: what ours, the base and the peers all get."""

    setting: Setting
    build: Callable[[Tensor], nn.Module]  # the model of a client, by its inputs
    train: Sequence[Records]  # a client each
    held_out: Mapping[int, Records]  # by the client whose model is asked
    private: tuple[str, ...] = ()  # how the names begin of the tensors that clients keep

    def is_shared(self, name: str) -> bool:
        return not name.startswith(self.private) if self.private else True

    def site_test(self, client: int) -> Records:
        inputs, targets = self.held_out.get(client, self.held_out[0])
        return inputs[:SITE_TEST], targets[:SITE_TEST]


# W1 and W3 take seconds a round: as many as a minute in all can bear.
SETTINGS = {
    "W1": Setting("W1", clients=100, cohort=10, records=600, rounds=3),
    "W2": Setting("W2", clients=1000, cohort=100, records=50, rounds=50, warm_up=10, turn=10),
    "W3": Setting("W3", clients=1000, cohort=50, records=50, rounds=3),
}


def study_of(setting: Setting) -> Study:
    """One of W1, W2, W3, in this size."""
    if setting.name == "W1":
        return _images(setting, (1, 28, 28), convolutional)
    if setting.name == "W2":
        return _numbers(setting, 10, perceptron)
    if setting.name == "W3":
        return _images(setting, (3, 32, 32), cifar)
    raise ValueError(f"no workload {setting.name}")


def count_right(model: nn.Module, records: Records) -> int:
    """How many records the model puts into the right class."""
    inputs, targets = records
    model.eval()
    with torch.no_grad():
        found = [model(part).argmax(1) for part in torch.split(inputs, 500)]
    return int((torch.cat(found) == targets).sum())


# ---- models -------------------------------------------------------------------------


def convolutional() -> nn.Module:
    """The network of McMahan et al. 2017 without padding: 582,026 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def perceptron() -> nn.Module:
    """9,282 parameters."""
    return nn.Sequential(
        nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2)
    )


def cifar() -> nn.Module:
    """The small network of pfl's CIFAR-10 benchmark: 1,626,442 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(12544, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


# ---- data ---------------------------------------------------------------------------


def _numbers(setting: Setting, features: int, make: Callable[[], nn.Module]) -> Study:
    """Standard normal numbers; the class is on which side of a fixed plane they lie."""
    draws = torch.Generator().manual_seed(SEED)
    plane = torch.randn(features, generator=draws)
    inputs = torch.randn(_total(setting), features, generator=draws)
    return _dealt(setting, inputs, (inputs @ plane > 0).long(), make)


def _images(setting: Setting, shape: tuple[int, int, int], make: Callable[[], nn.Module]) -> Study:
    """Noise with a smooth pattern in it, one a class: in some images clear, in others hardly to
    be seen, so that accuracy grows little by little."""
    draws, classes, (channels, height, width) = torch.Generator().manual_seed(SEED), 10, shape
    coarse = torch.randn(classes, channels, height // 4, width // 4, generator=draws)
    patterns = nn.functional.interpolate(coarse, scale_factor=4.0, mode="bilinear")
    targets = torch.randint(classes, (_total(setting),), generator=draws)
    clear = torch.rand(_total(setting), 1, 1, 1, generator=draws) * CONTRAST
    inputs = torch.randn(_total(setting), *shape, generator=draws)
    for at in range(0, len(inputs), 1000):  # by parts: W3 is more than half a gigabyte
        part = slice(at, at + 1000)
        inputs[part].addcmul_(patterns[targets[part]], clear[part])
    return _dealt(setting, inputs, targets, make)


def _total(setting: Setting) -> int:
    return setting.clients * setting.records + HELD_OUT


def _dealt(
    setting: Setting, inputs: Tensor, targets: Tensor, make: Callable[[], nn.Module]
) -> Study:
    """The first records to the clients, as many to each; the rest is held out."""
    parts = (torch.split(whole[:-HELD_OUT], setting.records) for whole in (inputs, targets))
    train = list(zip(*parts, strict=True))
    held_out = {0: (inputs[-HELD_OUT:], targets[-HELD_OUT:])}
    return Study(setting, lambda _: make(), train, held_out)
