"""The tokenizer in the metadata of a GGUF file, rebuilt as the ``tokenizer.json`` it came from.

GGUF keeps tokens, merges and the name of a pre-tokenizer; what that name means
is written in the reader. Byte-level BPE only, as of GPT-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

PREFIX = "tokenizer.ggml."
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # token types; the others are ordinary text

# Splits of text into words, by digits per token at most: Llama 3 takes three, Qwen 2 one.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(digits: str) -> list[Any]:
    words = pre_tokenizers.Split(Regex(_WORDS % digits), behavior="isolated")
    return [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def _gpt2() -> list[Any]:
    return [pre_tokenizers.ByteLevel(add_prefix_space=False)]


def _smollm() -> list[Any]:
    return [pre_tokenizers.Digits(individual_digits=True), *_gpt2()]


PRE_TOKENIZERS = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _split("1,3"),
    "qwen2": lambda: _split("1"),
}
WHOLE_WORDS_FIRST = {"llama-bpe"}  # a word that is a token is one, whatever the merges say
COMPOSED = {"qwen2"}  # Unicode NFC before anything else


def read_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that ``metadata`` describes; ValueError for a kind or pre-tokenizer not known here.

    Tokens marked as unused are padding of the vocabulary and get no entry.
    """
    kind, pre = metadata.get(f"{PREFIX}model"), metadata.get(f"{PREFIX}pre", "gpt-2")
    if kind != "gpt2":
        raise ValueError(f"tokenizer of kind {kind!r} is not supported, only 'gpt2' (byte-level BPE)")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(f"pre-tokenizer {pre!r} is not supported, only {', '.join(PRE_TOKENIZERS)}")
    absent = [key for key in ("tokens", "merges") if not metadata.get(PREFIX + key)]
    if absent:
        raise ValueError(f"the metadata lacks {', '.join(PREFIX + key for key in absent)}")
    tokens = metadata[f"{PREFIX}tokens"]
    types = metadata.get(f"{PREFIX}token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens but {len(types)} token types")
    vocab = {
        token: index for index, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != UNUSED
    }
    merges = [tuple(merge.split(" ", 1)) for merge in metadata[f"{PREFIX}merges"]]
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in WHOLE_WORDS_FIRST)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{PREFIX}tokens and merges make no tokenizer: {error}") from None
    tokenizer = Tokenizer(model)
    if pre in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS[pre]())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    if metadata.get(f"{PREFIX}add_bos_token"):
        begin = special_id(metadata, "bos")
        if begin is None:
            raise ValueError(f"{PREFIX}add_bos_token is set, but {PREFIX}bos_token_id names no token")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[begin]} $A", special_tokens=[(tokens[begin], begin)]
        )
    return tokenizer


def special_token(metadata: Mapping[str, Any], name: str) -> str:
    """The text of the token that ``tokenizer.ggml.<name>_token_id`` names; "" where it names none."""
    index = special_id(metadata, name)
    return metadata[f"{PREFIX}tokens"][index] if index is not None else ""


def special_id(metadata: Mapping[str, Any], name: str) -> int | None:
    """``tokenizer.ggml.<name>_token_id``, if it is there; ValueError for an id that no token has."""
    index, size = metadata.get(f"{PREFIX}{name}_token_id"), len(metadata.get(f"{PREFIX}tokens", ()))
    if index is not None and (type(index) is not int or not 0 <= index < size):
        raise ValueError(f"{PREFIX}{name}_token_id {index!r} must be an id in 0..{size - 1}")
    return index
