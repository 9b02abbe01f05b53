"""Tiny random checkpoints, one for each family and each kind of RoPE scaling: settings of ``transformers``.

Windows and original contexts are far shorter than the inputs, so that a mask
or a scaling that is ignored shows.
"""

INPUT_LENGTH = 96
CONTEXT = 128
ORIGINAL_CONTEXT = 32

COMMON = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 32,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": CONTEXT,
    "initializer_range": 0.3,
}
GEMMA = {**COMMON, "num_hidden_layers": 3, "query_pre_attn_scalar": 5, "sliding_window": 7}


def llama(**rope):
    return {**COMMON, "model_type": "llama", "rope_parameters": {"rope_theta": 1e3, **rope}}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL_CONTEXT,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL_CONTEXT}

CHECKPOINTS = {
    "llama-llama3": llama(**LLAMA3),
    "llama-linear": llama(rope_type="linear", factor=4.0),
    "llama-yarn": llama(**YARN),
    "llama-biases": {**llama(rope_type="default"), "attention_bias": True, "mlp_bias": True},
    "mistral": {**COMMON, "model_type": "mistral", "sliding_window": 7},
    "qwen2": {**COMMON, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-window": {
        **COMMON,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {**COMMON, "model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 12},
    "gemma2": {
        **GEMMA,
        "model_type": "gemma2",
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        **GEMMA,
        "model_type": "gemma3_text",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "final_logit_softcapping": 4.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "gpt2": GPT2,
}
