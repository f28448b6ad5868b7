"""The command: where the demo happens, and that nothing of it is left when it ends."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.report import command, envelope, say
from consortium.errors import PlanFileError

if TYPE_CHECKING:
    from consortium.cli.demo.interrupts import Interrupts
    from consortium.cli.demo.show import Show


@command
def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Keep everything here. Default: a temporary folder.")
    ] = None,
) -> None:
    """Train one model at four hospitals, in processes of their own, on real records.

    A hospital and the coordinator are killed on the way; the model is compared with each
    hospital's own, and the record is audited.
    """
    began = time.monotonic()
    from consortium.cli.demo.interrupts import Interrupts
    from consortium.cli.demo.processes import Processes
    from consortium.cli.demo.show import Show
    from consortium.cli.demo.story import tell_story

    with (
        Interrupts() as interrupts,
        Show(began) as show,
        _place(folder, interrupts, show) as place,
        Processes(place, interrupts, show.tick) as processes,
    ):
        told = tell_story(place, processes, show)
    seconds = time.monotonic() - began
    say(f"\nDone in {seconds:.0f} s. Every process has ended{_left(folder)}.")
    say(_next(folder))
    envelope("demo", {**told, "seconds": round(seconds, 1)})


@contextmanager
def _place(folder: Path | None, interrupts: Interrupts, show: Show) -> Iterator[Path]:
    """The folder that is asked for, or one that is removed in the end."""
    if folder is not None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PlanFileError(f"{folder} exists and is not empty", hint="choose a new folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanFileError(f"cannot write {folder}: {error.strerror}") from None
        yield folder.resolve()
        return
    with interrupts.held():
        place = Path(tempfile.mkdtemp(prefix="consortium-demo-")).resolve()
    try:
        yield place
    finally:
        show.doing("removing the temporary folder")
        shutil.rmtree(place, ignore_errors=True)


def _left(folder: Path | None) -> str:
    return ", nothing is left" if folder is None else f"; everything else is in {folder}"


def _next(folder: Path | None) -> str:
    """Two things to try now."""
    look = "consortium demo --folder DIR    keeps keys, logs and models to look at"
    if folder is not None:
        simulate = "consortium simulate common/consortium.toml --seed 1 --engine loop"
        look = f"cd {folder}\n      {simulate}"
    return f"Next: {look}\n      consortium init DIR             a study to change into your own"
