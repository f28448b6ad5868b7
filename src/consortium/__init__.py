"""consortium: several sites train one model together, and no raw record leaves a site.

Public names only, loaded when they are first used, so that `consortium --help` imports
nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consortium.core.terms import Metric
    from consortium.drive.engine import SimulatedSite
    from consortium.drive.simulate import Options, Run, simulate
    from consortium.errors import ConsortiumError
    from consortium.plan import Plan, parse_plan, read_plan, write_plan
    from consortium.task import NumpyTask, Site, load_task, numpy_task

__version__ = "0.1.0"

_HOME = {
    "ConsortiumError": "consortium.errors",
    "Metric": "consortium.core.terms",
    "NumpyTask": "consortium.task",
    "Options": "consortium.drive.simulate",
    "Plan": "consortium.plan",
    "Run": "consortium.drive.simulate",
    "SimulatedSite": "consortium.drive.engine",
    "Site": "consortium.task",
    "load_task": "consortium.task",
    "numpy_task": "consortium.task",
    "parse_plan": "consortium.plan",
    "read_plan": "consortium.plan",
    "simulate": "consortium.drive.simulate",
    "write_plan": "consortium.plan",
}

__all__ = [
    "ConsortiumError",
    "Metric",
    "NumpyTask",
    "Options",
    "Plan",
    "Run",
    "SimulatedSite",
    "Site",
    "load_task",
    "numpy_task",
    "parse_plan",
    "read_plan",
    "simulate",
    "write_plan",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'consortium' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
