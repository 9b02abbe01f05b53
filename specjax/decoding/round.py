"""One round for one sequence: Leviathan et al. 2023, Algorithm 1. Start reading here."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.acceptance import chain
from specjax.decoding.commit import Judged, commit
from specjax.decoding.program import Program
from specjax.decoding.warping import Active, warp_of
from specjax.processors import prefixes
from specjax.types import (
    PADDING,
    Array,
    DecodeState,
    DraftState,
    ModelOutput,
    Noise,
    Params,
    Proposal,
    Request,
    Verdict,
    Warp,
)


def decode_round(
    program: Program,
    params: tuple[Params, Params],
    active: Active,
    gamma: int,
    request: Request,
    state: DecodeState,
) -> DecodeState:
    """Draft, score, accept, commit: from 1 to gamma + 1 tokens of the target's law.

    Greedy decoding is the same path: temperature 0 makes p and q one-hot.
    """
    (rule, _), target = program.of_chains(), program.target
    warp = warp_of(request, active, state.history, state.length)
    draft_noise, accept_noise = rule.noise(
        request.key, state.statistics.rounds, state.length, gamma, target.vocab_size
    )

    # "Sample gamma guesses x_1..x_gamma from M_q autoregressively."
    with jax.named_scope("draft"):
        proposal, draft_state = _draft(program, params, gamma, state, draft_noise, warp)

    # "Run M_p in parallel": the last committed token and the guesses, one pass.
    with jax.named_scope("score"):
        block = jnp.concatenate([state.tokens[state.length - 1][None], proposal.tokens])
        output = target.apply(params[0], block, state.target_cache)
        target_probs = warp(output.logits, prefixes(proposal.tokens))

    # "Determine the number of accepted guesses n"; "adjust the distribution from M_p
    # if needed"; "return one token from M_p, and n tokens from M_q".
    with jax.named_scope("accept"):
        verdict = rule.accept(accept_noise, proposal, target_probs)

    with jax.named_scope("commit"):
        judged = _judged(proposal, verdict, target_probs, output)
        return commit(program, params, program.gammas.index(gamma), request, state, draft_state, judged)


def _draft(
    program: Program, params: tuple[Params, Params], gamma: int, state: DecodeState, noise: Noise, warp: Warp
) -> tuple[Proposal, DraftState]:
    rule, drafter = program.of_chains()
    if drafter is None:
        nothing = Proposal(tokens=jnp.zeros((0,), jnp.int32), probs=None, num_drafted=jnp.int32(0))
        return nothing, state.draft_state
    wanted = jnp.minimum(state.want, gamma)
    proposal, draft_state = drafter.propose(
        params, state.draft_state, state.tokens, state.length, gamma, wanted, noise, rule.draw, warp
    )
    drafted = jnp.arange(gamma) < proposal.num_drafted
    tokens: Array = jnp.where(drafted, proposal.tokens, 0)  # whatever lies past num_drafted must index safely
    return Proposal(tokens=tokens, probs=proposal.probs, num_drafted=proposal.num_drafted), draft_state


def _judged(proposal: Proposal, verdict: Verdict, target_probs: Array, output: ModelOutput) -> Judged:
    """The chain is its own path."""
    gamma, n = proposal.tokens.shape[0], verdict.num_accepted
    refused = n < proposal.num_drafted
    return Judged(
        tokens=proposal.tokens,
        num_accepted=n,
        next_token=verdict.next_token,
        num_drafted=proposal.num_drafted,
        num_tested=n + refused,
        rejected=jnp.where(refused, jnp.append(proposal.tokens, 0)[n], PADDING),
        on_path=jnp.arange(gamma + 1) <= n,
        overlap=chain.overlap(proposal, target_probs[:gamma]),
        target_probs=target_probs,
        output=output,
    )
