"""Qwen2 and 2.5 (Yang et al. 2024, arXiv 2407.10671): Llama with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from specjax.models.config import DecoderConfig
from specjax.models.families.family import Family, Settings
from specjax.models.families.positions import ROPE, read_rope, read_windows, write_rope, write_windows

# The layers from max_window_layers on have the window, if it is used at all.
WINDOWS = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}


def read_upper_windows(settings: Settings) -> tuple[int | None, ...]:
    """A window for each layer."""
    window = settings["sliding_window"] if settings["use_sliding_window"] else None
    layers, first = settings["num_hidden_layers"], settings["max_window_layers"]
    return read_windows(settings, [window is not None and layer >= first for layer in range(layers)], window)


def write_upper_windows(config: DecoderConfig) -> Settings:
    """For transformers 4, which has no ``layer_types`` here, too."""
    windows = config.windows
    first = next((layer for layer, window in enumerate(windows) if window is not None), len(windows))
    return {
        **write_windows(config),
        "use_sliding_window": first < len(windows),
        "max_window_layers": first,
    }


def read(settings: Settings) -> dict[str, Any]:
    return {
        **read_rope(settings),
        "sliding_windows": read_upper_windows(settings),
        "attention_bias": "qkv",
        "hidden_act": settings["hidden_act"],
    }


def write(config: DecoderConfig) -> Settings:
    return {**write_rope(config), **write_upper_windows(config), "hidden_act": config.hidden_act}


FAMILY = Family(
    architecture="Qwen2ForCausalLM",
    defaults={
        **ROPE,
        **WINDOWS,
        "num_key_value_heads": 32,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    fixed={},
    read=read,
    write=write,
)
