"""Tasks of torch models. The only part of consortium that imports torch."""

from __future__ import annotations

from consortium.torch.complete import SiteModel, load_complete
from consortium.torch.hospital import HospitalNet, hospital_adapter
from consortium.torch.marks import frozen, private
from consortium.torch.remaining_life import RemainingLife
from consortium.torch.task import TorchTask, task

__all__ = [
    "HospitalNet",
    "RemainingLife",
    "SiteModel",
    "TorchTask",
    "frozen",
    "hospital_adapter",
    "load_complete",
    "private",
    "task",
]
