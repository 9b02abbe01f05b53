"""A tiny random pair in model folders, and a prompts file, for sweeps of seconds."""

from __future__ import annotations

import json

import pytest
from tiny_pair import TEXTS, save_model

from specjax.data.tokenizers import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(TEXTS, 280)


@pytest.fixture(scope="session")
def pair(tmp_path_factory, tokenizer):
    """(target folder, draft folder)."""
    root = tmp_path_factory.mktemp("pair")
    target = save_model(root / "big", tokenizer, hidden_size=16)
    return str(target), str(save_model(root / "small", tokenizer, hidden_size=8, seed=1))


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
