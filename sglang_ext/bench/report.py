"""One HTML file without links to anything, its plots as files beside it, and its numbers as JSON; their statistics."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import binomtest  # type: ignore[import-untyped]

from .record import Record

REPORT, SUMMARY = "report.html", "summary.json"
PNG_DPI = 150


@dataclass(frozen=True)
class Plot:
    """A figure; `name` is that of its PNG file, `note` says what is to be seen."""

    name: str
    title: str
    figure: Figure
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of texts and numbers; None is nothing to tell."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""


@dataclass
class Page:
    """What a command makes of its rows: the numbers, and what shows them."""

    title: str
    intro: str
    summary: dict[str, Any] = field(default_factory=dict)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def write(folder: Path, record: Record, page: Page) -> Path:
    """Write report, plots and summary into a run's folder, over older ones.

    Returns:
        The report.
    """
    (folder / SUMMARY).write_text(json.dumps({**record.run, "type": "summary", "state": record.state,
                                              "servers": record.servers, **page.summary}, indent=1, default=str) + "\n")
    images = []
    for plot in page.plots:
        plot.figure.savefig(folder / f"{plot.name}.png", dpi=PNG_DPI)
        images.append({"title": plot.title, "note": plot.note, "source": _svg(plot.figure)})
        plt.close(plot.figure)
    environment = jinja2.Environment(loader=jinja2.PackageLoader("sglang_ext.bench", "."), autoescape=True,
                                     trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"cell": cell, "json": lambda value: json.dumps(value, ensure_ascii=False, default=str)}
    html = environment.get_template("report.jinja").render(page=page, images=images, record=record, run=record.run)
    path = folder / REPORT
    path.write_text(html, encoding="utf-8")
    return path


def cell(value: Any) -> str:
    """A table's cell: three digits of a fraction, a dash for nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return str(value)


def _svg(figure: Figure) -> str:
    """The figure as the address of an image: as an image its ids cannot meet those of another."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def percentile(values: Iterable[float | None], q: float) -> float | None:
    """Percentile of what is there, interpolated; None of nothing."""
    known = [v for v in values if v is not None]
    return float(np.percentile(known, q)) if known else None


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is there; None of nothing."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def wilson(hits: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share; the whole range where nothing was tried."""
    if not of:
        return 0.0, 1.0
    interval = binomtest(hits, of).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def spread(ratios: Sequence[float]) -> dict[str, Any]:
    """Median of ratios with the least and the most of them."""
    return {"median": float(np.median(ratios)), "least": float(min(ratios)), "most": float(max(ratios)),
            "rounds": len(ratios)}
