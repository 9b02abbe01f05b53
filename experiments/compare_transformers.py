"""Tokens per second beside ``transformers``: same folders, prompts, gamma, threads; greedy, float32, batch 1.

    pip install -e '.[peers]'
    python -m experiments.compare_transformers --workdir=runs/compare [--smoke]

Plain decoding, the same draft model (assisted generation with a constant
schedule and no confidence threshold) and prompt lookup, prompt by prompt in one
process, the two implementations taking turns after a warm-up. A time is that
of the whole call, prefill included; nothing stops before the last token.
``taskset -c 0`` gives both one thread. A workdir holds one comparison; the same
command measures it again.
"""

from __future__ import annotations

from absl import app, flags
import jax

from experiments import compare_setup, compilation, launch

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


def main(argv: list[str]) -> None:
    """Flags to a table, a JSON file and a figure."""
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    try:
        settings = compare_setup.make_settings(
            target=TARGET.value,
            draft=DRAFT.value,
            gammas=GAMMAS.value,
            smoke=SMOKE.value,
            prompts=PROMPTS.value,
            prompt_groups=PROMPT_GROUPS.value,
            chat=CHAT.value,
            num_prompts=NUM_PROMPTS.value,
            max_new_tokens=MAX_NEW_TOKENS.value,
        )
        compare_setup.check_installed()
        plan = compare_setup.prepare(settings)
        workdir = compare_setup.claim(WORKDIR.value, plan)
        compilation.keep_on_disk(compilation.DEFAULT_CACHE)
    except ValueError as error:
        launch.fail(str(error))
    # Brings torch and transformers, seconds of imports, so only when nothing is refused.
    from experiments.compare_run import run

    run(plan, workdir)


if __name__ == "__main__":
    flags.mark_flags_as_required(["workdir"])
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_flags)
