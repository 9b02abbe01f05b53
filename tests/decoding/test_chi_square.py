"""The joint law of 3 tokens through the real ``generate``: 200,000 samples a rule, several rounds each.

The reference is the target's own joint, from teacher-forced passes over all
125 continuations. Four tests share the level 1e-4, so that an honest suite
fails once in 10,000 runs (and, the seeds being fixed, always or never).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Block, Coupled, Rejection
from specjax.decoding import Program, buffer_length, generate
from specjax.drafters.model import ModelDrafter
from specjax.request import make_request
from specjax.testing.controls import ResampleTarget
from specjax.testing.models import tiny_transformer
from specjax.testing.statistics import chi_square, count_outcomes, model_joint, power

V, LENGTH, GAMMA = 5, 3, 2
BATCH, BATCHES = 20_000, 10
PROMPT = np.array([1, 3], np.int32)
LEVEL = 1e-4 / 4
# sum (p' - p)^2 / p of the weakest fault the test promises to find; below, a real one is 400 times as strong.
SMALLEST_EFFECT = 7e-4

TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=1, width=8, sharpness=1.0)
DRAFT, DRAFT_PARAMS = tiny_transformer(vocab_size=V, seed=2, width=8, sharpness=1.0)


def sample(rule):
    """(counts [V, V, V], mean rounds) of 200,000 decodes; half of the rows draft 2 tokens, half draft 1."""
    program = Program(
        target=TARGET,
        drafter=ModelDrafter(model=DRAFT),
        rule=rule,
        gammas=(GAMMA,),
        max_gamma=GAMMA,
        max_len=buffer_length(len(PROMPT), LENGTH, GAMMA),
    )
    prompts, counts, rounds = jnp.tile(PROMPT, (BATCH, 1)), 0, []
    for batch in range(BATCHES):
        request = make_request(
            prompt_length=np.full(BATCH, len(PROMPT)),
            max_new_tokens=LENGTH,
            seed=np.arange(BATCH) + batch * BATCH,
            temperature=1.0,
            gamma=1 + np.arange(BATCH) % GAMMA,
        )
        state = generate(program, (TARGET_PARAMS, DRAFT_PARAMS), prompts, request)
        counts = counts + count_outcomes(np.asarray(state.tokens)[:, len(PROMPT) :][:, :LENGTH], V)
        rounds.append(np.mean(state.statistics.rounds))
    return counts, np.mean(rounds)


@pytest.fixture(scope="module")
def target_joint():
    request = make_request(prompt_length=[2], max_new_tokens=1, seed=0, temperature=1.0)
    row = jax.tree.map(lambda x: x[0], request.sampling)
    joint = model_joint(TARGET, TARGET_PARAMS, PROMPT, LENGTH, row)
    assert joint.sum() == pytest.approx(1.0) and (joint > 0).all()
    return joint


@pytest.mark.parametrize("rule", [Rejection(), Block(), Coupled()], ids=lambda rule: type(rule).__name__)
def test_joint_law(rule, target_joint):
    counts, rounds = sample(rule)
    assert counts.sum() == 200_000
    assert rounds > 1.5  # most decodes take several rounds, so the state between rounds is under test
    result = chi_square(counts, target_joint)
    assert result.p_value > LEVEL, result


def test_a_lossy_rule_fails_the_same_test(target_joint):
    counts, _ = sample(ResampleTarget())
    result = chi_square(counts, target_joint)
    assert result.p_value < 1e-12, result
    # The test would have seen a fault a hundred times weaker.
    assert result.effect > 100 * SMALLEST_EFFECT


def test_power():
    """At 200,000 samples and 124 degrees of freedom an effect of 7e-4 is found in 99 % of runs."""
    assert power(SMALLEST_EFFECT, samples=BATCH * BATCHES, dof=V**LENGTH - 1, level=LEVEL) > 0.99
    # Without an effect it rejects as often as the level says.
    assert power(0.0, samples=1000, dof=10, level=0.01) == pytest.approx(0.01, rel=0.01)


def test_chi_square_of_known_numbers():
    """60 throws of a die, 124, 114, ...: the textbook's statistic, its degrees of freedom, its p-value."""
    result = chi_square(np.array([5, 8, 9, 8, 10, 20]), np.full(6, 1 / 6))
    assert (result.statistic, result.dof) == (pytest.approx(13.4), 5)
    assert result.p_value == pytest.approx(0.01991, abs=1e-4)
    assert chi_square(np.array([50, 49, 1]), np.array([0.5, 0.5, 0.0])).p_value == 0
    # Rare outcomes are pooled: of 100 samples, outcomes of probability .01 share one cell.
    assert chi_square(np.array([1] * 10 + [45, 45]), np.array([0.01] * 10 + [0.45, 0.45])).dof < 4
