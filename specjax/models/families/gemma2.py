"""Gemma 2 (Gemma Team 2024, arXiv 2408.00118): every other layer has a window, and soft caps."""

from __future__ import annotations

from typing import Any

from specjax.models.config import DecoderConfig
from specjax.models.families.family import Family, Settings
from specjax.models.families.positions import ROPE, read_rope, read_windows, write_rope, write_windows

# Shared with Gemma 3
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "attention_bias": False,
    "sliding_window": 4096,
    "layer_types": None,
    "tie_word_embeddings": True,
}
FIXED = {"use_bidirectional_attention": False}
IGNORED = frozenset({"hidden_act"})  # transformers reads hidden_activation alone


def read_common(settings: Settings) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common."""
    return {
        "norm": "rms_plus_one",
        "post_norms": True,
        "attention_bias": "all" if settings["attention_bias"] else "none",
        "query_pre_attn_scalar": settings["query_pre_attn_scalar"],
        "hidden_act": settings["hidden_activation"],
        "scale_embeddings": True,
        "final_logit_softcapping": settings["final_logit_softcapping"],
    }


def write_common(config: DecoderConfig) -> Settings:
    return {
        "attention_bias": config.attention_bias == "all",
        "query_pre_attn_scalar": config.query_pre_attn_scalar,
        "hidden_activation": config.hidden_act,
        "hidden_act": config.hidden_act,
        "final_logit_softcapping": config.final_logit_softcapping,
        **write_windows(config),
    }


def read(settings: Settings) -> dict[str, Any]:
    alternate = [layer % 2 == 0 for layer in range(settings["num_hidden_layers"])]
    return {
        **read_common(settings),
        **read_rope(settings),
        "sliding_windows": read_windows(settings, alternate, settings["sliding_window"]),
        "attn_logit_softcapping": settings["attn_logit_softcapping"],
    }


def write(config: DecoderConfig) -> Settings:
    return {
        **write_common(config),
        **write_rope(config),
        "attn_logit_softcapping": config.attn_logit_softcapping,
    }


FAMILY = Family(
    architecture="Gemma2ForCausalLM",
    defaults={
        **DEFAULTS,
        **ROPE,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    fixed=FIXED,
    ignored=IGNORED,
    read=read,
    write=write,
)
