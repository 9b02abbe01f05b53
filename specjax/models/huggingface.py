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
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import TransformerLM, from_config, init_params
from specjax.types import Params

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

DTYPES = {"BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}

# Settings of a config.json that change the mathematics, with the one value this decoder computes.
FIXED_SETTINGS = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}


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
    (folder / "config.json").write_text(
        json.dumps(config_to_json(model.config, dtype, tokenizer.token_to_id(END_OF_TEXT)), indent=2) + "\n"
    )
    tensors = {name: jnp.asarray(leaf, dtype) for name, leaf in _named(params).items()}
    (folder / WEIGHTS).write_bytes(safetensors.flax.save(tensors, metadata={"format": "pt"}))


def load(folder: epath.PathLike, dtype: str = "float32") -> tuple[TransformerLM, Params]:
    """(model, params) of a folder, weights cast to ``dtype``.

    ValueError names what is wrong: no weights, an unsupported architecture or
    rope scaling, and all missing, unexpected and misshapen tensors at once.
    """
    folder = epath.Path(folder)
    config = config_from_json(read_json(folder / "config.json"), dtype)
    tensors = _read_tensors(folder)
    config = _decide_tying(config, tensors, folder)
    model = from_config(config)
    expected = _named(jax.eval_shape(lambda: init_params(config, 0)))
    _check_tensors(expected, tensors, folder)
    params = _nested({name: jnp.asarray(tensors[name], dtype) for name in expected})
    return model, params


def weights_hash(folder: epath.PathLike) -> str:
    """SHA-256 over the safetensors files of a folder, in order of their names."""
    digest = hashlib.sha256()
    for path in _weight_files(epath.Path(folder)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def config_to_json(config: DecoderConfig, dtype: str, end_of_text: int | None) -> dict[str, Any]:
    """The ``config.json`` of a decoder, readable by transformers 4 and 5."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_word_embeddings,
        **FIXED_SETTINGS,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def config_from_json(settings: dict[str, Any], dtype: str = "float32") -> DecoderConfig:
    """The decoder a ``config.json`` describes; ValueError for mathematics this decoder does not do."""
    kind = settings.get("model_type")
    if kind != "llama":
        raise ValueError(f"model_type {kind!r} is not supported, only 'llama'")
    for name, value in FIXED_SETTINGS.items():
        if settings.get(name, value) != value:
            raise ValueError(f"{name} {settings[name]!r} is not supported, only {value!r}")
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    absent = [name for name in (*sizes, "max_position_embeddings") if settings.get(name) is None]
    if absent:
        raise ValueError(f"config.json lacks {', '.join(absent)}")
    for name in (*sizes, "max_position_embeddings", "num_key_value_heads", "head_dim"):
        size = settings.get(name)
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"config.json: {name} {size!r} must be a whole number, at least 1")
    heads = settings["num_attention_heads"]
    return DecoderConfig(
        **{name: settings[name] for name in sizes},
        num_key_value_heads=settings.get("num_key_value_heads") or heads,
        head_dim=settings.get("head_dim") or settings["hidden_size"] // heads,
        max_position_embeddings=settings["max_position_embeddings"],
        rope_theta=float(_rope_theta(settings)),
        rms_norm_eps=settings.get("rms_norm_eps", 1e-6),  # transformers' own default
        tie_word_embeddings=settings.get("tie_word_embeddings", False),
        dtype=dtype,
    )


def _rope_theta(settings: dict[str, Any]) -> float:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (4)."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = settings.get(name) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ValueError(f"{name} of type {kind!r} is not supported, only 'default' (plain RoPE)")
    new, old = (settings.get("rope_parameters") or {}).get("rope_theta"), settings.get("rope_theta")
    if new is not None and old is not None and new != old:
        raise ValueError(f"rope_parameters.rope_theta {new} contradicts rope_theta {old}")
    return next((theta for theta in (new, old) if theta is not None), 10_000.0)


def _decide_tying(config: DecoderConfig, tensors: dict[str, Any], folder: epath.Path) -> DecoderConfig:
    """Tied or untied follows from the arrays; the flag may not contradict them."""
    if EMBEDDING not in tensors or HEAD not in tensors:
        tied = HEAD not in tensors
        if not tied or config.tie_word_embeddings:
            return dataclasses.replace(config, tie_word_embeddings=tied)
        raise ValueError(f"{folder}: tie_word_embeddings is false but {HEAD} is missing")
    same = np.array_equal(np.asarray(tensors[EMBEDDING]), np.asarray(tensors[HEAD]))
    if config.tie_word_embeddings and not same:
        raise ValueError(f"{folder}: tie_word_embeddings is true but {HEAD} differs from {EMBEDDING}")
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


def _named(params: Params) -> dict[str, Any]:
    """Leaves by Hugging Face name: the path through our tree, which already follows it."""
    leaves = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = ".".join(str(entry.key) for entry in path)
        if name == "embed_tokens":
            name = EMBEDDING
        elif name != HEAD:
            name = f"model.{name}"
        leaves[name] = leaf
    return leaves


def _nested(tensors: dict[str, Any]) -> Params:
    params: dict[Any, Any] = {}
    for name, leaf in tensors.items():
        keys: list[Any] = name.removeprefix("model.").split(".")
        if name == EMBEDDING:
            keys = ["embed_tokens"]
        node = params
        for key in keys[:-1]:
            node = node.setdefault(int(key) if key.isdigit() else key, {})
        node[keys[-1]] = leaf
    return params
