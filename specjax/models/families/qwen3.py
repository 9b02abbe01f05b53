"""Qwen3 (Yang et al. 2025, arXiv 2505.09388): queries and keys are normed by head, and need no bias."""

from __future__ import annotations

from typing import Any

from specjax.models.config import DecoderConfig
from specjax.models.families.family import Family, Settings
from specjax.models.families.positions import ROPE, read_rope, write_rope
from specjax.models.families.qwen2 import WINDOWS, read_upper_windows, write_upper_windows


def read(settings: Settings) -> dict[str, Any]:
    return {
        **read_rope(settings),
        "sliding_windows": read_upper_windows(settings),
        "qk_norm": True,
        "attention_bias": "all" if settings["attention_bias"] else "none",
        "hidden_act": settings["hidden_act"],
    }


def write(config: DecoderConfig) -> Settings:
    return {
        **write_rope(config),
        **write_upper_windows(config),
        "attention_bias": config.attention_bias == "all",
        "hidden_act": config.hidden_act,
    }


FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    defaults={
        **ROPE,
        **WINDOWS,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    },
    fixed={},
    read=read,
    write=write,
)
