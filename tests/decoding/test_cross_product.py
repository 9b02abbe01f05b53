"""Every drafter x every rule x every draft length and bucket: greedy text is plain decoding's.

One program a drafter: rows of one batch go by different rules, and a batch that
wants gamma drafts runs the smallest bucket that holds them.
"""

import dataclasses
import functools

from drafters import drafter_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Block, Coupled, Rejection
from specjax.decoding import autoregressive, generate
from specjax.drafters import theory
from specjax.request import make_request
from specjax.testing.controls import SoftmaxResidual
from specjax.testing.parity import divergences

# The last is wrong on purpose: its residual revives tokens of no mass.
RULES = (Rejection(), Block(), Coupled(), SoftmaxResidual())
BUCKETS = (1, cases.MAX_GAMMA)
MAY_RUN_OUT = ("prompt_lookup", "scripted", "simulated")  # of a match, of the known continuation


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleOfTheRow:
    """Each row goes by the rule that its seed names: RULES[seed % len(RULES)]."""

    def noise(self, key, round, length, gamma, vocab_size):
        index = (jax.random.key_data(key)[-1] % len(RULES)).astype(jnp.int32)
        draft, accept = zip(*(rule.noise(key, round, length, gamma, vocab_size) for rule in RULES))
        return (jnp.full((gamma,), index), draft), (index, accept)

    def draw(self, noise, probs):
        index, each = noise
        return jnp.stack([rule.draw(own, probs) for rule, own in zip(RULES, each)])[index]

    def accept(self, noise, proposal, target_probs):
        index, each = noise
        verdicts = [rule.accept(own, proposal, target_probs) for rule, own in zip(RULES, each)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[index], *verdicts)


# Every prompt by every rule, a block of rows each.
RULE_OF = np.repeat(np.arange(len(RULES)), cases.BATCH)
SEEDS = RULE_OF + len(RULES) * np.arange(len(RULE_OF))
each_rule = lambda rows: np.concatenate([rows] * len(RULES))
PROMPTS, LENGTHS, NEW = each_rule(cases.PROMPTS), each_rule(cases.LENGTHS), each_rule([12, 18, 5, 20])


def request(gamma):
    return make_request(prompt_length=LENGTHS, max_new_tokens=NEW, seed=SEEDS, gamma=gamma)


@functools.cache
def plain():
    return autoregressive(
        cases.TARGET,
        cases.TARGET_PARAMS,
        PROMPTS,
        request(0),
        rule=Rejection(),
        max_len=cases.MAX_LEN,
    )


def params_of(name):
    drafter, params = cases.all_drafters()[name]
    if isinstance(params, theory.ScriptedParams | theory.SimulatedParams):
        greedy = theory.Truth(tokens=plain().tokens[: cases.BATCH], length=plain().length[: cases.BATCH])
        params = dataclasses.replace(params, truth=greedy)
    return drafter, params


@pytest.fixture(scope="module", autouse=True)
def compile_fast():
    """Many small programs, each run for milliseconds: optimizing them would be most of the time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize("name", cases.NAMES)
def test_greedy_text_is_plain_decodings(name):
    """No row of a lossless rule parts from it; rows of the wrong rule do wherever drafts are refused."""
    drafter, params = params_of(name)
    program = cases.program(drafter, RuleOfTheRow(), BUCKETS)
    lossless = np.array([rule.lossless for rule in RULES])[RULE_OF]
    tested, accepted, wrong = np.zeros(len(RULES)), np.zeros(len(RULES)), 0
    for gamma in range(cases.MAX_GAMMA + 1):
        state = generate(program, (cases.TARGET_PARAMS, params), PROMPTS, request(gamma))
        parted = divergences(plain(), state)
        assert [each for each in parted if lossless[each.row]] == [], f"gamma {gamma}"
        wrong += len(parted)
        count = jax.tree.map(np.asarray, state.statistics)
        drafted, by_bucket = count.rounds_by_drafted.sum(axis=0), count.rounds_by_bucket.sum(axis=0)
        assert drafted[gamma] > 0 and not drafted[gamma + 1 :].any()
        assert by_bucket[np.searchsorted(BUCKETS, gamma)] > 0
        assert name in MAY_RUN_OUT or np.count_nonzero(by_bucket) == 1
        if name == "oracle":
            np.testing.assert_array_equal(count.rounds, -(-NEW // (gamma + 1)))
        np.add.at(tested, RULE_OF, count.tested.sum(axis=1))
        np.add.at(accepted, RULE_OF, count.accepted.sum(axis=1))
    # Drafts were judged under every rule, so the parity was at stake.
    assert np.all(tested > 0)
    assert np.all((accepted > 0) == (name != "adversary"))
    assert np.all((accepted < tested) == (name != "oracle"))
    assert (wrong > 0) == (name != "oracle")
