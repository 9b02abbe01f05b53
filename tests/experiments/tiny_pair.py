"""Tiny random models in Hugging Face folders."""

from __future__ import annotations

from specjax.models import huggingface
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params

TEXTS = [
    "def area(width, height):\n    return width * height\n",
    "for item in items:\n    total += item.price\n",
    "if name not in table:\n    table[name] = []\n",
    "while queue:\n    node = queue.pop()\n    visit(node)\n",
]


def tiny_config(vocab_size: int, hidden_size: int, num_layers: int, context: int = 128) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=hidden_size // 2,
        max_position_embeddings=context,
    )


def save_model(folder, tokenizer, *, hidden_size=16, num_layers=1, seed=0, context=128):
    config = tiny_config(tokenizer.get_vocab_size(), hidden_size, num_layers, context)
    huggingface.save(folder, from_config(config), init_params(config, seed), tokenizer, dtype="float32")
    return folder
