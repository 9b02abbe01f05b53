"""Weights on their way from a file to a mesh: no device, and no host array, ever holds a whole split one."""

import dataclasses

import jax
import numpy as np
import pytest

from specjax import sharding
from specjax.data.tokenizers import train_tokenizer
from specjax.models import huggingface
from specjax.models.config import DecoderConfig
from specjax.models.language_model import from_config, init_params, logical_axes

CONFIG = DecoderConfig(
    vocab_size=264,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=64,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    shapes, random = jax.eval_shape(lambda: init_params(CONFIG, 0)), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes)
    tokenizer = train_tokenizer(["def f(x):\n    return x\n"], vocab_size=264)
    huggingface.save(folder, from_config(CONFIG), params, tokenizer, dtype="float32")
    return folder, params


@pytest.mark.parametrize("sizes", [(1, 2), (2, 4), (8, 1)], ids=str)
def test_placed_as_place_params_would(saved, sizes):
    folder, params = saved
    mesh, rules = sharding.make_mesh(*sizes), sharding.AxisRules()
    model, loaded = huggingface.load(folder, mesh=mesh)
    placed = sharding.place_params(params, logical_axes(model), rules, mesh, head_dim=CONFIG.head_dim)
    jax.tree.map(np.testing.assert_array_equal, loaded, placed)
    assert jax.tree.all(jax.tree.map(lambda a, b: a.sharding == b.sharding, loaded, placed))


def test_only_slices_are_read(saved, monkeypatch):
    folder, _ = saved
    shapes = []

    def watched(shape, place, read):
        seen = lambda index: shapes.append((shape, read(index).shape)) or read(index)
        return original(shape, place, seen)

    original = jax.make_array_from_callback
    monkeypatch.setattr(jax, "make_array_from_callback", watched)
    rules = dataclasses.replace(sharding.AxisRules(), vocab="model")
    huggingface.load(folder, mesh=sharding.make_mesh(1, 2), rules=rules)
    halved = {whole for whole, part in shapes if np.prod(part) * 2 == np.prod(whole)}
    whole = {whole for whole, part in shapes if part == whole}
    assert halved == {(264, 16), (16, 16), (16, 8), (16, 24), (24, 16)}
    assert whole == {(16,)}  # norms
