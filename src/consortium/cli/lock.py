"""`consortium lock PLAN`: pin what sites will approve, and make the first model."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from consortium.cli.noise_told import warn_of_noise
from consortium.cli.report import command, data, envelope, say


@command
def lock(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    seed: Annotated[int | None, typer.Option(help="Of the first model. Default: drawn.")] = None,
    sample: Annotated[
        Path | None,
        typer.Option(help="Data of a site's form, for a plan that names no sites. None is kept."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail when the lock is out of date.")
    ] = False,
) -> None:
    """Write plan.lock and the first model, and show what leaves a site and what stays."""
    from consortium.drive.inspect import inventory_of, inventory_text
    from consortium.drive.lock import LOCK, MODEL, check_lock, make_lock, write_lock
    from consortium.drive.study import load_study

    study, folder = load_study(plan_file, sample), plan_file.parent
    if check:
        check_lock(folder, study)
        data(f"{folder / LOCK} is up to date")
        envelope("lock", {"lock": str(folder / LOCK), "task": study.task_hash.hex()})
        return
    made, model = make_lock(study, secrets.randbits(32) if seed is None else seed)
    plan, first = made.applied(study.plan), study.sites[0]
    found = inventory_of(study.task, first.data, plan, first.name)
    data(inventory_text(found, plan, plan.reported(study.task.metrics)))
    write_lock(folder, made, model)
    sites = len(study.sites) if sample is None else None  # a sample is not one of them
    warned = warn_of_noise(plan, made.layout.size, sites)
    data(f"\ntask {made.task.hex()}\nplan {made.plan.hex()}\nmodel {made.model.hex()}")
    say(f"wrote {folder / LOCK} and {folder / MODEL}")
    told: dict[str, object] = {"lock": str(folder / LOCK), "model": str(folder / MODEL)}
    told |= {"task": made.task.hex(), "plan": made.plan.hex(), "sha256": made.model.hex()}
    envelope("lock", told | ({"warnings": warned} if warned else {}))
