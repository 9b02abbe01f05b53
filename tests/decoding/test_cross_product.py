"""Every drafter x every rule x every gamma bucket: greedy text is plain decoding's, without exception.

A program has all the buckets, and a batch that wants gamma runs bucket gamma
alone: one compilation for each drafter and rule, none for a bucket.
"""

import dataclasses
import functools
import itertools

from drafters import drafter_cases as cases
import jax
import numpy as np
import pytest

from specjax.acceptance import Block, Coupled, Rejection
from specjax.decoding import autoregressive, generate
from specjax.drafters import theory
from specjax.testing.controls import SoftmaxResidual
from specjax.testing.parity import divergences
from specjax.types import make_request

RULES = (Rejection(), Block(), Coupled())
BUCKETS = tuple(range(cases.MAX_GAMMA + 1))
NEW = np.array([12, 18, 5, 20])
GREEDY = make_request(prompt_length=cases.LENGTHS, max_new_tokens=NEW, seed=0)
named = lambda value: value if isinstance(value, str) else type(value).__name__


@pytest.fixture(scope="module", autouse=True)
def compile_fast():
    """Many small programs, each run for milliseconds: optimizing them would be most of the time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@functools.cache
def plain():
    return autoregressive(
        cases.TARGET, cases.TARGET_PARAMS, cases.PROMPTS, GREEDY, rule=Rejection(), max_len=cases.MAX_LEN
    )


def speculative(name, rule, gamma):
    drafter, params = cases.all_drafters()[name]
    if isinstance(params, theory.ScriptedParams | theory.SimulatedParams):
        params = dataclasses.replace(params, truth=theory.Truth(tokens=plain().tokens, length=plain().length))
    request = dataclasses.replace(GREEDY, gamma=np.full(cases.BATCH, gamma, np.int32))
    program = cases.program(drafter, rule, BUCKETS)
    return generate(program, (cases.TARGET_PARAMS, params), cases.PROMPTS, request)


@pytest.mark.parametrize(("name", "rule"), itertools.product(cases.NAMES, RULES), ids=named)
def test_greedy_text_is_plain_decodings(name, rule):
    tested, accepted = 0, 0
    for gamma in BUCKETS:
        state = speculative(name, rule, gamma)
        assert divergences(plain(), state) == [], f"gamma {gamma}"
        statistics = jax.tree.map(np.asarray, state.statistics)
        by_bucket = statistics.rounds_by_bucket.sum(axis=0)
        ran = {gamma} if name != "prompt_lookup" else {*range(gamma + 1)}  # a match may be near the end
        assert by_bucket[gamma] > 0 and by_bucket.sum() == by_bucket[list(ran)].sum()
        if name == "oracle":
            np.testing.assert_array_equal(statistics.rounds, -(-NEW // (gamma + 1)))
        tested, accepted = tested + statistics.tested.sum(), accepted + statistics.accepted.sum()
    assert tested > 0  # drafts were judged, so the parity above was at stake
    assert (accepted > 0) == (name != "adversary") and (accepted < tested) == (name != "oracle")


def test_the_check_sees_a_wrong_rule():
    """A residual that revives tokens of no mass goes wrong in every bucket but that of plain decoding."""
    found = [len(divergences(plain(), speculative("model", SoftmaxResidual(), gamma))) for gamma in BUCKETS]
    assert found[0] == 0 and min(found[1:]) > 0
