"""Trains one model of the embedded pair and exports it in Hugging Face's folder format.

    python -m experiments.train --config=configs/train_target.py --workdir=runs/target

A second call with the same workdir resumes from the newest checkpoint.
"""

from __future__ import annotations

import json
import sys

from absl import app, flags, logging
from etils import epath
import jax
from ml_collections import config_flags
import rich.console
import rich.progress

from experiments.train_config import Run, resolve
from specjax.data.corpora import standard_library
from specjax.data.tokenizers import load_tokenizer, train_tokenizer
from specjax.models import huggingface
from specjax.models.language_model import from_config
from specjax.training.checkpoints import claim_workdir
from specjax.training.loop import Progress, Teacher, evaluate, train
from specjax.training.windows import evaluation_batches, token_stream

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/train_*.py.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Holds config.json, metrics.jsonl, checkpoints and the export.")


def main(argv: list[str]) -> None:
    if argv[1:]:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # orbax tells every detail of every save
    try:
        run_training(resolve(CONFIG.value), epath.Path(WORKDIR.value))
    except ValueError as error:
        sys.exit(f"error: {error}")


def run_training(run: Run, workdir: epath.Path) -> None:
    """Train, evaluate on everything held out, export."""
    console = rich.console.Console()
    training, held_out = standard_library()
    if run.teacher:
        tokenizer = load_tokenizer(run.teacher)
        teacher = Teacher(**dict(zip(("model", "params"), huggingface.load(run.teacher))))
    else:
        tokenizer = train_tokenizer((module.text for module in training.modules), run.recipe.model.vocab_size)
        teacher = None
    identity = {
        **run.to_json(),
        "corpus_sha256": training.sha256,
        "held_out_sha256": held_out.sha256,
        "teacher_sha256": huggingface.weights_hash(run.teacher) if run.teacher else "",
    }
    claim_workdir(workdir, identity)
    summary_path = workdir / "summary.json"
    if summary_path.exists():
        console.print(f"{workdir} is finished; nothing to do: {summary_path.read_text().strip()}")
        return

    held_out_stream = token_stream(held_out, tokenizer)
    with Display(console, run.recipe.steps) as display:
        state = train(
            run.recipe,
            workdir=workdir,
            training_stream=token_stream(training, tokenizer),
            held_out_stream=held_out_stream,
            teacher=teacher,
            report=display,
        )
    model, context = from_config(run.recipe.model), run.recipe.stages[0].context
    batches = evaluation_batches(
        held_out_stream, context=context, batch_size=1, num_batches=(len(held_out_stream) - 1) // context
    )
    summary = {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "tokens": run.recipe.tokens,
        "seconds": round(float(state.seconds)),
        **evaluate(model, state.params, batches, teacher),
        "corpus_sha256": training.sha256,
    }
    export = epath.Path(run.export or workdir / "export")
    huggingface.save(export, model, state.params, tokenizer)
    summary_path.write_text(json.dumps(summary) + "\n")
    console.print(f"exported to {export}: {summary}")


class Display:
    """A progress bar on a terminal, one line per evaluation everywhere."""

    def __init__(self, console: rich.console.Console, steps: int):
        columns = ("[progress.description]{task.description}", "{task.completed}/{task.total}")
        self.console, self.steps = console, steps
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn(columns[0]),
            rich.progress.BarColumn(),
            rich.progress.TextColumn(columns[1]),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("starting", total=steps)

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, progress: Progress) -> None:
        left = f"{progress.seconds_left / 60:.0f} min left"
        rate = f"{progress.tokens_per_second:,.0f} tokens/s"
        loss = progress.metrics["loss"]
        self.bar.update(
            self.task, completed=progress.step, description=f"loss {loss:.3f}, {rate}, {left}"
        )
        held_out = {name: value for name, value in progress.metrics.items() if name.startswith("held_out")}
        if held_out:
            figures = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in held_out.items())
            self.console.print(f"step {progress.step}/{self.steps}: loss {loss:.4f}, {figures}, {rate}, {left}")


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    jax.config.config_with_absl()
    app.run(main)
