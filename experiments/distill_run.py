"""A draft cut out of a target and distilled on its responses, from a config.

Apart from its main, which defines flags: several mains cannot be imported into one process.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from etils import epath
import jax
import numpy as np
import rich.console

from experiments.models import open_target
from experiments.response_files import split_files
from experiments.train_run import Display
from specjax.models import huggingface, subset
from specjax.models.checkpoint import Checkpoint
from specjax.models.config import DecoderConfig
from specjax.models.language_model import from_config
from specjax.training.checkpoints import claim_workdir
from specjax.training.loop import train
from specjax.training.recipe import Recipe, Stage
from specjax.training.responses import read_lines
from specjax.training.responses_distillation import ResponsesTask, cut_from_target, load_rows
from specjax.types import Params


def run(settings: dict[str, Any], workdir: epath.Path, console: rich.console.Console) -> None:
    """Cuts the draft out of the target, trains it, writes its folder."""
    checkpoint = open_target(settings["target"])
    files, held_out_files = split_files(settings["responses"], settings["held_out_files"], checkpoint)
    target, target_params = huggingface.load_checkpoint(checkpoint)
    table = np.asarray(target_params["embed_tokens"])
    if not len(checkpoint.stop_tokens()) < settings["vocab_size"] <= len(table):
        raise ValueError(f"config.vocab_size: {settings['vocab_size']} must lie in 2..{len(table)}")
    ids = subset.most_frequent(_counts(files, len(table)), settings["vocab_size"], checkpoint.stop_tokens())
    maps = subset.maps(ids, table)
    config, start = cut_from_target(target, target_params, ids, settings["layers"])
    recipe = _recipe(settings, config)
    identity = {"target_sha256": checkpoint.weights_hash(), "responses": [str(path) for path in files]}
    outside = {key: settings[key] for key in ("held_out_files", "layers")}
    claim_workdir(workdir, {**dataclasses.asdict(recipe), **outside, **identity})
    context = settings["context"]
    task = ResponsesTask(
        recipe=recipe,
        start=start,
        head=jax.device_put(table[ids]),
        training=load_rows(files, context, maps["read"]),
        held_out=load_rows(held_out_files, context, maps["read"]),
    )
    tokens = int(task.training.is_response.sum())
    console.print(f"{tokens:,} response tokens in {len(task.training.tokens)} rows; before training:")
    console.print({name: round(value, 4) for name, value in task.evaluate(task.start).items()})
    with Display(console, recipe.steps) as display:
        state = train(recipe, task, workdir=workdir, report=display)
    summary = {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "response_tokens": tokens,
        "seconds": round(float(state.seconds)),
        **task.evaluate(state.params),
    }
    export = epath.Path(settings["export"] or workdir / "export")
    _export(export, recipe, state.params, maps, checkpoint, summary)
    console.print(f"exported to {export}: {summary}")


def _counts(files: list[epath.Path], vocab_size: int) -> np.ndarray:
    """[V] how often each id occurs in responses."""
    counts = np.zeros(vocab_size, np.int64)
    for path in files:
        for line in read_lines(path):
            np.add.at(counts, line["response_tokens"], 1)
    return counts


def _recipe(settings: dict[str, Any], model: DecoderConfig) -> Recipe:
    stage = Stage(steps=settings["steps"], batch_size=settings["batch_size"], context=settings["context"])
    known = {field.name for field in dataclasses.fields(Recipe)}
    return Recipe(model=model, stages=(stage,), **{k: v for k, v in settings.items() if k in known})


def _export(
    folder: epath.Path,
    recipe: Recipe,
    params: Params,
    maps: dict[str, np.ndarray],
    checkpoint: Checkpoint,
    summary: dict[str, Any],
) -> None:
    huggingface.save(folder, from_config(recipe.model), params, checkpoint.tokenizer())
    subset.save_maps(folder, maps)
    figures = "".join(f"- {name.replace('_', ' ')}: {value}\n" for name, value in summary.items())
    (folder / "README.md").write_text(
        "A draft model that knows the most frequent ids of its target's vocabulary, cut out of\n"
        f"{checkpoint.identity} and distilled by `python -m experiments.distill`; bfloat16 weights.\n\n"
        f"{figures}"
    )
    (folder / "summary.json").write_text(json.dumps(summary) + "\n")
