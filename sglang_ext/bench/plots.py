"""Plots that can be read on paper without colour: series differ by marker, dash and hatch as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#16324f", "#b5402a", "#4ba99b", "#e8b45e", "#7a5c9e", "#bdbdbd", "#5f7a2f")
"""Neighbours differ in lightness too, so that they stay apart in grey."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "ooo", "---")
HANDLE, LETTER = 0.5, 0.075
"""Inches of a legend's entry without its name, and of a letter of it, at the size of STYLE."""
STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "axes.axisbelow": True, "grid.color": "#dddddd", "grid.linewidth": 0.6, "hatch.linewidth": 0.5,
         "legend.frameon": False}

Values = Sequence[float | None]
Series = Mapping[str, Values]


def panels(count: int = 1, width: float = 7.2, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels side by side, in inches, laid out so that nothing overlaps or is cut."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(1, count, figsize=(width, height), layout="constrained", squeeze=False)
    return figure, list(axes[0])


def legend(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """The names of an axes' series above the figure, where no data is, in at most so many columns as fit."""
    handles, names = axes.get_legend_handles_labels()
    longest = max(map(len, names), default=0)
    columns = max(min(columns, int(figure.get_figwidth() / (HANDLE + LETTER * longest))), 1)
    with mpl.rc_context(STYLE):
        figure.legend(handles, names, loc="outside upper center", ncols=min(columns, len(names)))


def label(axes: Axes, x: str, y: str, ticks: Sequence[str] | None = None) -> None:
    """Name both axes; `ticks` are the categories on x, turned where they would meet."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if ticks is not None:
        long = sum(map(len, ticks)) > 60
        axes.set_xticks(range(len(ticks)), ticks, rotation=30 if long else 0, ha="right" if long else "center")


def lines(axes: Axes, series: Series, x: Sequence[float] | None = None,
          errors: Mapping[str, Sequence[tuple[float, float]]] | None = None) -> None:
    """Lines over categories, or over x; `errors` are the low and the high end of each value."""
    for (name, values), colour, marker, dash in zip(series.items(), cycle(COLOURS), cycle(MARKERS), cycle(DASHES),
                                                    strict=False):
        y = _numbers(values)
        at = np.arange(len(y)) if x is None else np.asarray(x, float)
        axes.plot(at, y, color=colour, marker=marker, linestyle=dash, markersize=5, label=name)
        if errors and name in errors:
            low, high = (np.array(side) for side in zip(*errors[name], strict=True))
            axes.errorbar(at, y, yerr=[np.maximum(y - low, 0), np.maximum(high - y, 0)], fmt="none", ecolor=colour,
                          capsize=3, elinewidth=0.9)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))


def bars(axes: Axes, series: Series, errors: Mapping[str, Sequence[tuple[float, float]]] | None = None) -> None:
    """Groups of bars, one group for each category."""
    width = 0.8 / max(len(series), 1)
    for i, (name, values) in enumerate(series.items()):
        y = _numbers(values)
        at = np.arange(len(y)) + (i - (len(series) - 1) / 2) * width
        axes.bar(at, y, width * 0.94, label=name, **_fill(i))
        if errors and name in errors:
            low, high = (np.array(side) for side in zip(*errors[name], strict=True))
            axes.errorbar(at, y, yerr=[np.maximum(y - low, 0), np.maximum(high - y, 0)], fmt="none", ecolor="black",
                          capsize=3, elinewidth=0.9)
    axes.grid(visible=False, axis="x")


def points(axes: Axes, values: Sequence[float], ends: Sequence[tuple[float, float]]) -> None:
    """A point for each category, with a line between two ends; the axis begins where the data does."""
    low, high = (np.array(side) for side in zip(*ends, strict=True))
    y = np.asarray(values, float)
    axes.errorbar(np.arange(len(y)), y, yerr=[np.maximum(y - low, 0), np.maximum(high - y, 0)], fmt="D",
                  color=COLOURS[0], capsize=5, elinewidth=1.2, markersize=7)
    axes.margins(x=0.2, y=0.2)


def stacked(axes: Axes, series: Series) -> None:
    """Bars made of parts, one bar for each category."""
    below: Any = 0.0
    for i, (name, values) in enumerate(series.items()):
        y = np.nan_to_num(_numbers(values))
        axes.bar(np.arange(len(y)), y, 0.72, bottom=below, label=name, **_fill(i))
        below = below + y
    axes.grid(visible=False, axis="x")


def _numbers(values: Values) -> Any:
    return np.array([np.nan if v is None else v for v in values], float)


def _fill(i: int) -> dict[str, Any]:
    return {"facecolor": COLOURS[i % len(COLOURS)], "hatch": HATCHES[i % len(HATCHES)], "edgecolor": "white",
            "linewidth": 0.6}
