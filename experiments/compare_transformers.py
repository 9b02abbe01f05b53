"""Tokens per second beside ``transformers``: same folders, prompts, gamma, threads; greedy, float32, batch 1.

    pip install -e '.[peers]'
    python -m experiments.compare_transformers --workdir=runs/compare [--smoke]

Plain decoding, the same draft model (assisted generation with a constant
schedule and no confidence threshold) and prompt lookup, prompt by prompt in one
process, the two implementations taking turns after a warm-up. A time is that
of the whole call, prefill included; nothing stops before the last token.
``taskset -c 0`` gives both one thread.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from absl import app, flags
import jax
from rich.console import Console

from experiments import catalogue, compilation, environment, launch
from experiments.cells import NONE
from experiments.comparison import draw, summarise, table
from experiments.plan import Plan, prepare
from experiments.settings import SweepSettings

try:
    import torch
    import transformers

    from experiments.side_by_side import LOOKUP, SideBySide, check_room
except ModuleNotFoundError as error:
    if error.name not in ("torch", "transformers"):
        raise
    launch.fail(f"{error.name} is not installed; pip install -e '.[peers]'")

WORKDIR = flags.DEFINE_string("workdir", None, "Where comparison.json and comparison.png go.")
TARGET = flags.DEFINE_string("target", "target", "The embedded target, a fetched model, or a folder.")
DRAFT = flags.DEFINE_string(
    "draft", "draft", "An embedded draft (draft, draft-small, draft-smollm2), or a folder."
)
GAMMAS: flags.FlagHolder = flags.DEFINE(launch.CommaTuple(), "gammas", (3, 7), "Draft tokens per round.")
PROMPTS = flags.DEFINE_string(
    "prompts", "stdlib", "Held-out modules of the standard library, or a JSONL file."
)
NUM_PROMPTS = flags.DEFINE_integer("num_prompts", 16, "The first so many.")
PROMPT_GROUPS: flags.FlagHolder = flags.DEFINE(
    launch.CommaTuple(), "prompt_groups", (), "Categories of the file that take turns; none takes all."
)
CHAT = flags.DEFINE_bool("chat", False, "Each prompt is a user's message in the target's chat template.")
MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 96, "Of every decode.")
SMOKE = flags.DEFINE_bool("smoke", False, "Two prompts, one gamma, a few tokens: does it run?")

OWN_FLAGS = {
    "config.targets": "--target",
    "config.drafters": "--draft",
    **{f"config.{key}": f"--{key}" for key in ("gammas", "prompt_groups", "prompts", "num_prompts", "chat")},
    "config.max_new_tokens": "--max_new_tokens",
}


def main(argv: list[str]) -> None:
    """Flags to a table, a JSON file and a figure."""
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    try:
        plan = prepare(settings_from_flags())
        check_room(plan)
        compilation.keep_on_disk(compilation.DEFAULT_CACHE)
        workdir = launch.make_workdir(WORKDIR.value)
    except ValueError as error:
        launch.fail(launch.in_words_of(OWN_FLAGS, error))
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


def settings_from_flags() -> SweepSettings:
    """Raises ValueError for values that cannot run, before anything is loaded."""
    settings = SweepSettings(
        targets=(TARGET.value,),
        drafters=(NONE, DRAFT.value, LOOKUP),
        gammas=GAMMAS.value[:1] if SMOKE.value else GAMMAS.value,
        prompts=PROMPTS.value,
        prompt_groups=PROMPT_GROUPS.value,
        chat=CHAT.value,
        num_prompts=2 if SMOKE.value else NUM_PROMPTS.value,
        max_new_tokens=16 if SMOKE.value else MAX_NEW_TOKENS.value,
        stop_at_eos=False,
    )
    if DRAFT.value in catalogue.OTHER_DRAFTERS:
        raise ValueError(f"--draft: {DRAFT.value!r} is no draft model; give draft, draft-small or a folder")
    if min(settings.gammas) < 1:
        raise ValueError(
            f"--gammas: {min(settings.gammas)} is below 1, the fewest tokens transformers drafts"
        )
    return settings


def num_threads() -> int:
    """The processors this process may use: what XLA takes, so torch gets as many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


if __name__ == "__main__":
    flags.mark_flags_as_required(["workdir"])
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_flags)
