"""Plots to files. matplotlib is an extra, imported where it is used."""

from __future__ import annotations

from pathlib import Path

from consortium.errors import MissingExtraError, UsageError

_FORMATS = (".svg", ".png", ".pdf")
# Safe for colour-blind readers (Okabe and Ito), and told apart by their strokes too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_SHARES = ("accuracy", "auroc", "f1")  # between nought and one
_LEGEND_INSIDE = 6  # curves; more names would cover them
_STROKES = ("-", "--", "-.", ":")


Curve = list[tuple[int, float]]  # (round, value)
Band = list[tuple[int, float, float]]  # (round, from, to)


def draw_curves(
    curves: dict[str, Curve], metric: str, path: Path, bands: dict[str, Band] | None = None
) -> None:
    """One line a run, or a group of runs: the metric by round. A band stands behind its line."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"{path} is none of {', '.join(_FORMATS)}", hint="--plot compare.svg")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise MissingExtraError(
            "plots need matplotlib, which is not installed", hint="pip install 'consortium[plots]'"
        ) from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
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
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(curves) > _LEGEND_INSIDE:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axes.legend(fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
