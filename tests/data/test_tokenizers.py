import json

import pytest
from tokenizers import Tokenizer

from specjax.data.tokenizers import (
    END_OF_TEXT,
    check_same_ids,
    load_tokenizer,
    num_ids,
    num_shared_ids,
    save_tokenizer,
    train_tokenizer,
)

TEXTS = ["def add(a, b):\n    return a + b\n", "class Äpfel:\n\tpass  # \U0001f34e\r\n"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocab_size=280)


def test_any_text_survives_a_round_trip(tokenizer):
    for text in (*TEXTS, " leading", "\n\n  \t x", "日本", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_size_and_special_token(tokenizer):
    assert tokenizer.get_vocab_size() == 280
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    assert tokenizer.encode(f"a{END_OF_TEXT}").ids[-1] == 0


def test_training_is_reproducible(tokenizer):
    assert train_tokenizer(TEXTS, vocab_size=280).to_str() == tokenizer.to_str()


def test_folder_round_trip(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path, context=512)
    check_same_ids(tokenizer, load_tokenizer(tmp_path))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 512 and settings["eos_token"] == END_OF_TEXT


def test_same_size_but_other_ids_are_refused_at_the_first_that_differs(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path, context=512)
    path = tmp_path / "tokenizer.json"
    settings = json.loads(path.read_text())
    vocab = settings["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.get)[40:42]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"differ: id 40 is .* for the target .* for the draft"):
        check_same_ids(tokenizer, load_tokenizer(tmp_path))


def test_other_size_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"id 270 is .*280 tokens.* None for the draft \(270 tokens\)"):
        check_same_ids(tokenizer, train_tokenizer(TEXTS, vocab_size=270))


def test_special_tokens_given_on_top_are_no_difference(tokenizer):
    longer = Tokenizer.from_str(tokenizer.to_str())
    longer.add_special_tokens(["<|tool|>", "<|image|>"])
    check_same_ids(tokenizer, longer)
    check_same_ids(longer, tokenizer)
    assert (num_ids(longer), num_shared_ids(longer, tokenizer)) == (282, 280)
    other = Tokenizer.from_str(tokenizer.to_str())
    other.add_special_tokens(["<|image|>"])
    with pytest.raises(ValueError, match=r"id 280 is '<\|tool\|>' for the target.*'<\|image\|>' for the"):
        check_same_ids(longer, other)


@pytest.mark.parametrize(("text", "message"), [(None, "no tokenizer.json in"), ("{", "is not JSON")])
def test_bad_folders(tmp_path, text, message):
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)
