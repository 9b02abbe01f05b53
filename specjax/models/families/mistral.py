"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825): Llama with one window for all layers, or none."""

from __future__ import annotations

from typing import Any

from specjax.models.config import DecoderConfig
from specjax.models.families.family import Family, Settings
from specjax.models.families.positions import ROPE, read_rope, read_windows, write_rope, write_windows


def read(settings: Settings) -> dict[str, Any]:
    window = settings["sliding_window"]
    slides = [window is not None] * settings["num_hidden_layers"]
    return {
        **read_rope(settings),
        "sliding_windows": read_windows(settings, slides, window),
        "hidden_act": settings["hidden_act"],
    }


def write(config: DecoderConfig) -> Settings:
    return {
        **write_rope(config),
        "sliding_window": write_windows(config)["sliding_window"],
        "hidden_act": config.hidden_act,
    }


FAMILY = Family(
    architecture="MistralForCausalLM",
    defaults={
        **ROPE,
        "num_key_value_heads": 8,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    fixed={},
    read=read,
    write=write,
)
