"""Metadata of a GGUF file that cannot be right is named by its key."""

import pytest

from specjax.data import gguf_tokenizer
from specjax.models.gguf_settings import settings_from_metadata

TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
}
SIZES = {
    "general.architecture": "llama",
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 16,
    "llama.block_count": 1,
    "llama.attention.head_count": 2,
    "llama.context_length": 64,
}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"merges": ["a c"]}, "tokens and merges make no tokenizer"),
        ({"merges": ["ab"]}, "tokens and merges make no tokenizer"),
        ({"add_bos_token": True, "bos_token_id": 3}, r"bos_token_id 3 must be an id in 0\.\.2"),
        ({"add_bos_token": True}, "bos_token_id names no token"),
    ],
)
def test_tokenizers(changes, told):
    assert gguf_tokenizer.read_tokenizer(TOKENIZER).encode("ab").ids == [2]
    with pytest.raises(ValueError, match=told):
        gguf_tokenizer.read_tokenizer(TOKENIZER | {f"tokenizer.ggml.{k}": v for k, v in changes.items()})


@pytest.mark.parametrize("index", [3, -1, "a"])
def test_special_tokens_are_tokens(index):
    metadata = TOKENIZER | {"tokenizer.ggml.eos_token_id": index}
    for look_up in (gguf_tokenizer.special_id, gguf_tokenizer.special_token):
        with pytest.raises(ValueError, match=rf"eos_token_id {index!r} must be an id in 0\.\.2"):
            look_up(metadata, "eos")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"attention.head_count": 0}, "llama.attention.head_count 0 must be a whole number"),
        ({"embedding_length": "8"}, "llama.embedding_length '8' must be a whole number"),
        ({"attention.head_count_kv": [2]}, r"llama.attention.head_count_kv \[2\] must be a whole number"),
        ({"rope.scaling.type": "linear"}, "'linear' lacks rope.scaling.factor"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0},
            "'yarn' lacks rope.scaling.original_context_length",
        ),
    ],
)
def test_settings(changes, told):
    metadata = SIZES | {f"llama.{key}": value for key, value in changes.items()}
    with pytest.raises(ValueError, match=told):
        settings_from_metadata(metadata, {"token_embd.weight": None})
