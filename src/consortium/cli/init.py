"""`consortium init DIR`: a small study that works, to change into one's own."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from consortium.cli.report import command, data, envelope, say
from consortium.errors import PlanFileError

_RECORDS = {"north": 160, "east": 120, "south": 90, "west": 60}


@command
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the study.")],
    torch: Annotated[
        bool, typer.Option("--torch", help="A network in torch instead of plain NumPy.")
    ] = False,
) -> None:
    """Write a small working study: a task, a plan, and made-up data of four sites."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PlanFileError(f"{folder} exists and is not empty", hint="choose a new folder")
    written = write_study(folder, _made_up(), {}, kind="torch" if torch else "numpy")
    say("The records in data/ are made up. Put your own files there: one file, one site.")
    data(f"cd {shlex.quote(str(folder))} && consortium simulate consortium.toml")
    envelope("init", {"folder": str(folder), "files": written})


def write_study(
    folder: Path, tables: dict[str, Any], changes: dict[str, str], kind: str = "numpy"
) -> list[str]:
    """Write task, plan and one CSV file a site; `changes` are made to the templates."""
    study = files("consortium.cli") / "study"
    templates = {"task.py": study / kind / "task.py", "consortium.toml": study / "consortium.toml"}
    try:
        (folder / "data").mkdir(parents=True)
        for name, template in templates.items():
            text = template.read_text()
            for old, new in changes.items():
                text = text.replace(old, new)
            (folder / name).write_text(text)
        for site, table in tables.items():
            (folder / "data" / f"{site}.csv").write_text(_csv(table))
    except OSError as error:
        raise PlanFileError(f"cannot write {folder}: {error.strerror}") from None
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _csv(table: Any) -> str:
    """Features, then the label as a whole number, under a header."""
    header = ",".join([*(f"x{number}" for number in range(1, table.shape[1])), "label"])
    rows = [",".join([*(f"{value:.5g}" for value in row[:-1]), f"{row[-1]:.0f}"]) for row in table]
    return "\n".join([header, *rows]) + "\n"


def _made_up() -> dict[str, Any]:
    """Records of four sites: the same rule everywhere, other patients at each site."""
    import numpy as np

    rng = np.random.default_rng(0)
    rule = np.array([1.2, -0.8, 0.5, 0.0, 0.9, -0.4])
    tables = {}
    for number, (site, records) in enumerate(_RECORDS.items()):
        features = rng.normal(loc=0.3 * (number - 1.5), size=(records, len(rule)))
        labels = features @ rule + rng.normal(size=records) > 0
        tables[site] = np.column_stack([features, labels])
    return tables
