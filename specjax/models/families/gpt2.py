"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases everywhere, no gate in the MLP.

Its files store kernels [in, out], as they lie here, and one kernel for
queries, keys and values.
"""

from __future__ import annotations

from typing import Any

from specjax.models.config import DecoderConfig
from specjax.models.families.family import Family, Settings


def read(settings: Settings) -> dict[str, Any]:
    return {
        "intermediate_size": settings["intermediate_size"] or 4 * settings["hidden_size"],
        "position_embedding": "learned",
        "norm": "layer",
        "attention_bias": "all",
        "fused_qkv": True,
        "hidden_act": settings["hidden_act"],
        "gated_mlp": False,
        "mlp_bias": True,
    }


def write(config: DecoderConfig) -> Settings:
    return {"hidden_act": config.hidden_act}


FAMILY = Family(
    architecture="GPT2LMHeadModel",
    defaults={
        "intermediate_size": None,
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu_new",
        "tie_word_embeddings": True,
    },
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    read=read,
    write=write,
    settings={
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
    words={
        "embed_tokens": "wte",
        "embed_positions": "wpe",
        "layers": "h",
        "input_layernorm": "ln_1",
        "self_attn": "attn",
        "qkv_proj": "c_attn",
        "o_proj": "c_proj",
        "post_attention_layernorm": "ln_2",
        "up_proj": "c_fc",
        "down_proj": "c_proj",
        "norm": "ln_f",
    },
    prefix="transformer",
    kernels_transposed=False,
    buffers=("attn.bias", "attn.masked_bias"),
)
