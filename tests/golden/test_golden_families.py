"""Every family against what ``transformers`` computed (``make_golden.py``), without transformers."""

import dataclasses
import functools
from pathlib import Path

from family_checkpoints import CHECKPOINTS, CONTEXT, INPUT_LENGTH, ORIGINAL_CONTEXT
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import load_file
from tokenizers import Tokenizer, models

from specjax.acceptance.rejection import Rejection
from specjax.data.tokenizers import END_OF_TEXT
from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import generate
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.model import ModelDrafter
from specjax.models import huggingface
from specjax.models.language_model import from_config, logical_axes
from specjax.request import make_request

HERE = Path(__file__).parent / "families"

# What each family adds to Llama, and what it would be without.
SHOWS = [
    ("llama-llama3", {"rope_scaling": None}),
    ("llama-linear", {"rope_scaling": None}),
    ("llama-yarn", {"rope_scaling": None}),
    ("llama-linear", {"rope_theta": 1e4}),
    ("mistral", {"sliding_windows": ()}),
    ("mistral", {"sliding_windows": (8, 8)}),
    ("qwen2-window", {"sliding_windows": (5, 5)}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"query_pre_attn_scalar": None}),
    ("gemma2", {"hidden_act": "silu"}),
    ("gemma2", {"scale_embeddings": False}),
    ("gemma2", {"sliding_windows": (None, 7, None)}),
    ("gemma3", {"rope_local_base_freq": None}),
    ("gemma3", {"rope_scaling": None}),
    ("gemma3", {"norm": "rms"}),
    ("gpt2", {"hidden_act": "silu"}),
]


@pytest.fixture(scope="module", autouse=True)
def compile_fast():
    """The tiny models run for milliseconds: optimizing their programs would be most of the time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@functools.cache
def load(name):
    """(model, params, inputs [T], logits [T, V]) of a checkpoint."""
    golden = np.load(HERE / f"{name}.npz")
    return *huggingface.load(HERE / name), golden["inputs"], golden["logits"]


def logits_of(model, params, inputs):
    return jax.jit(lambda ids: model.apply(params, ids, model.init_cache(len(inputs))).logits)(inputs)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_at_every_position(name):
    model, params, inputs, expected = load(name)
    assert expected.shape == (INPUT_LENGTH, model.vocab_size) and INPUT_LENGTH > 2 * ORIGINAL_CONTEXT
    np.testing.assert_allclose(logits_of(model, params, inputs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "change"), SHOWS, ids=[f"{name}-{next(iter(what))}" for name, what in SHOWS]
)
def test_a_setting_that_is_ignored_shows(name, change):
    """Control of the comparison above."""
    model, params, inputs, expected = load(name)
    other = from_config(dataclasses.replace(model.config, **change))
    assert np.abs(logits_of(other, params, inputs) - expected).max() > 1e-2


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt2"])
def test_cached_steps_give_the_same_logits(name):
    model, params, inputs, expected = load(name)
    step, cache, logits = jax.jit(model.apply), model.init_cache(INPUT_LENGTH), []
    for piece in inputs.reshape(-1, 8):
        output = step(params, piece, cache)
        cache = output.cache
        logits.append(output.logits)
    np.testing.assert_allclose(np.concatenate(logits), expected, atol=1e-4, rtol=0)


def test_positions_past_the_learned_table_leave_the_others_alone():
    model, params, _, _ = load("gpt2")
    ids = np.random.default_rng(0).integers(model.vocab_size, size=CONTEXT + 5)
    past, within = logits_of(model, params, ids), logits_of(model, params, ids[:CONTEXT])
    np.testing.assert_allclose(past[:CONTEXT], within, atol=1e-5)
    assert np.isfinite(past).all()


@pytest.mark.parametrize("gamma", [4, 9])
def test_speculation_across_windows_gives_the_plain_output(gamma):
    """Rounds shorter and longer than the windows, and layers with and without one in the target."""
    target, target_params, _, _ = load("gemma3")
    draft, draft_params, _, _ = load("mistral")
    prompts = np.random.default_rng(1).integers(target.vocab_size, size=(4, 6))
    request = make_request(prompt_length=[6, 1, 3, 6], max_new_tokens=40, seed=0)
    program = Program(
        target=target,
        drafter=ModelDrafter(model=draft, vocab_size=target.vocab_size),
        rule=Rejection(),
        gammas=(gamma,),
        max_gamma=gamma,
        max_len=buffer_length(6, 40, gamma),
    )
    plain = autoregressive(target, target_params, jnp.asarray(prompts), request, rule=Rejection())
    ours = generate(program, (target_params, draft_params), jnp.asarray(prompts), request)
    assert 0 < ours.statistics.accepted.sum() < ours.statistics.tested.sum()
    for row in range(4):
        length = int(plain.length[row])
        np.testing.assert_array_equal(ours.tokens[row, :length], plain.tokens[row, :length])


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_saving_again_gives_the_same_tensors(name, tmp_path):
    model, params, _, _ = load(name)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens([END_OF_TEXT])
    huggingface.save(tmp_path, model, params, tokenizer)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path, HERE / name))
    assert ours.keys() == theirs.keys()
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert huggingface.load(tmp_path)[0] == model


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_weight_has_axes_of_its_own_rank(name):
    model, params, _, _ = load(name)
    ranks = jax.tree.map(len, logical_axes(model), is_leaf=lambda leaf: isinstance(leaf, tuple))
    assert ranks == jax.tree.map(lambda leaf: leaf.ndim, params)
