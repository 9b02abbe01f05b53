"""Tiny transformers with laws worth testing: neither flat nor one-hot."""

from __future__ import annotations

from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import TransformerLM, from_config, init_params
from specjax.types import Params


def tiny_config(vocab_size: int) -> DecoderConfig:
    """Two layers of width 8 and tied embeddings, for what is learned or read from hidden states."""
    return DecoderConfig(
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=64,
    )


def tiny_transformer(
    *,
    vocab_size: int,
    seed: int,
    layers: int = 1,
    width: int = 16,
    context: int = 256,
    sharpness: float = 2.0,
) -> tuple[TransformerLM, Params]:
    """A random float32 decoder and its params; ``sharpness`` is about the sd of its logits."""
    config = DecoderConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=width // 2,
        max_position_embeddings=context,
        tie_word_embeddings=False,
    )
    params = init_params(config, seed)
    params["lm_head"] = params["lm_head"] * sharpness
    # Embeddings of the trained size, so that attention and MLP do not drown the token itself.
    params["embed_tokens"] = params["embed_tokens"] * 50.0
    return from_config(config), params
