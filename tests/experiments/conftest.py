"""A tiny random pair in model folders, and a prompts file, for sweeps of seconds."""

from __future__ import annotations

import json

import pytest

from specjax.data.tokenizers import train_tokenizer
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


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(TEXTS, 280)


@pytest.fixture(scope="session")
def pair(tmp_path_factory, tokenizer):
    """(target folder, draft folder)."""
    root = tmp_path_factory.mktemp("pair")
    target = save_model(root / "big", tokenizer, hidden_size=32, num_layers=2)
    return str(target), str(save_model(root / "small", tokenizer, seed=1))


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return str(path)


@pytest.fixture
def tiny(pair, prompts_file):
    """Fields of a sweep that takes seconds; a test replaces what it is about."""
    target, draft = pair
    return {
        "targets": (target,),
        "drafters": ("none", draft),
        "gammas": (2,),
        "temperatures": (0.0,),
        "prompts": prompts_file,
        "num_prompts": 2,
        "max_new_tokens": 8,
        "cost_repeats": 2,
    }
