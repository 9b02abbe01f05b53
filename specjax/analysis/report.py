"""report.md and report.html of a sweep: one reading of the results for people.

The HTML is self-contained: figures are embedded, no script runs, nothing is
fetched. Every string that came from a prompt or an error is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

from etils import epath
import jinja2
from matplotlib.figure import Figure
import numpy as np

from specjax.analysis import cells, plots, theory_plots
from specjax.analysis.cells import Row
from specjax.analysis.definitions import DEFINITIONS
from specjax.analysis.gamma_choice import choices
from specjax.analysis.trace import MEANING, DecodeTrace, to_plain, visible

DPI = 130


@dataclasses.dataclass(frozen=True)
class FigureSpec:
    """A figure of the report and what to see in it."""

    name: str  # file name under figures/, without .png
    title: str
    draw: Callable[[Sequence[Row]], Figure]
    caption: str


FIGURES = (
    FigureSpec(
        "speedup_by_gamma",
        "Speedup over gamma",
        plots.speedup_figure,
        "Measured speedup with 95 % intervals, and two predictions. Dashed: tau / (d + v) with measured "
        "costs should run through the points. Dotted: the paper's Theorem 3.8, too high wherever scoring "
        "gamma + 1 tokens costs more than scoring one.",
    ),
    FigureSpec(
        "speedup_heatmap",
        "Speedup by gamma and temperature",
        plots.heatmap_figure,
        "Blue is faster than plain decoding, red slower. Higher temperatures flatten both laws, which "
        "usually lowers their overlap and moves the best gamma to the left.",
    ),
    FigureSpec(
        "expected_tokens",
        "Tokens per round over alpha (Fig. 2 of the paper)",
        theory_plots.expected_tokens_figure,
        "Curves: Equation (1), which supposes that positions are accepted independently. A point above its "
        "curve has acceptances that come in runs, one below it has later positions that are harder.",
    ),
    FigureSpec(
        "optimal_gamma",
        "Optimal gamma over alpha (Fig. 3 of the paper)",
        theory_plots.optimal_gamma_figure,
        "Steps: the best gamma for v = 1 at several draft costs c. Points: the fastest gamma that was "
        "measured, one for each temperature. Points below the step of their own c show that scoring is "
        "not free.",
    ),
    FigureSpec(
        "acceptance_by_position",
        "Acceptance by position",
        plots.acceptance_figure,
        "Solid, with its 95 % band: c_k, acceptance of position k once everything before it was accepted. "
        "Dashed: chance that k drafts or more survive. A flat c_k is what Equation (1) supposes. Positions "
        f"tested fewer than {plots.MIN_TESTS} times are left out.",
    ),
    FigureSpec(
        "gain_by_position",
        "What one more point of acceptance is worth",
        plots.gain_figure,
        "Tokens a round gains if c_k rises by .01 and nothing else changes. c_1 stands in every prefix "
        "product, so a better first token is worth most.",
    ),
    FigureSpec(
        "timeline",
        "Where the time goes (Fig. 5 of the paper)",
        theory_plots.timeline_figure,
        "Draft and target calls at their measured costs; numbers are the tokens each target call yields, in "
        "the measured mean. A longer target call is v(gamma + 1) > 1.",
    ),
    FigureSpec(
        "costs",
        "What a round costs",
        plots.costs_figure,
        "Left: a target step over T tokens. The closer to the dotted line, the more a round may draft for "
        "nothing. Right: a whole proposal; its slope for a draft model is c.",
    ),
    FigureSpec(
        "memory_traffic",
        "Memory traffic of the target",
        theory_plots.memory_figure,
        "A round reads the target's weights and cache once, whatever it emits, so reads per token fall to "
        "1 / tau. Where decoding is bound by memory this is the most that drafting can save.",
    ),
)


def write_report(
    workdir: epath.PathLike,
    rows: Sequence[Row],
    traces: Sequence[DecodeTrace],
    environment: Mapping[str, Any],
    *,
    title: str = "Speculative decoding sweep",
) -> None:
    """Writes report.md, report.html and figures/*.png under ``workdir``.

    Args:
      workdir: a folder, local or gs://; made if missing.
      rows: results lines, failed cells included.
      traces: decodes to show, one line per target pass.
      environment: shown as a table: device, versions, hashes.
      title: of the page.
    """
    workdir = epath.Path(workdir)
    (workdir / "figures").mkdir(parents=True, exist_ok=True)
    images = {spec.name: _png(spec.draw(rows)) for spec in FIGURES}
    for name, image in images.items():
        (workdir / "figures" / f"{name}.png").write_bytes(image)
    context = _context(rows, traces, environment, title)
    context["embedded"] = {name: base64.b64encode(image).decode() for name, image in images.items()}
    for name in ("report.md", "report.html"):
        (workdir / name).write_text(
            _environment(html=name.endswith(".html")).get_template(name).render(context)
        )


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _environment(*, html: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "interval": interval,
        "cell": _markdown_cell,
        "visible": visible,
    }
    return environment


def _context(
    rows: Sequence[Row], traces: Sequence[DecodeTrace], environment: Mapping[str, Any], title: str
) -> dict[str, Any]:
    done = cells.finished(rows)
    ordered = sorted(
        done, key=lambda row: (row["drafter"] != "none", cells.label(row, done), row["temperature"])
    )
    table = [row | {"label": cells.label(row, done), "agreement": _agreement(row)} for row in ordered]
    agreements = [row["agreement"] for row in table if row["agreement"] and row["gamma"] > 0]
    return {
        "title": title,
        "best": cells.best(rows),
        "table": table,
        "failed": cells.failed(rows),
        "num_prompts": max((row["num_prompts"] for row in done), default=0),
        "num_tokens": sum(row["num_tokens"] for row in done),
        "choices": choices(rows),
        "agreement": agreements and [min(agreements), float(np.median(agreements)), max(agreements)],
        "figures": FIGURES,
        "traces": traces,
        "plain_traces": [to_plain(trace) for trace in traces],
        "meaning": MEANING,
        "definitions": DEFINITIONS,
        "environment": {key: _shown(value) for key, value in environment.items()},
    }


def _agreement(row: Row) -> float | None:
    """Measured speedup over the cost model's."""
    measured, predicted = row["speedup"], row["speedup_cost_model"]
    return measured / predicted if measured is not None and predicted is not None else None


def number(value: float | None, digits: int = 2) -> str:
    """``value`` for a table; a dash where undefined.

    >>> number(0.8153), number(None), number(431.2, 0)
    ('0.82', '–', '431')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def interval(limits: Sequence[float] | None, digits: int = 2) -> str:
    """A 95 % interval for a table; empty if there is none.

    >>> interval([1.234, 1.5]), interval(None)
    ('[1.23, 1.50]', '')
    """
    return f"[{limits[0]:.{digits}f}, {limits[1]:.{digits}f}]" if limits is not None else ""


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _markdown_cell(text: Any) -> str:
    """One line that ends no table cell and starts no markup."""
    escaped = str(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())
