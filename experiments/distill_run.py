"""A draft cut out of a target and distilled on its responses, from a config.

Apart from its main, which defines flags: several mains cannot be imported into one process.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from etils import epath
import jax
import numpy as np
import rich.console

from experiments.models import open_target
from experiments.response_files import split_files
from experiments.settings import check_folder
from experiments.train_run import Display
from specjax.models import huggingface, subset
from specjax.models.checkpoint import Checkpoint
from specjax.models.config import DecoderConfig
from specjax.models.language_model import TransformerLM, from_config
from specjax.models.sources import open_checkpoint
from specjax.training.checkpoints import claim_workdir
from specjax.training.loop import train
from specjax.training.recipe import Recipe, Stage
from specjax.training.responses import read_lines
from specjax.training.responses_distillation import ResponsesTask, cut_from_target, load_rows
from specjax.types import Params

# Settings that decide what is computed, beside the recipe's.
OUTSIDE = ("held_out_files", "layers", "rare_ids", "rare_rank", "greedy", "start")


def run(settings: dict[str, Any], workdir: epath.Path, console: rich.console.Console) -> None:
    """Cuts the draft out of the target, trains it, writes its folder.

    Raises ValueError for settings that cannot be, before anything is compiled
    or left in ``workdir``.
    """
    _check(settings)
    teacher = _open(settings)
    draft = _start(settings, teacher)
    recipe = _recipe(settings, draft.config)
    maps = subset.maps(draft.ids, teacher.table)
    task = _task(settings, teacher, draft, recipe, maps["read"])
    claim_workdir(workdir, _what_is_computed(settings, teacher, recipe))

    tokens = sum(map(len, task.training.features))
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
    _export(export, recipe, {**state.params, **maps}, teacher.checkpoint, summary)
    console.print(f"exported to {export}: {summary}")


def _check(settings: dict[str, Any]) -> None:
    """ValueError for what can be refused before anything is opened."""
    check_folder("config.export", settings["export"])
    layers = tuple(settings["layers"])
    if twice := [layer for layer in layers if layers.count(layer) > 1]:
        raise ValueError(
            f"config.layers: {layers} names layer {twice[0]} twice; nearest is {tuple(dict.fromkeys(layers))}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    """The target in memory, and the files of responses it wrote."""

    checkpoint: Checkpoint
    model: TransformerLM
    params: Params
    files: list[epath.Path]  # to train on
    held_out_files: list[epath.Path]

    @property
    def table(self) -> np.ndarray:
        """[V, D] its embeddings, which are its head as well."""
        return np.asarray(self.params["embed_tokens"])


def _open(settings: dict[str, Any]) -> Teacher:
    checkpoint = open_target(settings["target"])
    files, held_out_files = split_files(settings["responses"], settings["held_out_files"], checkpoint)
    model, params = huggingface.load_checkpoint(checkpoint)
    return Teacher(
        checkpoint=checkpoint, model=model, params=params, files=files, held_out_files=held_out_files
    )


def _task(
    settings: dict[str, Any], teacher: Teacher, draft: Start, recipe: Recipe, read: np.ndarray
) -> ResponsesTask:
    """What is learned from which rows; ``read`` [V] maps ids to the draft's own."""
    rows = functools.partial(load_rows, context=settings["context"], read=read)
    try:
        task = ResponsesTask(
            recipe=recipe,
            vocab_size=len(teacher.table),
            start=draft.params,
            head=jax.device_put(teacher.table[draft.ids]),
            greedy=settings["greedy"],
            training=rows(teacher.files),
            held_out=rows(teacher.held_out_files),
        )
    except ValueError as error:
        raise ValueError(f"config.responses: {error}") from None
    if recipe.evaluation_batches > task.num_held_out_batches:
        raise ValueError(
            f"config.evaluation_batches: {recipe.evaluation_batches}, but the responses of "
            f"{len(teacher.held_out_files)} held-out files fill {task.num_held_out_batches} batches of about "
            f"{settings['batch_size']} rows of {settings['context']} tokens; nearest is "
            f"{task.num_held_out_batches}, or raise config.held_out_files"
        )
    return task


def _what_is_computed(settings: dict[str, Any], teacher: Teacher, recipe: Recipe) -> dict[str, Any]:
    """What a workdir may not mix, so that it is resumed by the same run alone."""
    outside = {key: settings[key] for key in OUTSIDE}
    identity = {
        "target_sha256": teacher.checkpoint.weights_hash(),
        "responses": [str(path) for path in teacher.files],
    }
    return {**dataclasses.asdict(recipe), **outside, **identity}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """A draft before its training."""

    config: DecoderConfig  # of the model inside
    params: Params  # of a SubsetLM, without its maps
    ids: np.ndarray  # [K], in the model's order


def _start(settings: dict[str, Any], teacher: Teacher) -> Start:
    """Cut out of the target, or an earlier draft; with rows for rare ids if asked for and not there yet."""
    counts = _counts(teacher.files, len(teacher.table))
    if settings["start"]:
        start = _earlier(settings, len(counts))
    else:
        start = _cut(settings, teacher, counts)
    if settings["rare_ids"] and "rare_rows" not in start.params:
        return _with_rare_ids(settings, teacher.table, counts, start)
    return start


def _cut(settings: dict[str, Any], teacher: Teacher, counts: np.ndarray) -> Start:
    """Some layers of the target, and the ids that it writes most."""
    size, always = settings["vocab_size"], teacher.checkpoint.stop_tokens()
    if not len(always) < size <= len(counts):
        raise ValueError(f"config.vocab_size: {size} must lie in {len(always) + 1}..{len(counts)}")
    ids = subset.most_frequent(counts, size, always)
    try:
        config, inner = cut_from_target(teacher.model, teacher.params, ids, settings["layers"])
    except ValueError as error:
        raise ValueError(f"config.layers: {error}") from None
    return Start(config=config, params={"inner": inner}, ids=ids)


def _with_rare_ids(settings: dict[str, Any], table: np.ndarray, counts: np.ndarray, start: Start) -> Start:
    rest = np.setdiff1d(np.arange(len(counts)), start.ids)
    rank, width = settings["rare_rank"], start.config.hidden_size
    if settings["rare_ids"] > len(rest) or not 1 <= rank <= width:
        raise ValueError(
            f"config.rare_ids: {settings['rare_ids']} of rank {rank} must be "
            f"at most {len(rest)} ids of a rank in 1..{width}"
        )
    rare = rest[subset.most_frequent(counts[rest], settings["rare_ids"])]
    params = {**start.params, **subset.low_rank(table[rare], rank)}
    return dataclasses.replace(start, params=params, ids=np.concatenate([start.ids, rare]))


def _earlier(settings: dict[str, Any], vocab_size: int) -> Start:
    """An earlier draft of a target of ``vocab_size`` ids."""
    folder, size = settings["start"], settings["vocab_size"]
    try:
        checkpoint = open_checkpoint(folder)
        model, params = subset.with_vocabulary(checkpoint, *huggingface.load_checkpoint(checkpoint))
    except ValueError as error:
        raise ValueError(f"config.start: {error}") from None
    if not isinstance(model, subset.SubsetLM) or model.vocab_size != vocab_size:
        raise ValueError(f"config.start: {folder} is no draft with {vocab_size} ids to read and write")
    if model.config.vocab_size != size:
        raise ValueError(f"config.vocab_size: {size}, but {folder} has {model.config.vocab_size}")
    del params["read"]
    known = np.argsort(np.asarray(params.pop("write")))  # those outside come last
    ids = known[: model.config.vocab_size + len(params.get("rare_rows", ()))]
    return Start(config=model.config, params=params, ids=ids)


def _counts(files: list[epath.Path], vocab_size: int) -> np.ndarray:
    """[V] how often each id occurs in responses."""
    counts = np.zeros(vocab_size, np.int64)
    for path in files:
        for line in read_lines(path):
            if (highest := max(line["response_tokens"], default=0)) >= vocab_size:
                raise ValueError(f"{path}: id {highest}, but the target's are 0..{vocab_size - 1}")
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
    checkpoint: Checkpoint,
    summary: dict[str, Any],
) -> None:
    huggingface.save(folder, from_config(recipe.model), params["inner"], checkpoint.tokenizer())
    subset.save_vocabulary(folder, params)
    figures = "".join(f"- {name.replace('_', ' ')}: {value}\n" for name, value in summary.items())
    (folder / "README.md").write_text(
        "A draft model that knows the most frequent ids of its target's vocabulary (rarer ones, if any, by\n"
        "rows of low rank in vocabulary.safetensors), cut out of\n"
        f"{checkpoint.identity} and distilled by `python -m experiments.distill`; bfloat16 weights.\n\n"
        f"{figures}"
    )
    (folder / "summary.json").write_text(json.dumps(summary) + "\n")
