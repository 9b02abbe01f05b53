"""Metadata of a GGUF file as settings of a ``config.json``, and its tensors' names as Hugging Face's."""

from __future__ import annotations

from collections.abc import Mapping
import math
from typing import Any

import gguf
import jax
import numpy as np

from specjax.models import families
from specjax.models.language_model import init_params

# general.architecture -> model_type. Both names happen to agree.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# Settings under their names in the metadata, after "<architecture>.".
SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}


def settings_from_metadata(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The ``config.json`` that would describe the file; ValueError for what is missing or unsupported."""
    kind = metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ValueError(f"architecture {kind!r} is not supported in GGUF, only {', '.join(ARCHITECTURES)}")
    stated = {key.removeprefix(f"{kind}."): value for key, value in metadata.items()}
    absent = [f"{kind}.{key}" for key in SIZES.values() if key not in stated]
    absent += [name for name in ("token_embd.weight",) if name not in tensors]
    if absent:
        raise ValueError(f"lacks {', '.join(absent)}")
    for key in (*SIZES.values(), "attention.head_count_kv", "attention.key_length"):
        if key in stated and (type(stated[key]) is not int or stated[key] < 1):
            raise ValueError(f"{kind}.{key} {stated[key]!r} must be a whole number, at least 1")
    sizes = {name: stated[key] for name, key in SIZES.items()}
    heads = sizes["num_attention_heads"]
    head_dim = stated.get("attention.key_length", sizes["hidden_size"] // heads)
    rotated = stated.get("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ValueError(
            f"rotates {rotated} of each head's {head_dim} features; only all of them is supported"
        )
    rope = _rope(stated, tensors, head_dim)
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        **sizes,
        "num_key_value_heads": stated.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(stated.get("attention.layer_norm_rms_epsilon", 1e-5)),
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in tensors,
        **({} if kind == "qwen2" else {"attention_bias": False}),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }


def stored_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """GGUF's names of all tensors the model has, to those in Hugging Face's files."""
    config = families.config_from_json({**settings, "tie_word_embeddings": False})
    expected = jax.eval_shape(lambda: families.stored(config, init_params(config, 0)))
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == settings["model_type"])
    known = gguf.get_tensor_name_map(architecture, settings["num_hidden_layers"])
    names = {}
    for name in expected:
        stem, _, end = name.rpartition(".")
        names[f"{known.get_name(stem)}.{end}"] = name
    return names


def _rope(stated: Mapping[str, Any], tensors: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    theta = _shortest(stated.get("rope.freq_base", 10_000.0))
    kind = stated.get("rope.scaling.type", "none")
    if "rope_freqs.weight" in tensors:
        factors = np.asarray(tensors["rope_freqs.weight"].data, np.float32).reshape(-1)
        return {"rope_type": "llama3", "rope_theta": theta, **_llama3(factors, theta, head_dim)}
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind not in ("linear", "yarn"):
        raise ValueError(f"rope.scaling.type {kind!r} is not supported, only none, linear and yarn")
    needed = ["rope.scaling.factor"] + ["rope.scaling.original_context_length"] * (kind == "yarn")
    if absent := [key for key in needed if key not in stated]:
        raise ValueError(f"rope.scaling.type {kind!r} lacks {', '.join(absent)}")
    rope = {"rope_type": kind, "rope_theta": theta, "factor": _shortest(stated["rope.scaling.factor"])}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = stated["rope.scaling.original_context_length"]
    return rope


def _llama3(factors: np.ndarray, theta: float, head_dim: int) -> dict[str, Any]:
    """The scaling behind a file's divisors of the frequencies, of which Llama 3.1 to 3.3 state one each.

    Raises ValueError when the divisors are not those of the release's low and
    high frequency factors (1 and 4) and context (8,192).
    """
    low, high, context, factor = 1.0, 4.0, 8192, float(factors.max())
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    share = np.clip((context / wavelengths - low) / (high - low), 0, 1)
    if factors.shape != share.shape or not np.allclose(
        factors, 1 / ((1 - share) / factor + share), rtol=1e-3
    ):
        raise ValueError("rope_freqs.weight is not the scaling of Llama 3.1: it cannot be stated as settings")
    return {
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": context,
    }


def _shortest(value: float) -> float:
    """A float32 of the metadata as the decimal it was written from.

    >>> _shortest(9.999999747378752e-06)
    1e-05
    """
    return float(str(np.float32(value)))
