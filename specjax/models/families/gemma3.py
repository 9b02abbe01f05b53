"""Gemma 3's text model (Gemma Team 2025, arXiv 2503.19786): queries and keys normed, two RoPE thetas.

Layers with a window turn with ``rope_local_base_freq`` and are never scaled;
the others with ``rope_theta``, scaled. In transformers 5 the two stand in
``rope_parameters`` under the names of the layer types.
"""

from __future__ import annotations

from typing import Any

from specjax.models.config import DecoderConfig
from specjax.models.families.family import Family, Settings
from specjax.models.families.gemma2 import DEFAULTS, FIXED, IGNORED, read_common, write_common
from specjax.models.families.positions import (
    FULL,
    ROPE,
    SLIDING,
    read_rope,
    read_scaling,
    read_windows,
    stated_object,
    write_rope,
)


def read(settings: Settings) -> dict[str, Any]:
    pattern = settings["sliding_window_pattern"] or settings["_sliding_window_pattern"] or 6
    slides = [(layer + 1) % pattern != 0 for layer in range(settings["num_hidden_layers"])]
    return {
        **read_common(settings),
        **_read_both_ropes(settings),
        "sliding_windows": read_windows(settings, slides, settings["sliding_window"]),
        "qk_norm": True,
    }


def _read_both_ropes(settings: Settings) -> dict[str, Any]:
    nested = stated_object(settings, "rope_parameters")
    if strange := sorted(nested.keys() - {FULL, SLIDING}):
        raise ValueError(
            f"rope_parameters of gemma3_text holds {FULL} and {SLIDING}, not {', '.join(strange)}"
        )
    everywhere, local = stated_object(nested, FULL), stated_object(nested, SLIDING)
    where = f"rope_parameters.{SLIDING}"
    if read_scaling(where, local, settings["max_position_embeddings"]) is not None:
        raise ValueError(f"{where} of type {local['rope_type']!r} is not supported, only 'default'")
    thetas = {local.get("rope_theta"), settings["rope_local_base_freq"]} - {None}
    if len(thetas) > 1:
        raise ValueError(f"{where}.rope_theta contradicts rope_local_base_freq: {sorted(thetas)}")
    return {
        **read_rope({**settings, "rope_parameters": everywhere}, default_theta=1_000_000.0),
        "rope_local_base_freq": float(next(iter(thetas), 10_000.0)),
    }


def write(config: DecoderConfig) -> Settings:
    rope = write_rope(config)
    local = {"rope_type": "default", "rope_theta": config.rope_local_base_freq}
    return {
        **write_common(config),
        **rope,
        "rope_local_base_freq": config.rope_local_base_freq,
        "rope_parameters": {FULL: rope["rope_parameters"], SLIDING: local},
    }


FAMILY = Family(
    architecture="Gemma3ForCausalLM",
    defaults={
        **DEFAULTS,
        **ROPE,
        "rope_local_base_freq": None,
        "sliding_window_pattern": None,
        "_sliding_window_pattern": None,
        "final_logit_softcapping": None,
    },
    fixed={**FIXED, "attn_logit_softcapping": None},
    ignored=IGNORED,
    read=read,
    write=write,
)
