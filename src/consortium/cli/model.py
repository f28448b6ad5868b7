"""`consortium model`: the versions that were published, and how to take one away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli import words
from consortium.cli.operator import DEFAULT_FOLDER, Folder, Named, Operator, operator
from consortium.cli.report import command, data, envelope, say
from consortium.cli.sheet import Grid, Sheet, show

if TYPE_CHECKING:
    from consortium.cli.told import Model

app = typer.Typer(help="Models: every version, and how to take one away.", no_args_is_help=True)

Version = Annotated[int, typer.Argument(metavar="V", min=0, help="The model's version.")]


@app.command("list")
@command
def list_models(coordinator: Folder = DEFAULT_FOLDER, federation: Named = None) -> None:
    """Show every version in a line."""
    from consortium.cli.told import Model, read_view

    with operator(coordinator) as found:
        raw = found.get(f"{found.federation(federation)}/models")
    show(Sheet(parts=[models_grid(read_view(list[Model], raw))]))
    envelope("model list", {"models": raw})


@app.command("show")
@command
def show_model(
    version: Version, coordinator: Folder = DEFAULT_FOLDER, federation: Named = None
) -> None:
    """Show one version: where it comes from, how good it is, its tensors."""
    model, raw = _model(coordinator, federation, version)
    show(model_sheet(model))
    envelope("model show", raw)


@app.command("download")
@command
def download(
    version: Version,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: FEDERATION-vV.safetensors.")
    ] = None,
    coordinator: Folder = DEFAULT_FOLDER,
    federation: Named = None,
) -> None:
    """Fetch one version as safetensors. A download that was cut goes on where it was."""
    with operator(coordinator) as found:
        path = f"{found.federation(federation)}/models/{version}"
        model = _read(found.get(path))
        target = out or Path(f"{path.split('/')[3]}-v{version}.safetensors")
        _fetch(found, path, model, target)
    data(str(target))
    say(f"version {version}, {words.size(model.size_bytes)}, sha256 {model.digest}")
    envelope("model download", {"file": str(target), "sha256": model.digest})


@app.command("rollback")
@command
def rollback(
    version: Version, coordinator: Folder = DEFAULT_FOLDER, federation: Named = None
) -> None:
    """Let the next round start from this version, and sites move to it if none follows.
    Nothing is deleted."""
    with operator(coordinator) as found:
        raw = found.post(f"{found.federation(federation)}/models/{version}/rollback")
    data(_rolled_back(version, raw))
    envelope("model rollback", raw)


@app.command("export")
@command
def export(
    version: Version,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ONNX file to write.")],
    plan: Annotated[
        Path, typer.Option(metavar="PLAN", help="The plan whose task this federation runs.")
    ] = Path("consortium.toml"),
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA", help="Records of a site's form. Default: the plan's first site."
        ),
    ] = None,
    coordinator: Folder = DEFAULT_FOLDER,
    federation: Named = None,
) -> None:
    """Write one version as ONNX, for a task without private layers. Runs the task here."""
    import tempfile

    from consortium.cli.to_onnx import write_onnx

    with operator(coordinator) as found, tempfile.TemporaryDirectory() as scratch:
        place = found.federation(federation)
        path = f"{place}/models/{version}"
        model = _read(found.get(path))
        fetched = Path(scratch) / "model.safetensors"
        _fetch(found, path, model, fetched)
        write_onnx(fetched.read_bytes(), file, plan, sample, task=str(found.get(place)["task"]))
    data(str(file))
    envelope("model export", {"file": str(file), "version": version, "sha256": model.digest})


def _rolled_back(version: int, raw: dict[str, Any]) -> str:
    told = f"version {version}, {words.short(raw['digest'])}"
    if raw.get("is_last", False):
        return f"sites move to {told}; the federation is finished: no round follows"
    return f"the next round starts from {told}"


def _model(coordinator: Path, federation: str | None, version: int) -> tuple[Model, dict[str, Any]]:
    with operator(coordinator) as found:
        raw = found.get(f"{found.federation(federation)}/models/{version}")
    return _read(raw), raw


def _read(raw: Any) -> Model:
    from consortium.cli.told import Model, read_view

    return read_view(Model, raw)


def _fetch(found: Operator, path: str, model: Model, target: Path) -> None:
    from consortium.cli.fetch import fetch

    fetch(found, f"{path}/file", target, digest=model.digest, size_bytes=model.size_bytes)


# ---- screens ------------------------------------------------------------------------


def models_grid(models: list[Model]) -> Grid:
    """Every version, with the metrics of the round that it came from."""
    names = list(dict.fromkeys(name for model in models for name in model.metrics))
    rows = []
    for model in models:
        metrics = [
            words.number(model.metrics[name]) if name in model.metrics else "–" for name in names
        ]
        rows.append(
            (
                f"{model.version}{' current' if model.is_current else ''}",
                f"{model.round}" if model.round else "–",
                words.moment(model.published_ms),
                words.size(model.size_bytes),
                *metrics,
                words.short(model.digest),
            )
        )
    header = ("version", "round", "published", "size", *names, "sha256")
    firm = frozenset({"version", "published"})
    return Grid(header, rows, frozenset({"round", "size", *names}), firm)


def model_sheet(model: Model) -> Sheet:
    """One version on one screen."""
    current = ", the current one" if model.is_current else ""
    origin = f"round {model.round}" if model.round else "outside: the first model, or a warm start"
    pairs = [
        ("from", origin),
        ("published", words.moment(model.published_ms)),
        ("sha256", model.digest),
        ("size", f"{words.size(model.size_bytes)}, {_count(model):,} numbers"),
    ]
    pairs += [(name, words.number(value)) for name, value in model.metrics.items()]
    rows = [
        (tensor.name, tensor.dtype, "x".join(map(str, tensor.shape)) or "1")
        for tensor in model.tensors
    ]
    return Sheet(
        f"model version {model.version}{current}",
        [pairs, Grid(("shared tensor", "type", "shape"), rows, frozenset({"shape"}))],
    )


def _count(model: Model) -> int:
    from math import prod

    return sum(prod(tensor.shape) for tensor in model.tensors)
