"""report.md and report.html of a sweep: one reading of the results for people.

The HTML is self-contained: figures are embedded, no script runs, nothing is
fetched. Every string that came from a prompt or an error is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
import io
import json
from pathlib import Path
from typing import Any

from etils import epath
import jinja2
from matplotlib.figure import Figure
import numpy as np

from specjax.analysis import cells
from specjax.analysis.break_even import SPEEDUPS, alphas_needed
from specjax.analysis.cells import Row
from specjax.analysis.definitions import DEFINITIONS
from specjax.analysis.figures import FIGURES
from specjax.analysis.gamma_choice import choices
from specjax.analysis.groups import group_tables
from specjax.analysis.heads import head_lines, predicted_taus
from specjax.analysis.parity import parity_lines
from specjax.analysis.trace import MEANING, DecodeTrace, to_plain, visible
from specjax.analysis.trees import RANKS_SHOWN, budget_lines

DPI = 130


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
    figures = [spec for spec in FIGURES if spec.applies(rows)]
    images = {spec.name: _png(spec.draw(rows)) for spec in figures}
    for name, image in images.items():
        (workdir / "figures" / f"{name}.png").write_bytes(image)
    context = _context(rows, traces, environment, title) | {"figures": figures}
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
        "percent": percent,
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
        "parity_lines": parity_lines(rows),
        "choices": choices(rows),
        "agreement": agreements and [min(agreements), float(np.median(agreements)), max(agreements)],
        "group_tables": group_tables(rows),
        "budget_lines": budget_lines(rows),
        "head_lines": head_lines(rows),
        "predicted_taus": predicted_taus(rows),
        "ranks_shown": RANKS_SHOWN,
        "alphas_needed": alphas_needed(rows),
        "speedups": SPEEDUPS,
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


def percent(share: float | None) -> str:
    """A share of a whole for a table.

    >>> percent(0.0314), percent(None)
    ('3.1 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


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
