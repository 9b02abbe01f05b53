"""What Hugging Face's files call things: settings of a ``config.json``, and names and layouts of tensors.

One file per family; :data:`FAMILIES` is the list of what can be read and written.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any, TypeVar

import jax

from specjax.models.config import DecoderConfig
from specjax.models.families import gemma2, gemma3, gpt2, llama, mistral, qwen2, qwen3
from specjax.models.families.family import Family, Settings
from specjax.types import Params

Tensor = TypeVar("Tensor")

FAMILIES: dict[str, Family] = {  # by model_type
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "gemma2": gemma2.FAMILY,
    "gemma3_text": gemma3.FAMILY,
    "gpt2": gpt2.FAMILY,
}
# Sizes a config.json must state under these names, or under its family's.
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
# Settings that are positive numbers, or null where the family allows it.
NUMBERS = (
    "rms_norm_eps",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope_local_base_freq",
)
# Settings of other architectures that would change the mathematics of any family here.
FIXED = {"quantization_config": None, "partial_rotary_factor": 1.0, "is_encoder_decoder": False}
MEANINGS = set().union(*(family.known() for family in FAMILIES.values()))


def config_from_json(settings: Settings, dtype: str = "float32") -> DecoderConfig:
    """The decoder a ``config.json`` describes, with weights and activations of ``dtype``.

    A setting that is absent means what it means to ``transformers``.

    Raises:
      ValueError: a family, RoPE type or activation that is not supported (with
        the supported ones), a setting that would change the mathematics in
        another way, a size that is absent or no whole number, or two settings
        that contradict each other.
    """
    family = family_of(settings.get("model_type"))
    for ours, theirs in family.settings.items():
        if theirs in settings:
            settings = {**settings, ours: settings[theirs]}
    _check_settings(settings, family)
    settings = {**family.defaults, **settings}
    _check_numbers(settings, family)
    heads = settings["num_attention_heads"]
    fields = {
        **{name: settings[name] for name in (*SIZES, "model_type", "rms_norm_eps")},
        "num_key_value_heads": settings.get("num_key_value_heads") or heads,
        "head_dim": settings.get("head_dim") or settings["hidden_size"] // heads,
        "tie_word_embeddings": bool(settings["tie_word_embeddings"]),
        "dtype": dtype,
    }
    return DecoderConfig(**fields | family.read(settings))


def config_to_json(config: DecoderConfig, dtype: str, end_of_text: int | None) -> Settings:
    """The ``config.json`` of a decoder with weights of ``dtype``, readable by transformers 4 and 5.

    Raises:
      ValueError: the family of ``config.model_type`` cannot express the rest of it.
    """
    family = family_of(config.model_type)
    heads = [name for name in ("num_key_value_heads", "head_dim") if name in family.defaults]
    plain = (*SIZES, *heads, "rms_norm_eps", "tie_word_embeddings")
    settings = {name: getattr(config, name) for name in plain} | family.write(config)
    written = {
        "architectures": [family.architecture],
        "model_type": config.model_type,
        **{family.settings.get(name, name): value for name, value in settings.items()},
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    back = dataclasses.asdict(config_from_json(written, config.dtype))
    lost = [name for name, value in dataclasses.asdict(config).items() if back[name] != value]
    if lost:
        stated = ", ".join(f"{name}={getattr(config, name)!r}" for name in lost)
        raise ValueError(f"a config.json of {config.model_type} cannot express {stated}")
    return written


def family_of(model_type: Any) -> Family:
    """The family of that ``model_type``; ValueError with the supported ones."""
    if model_type not in FAMILIES:
        raise ValueError(f"model_type {model_type!r} is not supported, only {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def stored(config: DecoderConfig, params: Params) -> dict[str, Any]:
    """Leaves by Hugging Face name, laid out as its files have them."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {stored_name(config, path): as_stored(config, path, leaf) for path, leaf in leaves}


def stored_name(config: DecoderConfig, path: tuple[Any, ...]) -> str:
    """The name of the tensor at a ``path`` (of jax.tree_util) of the params.

    >>> key = jax.tree_util.DictKey
    >>> gpt2_config = config_from_json(dict(model_type="gpt2", vocab_size=9, n_embd=4, n_layer=1, n_head=2,
    ...                                     n_positions=8))
    >>> stored_name(gpt2_config, (key("layers"), key(0), key("mlp"), key("up_proj"), key("kernel")))
    'transformer.h.0.mlp.c_fc.weight'
    """
    family = family_of(config.model_type)
    words = [family.words.get(str(entry.key), str(entry.key)) for entry in path]
    last = words.pop() if words[-1] in ("kernel", "weight", "bias") else "weight"
    inside = [] if words == ["lm_head"] else [family.prefix]
    return ".".join([*inside, *words, "bias" if last == "bias" else "weight"])


def embedding_name(config: DecoderConfig) -> str:
    """The tensor a tied head shares."""
    return stored_name(config, (jax.tree_util.DictKey("embed_tokens"),))


def by_usual_name(config: DecoderConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights among a file's ``tensors``, by the names :func:`stored_name` gives.

    Files written from the model without its head lack the prefix, and some
    hold causal masks or RoPE frequencies, which are dropped.

    Raises:
      ValueError: the same weight with and without prefix.
    """
    family = family_of(config.model_type)
    weights: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(tuple(f".{buffer}" for buffer in family.buffers)):
            continue
        prefixed = name.startswith((f"{family.prefix}.", "lm_head."))
        usual = name if prefixed else f"{family.prefix}.{name}"
        if usual in weights:
            raise ValueError(f"{usual} is stored twice, with and without its prefix")
        weights[usual] = tensor
    return weights


def as_stored(config: DecoderConfig, path: tuple[Any, ...], leaf: Any) -> Any:
    """A leaf as its file has it, and back: kernels are [in, out] here, [out, in] in most families' files."""
    transposed = path[-1].key == "kernel" and family_of(config.model_type).kernels_transposed
    return leaf.T if transposed else leaf


def _check_settings(settings: Settings, family: Family) -> None:
    kind = settings["model_type"]
    for name, value in (FIXED | family.fixed).items():
        stated = settings.get(name, value)
        if stated not in (value, *([] if value is True else [None])):
            raise ValueError(f"config.json: {name} {stated!r} is not supported for {kind}, only {value!r}")
    if (tied := settings.get("tie_word_embeddings")) not in (True, False, None):
        raise ValueError(f"config.json: tie_word_embeddings {tied!r} must be true or false")
    common = {*SIZES, "num_key_value_heads", "head_dim"}
    for name in sorted(MEANINGS - family.known() - common):
        if settings.get(name):
            raise ValueError(f"config.json: {name} {settings[name]!r} has no meaning for {kind}")


def _check_numbers(settings: Settings, family: Family) -> None:
    needed = [name for name in SIZES if name not in family.defaults]
    absent = [name for name in needed if settings.get(name) is None]
    if absent:
        raise ValueError(f"config.json lacks {', '.join(family.settings.get(name, name) for name in absent)}")
    for name in (*SIZES, "num_key_value_heads", "head_dim"):
        size = settings.get(name)
        if size is not None and (type(size) is not int or size < 1):
            shown = family.settings.get(name, name)
            raise ValueError(f"config.json: {shown} {size!r} must be a whole number, at least 1")
    for name in NUMBERS:
        number = settings.get(name)
        if number is not None and (type(number) not in (int, float) or number <= 0):
            shown = family.settings.get(name, name)
            raise ValueError(f"config.json: {shown} {number!r} must be a positive number")
