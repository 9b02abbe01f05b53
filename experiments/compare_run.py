"""A comparison with ``transformers``: decodes, then a table, a JSON file and a figure. Imports torch.

Apart from its main, which looks at every flag before it waits for torch.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from etils import epath
from rich.console import Console
import torch
import transformers

from experiments import environment
from experiments.compare_setup import num_threads
from experiments.comparison import draw, summarise, table
from experiments.plan import Plan
from experiments.side_by_side import SideBySide


def run(plan: Plan, workdir: epath.Path) -> None:
    """Decodes every prompt by both and writes what came of it."""
    torch.set_num_threads(num_threads())
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    decodes = list(SideBySide(plan).run())
    rows = summarise(decodes)
    described = about(plan)
    result = {"about": described, "rows": rows, "decodes": [dataclasses.asdict(each) for each in decodes]}
    (workdir / "comparison.json").write_text(json.dumps(result, indent=1) + "\n")
    figure = draw(rows, f"Greedy decoding of {described['pair']}, float32, {described['device']}")
    with (workdir / "comparison.png").open("wb") as file:
        figure.savefig(file, dpi=150)
    Console(width=max(100, Console().width)).print(table(rows))
    print(f"{workdir / 'comparison.json'}, {workdir / 'comparison.png'}")


def about(plan: Plan) -> dict[str, Any]:
    """What was compared, and where."""
    described = environment.describe()
    described["versions"] |= {"torch": torch.__version__, "transformers": transformers.__version__}
    return {
        **described,
        "pair": "{}, {}".format(
            *(model.label for model in (*plan.targets.values(), *plan.draft_models.values()))
        ),
        "threads": num_threads(),
        "settings": dataclasses.asdict(plan.settings),
        **plan.resolved(),
    }
