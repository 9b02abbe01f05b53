"""Attention over the written part of a buffer is attention over all of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import compilation
from specjax.models.attend import attend, attend_written, prefix_sizes

T, HEADS, GROUP, DIM, SIZE = 3, 2, 2, 8, 256
SETTINGS = {"scale": 0.3, "cap": 5.0}


def row(written, seed=0):
    """The last T of ``written`` slots attend, each to those before it and itself."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    slots = np.arange(SIZE)
    mask = jnp.asarray(slots[None] <= (written - T + np.arange(T))[:, None])
    keys = normal(HEADS, DIM, SIZE)
    values = jnp.where(slots[:, None] < written, normal(HEADS, SIZE, DIM), 0.0)
    return normal(T, HEADS, GROUP, DIM), keys, values, mask, jnp.int32(written)


def full(args):
    return attend(*args[:-1], **SETTINGS)


def bounded(*args):
    return attend_written(*args, **SETTINGS)


# A prefix's last slot, the next one, and the ends of the buffer.
LENGTHS = sorted({T, SIZE, *(size + more for size in prefix_sizes(SIZE)[:-1] for more in (0, 1))})


@pytest.mark.parametrize("written", LENGTHS)
def test_a_prefix_is_enough(written):
    args = row(written)
    np.testing.assert_allclose(jax.jit(bounded)(*args), full(args), atol=1e-6)


@pytest.mark.parametrize("written", LENGTHS)
def test_no_more_is_read_than_the_smallest_prefix_that_holds_what_is_written(written):
    q, keys, values, mask, length = row(written)
    (prefix, *_) = (size for size in prefix_sizes(SIZE) if size >= written)
    spoiled = jnp.where(jnp.arange(SIZE)[:, None] < prefix, values, jnp.nan)  # 0 x NaN = NaN: reading shows
    assert np.all(np.isfinite(jax.jit(bounded)(q, keys, spoiled, mask, length)))
    assert prefix == SIZE or np.any(np.isnan(full((q, keys, spoiled, mask, length))))
    spoiled = values.at[:, prefix - 1].set(jnp.nan)
    assert prefix == written or np.any(np.isnan(jax.jit(bounded)(q, keys, spoiled, mask, length)))


@pytest.mark.parametrize("lengths", [(10, 40, 100), (256, 3, 64), (5, 5, 5)])
def test_a_batch_reads_what_its_longest_row_has_written(lengths):
    rows = [row(written, seed) for seed, written in enumerate(lengths)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(bounded))(*batch), jnp.stack([full(args) for args in rows]), atol=1e-6
    )
    # One branch of the switch runs, where vmap of a switch alone would run and select among all.
    text = jax.jit(jax.vmap(bounded)).lower(*batch).compile().as_text()
    assert "conditional(" in text


def test_rows_that_share_their_length_and_keys():
    q, keys, values, mask, written = row(70)
    queries = jnp.stack([q, 2 * q])
    out = jax.jit(jax.vmap(bounded, in_axes=(0, None, None, None, None)))(
        queries, keys, values, mask, written
    )
    np.testing.assert_allclose(out[1], full((2 * q, keys, values, mask, written)), atol=1e-6)


def test_gradients():
    """Through a buffer that is longer than what one call writes; training's are filled by one call."""
    *inputs, mask, written = row(70)
    loss = lambda function, *inputs: jnp.sum(function(*inputs, mask, written) ** 2)
    gradients = lambda function: jax.grad(functools.partial(loss, function), argnums=(0, 1, 2))(*inputs)
    for mine, theirs in zip(gradients(bounded), gradients(lambda *args: full(args))):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_outside_of_jit_nothing_is_compiled_twice():
    args = row(40)
    bounded(*args)
    with compilation.watch() as seen:
        bounded(*args)
    assert not seen.programs


@pytest.mark.parametrize("size", [1, 31, 32, 33, 77, 1000, 8192])
def test_prefix_sizes(size):
    sizes = prefix_sizes(size)
    assert sizes[-1] == size and len(sizes) <= 3
    assert list(sizes) == sorted(set(sizes)) and all(each % 32 == 0 for each in sizes[:-1])


def test_other_devices_have_no_branches():
    args, prefix = row(40), f"tensor<{HEADS}x{DIM}x{prefix_sizes(SIZE)[0]}xf32>"
    code = lambda platform: jax.export.export(jax.jit(bounded), platforms=[platform])(*args).mlir_module()
    assert [prefix in code(platform) for platform in ("cpu", "tpu", "cuda")] == [True, False, False]
