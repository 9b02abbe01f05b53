import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as kv
from specjax.models.attend import prefix_sizes
from specjax.models.attention import within_window
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params, logical_axes

CONFIG = DecoderConfig(
    vocab_size=13,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    max_position_embeddings=32,
)
TOKENS = jnp.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
SLOTS = 16


@pytest.fixture(scope="module")
def params():
    return init_params(CONFIG, 0)


@pytest.fixture(scope="module")
def model():
    return from_config(CONFIG, taps=(0, 2, "final"))


@pytest.fixture(scope="module")
def apply(model):
    return jax.jit(model.apply)


@pytest.fixture(scope="module")
def teacher_forced(apply, model, params):
    return apply(params, TOKENS, model.init_cache(SLOTS))


@pytest.mark.parametrize("pieces", [[1] * 12, [5, 4, 3], [11, 1]], ids=["stepwise", "chunks", "prefill"])
def test_cached_steps_give_the_teacher_forced_logits(apply, model, params, teacher_forced, pieces):
    cache, logits, start = model.init_cache(SLOTS), [], 0
    for size in pieces:
        output = apply(params, TOKENS[start : start + size], cache)
        cache, start = output.cache, start + size
        logits.append(output.logits)
    np.testing.assert_allclose(jnp.concatenate(logits), teacher_forced.logits, atol=2e-5)
    assert cache.length == len(TOKENS)


def test_steps_at_the_ends_of_prefixes_give_the_teacher_forced_logits(params):
    """Attention reads more of the buffer from one token to the next; none may miss its own slot."""
    model = from_config(dataclasses.replace(CONFIG, max_position_embeddings=256), taps=(0, 2, "final"))
    step = jax.jit(model.apply)
    (quarter, half, size) = prefix_sizes(256)
    tokens = jnp.arange(half + 3) * 7 % 13
    expected = step(params, tokens, model.init_cache(len(tokens))).logits
    pieces = [quarter - 1, 1, 1, 1, half - quarter - 4, 1, 1, 1, 1]
    cache, logits, start = model.init_cache(size), [], 0
    for length in pieces:
        output = step(params, tokens[start : start + length], cache)
        cache, start = output.cache, start + length
        logits.append(output.logits)
    np.testing.assert_allclose(jnp.concatenate(logits), expected[:start], atol=2e-5)
    assert start == half + 2


def test_the_future_does_not_leak(apply, model, params, teacher_forced):
    changed = apply(params, TOKENS.at[7].set(0), model.init_cache(SLOTS)).logits
    np.testing.assert_array_equal(changed[:7], teacher_forced.logits[:7])
    assert jnp.abs(changed[7:] - teacher_forced.logits[7:]).max(axis=-1).min() > 1e-4


def test_rewinding_is_setting_the_length(apply, model, params, teacher_forced):
    wrong = apply(params, jnp.array([7, 7, 7]), apply(params, TOKENS[:4], model.init_cache(SLOTS)).cache)
    output = apply(params, TOKENS[4:5], kv.rewind(wrong.cache, jnp.int32(4)))
    np.testing.assert_allclose(output.logits, teacher_forced.logits[4:5], atol=2e-5)


def test_taps(model, params, teacher_forced):
    embeddings, last, final = teacher_forced.features
    np.testing.assert_array_equal(embeddings, params["embed_tokens"][TOKENS])
    assert last.shape == (len(TOKENS), CONFIG.hidden_size)
    np.testing.assert_allclose(final @ params["embed_tokens"].T, teacher_forced.logits, atol=1e-5)
    rms = jnp.sqrt((last**2).mean(-1, keepdims=True) + CONFIG.rms_norm_eps)
    np.testing.assert_allclose(last / rms, final, atol=1e-5)


def test_an_explicit_mask_and_positions_reproduce_the_default(apply, model, params, teacher_forced):
    positions = jnp.arange(len(TOKENS))
    mask = jnp.arange(SLOTS)[None, :] <= positions[:, None]
    output = apply(params, TOKENS, model.init_cache(SLOTS), positions, mask)
    np.testing.assert_allclose(output.logits, teacher_forced.logits, atol=2e-5)


def test_attention_sees_only_differences_of_positions(apply, model, params, teacher_forced):
    shifted = apply(params, TOKENS, model.init_cache(SLOTS), jnp.arange(len(TOKENS)) + 9)
    np.testing.assert_allclose(shifted.logits, teacher_forced.logits, atol=2e-5)
    stretched = apply(params, TOKENS, model.init_cache(SLOTS), 3 * jnp.arange(len(TOKENS)))
    assert jnp.abs(stretched.logits - teacher_forced.logits).max() > 1e-3


def test_models_compare_by_value(model):
    assert from_config(CONFIG, taps=(0, 2, "final")) == model
    assert hash(from_config(CONFIG)) == hash(from_config(dataclasses.replace(CONFIG)))
    assert from_config(CONFIG) != from_config(dataclasses.replace(CONFIG, rope_theta=5e5))


def test_every_weight_has_axes_of_its_own_rank(model, params):
    is_axes = lambda leaf: isinstance(leaf, tuple)
    ranks = jax.tree.map(len, logical_axes(model), is_leaf=is_axes)
    assert ranks == jax.tree.map(lambda leaf: leaf.ndim, params)


def test_untied_head_is_its_own_matrix():
    config = dataclasses.replace(CONFIG, tie_word_embeddings=False)
    model, params = from_config(config), init_params(config, 0)
    apply, cache = jax.jit(model.apply), model.init_cache(SLOTS)
    before = apply(params, TOKENS, cache).logits
    params["lm_head"] *= 2
    np.testing.assert_allclose(apply(params, TOKENS, cache).logits, 2 * before, rtol=1e-5)


def test_a_window_counts_positions_and_not_slots():
    """Three branches of a tree after 6 committed tokens, window 4: siblings share a position."""
    positions, start = jnp.array([6, 7, 7]), jnp.int32(6)
    tree = jnp.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)
    mask = jnp.concatenate([jnp.ones((3, 6), bool), tree, jnp.zeros((3, 2), bool)], axis=1)
    seen = [np.flatnonzero(row).tolist() for row in within_window(mask, positions, start, window=4)]
    assert seen == [[3, 4, 5, 6], [4, 5, 6, 7], [4, 5, 6, 8]]


def test_a_window_of_every_layer_forgets_what_lies_further_back():
    config = dataclasses.replace(CONFIG, sliding_windows=(4, 4))
    windowed, params = from_config(config), init_params(config, 0)
    run = jax.jit(lambda tokens: windowed.apply(params, tokens, windowed.init_cache(SLOTS)).logits)
    before, after = run(TOKENS), run(TOKENS.at[0].set(7))
    reach = 2 * (4 - 1)  # layers times what each looks back
    np.testing.assert_array_equal(before[reach + 1 :], after[reach + 1 :])
    assert jnp.abs(before[: reach + 1] - after[: reach + 1]).max(axis=-1).min() > 0
