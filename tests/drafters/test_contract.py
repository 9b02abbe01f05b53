"""What every drafter owes the loop, whatever it is."""

from __future__ import annotations

import dataclasses

import drafter_cases as cases
from drafter_cases import BATCH, LENGTHS, MAX_GAMMA, NAMES, PROMPTS, REQUEST, TARGET_PARAMS, V
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.acceptance import Coupled, Rejection
from specjax.decoding import autoregressive, generate
from specjax.drafters.model import ModelDrafter
from specjax.types import Proposal

EVERY = jnp.full((BATCH,), MAX_GAMMA)
ALL_LIVE = jnp.ones((BATCH,), bool)


@pytest.fixture(params=NAMES)
def case(request):
    drafter, draft_params = cases.all_drafters()[request.param]
    return request.param, drafter, (TARGET_PARAMS, draft_params)


def two_rounds(drafter, params, live=ALL_LIVE):
    """[(wanted, uniforms, proposal)] of a round and the one after it, one token kept in the first."""
    tokens, state, _ = cases.start(drafter, params, PROMPTS, LENGTHS)
    length, rounds = LENGTHS, []
    for seed, wanted in enumerate((EVERY, jnp.array([3, 2, 0, 1]))):
        noise = cases.uniforms(seed)
        proposal, state, tokens, length, _ = cases.forced_round(
            drafter, params, MAX_GAMMA, REQUEST.sampling, state, tokens, length, wanted, noise,
            jnp.ones((BATCH,), jnp.int32), live,
        )  # fmt: skip
        rounds.append((wanted, noise, proposal))
    return rounds


def reports_what_it_drew_from(proposal: Proposal, noise: jax.Array) -> bool:
    """Drawing anew from the reported array with the same noise gives the same tokens, all possible."""
    redrawn = jax.vmap(jax.vmap(sampling.draw))(noise, proposal.probs)
    mass = np.take_along_axis(np.asarray(proposal.probs), np.asarray(proposal.tokens)[..., None], axis=-1)
    return bool(np.array_equal(redrawn, proposal.tokens) and (mass > 0).all())


def test_proposal_is_legal_and_its_law_is_the_one_drawn_from(case):
    name, drafter, params = case
    for wanted, noise, proposal in two_rounds(drafter, params):
        assert proposal.tokens.shape == (BATCH, MAX_GAMMA) and proposal.tokens.dtype == jnp.int32
        assert (proposal.num_drafted <= jnp.minimum(wanted, MAX_GAMMA)).all()
        assert ((proposal.tokens >= 0) & (proposal.tokens < V)).all()
        assert (proposal.probs is None) == (name in cases.DETERMINISTIC)
        if proposal.probs is not None:
            assert proposal.probs.shape == (BATCH, MAX_GAMMA, V) and proposal.probs.dtype == jnp.float32
            np.testing.assert_allclose(proposal.probs.sum(-1), 1, atol=1e-5)
            assert reports_what_it_drew_from(proposal, noise)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawReporter(ModelDrafter):
    """Faulty on purpose: draws from the filtered law and reports the raw one."""

    def propose(self, *args):
        *rest, warp = args
        proposal, state = super().propose(*rest, warp)
        unfiltered = jnp.broadcast_to(jax.nn.softmax(cases.DRAFT_PARAMS[0]), proposal.probs.shape)
        return dataclasses.replace(proposal, probs=unfiltered), state


def test_a_drafter_that_reports_another_law_is_caught():
    rounds = two_rounds(RawReporter(model=cases.DRAFT), (TARGET_PARAMS, cases.DRAFT_PARAMS))
    assert not any(reports_what_it_drew_from(proposal, noise) for _, noise, proposal in rounds)


def test_shapes_of_the_state_do_not_depend_on_gamma(case):
    _, drafter, params = case
    tokens, state, available = cases.start(drafter, params, PROMPTS, LENGTHS)
    assert available.shape == (BATCH,) and available.dtype == jnp.int32
    row = jax.tree.map(lambda x: x[0], (REQUEST.sampling, state, tokens, LENGTHS))
    signature = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    for gamma in range(MAX_GAMMA + 1):
        proposal, after = jax.eval_shape(
            lambda *args, gamma=gamma: cases.propose_row(drafter, params, gamma, *args),
            *row, jnp.int32(gamma), jnp.zeros((gamma,)),
        )  # fmt: skip
        assert proposal.tokens.shape == (gamma,)
        assert proposal.probs is None or proposal.probs.shape == (gamma, V)
        assert signature(after) == signature(row[1])


def test_a_frozen_row_is_as_it_was(case):
    """Row 1 is frozen in the first round; a round later it drafts as if that had not been."""
    _, drafter, params = case
    tokens, state, available = cases.start(drafter, params, PROMPTS, LENGTHS)
    live, ones, noise = jnp.array([True, False, True, True]), jnp.ones((BATCH,), jnp.int32), cases.uniforms(1)
    run = lambda *args: cases.forced_round(drafter, params, MAX_GAMMA, REQUEST.sampling, *args)
    first, frozen, frozen_tokens, length, after = run(state, tokens, LENGTHS, EVERY, noise, ones, live)
    second, *_ = run(frozen, frozen_tokens, length, EVERY, noise, ones, live)
    assert length[1] == LENGTHS[1] and after[1] == available[1]
    for before, later in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(before[1], later[1])
    small = lambda tree: [x[1] for x in jax.tree.leaves(tree) if x.ndim == 1]
    assert small(frozen) == small(state)


def test_a_row_alone_drafts_as_in_the_batch_jitted_or_not(case):
    _, drafter, params = case
    tokens, state, _ = cases.start(drafter, params, PROMPTS, LENGTHS)
    noise, ones = cases.uniforms(2), jnp.ones((BATCH,), jnp.int32)
    batch, *_ = cases.forced_round(
        drafter, params, MAX_GAMMA, REQUEST.sampling, state, tokens, LENGTHS, EVERY, noise, ones, ALL_LIVE
    )
    row = jax.tree.map(lambda x: x[1], (REQUEST.sampling, state, tokens, LENGTHS, EVERY, noise))
    with jax.disable_jit():
        alone, _ = cases.propose_row(drafter, params, MAX_GAMMA, *row)
    np.testing.assert_array_equal(alone.tokens, batch.tokens[1])
    np.testing.assert_array_equal(alone.num_drafted, batch.num_drafted[1])
    if alone.probs is not None:
        np.testing.assert_allclose(alone.probs, batch.probs[1], atol=1e-6)


def test_coupled_output_is_plain_decoding_token_for_token(case):
    """Greedy and sampled rows, filters, ragged prompts, rows that end early; buckets 0 and 3."""
    _, drafter, params = case
    state = generate(cases.program(drafter, Coupled(), (0, MAX_GAMMA)), params, PROMPTS, REQUEST)
    np.testing.assert_array_equal(state.tokens, cases.plain_tokens()[0])
    np.testing.assert_array_equal(state.length, cases.plain_tokens()[1])
    assert (state.statistics.rounds <= REQUEST.max_new_tokens).all()


@pytest.mark.parametrize("name", ["model", "simulated"])
def test_greedy_output_is_plain_decoding_under_rejection(name):
    drafter, draft_params = cases.all_drafters()[name]
    greedy = jax.tree.map(lambda x: x[:1].repeat(BATCH), REQUEST.sampling)
    request = dataclasses.replace(REQUEST, sampling=greedy)
    plain = autoregressive(
        cases.TARGET, TARGET_PARAMS, PROMPTS, request, rule=Rejection(), max_len=cases.MAX_LEN
    )
    state = generate(cases.program(drafter, Rejection()), (TARGET_PARAMS, draft_params), PROMPTS, request)
    np.testing.assert_array_equal(state.tokens, plain.tokens)
