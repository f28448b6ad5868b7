"""consortium: several sites train one model together, and no raw record leaves a site.

Public names only, loaded when they are first used, so that `consortium --help` imports
nothing heavy. `task`, `private` and `frozen` need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consortium.core.terms import Metric
    from consortium.data.bounds import ColumnBounds
    from consortium.data.quality import Quality, check_quality
    from consortium.data.read import read_csv
    from consortium.data.statistics import Statistics
    from consortium.data.table import Table, from_arrays
    from consortium.drive.alone import cross_site
    from consortium.drive.engine import SimulatedSite
    from consortium.drive.inspect import inspect
    from consortium.drive.population import Population
    from consortium.drive.simulate import Options, Run, simulate
    from consortium.drive.statistics import federated_statistics, statistics_task
    from consortium.errors import ConsortiumError
    from consortium.plan import Plan, parse_plan, read_plan, write_plan
    from consortium.tasks import (
        Inventory,
        LocalRules,
        NumpyTask,
        Site,
        Trained,
        load_task,
        numpy_task,
    )
    from consortium.torch import frozen, private, task

__version__ = "0.1.0"

_HOME = {
    "ColumnBounds": "consortium.data.bounds",
    "ConsortiumError": "consortium.errors",
    "Inventory": "consortium.tasks",
    "LocalRules": "consortium.tasks",
    "Metric": "consortium.core.terms",
    "NumpyTask": "consortium.tasks",
    "Options": "consortium.drive.simulate",
    "Plan": "consortium.plan",
    "Population": "consortium.drive.population",
    "Quality": "consortium.data.quality",
    "Run": "consortium.drive.simulate",
    "SimulatedSite": "consortium.drive.engine",
    "Site": "consortium.tasks",
    "Statistics": "consortium.data.statistics",
    "Table": "consortium.data.table",
    "Trained": "consortium.tasks",
    "check_quality": "consortium.data.quality",
    "cross_site": "consortium.drive.alone",
    "federated_statistics": "consortium.drive.statistics",
    "from_arrays": "consortium.data.table",
    "frozen": "consortium.torch",
    "inspect": "consortium.drive.inspect",
    "load_task": "consortium.tasks",
    "numpy_task": "consortium.tasks",
    "parse_plan": "consortium.plan",
    "private": "consortium.torch",
    "read_csv": "consortium.data.read",
    "read_plan": "consortium.plan",
    "simulate": "consortium.drive.simulate",
    "statistics_task": "consortium.drive.statistics",
    "task": "consortium.torch",
    "write_plan": "consortium.plan",
}

__all__ = [
    "ColumnBounds",
    "ConsortiumError",
    "Inventory",
    "LocalRules",
    "Metric",
    "NumpyTask",
    "Options",
    "Plan",
    "Population",
    "Quality",
    "Run",
    "SimulatedSite",
    "Site",
    "Statistics",
    "Table",
    "Trained",
    "check_quality",
    "cross_site",
    "federated_statistics",
    "from_arrays",
    "frozen",
    "inspect",
    "load_task",
    "numpy_task",
    "parse_plan",
    "private",
    "read_csv",
    "read_plan",
    "simulate",
    "statistics_task",
    "task",
    "write_plan",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'consortium' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from consortium.errors import MissingExtraError

        raise MissingExtraError(
            f"consortium.{name} needs torch, which is not installed",
            hint="pip install 'consortium[torch]'",
        ) from None
