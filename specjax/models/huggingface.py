"""Model folders in Hugging Face's format: config.json, model.safetensors, tokenizer.json.

Reads and writes ``LlamaForCausalLM``, so that ``transformers`` opens the same
folder. Every tensor of the files is accounted for; nothing stays random.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.flax
from tokenizers import Tokenizer

from specjax.data.tokenizers import END_OF_TEXT, save_tokenizer
from specjax.models import families
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import TransformerLM, from_config, init_params
from specjax.types import Params

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD = "lm_head.weight"

DTYPES = {"BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}


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
    tensors = {name: jnp.asarray(leaf, dtype) for name, leaf in families.stored(model.config, params).items()}
    (folder / WEIGHTS).write_bytes(safetensors.flax.save(tensors, metadata={"format": "pt"}))


def load(folder: epath.PathLike, dtype: str = "float32") -> tuple[TransformerLM, Params]:
    """(model, params) of a folder, weights cast to ``dtype``.

    ValueError names what is wrong: no weights, an unsupported architecture or
    rope scaling, and all missing, unexpected and misshapen tensors at once.
    """
    folder = epath.Path(folder)
    config = families.config_from_json(read_json(folder / "config.json"), dtype)
    tensors = _read_tensors(folder)
    config = _decide_tying(config, tensors, folder)
    model = from_config(config)
    ours = jax.eval_shape(lambda: init_params(config, 0))
    _check_tensors(jax.eval_shape(lambda params: families.stored(config, params), ours), tensors, folder)
    stored = lambda path: tensors[families.stored_name(config, path)]
    take = lambda path, _: jnp.asarray(families.as_stored(config, path, stored(path)), dtype)
    return model, jax.tree_util.tree_map_with_path(take, ours)


def weights_hash(folder: epath.PathLike) -> str:
    """SHA-256 over the safetensors files of a folder, in order of their names."""
    digest = hashlib.sha256()
    for path in _weight_files(epath.Path(folder)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _decide_tying(config: DecoderConfig, tensors: dict[str, Any], folder: epath.Path) -> DecoderConfig:
    """Tied or untied follows from the arrays; the flag may not contradict them."""
    embedding = families.embedding_name(config)
    if embedding not in tensors or HEAD not in tensors:
        tied = HEAD not in tensors
        if not tied or config.tie_word_embeddings:
            return dataclasses.replace(config, tie_word_embeddings=tied)
        raise ValueError(f"{folder}: tie_word_embeddings is false but {HEAD} is missing")
    same = np.array_equal(np.asarray(tensors[embedding]), np.asarray(tensors[HEAD]))
    if config.tie_word_embeddings and not same:
        raise ValueError(f"{folder}: tie_word_embeddings is true but {HEAD} differs from {embedding}")
    if config.tie_word_embeddings:
        del tensors[HEAD]  # one array, stored twice
    return config


def _check_tensors(expected: dict[str, Any], tensors: dict[str, Any], folder: epath.Path) -> None:
    missing = sorted(expected.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - expected.keys())
    misshapen = [
        f"{name} is {tuple(tensors[name].shape)}, not {leaf.shape}"
        for name, leaf in sorted(expected.items())
        if name in tensors and tuple(tensors[name].shape) != leaf.shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    if any(problems.values()):
        told = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names)
        raise ValueError(f"{folder}: tensors do not match config.json. {told}")


def _weight_files(folder: epath.Path) -> list[epath.Path]:
    if (folder / INDEX).exists():
        names = sorted(set(_weight_map(folder / INDEX).values()))
    else:
        names = [WEIGHTS]
    absent = [name for name in names if not (folder / name).exists() or (folder / name).is_dir()]
    if absent:
        raise ValueError(f"{folder} lacks {', '.join(absent)}")
    return [folder / name for name in names]


def _weight_map(path: epath.Path) -> dict[str, str]:
    mapping = read_json(path).get("weight_map")
    if not isinstance(mapping, dict):
        raise ValueError(f"{path} has no weight_map")
    return mapping


def _read_tensors(folder: epath.Path) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for path in _weight_files(folder):
        try:
            views = safetensors.deserialize(path.read_bytes())
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file: {error}") from error
        for name, view in views:
            if view["dtype"] not in DTYPES:
                raise ValueError(f"{path}: {name} is {view['dtype']}, not one of {', '.join(DTYPES)}")
            flat = np.frombuffer(view["data"], DTYPES[view["dtype"]])
            tensors[name] = flat.reshape(view["shape"])
    return tensors


def read_json(path: epath.Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError when it is missing or holds anything else."""
    if not path.exists():
        raise ValueError(f"no {path.name} in {path.parent}")
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object")
    return content
