"""One decode in the terminal, coloured by where each token came from, one line per target pass.

    python -m experiments.trace --config=configs/quickstart.py --config.drafters=draft-small --config.gammas=7

Takes the first value of each axis (the first drafter that drafts), and the
first prompt of the config or ``--text``. Fig. 1 of Leviathan et al. 2023.
"""

from __future__ import annotations

import dataclasses

from absl import app, flags
import jax
from rich.console import Console

from experiments import catalogue, compilation, launch, runner, tree_shapes
from experiments.cells import Cell, all_cells
from experiments.drafter_names import DrafterName
from experiments.plan import Plan, prepare
from experiments.settings import SweepSettings
from specjax.analysis import trace
from specjax.data.prompts import Prompt

CONFIG = launch.define_config(default="configs/quickstart.py")
TEXT = flags.DEFINE_string("text", None, "A prompt of one's own, instead of the config's first.")


def main(argv: list[str]) -> None:
    """Flags to one printed decode."""
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    try:
        settings = dataclasses.replace(launch.read_settings(CONFIG), num_prompts=1, batch_size=1)
        cell = first_cell(settings)
        own = None if TEXT.value is None else (own_prompt(TEXT.value),)
        plan = prepare(dataclasses.replace(settings, drafters=(cell.drafter,)), own)
        compilation.keep_on_disk(compilation.DEFAULT_CACHE)
    except ValueError as error:
        launch.fail(str(error))
    decoded = decode(plan, cell)
    console = Console(soft_wrap=True)
    if console.no_color or not console.is_terminal:  # marks instead: a rejected token must not read as text
        print(f"{decoded.title}\n{trace.to_plain(decoded)}\n{decoded.summary}")
    else:
        console.print(trace.to_text(decoded))


def own_prompt(text: str) -> Prompt:
    """Raises ValueError for bytes of the command line that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"--text: not UTF-8 text ({error.reason} at character {error.start})") from None
    return Prompt(id="--text", text=text)


def first_cell(settings: SweepSettings) -> Cell:
    """The first cell with a drafter; plain decoding where the config has nothing else."""
    cells = all_cells(settings)
    return next((cell for cell in cells if not cell.is_baseline), cells[0])


def decode(plan: Plan, cell: Cell) -> trace.DecodeTrace:
    """The first prompt of ``plan``, decoded as ``cell`` says."""
    settings, target = plan.settings, plan.targets[cell.target]
    drafter = catalogue.make_drafter(DrafterName.parse(cell.drafter).base, target, plan.draft_models)
    prompts = plan.token_ids[cell.target]
    sizes = runner.buffer_sizes(prompts, settings)
    if cell.is_tree:
        drafter = tree_shapes.shaped(cell, plan, target, drafter, sizes)
    program = runner.make_program(target, drafter, catalogue.RULES[cell.rule](settings), cell.gamma, **sizes)
    (batch,) = runner.make_batches(prompts, batch_size=1)
    request = runner.request_for(batch, settings, cell.temperature, target.stop_tokens)
    timed = runner.decode_timed(program, (target.params, drafter.params), batch, request)
    return runner.first_trace(timed, target, title=str(cell))


if __name__ == "__main__":
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_flags)
