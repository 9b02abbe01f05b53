"""The joint law of 3 tokens through real decoding with trees: 60,000 samples a rule.

The reference is the target's own joint, from teacher-forced passes. Four tests
share the level 1e-4, so that an honest suite fails once in 10,000 runs (and,
the seeds being fixed, always or never).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import OneHotWalk, RecursiveRejection, SpecInfer, Traversal, Typical
from specjax.decoding import Program, buffer_length, generate
from specjax.drafters.tree_model import TreeModelDrafter
from specjax.request import make_request
from specjax.testing.controls import Lossy
from specjax.testing.models import tiny_transformer
from specjax.testing.statistics import chi_square, count_outcomes, model_joint, power

V, LENGTH = 5, 3
BATCH, BATCHES = 20_000, 3
PROMPT = np.array([1, 3], np.int32)
LEVEL = 1e-4 / 4
# sum (p' - p)^2 / p of the weakest fault the test promises to find.
SMALLEST_EFFECT = 2.4e-3

TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=1, width=8, sharpness=1.0)
DRAFT, DRAFT_PARAMS = tiny_transformer(vocab_size=V, seed=2, width=8, sharpness=1.0)
CHOICES = ((0,), (1,), (0, 0), (0, 1), (1, 0))  # nodes 1 and 2; 3 and 4 below 1; 5 below 2
NODES = 1 + len(CHOICES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LikeliestChildren(Lossy, RecursiveRejection):
    """The likeliest children, judged as if they were drawn from the softmax."""

    draw_children = OneHotWalk.draw_children


def sample(rule, batches=BATCHES):
    """(counts [V, V, V], how often each node was accepted); half of the rows want 5 nodes, half 3."""
    program = Program(
        target=TARGET,
        drafter=TreeModelDrafter(model=DRAFT, choices=CHOICES),
        rule=rule,
        gammas=(NODES - 1,),
        max_gamma=NODES - 1,
        max_len=buffer_length(len(PROMPT), LENGTH, NODES - 1),
    )
    prompts, counts, nodes, rounds = jnp.tile(PROMPT, (BATCH, 1)), 0, 0, 0
    for batch in range(batches):
        request = make_request(
            prompt_length=np.full(BATCH, len(PROMPT)),
            max_new_tokens=LENGTH,
            seed=np.arange(BATCH) + batch * BATCH,
            temperature=1.0,
            gamma=np.where(np.arange(BATCH) % 2, 3, NODES - 1),
        )
        state = generate(program, (TARGET_PARAMS, DRAFT_PARAMS), prompts, request)
        counts = counts + count_outcomes(np.asarray(state.tokens)[:, len(PROMPT) :][:, :LENGTH], V)
        nodes = nodes + np.asarray(state.statistics.accepted_nodes).sum(axis=0)
        rounds += np.mean(state.statistics.rounds) / batches
    assert rounds > 1.3  # many decodes take several rounds, so the state between rounds is under test
    return counts, nodes[:NODES]


@pytest.fixture(scope="module")
def target_joint():
    request = make_request(prompt_length=[2], max_new_tokens=1, seed=0, temperature=1.0)
    row = jax.tree.map(lambda x: x[0], request.sampling)
    joint = model_joint(TARGET, TARGET_PARAMS, PROMPT, LENGTH, row)
    assert joint.sum() == pytest.approx(1.0) and (joint > 0).all()
    return joint


@pytest.mark.parametrize(
    "rule",
    [OneHotWalk(), RecursiveRejection(), SpecInfer(), Traversal()],
    ids=lambda rule: type(rule).__name__,
)
def test_joint_law(rule, target_joint):
    counts, nodes = sample(rule)
    assert counts.sum() == BATCH * BATCHES
    # Every branch takes part, the first and the others, at both depths.
    assert nodes[1:].min() > 300, nodes
    result = chi_square(counts, target_joint)
    print(result, nodes / nodes[0])
    assert result.p_value > LEVEL, result


@pytest.mark.parametrize("rule", [LikeliestChildren(), Typical()], ids=lambda rule: type(rule).__name__)
def test_a_lossy_rule_fails_the_same_test(rule, target_joint):
    assert not rule.lossless
    counts, _ = sample(rule, batches=1)
    result = chi_square(counts, target_joint)
    print(result)
    assert result.p_value < 1e-12, result
    # The test would have seen a fault a hundred times weaker.
    assert result.effect > 100 * SMALLEST_EFFECT


def test_power():
    """At 60,000 samples and 124 degrees of freedom an effect of 2.4e-3 is found in 99 % of runs."""
    assert power(SMALLEST_EFFECT, samples=BATCH * BATCHES, dof=V**LENGTH - 1, level=LEVEL) > 0.99
