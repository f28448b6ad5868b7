"""Plots to files. matplotlib is an extra, imported where it is used."""

from __future__ import annotations

from pathlib import Path

from consortium.errors import MissingExtraError, UsageError

_FORMATS = (".svg", ".png", ".pdf")
# Safe for colour-blind readers (Okabe and Ito), and told apart by their strokes too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STROKES = ("-", "--", "-.", ":")


def draw_curves(curves: dict[str, list[tuple[int, float]]], metric: str, path: Path) -> None:
    """One line a run: the metric by round."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"{path} is none of {', '.join(_FORMATS)}", hint="--plot compare.svg")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "plots need matplotlib, which is not installed", hint="pip install 'consortium[plots]'"
        ) from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (name, points) in enumerate(curves.items()):
        axes.plot(
            [at for at, _ in points],
            [value for _, value in points],
            label=name,
            color=_COLOURS[number % len(_COLOURS)],
            linestyle=_STROKES[number // len(_COLOURS) % len(_STROKES)],
        )
    axes.set_xlabel("round")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
