"""One training run from a resolved config: corpus, tokenizer, teacher, loop, export.

Apart from its main, which defines flags: several mains cannot be imported into one process.
"""

from __future__ import annotations

import io
import json
from typing import Any

from etils import epath
import jax
import numpy as np
import rich.console
import rich.progress

from experiments.train_config import Run
from specjax.data.corpora import standard_library
from specjax.data.tokenizers import load_tokenizer, train_tokenizer
from specjax.models import huggingface
from specjax.models.language_model import from_config
from specjax.training.checkpoints import TrainState, claim_workdir
from specjax.training.loop import Progress, train
from specjax.training.self_generated import SelfGenerated, sample_rows
from specjax.training.text import Teacher, Text, TextTask, evaluate
from specjax.training.windows import evaluation_batches, token_stream


def run_training(run: Run, workdir: epath.Path, console: rich.console.Console) -> None:
    """Train, evaluate on everything held out, export."""
    training, held_out = standard_library()
    vocab_size = run.recipe.model.vocab_size
    teacher = Teacher(*huggingface.load(run.teacher)) if run.teacher else None
    if teacher and teacher.model.vocab_size != vocab_size:
        raise ValueError(f"model.vocab_size {vocab_size} is not the teacher's {teacher.model.vocab_size}")
    identity = {
        "corpus_sha256": training.sha256,
        "held_out_sha256": held_out.sha256,
        "teacher_sha256": huggingface.weights_hash(run.teacher) if run.teacher else None,
    }
    claim_workdir(workdir, {**run.to_json(), **identity})
    summary_path = workdir / "summary.json"
    if summary_path.exists():
        console.print(f"{workdir} is finished, nothing to do: {summary_path.read_text().strip()}")
        return

    if run.teacher:
        tokenizer = load_tokenizer(run.teacher)
    else:
        tokenizer = train_tokenizer((module.text for module in training.modules), vocab_size)
    stream = token_stream(training, tokenizer)
    rows = None
    if teacher and run.self_generated:
        rows = _teacher_rows(run, run.self_generated, teacher, stream, workdir, console)
    text = Text(training=stream, held_out=token_stream(held_out, tokenizer), rows=rows)
    with Display(console, run.recipe.steps) as display:
        task = TextTask(recipe=run.recipe, text=text, teacher=teacher)
        state = train(run.recipe, task, workdir=workdir, report=display)
    summary = {**_summary(run, state, text, teacher), **identity}
    export = epath.Path(run.export or workdir / "export")
    huggingface.save(export, from_config(run.recipe.model), state.params, tokenizer)
    (export / "README.md").write_text(model_card(run, summary))
    summary_path.write_text(json.dumps(summary) + "\n")
    console.print(f"exported to {export}: {summary}")


def _teacher_rows(
    run: Run,
    settings: SelfGenerated,
    teacher: Teacher,
    stream: np.ndarray,
    workdir: epath.Path,
    console: rich.console.Console,
) -> np.ndarray:
    """The teacher's own text, sampled once and kept beside the checkpoints."""
    path = workdir / "self_generated.npy"
    if path.exists():
        return np.load(io.BytesIO(path.read_bytes()))
    console.print(f"sampling {settings.rows} rows from {run.teacher}")
    width, seed = run.recipe.stages[0].context + 1, run.recipe.seed
    rows = sample_rows(settings, teacher.model, teacher.params, stream, width, seed)
    buffer = io.BytesIO()
    np.save(buffer, rows)
    path.write_bytes(buffer.getvalue())
    return rows


def _summary(run: Run, state: TrainState, text: Text, teacher: Teacher | None) -> dict[str, Any]:
    """Size, cost and the figures over the whole held-out stream."""
    context = run.recipe.stages[0].context
    batches = evaluation_batches(
        text.held_out, context=context, batch_size=1, num_batches=(len(text.held_out) - 1) // context
    )
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "tokens": run.recipe.tokens,
        "seconds": round(float(state.seconds)),
        **evaluate(from_config(run.recipe.model), state.params, batches, teacher),
    }


def model_card(run: Run, summary: dict[str, Any]) -> str:
    """The README of an exported folder."""
    origin = "distilled from the embedded target" if run.teacher else "trained"
    figures = "".join(f"- {name.replace('_', ' ')}: {value}\n" for name, value in summary.items() if value)
    return (
        f"A LlamaForCausalLM of specjax's embedded pair, {origin} by `python -m experiments.train` on the\n"
        "source of Python's standard library, some modules held out; bfloat16 weights, float32 training.\n"
        "It continues Python code; it is good for trying speculative decoding and for nothing else.\n\n"
        f"{figures}"
    )


class Display:
    """A progress bar on a terminal, one line per evaluation everywhere."""

    def __init__(self, console: rich.console.Console, steps: int):
        self.console, self.steps = console, steps
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.completed}/{task.total}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("compiling", total=steps)

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, progress: Progress) -> None:
        pace = f"{progress.tokens_per_second:,.0f} tokens/s, {progress.seconds_left / 60:.0f} min left"
        loss = f"loss {progress.metrics['loss']:.4f}"
        self.bar.update(self.task, completed=progress.step, description=f"{loss}, {pace}")
        held_out = [
            f"{name.replace('_', ' ')} {value:.4f}"
            for name, value in progress.metrics.items()
            if name.startswith("held_out")
        ]
        if held_out:
            self.console.print(f"step {progress.step}/{self.steps}: {', '.join([loss, *held_out, pace])}")
