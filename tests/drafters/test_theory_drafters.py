"""The corner cases accept exactly what theory says they do."""

from __future__ import annotations

import drafter_cases as cases
from drafter_cases import TARGET_PARAMS, V
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Rejection
from specjax.decoding import Program, autoregressive, generate
from specjax.drafters import theory
from specjax.drafters.model import ModelDrafter
from specjax.request import make_request

GAMMA, NEW, BATCH = 3, 40, 40
PROMPTS = jnp.stack([jnp.arange(BATCH) // V, jnp.arange(BATCH) % V], axis=1)
REQUEST = make_request(
    prompt_length=jnp.full((BATCH,), 2), max_new_tokens=NEW, seed=jnp.arange(BATCH), temperature=0.0
)
MAX_LEN = 2 + NEW + GAMMA + 2


@pytest.fixture(scope="module")
def plain():
    """Greedy sequences of 40 prompts."""
    return autoregressive(cases.TARGET, TARGET_PARAMS, PROMPTS, REQUEST, rule=Rejection(), max_len=MAX_LEN)


def decode(drafter, draft_params):
    program = Program(
        target=cases.TARGET,
        drafter=drafter,
        rule=Rejection(),
        gammas=(GAMMA,),
        max_len=MAX_LEN,
        max_gamma=GAMMA,
    )
    return generate(program, (TARGET_PARAMS, draft_params), PROMPTS, REQUEST)


def test_scripted_acceptance_counts_are_met(plain):
    truth = theory.Truth(tokens=plain.tokens, length=plain.length)
    script = [0, 3, 1, 2]
    params = theory.ScriptedParams(truth=truth, script=jnp.array(script))
    state = decode(theory.Scripted(vocab_size=V), params)
    np.testing.assert_array_equal(state.tokens, plain.tokens)
    emitted = [script[r % 4] + 1 for r in range(16)]  # 16 rounds of 10 tokens in 4
    assert sum(emitted) == NEW
    np.testing.assert_array_equal(state.statistics.rounds, 16)
    origin_rounds = np.asarray(state.trace.round[:, 2 : 2 + NEW])
    np.testing.assert_array_equal(origin_rounds, np.tile(np.repeat(np.arange(16), emitted), (BATCH, 1)))


def test_simulated_alpha_is_what_is_measured(plain):
    """alpha .7: about 1,000 tested positions, standard error .015, a band of 4."""
    truth = theory.Truth(tokens=plain.tokens, length=plain.length)
    state = decode(
        theory.Simulated(vocab_size=V), theory.SimulatedParams(truth=truth, alpha=jnp.float32(0.7))
    )
    np.testing.assert_array_equal(state.tokens, plain.tokens)
    tested, accepted = (
        np.asarray(x).sum(axis=0) for x in (state.statistics.tested, state.statistics.accepted)
    )
    assert tested.sum() > 900
    for n, k in [(tested.sum(), accepted.sum()), *zip(tested, accepted, strict=True)]:
        assert abs(k / n - 0.7) < 4 * np.sqrt(0.21 / n)
    # Against a one-hot p, sum min(p, q) is alpha at every position.
    np.testing.assert_allclose(state.statistics.overlap.sum(axis=0), 0.7 * tested, rtol=1e-4)


def test_the_adversary_is_never_accepted(plain):
    state = decode(ModelDrafter(model=theory.Opposite(model=cases.TARGET), temperature=0.0), TARGET_PARAMS)
    np.testing.assert_array_equal(state.tokens, plain.tokens)
    assert int(state.statistics.accepted.sum()) == 0
    np.testing.assert_array_equal(state.statistics.rounds, NEW)


def test_uniform_is_accepted_once_in_v(plain):
    state = decode(theory.Uniform(vocab_size=V), ())
    np.testing.assert_array_equal(state.tokens, plain.tokens)
    tested, accepted = int(state.statistics.tested.sum()), int(state.statistics.accepted.sum())
    assert abs(accepted / tested - 1 / V) < 4 * np.sqrt(1 / V * (1 - 1 / V) / tested)


def test_a_truth_knows_a_prompt_by_its_own_length():
    truth = theory.Truth(
        tokens=jnp.array([[1, 2, 3, 4], [1, 2, 5, 6], [2, 1, 1, 1]]), length=jnp.array([4, 3, 2])
    )
    assert int(truth.row_of(jnp.array([1, 2, 5]), 3)) == 1
    assert int(truth.row_of(jnp.array([2, 9, 9]), 1)) == 2
    assert truth.following(1, 2, 2).tolist() == [5, 6]
    assert [int(truth.remaining(1, length)) for length in (1, 3, 4)] == [2, 0, 0]
