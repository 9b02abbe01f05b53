"""Llama 1 to 3 (Touvron et al. 2023, arXiv 2302.13971), and what copies it: SmolLM2, TinyLlama, ..."""

from __future__ import annotations

from typing import Any

from specjax.models.config import DecoderConfig
from specjax.models.families.family import Family, Settings
from specjax.models.families.positions import ROPE, read_rope, write_rope


def read(settings: Settings) -> dict[str, Any]:
    return {
        **read_rope(settings),
        "attention_bias": "all" if settings["attention_bias"] else "none",
        "mlp_bias": bool(settings["mlp_bias"]),
        "hidden_act": settings["hidden_act"],
    }


def write(config: DecoderConfig) -> Settings:
    return {
        **write_rope(config),
        "attention_bias": config.attention_bias == "all",
        "mlp_bias": config.mlp_bias,
        "hidden_act": config.hidden_act,
    }


FAMILY = Family(
    architecture="LlamaForCausalLM",
    defaults={
        **ROPE,
        "num_key_value_heads": None,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    fixed={"rope_interleaved": False},
    read=read,
    write=write,
)
