"""200 hospitals that measure different things: the last workload of `benchmarks.simulation`.

Each has an adapter of its own width, which stays with it, and all share encoder and head
(`consortium.torch.hospital.HospitalNet`). What a hospital measures are mixtures of the same
hidden state of its patients, and the class follows from that state: hospitals can learn from
each other although no two have the same columns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.workloads import SEED, Records, Setting, Study
from consortium.torch.hospital import HospitalNet

SETTING = Setting("hospitals", clients=200, cohort=200, records=50, rounds=5)
FEWEST, MOST = 8, 40  # columns of a hospital
HIDDEN = 6  # numbers that say how a patient is
NOISE = 0.3  # of what is measured


def hospitals(setting: Setting = SETTING) -> Study:
    draws = torch.Generator().manual_seed(SEED)
    rule = torch.randn(HIDDEN, generator=draws)
    both = [_patients(2 * setting.records, rule, draws) for _ in range(setting.clients)]
    train = [(inputs[::2], targets[::2]) for inputs, targets in both]
    held_out = {at: (inputs[1::2], targets[1::2]) for at, (inputs, targets) in enumerate(both)}
    return Study(setting, _build, train, held_out, private=("adapter.",))


def _patients(count: int, rule: Tensor, draws: torch.Generator) -> Records:
    """The records of one hospital, which has its own way of measuring."""
    width = int(torch.randint(FEWEST, MOST + 1, (), generator=draws))
    mixture = torch.randn(HIDDEN, width, generator=draws) / HIDDEN**0.5
    state = torch.randn(count, HIDDEN, generator=draws)
    inputs = state @ mixture + NOISE * torch.randn(count, width, generator=draws)
    return inputs.contiguous(), (state @ rule > 0).long()


def _build(inputs: Tensor) -> nn.Module:
    return HospitalNet(inputs.shape[1])
