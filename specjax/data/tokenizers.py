"""Byte-level BPE tokenizers in the ``tokenizer.json`` format of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterable
import json

from etils import epath
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) with one special token, id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(END_OF_TEXT, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: epath.PathLike, context: int) -> None:
    """``tokenizer.json`` and the ``tokenizer_config.json`` that ``transformers`` wants beside it."""
    folder = epath.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def load_tokenizer(folder: epath.PathLike) -> Tokenizer:
    """The tokenizer of a model folder; ValueError when ``tokenizer.json`` is missing or malformed."""
    path = epath.Path(folder) / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"no tokenizer.json in {folder}")
    try:
        text = path.read_text()
        json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} is not a tokenizer: {error}") from error


def check_same_ids(target: Tokenizer, draft: Tokenizer) -> None:
    """ValueError, naming the first differing id, unless every id means the same token in both.

    Sizes alone say nothing: a draft token scored under another meaning is
    accepted or rejected at random. Special tokens that one of them has been
    given on top, at the end, are no difference: they are never drafted.
    """
    ours, theirs = _tokens_by_id(target), _tokens_by_id(draft)
    added = target.get_added_tokens_decoder().keys() | draft.get_added_tokens_decoder().keys()
    shared = num_shared_ids(target, draft)
    for index in sorted(ours.keys() | theirs.keys()):
        on_top = index >= shared and index in added
        if ours.get(index) == theirs.get(index) or on_top:
            continue
        raise ValueError(
            f"target and draft tokenizers differ: id {index} is {ours.get(index)!r} for the target "
            f"({len(ours)} tokens) and {theirs.get(index)!r} for the draft ({len(theirs)} tokens); "
            "a draft model must share the target's vocabulary"
        )


def num_ids(tokenizer: Tokenizer) -> int:
    """One more than the largest id a tokenizer can give; a model's vocabulary may be padded beyond it."""
    return max(_tokens_by_id(tokenizer), default=-1) + 1


def num_shared_ids(target: Tokenizer, draft: Tokenizer) -> int:
    """Ids below this one are known to both."""
    return min(num_ids(target), num_ids(draft))


def _tokens_by_id(tokenizer: Tokenizer) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
