"""A mesh changes where a tree round's arrays live, not what is decoded; its path moves within each device."""

import jax
import numpy as np
import pytest

from specjax import sharding
from specjax.acceptance import OneHotWalk
from specjax.decoding.generate import decode, generate, prefill
from specjax.decoding.program import Program, buffer_length
from specjax.models.language_model import logical_axes
from tests.decoding.guessed_tree import GuessedTree
from tests.multi_device.test_mesh_decoding import (
    NEW,
    PROMPTS,
    REQUEST,
    TARGET,
    TARGET_PARAMS,
    V,
    collectives,
)

DRAFTER = GuessedTree(branching=(5, 3), vocab_size=V)
GAMMA = DRAFTER.num_nodes - 1
PROGRAM = Program(
    target=TARGET,
    drafter=DRAFTER,
    rule=OneHotWalk(),
    gammas=(GAMMA,),
    max_gamma=GAMMA,
    max_len=buffer_length(6, NEW, GAMMA),
)


@pytest.mark.parametrize("sizes", [(8, 1), (1, 2), (4, 2)], ids=str)
def test_a_mesh_decodes_what_one_device_decodes(sizes):
    mesh = sharding.make_mesh(*sizes)
    target = sharding.place_params(
        TARGET_PARAMS, logical_axes(TARGET), sharding.AxisRules(), mesh, head_dim=4
    )
    state = prefill(PROGRAM, (target, ()), PROMPTS, REQUEST)
    request = sharding.place_batch(PROMPTS, REQUEST, mesh)[1]
    compiled = decode.lower(PROGRAM, (target, ()), request, state).compile()
    final, reference = (
        compiled((target, ()), request, state),
        generate(PROGRAM, (TARGET_PARAMS, ()), PROMPTS, REQUEST),
    )

    np.testing.assert_array_equal(final.tokens, reference.tokens)
    np.testing.assert_array_equal(final.statistics.accepted_nodes, reference.statistics.accepted_nodes)
    assert int(reference.statistics.accepted_nodes[:, 2:].sum()) > 0  # branches beside the first
    # Two sums over "model" in the one layer, and no cache ever leaves its device.
    talk = collectives(compiled.as_text())
    assert {kind for kind, _ in talk} <= {"all-reduce"}
    rows = PROMPTS.shape[0] // mesh.shape["data"]
    assert max(size for _, size in talk) <= (GAMMA + 1) * TARGET.config.hidden_size * rows
    assert sum(size > 1 for _, size in talk) == (2 if mesh.shape["model"] > 1 else 0)
    assert all(
        cache.sharding.is_equivalent_to(before.sharding, cache.ndim)
        for cache, before in zip(jax.tree.leaves(final.target_cache), jax.tree.leaves(state.target_cache))
    )
