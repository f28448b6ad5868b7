"""Plots to files. matplotlib is an extra, imported where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consortium.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = (".svg", ".png", ".pdf")
# Safe for colour-blind readers (Okabe and Ito), and told apart by their strokes too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_SHARES = ("accuracy", "auroc", "f1")  # between nought and one
_LEGEND_INSIDE = 6  # curves; more names would cover them
_STROKES = ("-", "--", "-.", ":")


Curve = list[tuple[int, float]]  # (round, value)
Band = list[tuple[int, float, float]]  # (round, from, to)


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of epsilon over rounds or time, and the limit that it must stay below."""

    name: str
    points: Sequence[tuple[Any, float]]  # where: a round, or a time
    limit: float | None = None


def draw_curves(
    curves: dict[str, Curve], metric: str, path: Path, bands: dict[str, Band] | None = None
) -> None:
    """One line a run, or a group of runs: the metric by round. A band stands behind its line."""
    figure, axes = _new_figure(path)
    for number, (name, points) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(
            [at for at, _ in points],
            [value for _, value in points],
            label=name,
            color=colour,
            linestyle=_STROKES[number // len(_COLOURS) % len(_STROKES)],
        )
        band = (bands or {}).get(name, [])
        if band:
            rounds, low, high = zip(*band, strict=True)
            if metric in _SHARES:  # an interval by Student's t does not know that
                low, high = (tuple(min(max(at, 0.0), 1.0) for at in side) for side in (low, high))
            axes.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel(metric)
    _count_by_whole_numbers(axes)
    if len(curves) > _LEGEND_INSIDE:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axes.legend(fontsize="small")
    _save(figure, path)


def draw_lines(
    lines: Sequence[Line], path: Path, *, title: str, across: str, is_stepped: bool = False
) -> None:
    """Epsilon over rounds, or over time, each line with its limit as a thin one."""
    figure, axes = _new_figure(path)
    for number, line in enumerate(lines):
        colour, stroke = _COLOURS[number % len(_COLOURS)], _STROKES[number % len(_STROKES)]
        where, values = [at for at, _ in line.points], [value for _, value in line.points]
        if where:
            axes.plot(
                where,
                values,
                label=line.name,
                color=colour,
                linestyle=stroke,
                drawstyle="steps-post" if is_stepped else "default",
                marker="o" if len(where) == 1 else "",
            )
        if line.limit is not None:
            name = f"limit {line.name}: {line.limit:g}"
            axes.axhline(line.limit, color=colour, linestyle=":", linewidth=0.8, label=name)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(across)
    axes.set_ylabel("epsilon")
    axes.set_ylim(bottom=0)
    if is_stepped:
        axes.tick_params(axis="x", rotation=30)
    else:
        _count_by_whole_numbers(axes)
    axes.legend(fontsize="small")
    _save(figure, path)


def _new_figure(path: Path) -> tuple[Figure, Axes]:
    """A figure for this file, which is of a form that we can write."""
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
    axes.grid(alpha=0.3)
    return figure, axes


def _count_by_whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
