"""Checkpoints to (model, params) and back to folders that ``transformers`` opens.

Every tensor of a checkpoint is accounted for; nothing stays random. Tensors
are read one at a time and go straight to their places: the host holds one
beside the params, and a device of a mesh never more than its own share.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np
import safetensors.flax
from tokenizers import Tokenizer

from specjax import sharding
from specjax.data.tokenizers import END_OF_TEXT, save_tokenizer
from specjax.models import families
from specjax.models.checkpoint import Checkpoint, StoredTensor
from specjax.models.config import DecoderConfig
from specjax.models.folder import INDEX, WEIGHTS, read_json
from specjax.models.language_model import TransformerLM, from_config, init_params, logical_axes
from specjax.models.sources import open_checkpoint
from specjax.types import Params

__all__ = ["INDEX", "WEIGHTS", "load", "load_checkpoint", "read_json", "save", "weights_hash"]

HEAD = "lm_head.weight"


def save(
    folder: epath.PathLike,
    model: TransformerLM,
    params: Params,
    tokenizer: Tokenizer,
    dtype: str = "bfloat16",
) -> None:
    """Writes ``params`` as ``dtype`` with everything ``transformers`` needs to open the folder."""
    folder = epath.Path(folder)
    save_tokenizer(tokenizer, folder, model.context)
    settings = families.config_to_json(model.config, dtype, tokenizer.token_to_id(END_OF_TEXT))
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    stored = families.stored(model.config, params)
    tensors = {name: jnp.asarray(leaf, dtype) for name, leaf in stored.items()}
    (folder / WEIGHTS).write_bytes(safetensors.flax.save(tensors, metadata={"format": "pt"}))


def load(
    source: epath.PathLike,
    dtype: str = "float32",
    *,
    mesh: Mesh | None = None,
    rules: sharding.AxisRules = sharding.AxisRules(),  # noqa: B008 (frozen)
) -> tuple[TransformerLM, Params]:
    """(model, params) of a folder, ``hf://org/name[@revision]`` or ``.gguf`` file, weights cast to ``dtype``.

    On a ``mesh`` every weight is split as ``rules`` say. ValueError names what
    is wrong: no weights, an unsupported architecture or rope scaling, and all
    missing, unexpected and misshapen tensors at once.
    """
    return load_checkpoint(open_checkpoint(source), dtype, mesh=mesh, rules=rules)


def load_checkpoint(
    checkpoint: Checkpoint,
    dtype: str = "float32",
    *,
    mesh: Mesh | None = None,
    rules: sharding.AxisRules = sharding.AxisRules(),  # noqa: B008 (frozen)
) -> tuple[TransformerLM, Params]:
    """:func:`load` for a checkpoint that is open already."""
    config = families.config_from_json(checkpoint.settings, dtype)
    tensors = families.by_usual_name(config, checkpoint.tensors)
    config = _decide_tying(config, tensors, checkpoint.where)
    model = from_config(config)
    shapes = jax.eval_shape(lambda: init_params(config, 0))
    _check_tensors(
        jax.eval_shape(lambda params: families.stored(config, params), shapes), tensors, checkpoint.where
    )
    places = None
    if mesh is not None:
        places = sharding.shardings(shapes, logical_axes(model), rules, mesh, head_dim=config.head_dim)

    def take(path: tuple[Any, ...], leaf: Any, place: Any = None) -> jax.Array:
        stored = families.as_stored(config, path, tensors[families.stored_name(config, path)].read())
        part = lambda index: np.array(stored[index], leaf.dtype, order="C")
        if place is None:
            return jnp.asarray(part(...)).block_until_ready()
        return jax.make_array_from_callback(leaf.shape, place, part).block_until_ready()

    trees = (shapes,) if places is None else (shapes, places)
    return model, jax.tree_util.tree_map_with_path(take, *trees)


def weights_hash(source: epath.PathLike) -> str:
    """SHA-256 over the files that hold a source's weights, in order of their names."""
    return open_checkpoint(source).weights_hash()


def _decide_tying(config: DecoderConfig, tensors: dict[str, StoredTensor], where: str) -> DecoderConfig:
    """Tied or untied follows from the arrays; the flag may not contradict them."""
    embedding = families.embedding_name(config)
    if embedding not in tensors or HEAD not in tensors:
        tied = HEAD not in tensors
        if not tied or config.tie_word_embeddings:
            return dataclasses.replace(config, tie_word_embeddings=tied)
        raise ValueError(f"{where}: tie_word_embeddings is false but {HEAD} is missing")
    if not config.tie_word_embeddings:
        return config
    if not np.array_equal(tensors[embedding].read(), tensors[HEAD].read()):
        raise ValueError(f"{where}: tie_word_embeddings is true but {HEAD} differs from {embedding}")
    del tensors[HEAD]  # one array, stored twice
    return config


def _check_tensors(expected: Mapping[str, Any], tensors: Mapping[str, StoredTensor], where: str) -> None:
    missing = sorted(expected.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - expected.keys())
    misshapen = [
        f"{name} is {tensors[name].shape}, not {leaf.shape}"
        for name, leaf in sorted(expected.items())
        if name in tensors and tensors[name].shape != leaf.shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    if any(problems.values()):
        told = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names)
        raise ValueError(f"{where}: tensors do not match config.json. {told}")
