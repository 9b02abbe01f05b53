"""The contracts: states that survive tree operations, and requests with explicit dtypes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.request import make_request
from specjax.types import PADDING, Proposal, Request, Verdict


def test_request_broadcasts_scalars_and_fixes_every_dtype():
    """Python ints, floats and numpy scalars give one and the same compiled signature."""
    signatures = set()
    for temperature in (0, 1.0, np.float64(0.5), np.float32(0.7), jnp.bfloat16(0.5), [0, 1]):
        request = make_request(
            prompt_length=[3, np.int64(5)], max_new_tokens=8, seed=[0, 1], temperature=temperature, top_p=1
        )
        described = jax.tree.map(lambda x: (jax.typeof(x), getattr(x, "weak_type", False)), request)
        signatures.add(str(described))
    assert len(signatures) == 1
    assert request.sampling.temperature.dtype == jnp.float32
    assert request.stop_tokens.dtype == request.gamma.dtype == request.prompt_length.dtype == jnp.int32


def test_stop_tokens():
    shared = make_request(prompt_length=[1, 1], max_new_tokens=1, seed=0, stop_tokens=[4, 5])
    np.testing.assert_array_equal(shared.stop_tokens, [[4, 5], [4, 5]])
    own = make_request(prompt_length=[1, 1], max_new_tokens=1, seed=0, stop_tokens=[[4, 5], [6, PADDING]])
    np.testing.assert_array_equal(own.stop_tokens, [[4, 5], [6, PADDING]])
    none = make_request(prompt_length=[1, 1], max_new_tokens=1, seed=0)
    np.testing.assert_array_equal(none.stop_tokens, [[PADDING], [PADDING]])


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("temperature", [0.5, -1], "temperature must be finite and at least 0, got -1"),
        ("temperature", np.nan, "temperature must be finite"),
        ("top_p", 0, r"top_p must be in \(0, 1\]"),
        ("top_p", np.nan, "top_p must be"),
        ("top_k", -1, "top_k must be whole numbers in"),
        ("top_k", 2.5, "top_k must be whole numbers"),
        ("min_p", 1.0, "min_p must be"),
        ("seed", -1, "seed must be"),
        ("seed", 2**40, "seed must be"),
        ("gamma", 7.5, "gamma must be whole numbers"),
        ("max_new_tokens", -1, "max_new_tokens must be"),
        ("prompt_length", 3, "prompt_length must be one length per row"),
        ("stop_tokens", [-7], "stop_tokens must be"),
    ],
)
def test_values_no_request_can_have(name, value, told):
    with pytest.raises(ValueError, match=told):
        make_request(**{"prompt_length": [1, 1], "max_new_tokens": 1, "seed": 0, name: value})


def test_a_traced_value_is_not_checked():
    make = lambda t: make_request(prompt_length=[1], max_new_tokens=1, seed=0, temperature=t)
    assert jax.jit(make)(0.5).sampling.temperature == 0.5


def test_keys_come_from_the_seed_not_from_the_place():
    keys = jax.random.key_data(make_request(prompt_length=[1, 1, 1], max_new_tokens=1, seed=[7, 8, 7]).key)
    np.testing.assert_array_equal(keys[0], keys[2])
    assert np.any(keys[0] != keys[1])


def test_states_are_frozen_keyword_only_pytrees():
    verdict = Verdict(num_accepted=jnp.int32(1), next_token=jnp.int32(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.num_accepted = jnp.int32(0)
    with pytest.raises(TypeError):
        Verdict(jnp.int32(1), jnp.int32(2))

    request = make_request(prompt_length=[1, 2, 3], max_new_tokens=[4, 5, 6], seed=0)
    row = jax.tree.map(lambda x: x[1], request)
    assert isinstance(row, Request) and row.max_new_tokens == 5 and row.key.shape == ()
    again = jax.vmap(lambda row: row)(request)
    assert jax.tree.structure(again) == jax.tree.structure(request)
    _, scanned = jax.lax.scan(lambda carry, row: (carry, row.prompt_length), 0, request)
    np.testing.assert_array_equal(scanned, [1, 2, 3])


def test_a_deterministic_proposal_has_no_probabilities():
    """None is part of the structure, so no [G, V] array is ever made for it."""
    proposal = Proposal(tokens=jnp.zeros(3, jnp.int32), probs=None, num_drafted=jnp.int32(3))
    assert len(jax.tree.leaves(proposal)) == 2
