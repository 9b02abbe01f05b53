"""What Hugging Face's files call things: settings of a ``config.json``, and names and layouts of tensors."""

from __future__ import annotations

from typing import Any

import jax

from specjax.models.decoder import DecoderConfig
from specjax.types import Params

# Settings of a config.json that change the mathematics, with the one value this decoder computes.
FIXED_SETTINGS = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}


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


def stored(config: DecoderConfig, params: Params) -> dict[str, Any]:
    """Leaves by Hugging Face name, laid out as its files have them."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {stored_name(config, path): as_stored(config, path, leaf) for path, leaf in leaves}


def stored_name(config: DecoderConfig, path: tuple[Any, ...]) -> str:
    """The path through our tree follows Hugging Face's names but for the last word."""
    keys = [str(entry.key) for entry in path]
    if keys[-1] in ("kernel", "weight"):
        keys.pop()
    return ".".join([*([] if keys == ["lm_head"] else ["model"]), *keys, "weight"])


def embedding_name(config: DecoderConfig) -> str:
    """The tensor a tied head shares."""
    return "model.embed_tokens.weight"


def as_stored(config: DecoderConfig, path: tuple[Any, ...], leaf: Any) -> Any:
    """Its own inverse: kernels are [in, out] here and [out, in] there."""
    return leaf.T if path[-1].key == "kernel" else leaf
