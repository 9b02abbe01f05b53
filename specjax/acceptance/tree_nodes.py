"""What the rules over a tree of drafts share: finding children, drawing them, the walk from the root."""

from __future__ import annotations

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.acceptance.chain import Coins
from specjax.trees.contracts import TreeProposal, TreeVerdict
from specjax.trees.topology import Tree, path_to
from specjax.types import Array

# (p, q, rejected token) -> (p, q) for the next sibling; laws are [V]
AfterRejection = Callable[[Array, Array, Array], tuple[Array, Array]]


def first_child(tree: Tree, node: Array, among: Array) -> Array:
    """[] int32: the first child of ``node`` [] that ``among`` [N] bool allows; 0, the root, if none."""
    nodes = jnp.arange(tree.parent.shape[0])
    return jnp.argmax(tree.valid & (tree.parent == node) & (nodes > 0) & among).astype(jnp.int32)


def next_child(tree: Tree, node: Array, after: Array, q: Array) -> Array:
    """[] int32: the first child of ``node`` past index ``after`` that ``q`` [V] can give; 0 if none.

    What q cannot give was not drawn from it: a sibling past the end of q's
    support, an id outside of the vocabulary. It is passed over without a coin.
    """
    known = (tree.tokens >= 0) & (tree.tokens < q.shape[0])
    can_be_drawn = known & (q[jnp.clip(tree.tokens, 0, q.shape[0] - 1)] > 0)
    return first_child(tree, node, can_be_drawn & (jnp.arange(tree.tokens.shape[0]) > after))


def covered(tree: Tree, target_probs: Array) -> Array:
    """[N]: the probability under p [N, V] that the token after a node is that of one of its children.

    What the one-hot walk accepts there; of sampled children it is no acceptance.
    """
    nodes, tokens = jnp.arange(tree.parent.shape[0]), tree.tokens
    known = (tokens >= 0) & (tokens < target_probs.shape[1])
    is_child = tree.valid & (nodes > 0) & known
    twins = (tree.parent == tree.parent[:, None]) & (tokens == tokens[:, None]) & is_child
    is_child &= ~(twins & (nodes < nodes[:, None])).any(axis=1)  # of one token the first alone counts
    mass = target_probs[tree.parent, jnp.where(known, tokens, 0)]
    return jnp.zeros(nodes.shape, jnp.float32).at[tree.parent].add(jnp.where(is_child, mass, 0.0))


def draft_laws(proposal: TreeProposal) -> Array:
    """``proposal.probs``, which a rule of sampled children cannot do without."""
    if proposal.probs is None:
        raise ValueError(
            "this rule needs probs [N, V], the laws its children were drawn from; "
            "a tree fixed before the coins is judged by OneHotWalk"
        )
    return proposal.probs


def normalised(weights: Array, otherwise: Array) -> Array:
    """``weights`` [V] over their sum; ``otherwise`` where nothing is left."""
    total = weights.sum()
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), otherwise)


def without(law: Array, token: Array) -> Array:
    """``law`` [V] given that ``token`` [] does not come; all zero if nothing else can."""
    return normalised(law.at[token].set(0.0), jnp.zeros_like(law))


def descend(
    coins: Coins, proposal: TreeProposal, target_probs: Array, after_rejection: AfterRejection
) -> TreeVerdict:
    """Root to leaf: tries a node's children in draw order and moves to the first one accepted.

    A child x is accepted with probability min(1, p(x) / q(x)); after a
    rejection ``after_rejection`` gives p and q for its next sibling. Where no
    child is left, the next token comes from what is left of p.
    """
    tree, laws = proposal.tree, draft_laws(proposal)

    def try_child(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        node, child, p, q = state
        token = tree.tokens[child]
        # Strict: a draft with p = 0 is rejected even by a coin of 0.
        accepted = coins.accept[child] * q[token] < p[token]
        p_rest, q_rest = after_rejection(p, q, token)
        node = jnp.where(accepted, child, node)
        p = jnp.where(accepted, target_probs[child], p_rest)
        q = jnp.where(accepted, laws[child], q_rest)
        return node, next_child(tree, node, child, q), p, q

    root = jnp.int32(0)
    start = (root, next_child(tree, root, root, laws[0]), target_probs[0], laws[0])
    node, _, p, _ = jax.lax.while_loop(lambda state: state[1] > 0, try_child, start)
    return verdict(tree, node, sampling.draw(coins.final, p))


def verdict(tree: Tree, node: Array, next_token: Array) -> TreeVerdict:
    """The path from the root to ``node`` [] was accepted."""
    return TreeVerdict(path=path_to(tree, node), num_accepted=tree.depth[node], next_token=next_token)


def draw_with_replacement(uniforms: Array, probs: Array) -> tuple[Array, Array]:
    """(tokens [K], valid [K]): K independent draws from ``probs`` [V], one per uniform in [0, 1).

    None is ``valid`` if there is nothing to draw from.
    """
    tokens = jax.vmap(sampling.draw, in_axes=(0, None))(uniforms, probs)
    return tokens, jnp.broadcast_to(jnp.any(probs > 0), tokens.shape)


def draw_without_replacement(uniforms: Array, probs: Array) -> tuple[Array, Array]:
    """(tokens [K], valid [K]): each draw from ``probs`` [V] less the tokens drawn before it.

    The law of the K largest of log q + Gumbel in descending order (Kool et al.
    2019, 1903.06059), from one uniform each. ``valid`` ends with the support,
    past which the tokens are 0.
    """

    def draw(left: Array, uniform: Array) -> tuple[Array, tuple[Array, Array]]:
        token = sampling.draw(uniform, left)
        valid = jnp.any(left > 0)
        token = jnp.where(valid, token, 0)
        return left.at[token].set(0.0), (token, valid)

    return jax.lax.scan(draw, probs, uniforms)[1]


def draw_likeliest(noise: Array, probs: Array) -> tuple[Array, Array]:
    """(tokens [K], valid [K]): the K likeliest of ``probs`` [V], likeliest first, ties by index."""
    values, tokens = jax.lax.top_k(probs, min(noise.shape[0], probs.shape[0]))
    pad = functools.partial(jnp.pad, pad_width=(0, noise.shape[0] - tokens.shape[0]))
    return pad(tokens), pad(values) > 0
