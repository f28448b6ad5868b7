"""`consortium site predict|export`: the newest model with this site's private part, used here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.agent import DEFAULT_HOME, HomeFolder
from consortium.cli.report import command, data, envelope
from consortium.cli.site_review import site_of
from consortium.errors import NotApprovedError, SiteDataError, UsageError

if TYPE_CHECKING:
    from consortium.site.workshop import Use, Workshop

_SUFFIXES = (".onnx", ".safetensors")


@command
def predict(
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="New records, a CSV file.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the predictions go.")],
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Let the newest model look at new records of this site. Nothing leaves."""
    if not records.is_file():
        raise SiteDataError(f"there is no file {records}")
    version = _with_model(home, lambda workshop, use: workshop.predict(use, records, out))
    data(str(out))
    envelope("site predict", {"file": str(out), "version": version})


@command
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NAME.onnx or NAME.safetensors.")],
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Write the newest model, shared and private parts together. The file is for this site."""
    if file.suffix not in _SUFFIXES:
        raise UsageError(f"{file} ends with neither {' nor '.join(_SUFFIXES)}")
    version = _with_model(home, lambda workshop, use: workshop.export(use, file))
    data(str(file))
    envelope("site export", {"file": str(file), "version": version})


def _with_model(folder: Path, action: Callable[[Workshop, Use], None]) -> int:
    """Do something with the newest model in the task's own process; which version it was."""
    from consortium.core.ids import Seat
    from consortium.site.studies import demand_model, demand_study, round_of
    from consortium.site.workshop import Use, Workshop

    with site_of(folder) as (home, machine):
        study, model = demand_study(home), demand_model(home)
        if (study.task_hash, study.plan_digest) not in machine.state.approved:
            raise NotApprovedError(
                "nobody at this site has approved this task", hint="consortium site review"
            )
        made_in = round_of(machine, model.digest)
        use = Use(model.digest, made_in, machine.state.private_state, Seat(model.seat))
        workshop = Workshop(home, study)
        try:
            action(workshop, use)
        finally:
            workshop.close()
        return model.version
