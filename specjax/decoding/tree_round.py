"""One round over a tree of candidates, for one sequence: ``round.py`` with branches (2305.09781)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax.acceptance import tree_nodes
from specjax.decoding.commit import Judged, commit
from specjax.decoding.program import Program
from specjax.decoding.warping import Active, warp_of
from specjax.trees.contracts import TreeProposal, TreeVerdict
from specjax.trees.topology import Tree
from specjax.types import (
    PADDING,
    Array,
    DecodeState,
    DraftState,
    ModelOutput,
    Noise,
    Params,
    Request,
    Warp,
)


def decode_tree_round(
    program: Program,
    params: tuple[Params, Params],
    active: Active,
    gamma: int,
    request: Request,
    state: DecodeState,
) -> DecodeState:
    """Draft, score, accept, commit: from 1 to D + 1 tokens of the target's law; gamma = N - 1."""
    (rule, _), target = program.of_trees(), program.target
    warp = warp_of(request, active, state.history, state.length)
    draft_noise, accept_noise = rule.noise(
        request.key, state.statistics.rounds, state.length, gamma + 1, target.vocab_size
    )

    with jax.named_scope("draft"):
        proposal, draft_state = _draft(program, params, gamma, state, draft_noise, warp)
    tree = proposal.tree

    # All nodes in one pass: each sees the committed tokens and its own ancestors, at the position
    # that its depth gives it.
    with jax.named_scope("score"):
        start = state.target_cache.length
        mask = _visible(tree, start, program.max_len)
        output = target.apply(params[0], tree.tokens, state.target_cache, start + tree.depth, mask)
        target_probs = warp(output.logits, _drafted_before(tree))

    with jax.named_scope("accept"):
        verdict = rule.accept(accept_noise, proposal, target_probs)

    # The accepted path, in its order, is what a chain would have left.
    with jax.named_scope("commit"):
        judged = _judged(proposal, verdict, target_probs, _along(verdict.path, output, start))
        return commit(program, params, program.gammas.index(gamma), request, state, draft_state, judged)


def _draft(
    program: Program, params: tuple[Params, Params], gamma: int, state: DecodeState, noise: Noise, warp: Warp
) -> tuple[TreeProposal, DraftState]:
    rule, drafter = program.of_trees()
    wanted = jnp.minimum(state.want, gamma)
    proposal, draft_state = drafter.propose_tree(
        params, state.draft_state, state.tokens, state.length, wanted, noise, rule.draw_children, warp
    )
    tree = proposal.tree
    tokens = jnp.where(tree.valid, tree.tokens, 0)  # whatever is not valid must index safely
    tokens = tokens.at[0].set(state.tokens[state.length - 1])
    return dataclasses.replace(proposal, tree=dataclasses.replace(tree, tokens=tokens)), draft_state


def _visible(tree: Tree, start: Array, max_len: int) -> Array:
    """[N, S] bool: the committed slots and, from ``start`` on, the tree's own ancestor mask."""
    committed = jnp.broadcast_to(jnp.arange(max_len) < start, (tree.tokens.shape[0], max_len))
    return jax.lax.dynamic_update_slice(committed, tree.ancestors, (jnp.int32(0), start))


def _drafted_before(tree: Tree) -> Array:
    """[N, N-1] int32: the draft tokens on the way to each node, itself included, for a warp."""
    return jnp.where(tree.ancestors[:, 1:], tree.tokens[1:], PADDING)


def _along(path: Array, output: ModelOutput, start: Array) -> ModelOutput:
    """``output`` of the tree's N nodes as that of the root and ``path`` [D], a chain."""
    rows = jnp.append(0, path)
    return ModelOutput(
        logits=output.logits[rows],
        cache=kv.keep_path(output.cache, start, path),
        features=tuple(tap[rows] for tap in output.features),
    )


def _judged(proposal: TreeProposal, verdict: TreeVerdict, target_probs: Array, output: ModelOutput) -> Judged:
    tree, path, n = proposal.tree, verdict.path, verdict.num_accepted
    rows = jnp.append(0, path)
    last = rows[n]
    child = tree_nodes.first_child(tree, last, jnp.ones_like(tree.valid))
    return Judged(
        tokens=tree.tokens[path],
        num_accepted=n,
        next_token=verdict.next_token,
        num_drafted=tree.valid.sum() - 1,
        num_tested=n + (child > 0),
        rejected=jnp.where(child > 0, tree.tokens[child], PADDING),
        on_path=tree.ancestors[last],
        overlap=tree_nodes.covered(tree, target_probs)[rows[:-1]],
        target_probs=target_probs[rows],
        output=output,
    )
