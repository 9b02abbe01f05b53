"""Heads trained for a target on its responses, from a config.

Apart from its main, which defines flags: several mains cannot be imported into one process.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import rich.console

from experiments import train_heads_checks
from experiments.models import open_target
from experiments.response_files import split_files
from experiments.train_run import Display
from specjax.models import huggingface, subset
from specjax.models.checkpoint import Checkpoint
from specjax.models.heads import folder as heads_folder
from specjax.models.heads.blockwise import BlockwiseConfig
from specjax.models.heads.heads import (
    HeadsConfig,
    from_config,
    init_network,
    vocabulary_projection,
)
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import TransformerLM
from specjax.sharding import make_mesh
from specjax.training.checkpoints import claim_workdir, write_whole
from specjax.training.heads import Frozen, HeadsLoss, HeadsTask, mean_weights, medusa_weights
from specjax.training.heads_figures import Decoding, HeadsEvaluation
from specjax.training.heads_stream import (
    CachedFeatures,
    ComputedFeatures,
    Features,
    Response,
    make_stream,
    read_responses,
)
from specjax.training.loop import train
from specjax.training.recipe import Recipe, Stage
from specjax.trees.label_ranks import rank_accuracies
from specjax.types import Params

TAPS = ("final",)


def run(settings: dict[str, Any], workdir: epath.Path, console: rich.console.Console) -> None:
    """Trains the heads beside the frozen target, writes their folder."""
    train_heads_checks.check(settings)
    checkpoint = open_target(settings["target"])
    files, held_out_files = split_files(settings["responses"], settings["held_out_files"], checkpoint)
    target, target_params = huggingface.load_checkpoint(checkpoint)
    target = dataclasses.replace(target, taps=_taps(settings, target))
    training, features = read_responses(files, target.vocab_size)
    held_out, held_out_features = read_responses(
        held_out_files, target.vocab_size, settings["held_out_temperatures"]
    )
    train_heads_checks.check_fits(settings, target, training, held_out)
    ids = _ids(settings, training, target, checkpoint)
    config = heads_config(settings, target.config.hidden_size, len(ids))
    recipe = _recipe(settings, target)
    shared = {"weights_sha256": checkpoint.weights_hash(), "responses": [str(path) for path in files]}
    claim_workdir(workdir, {**dataclasses.asdict(recipe), **_outside(settings), **shared})
    summary_path = workdir / "summary.json"
    if summary_path.exists():
        console.print(f"{workdir} is finished, nothing to do: {summary_path.read_text().strip()}")
        return

    heads, frozen = from_config(config), _frozen(ids, target, target_params)
    if settings["features"] == "computed":
        source: Features = ComputedFeatures(target=target, params=target_params, responses=training)
    else:
        source = CachedFeatures(features=features)
    evaluation = HeadsEvaluation(
        heads=heads,
        frozen=frozen,
        ids=ids,
        held_out=make_stream(held_out, CachedFeatures(features=held_out_features)),
        decoding=_decoding(settings, target, target_params, held_out, checkpoint),
        predicted_nodes=tuple(settings["predicted_nodes"]),
        decoded_nodes=tuple(settings["decoded_nodes"]),
    )
    data = settings["mesh_data"]
    task = HeadsTask(
        recipe=recipe,
        loss=HeadsLoss(
            heads=heads,
            weights=loss_weights(settings),
            distillation=settings["distillation"],
            sampled=settings["sampled_heads"],
        ),
        start=init_network(config, recipe.seed, frozen.table),
        frozen=frozen,
        training=make_stream(training, source),
        evaluation=evaluation,
        mesh=make_mesh(data=data) if data > 1 else None,
    )
    console.print(f"{len(task.training):,} response tokens; held out: {len(evaluation.held_out):,}")
    with Display(console, recipe.steps) as display:
        state = train(recipe, task, workdir=workdir, report=display)
    summary = {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "response_tokens": len(task.training),
        "seconds": round(float(state.seconds)),
        **evaluation(state.params),
    }
    export = epath.Path(settings["export"] or workdir / "export")
    ranks = evaluation.ranks(state.params)
    heads_folder.save(
        export,
        config,
        state.params,
        ids,
        heads_folder.TrainedFor(
            weights_sha256=checkpoint.weights_hash(),
            vocab_size=target.vocab_size,
            taps=target.taps,
            identity=str(checkpoint.identity),
        ),
        [rank_accuracies(ranks), rank_accuracies(ranks, conditional=True)],
        _readme(settings, checkpoint, summary),
    )
    write_whole(summary_path, json.dumps(summary) + "\n")
    console.print(f"exported to {export}")


def _taps(settings: dict[str, Any], target: TransformerLM) -> tuple[int | str, ...]:
    taps = tuple(settings["taps"])
    heads_folder.check_taps(taps, target.config.num_hidden_layers)
    if taps != TAPS:
        raise ValueError(
            f"config.taps: {taps}; the vocabulary projection reads {TAPS}, which is kept beside responses"
        )
    return taps


def heads_config(settings: dict[str, Any], width: int, num_ids: int) -> HeadsConfig:
    """The network that the settings describe."""
    shared = {"num_heads": settings["num_heads"], "width": width, "num_ids": num_ids}
    if settings["kind"] == "blockwise":
        return BlockwiseConfig(**shared, hidden_size=settings["hidden_size"])
    return MedusaConfig(**shared, blocks=settings["blocks"], own_projection=settings["own_projection"])


def loss_weights(settings: dict[str, Any]) -> tuple[float, ...]:
    if settings["kind"] == "blockwise":
        return mean_weights(settings["num_heads"])
    return medusa_weights(settings["num_heads"], settings["head_decay"])


def _ids(
    settings: dict[str, Any], training: Sequence[Response], target: TransformerLM, checkpoint: Checkpoint
) -> np.ndarray:
    """[K]: the ids the target writes most; ``num_ids`` 0 keeps all."""
    size = settings["num_ids"]
    if size == 0:
        return np.arange(target.vocab_size, dtype=np.int32)
    if not len(checkpoint.stop_tokens()) < size <= target.vocab_size:
        raise ValueError(f"config.num_ids: {size} must lie in 2..{target.vocab_size}, or be 0 for all")
    counts = np.zeros(target.vocab_size, np.int64)
    for response in training:
        np.add.at(counts, np.asarray(response.tokens), 1)
    return subset.most_frequent(counts, size, checkpoint.stop_tokens()).astype(np.int32)


def _frozen(ids: np.ndarray, target: TransformerLM, params: Params) -> Frozen:
    column = np.full(target.vocab_size, -1, np.int32)
    column[ids] = np.arange(len(ids))
    return Frozen(table=vocabulary_projection(target, params)[ids], column=jnp.asarray(column))


def _decoding(
    settings: dict[str, Any],
    target: TransformerLM,
    params: Params,
    held_out: Sequence[Response],
    checkpoint: Checkpoint,
) -> Decoding | None:
    """The first prompts that were held out; None for none."""
    prompts = list(dict.fromkeys(response.prompt for response in held_out))[: settings["decode_prompts"]]
    if not prompts:
        return None
    lengths = np.array([len(prompt) for prompt in prompts])
    padded = np.zeros((len(prompts), lengths.max()), np.int32)
    for row, prompt in zip(padded, prompts):
        row[: len(prompt)] = prompt
    return Decoding(
        target=target,
        params=params,
        prompts=padded,
        lengths=lengths,
        max_new_tokens=settings["decode_tokens"],
        stop_tokens=checkpoint.stop_tokens(),
    )


def _recipe(settings: dict[str, Any], target: TransformerLM) -> Recipe:
    stage = Stage(steps=settings["steps"], batch_size=settings["batch_size"], context=settings["context"])
    known = {field.name for field in dataclasses.fields(Recipe)}
    return Recipe(model=target.config, stages=(stage,), **{k: v for k, v in settings.items() if k in known})


def _outside(settings: dict[str, Any]) -> dict[str, Any]:
    """What decides a run and is not in the recipe."""
    known = {field.name for field in dataclasses.fields(Recipe)} | {"responses", "export", "target"}
    return {key: value for key, value in settings.items() if key not in known}


def _readme(settings: dict[str, Any], checkpoint: Checkpoint, summary: dict[str, Any]) -> str:
    tables = [name for name in summary if "_top" in name and "held_out" not in name]
    figures = "".join(
        f"- {name.replace('_', ' ')}: {summary[name]}\n" for name in summary if name not in tables
    )
    header = "| head | top 1 | top 2 | top 3 | top 5 | top 10 |\n|---|---|---|---|---|---|\n"
    rows = [
        "| "
        + " | ".join([str(head), *(f"{summary[f'head{head}_top{k}']:.3f}" for k in (1, 2, 3, 5, 10))])
        + " |\n"
        for head in range(1, settings["num_heads"] + 1)
    ]
    return (
        f"Heads ({settings['kind']}) for {checkpoint.identity}, trained by\n"
        "`python -m experiments.train_heads` on responses of that target; bfloat16 weights. They fit no\n"
        "other target. How often the label is among a head's likeliest, on held-out responses at\n"
        f"temperatures {settings['held_out_temperatures']}:\n\n"
        f"{header}{''.join(rows)}\n{figures}"
    )
