"""The exact output law of a tree rule's own kernels, as ``law.py`` finds a chain's.

For a fixed tree a rule visits its nodes in an order of its own and stops at
the first that is accepted, so each coin is one threshold, measured while all
coins but those above it are at their highest. What the thresholds predict can
be compared with the kernel coin by coin.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.acceptance.chain import Coins
from specjax.testing.law import GRID, Law, continuations, first_change, law_between
from specjax.testing.tree_drafts import Trees
from specjax.trees.contracts import TreeProposal, TreeRule, TreeVerdict
from specjax.trees.topology import Tree, chain_tree, make_tree
from specjax.types import Array, Proposal, Verdict

_HIGH = (GRID - 1) / GRID  # the largest uniform
_CHUNK = 64  # trees judged in one call, so that a rule is compiled once

# (parent [N], thresholds [R, N]) -> the probability [R, N] that the path ends at each node
StopLaw = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The kernel's answers: a threshold for each node's coin, and the next token's law at each end."""

    thresholds: np.ndarray  # [R, N] float64: how probable is it that a node is accepted once it is tried
    stops: np.ndarray  # [R, N] int32: where the path ends with the coins of node and ancestors at 0
    next_law: np.ndarray  # [R, N, V] float64: of the next token, if it ends there


def tree_outcomes(rule: TreeRule, trees: Trees) -> Outcomes:
    """Bisects each coin of each tree, and the final one, through the rule's kernel."""
    rows = [trees.tokens, trees.valid, trees.probs, trees.target_probs]
    found = []
    for start in range(0, len(trees.tokens), _CHUNK):
        index = np.minimum(np.arange(start, start + _CHUNK), len(trees.tokens) - 1)
        found.append(_boundaries(rule, trees.max_depth, trees.parent, *(x[index] for x in rows)))
    boundaries, stops = (np.concatenate(x)[: len(trees.tokens)] for x in zip(*found, strict=True))
    return Outcomes(
        thresholds=boundaries[..., 0] / GRID, stops=stops, next_law=law_between(boundaries[..., 1:])
    )


def from_the_root(parent: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Where a path ends, if a node's children are tried in order and the first accepted one is entered.

    ``parent`` [N], ``thresholds`` [R, N] -> [R, N].
    """
    left = np.zeros_like(thresholds)  # reached, and no child accepted so far
    left[:, 0] = 1.0
    for node in range(1, len(parent)):
        left[:, node] = left[:, parent[node]] * thresholds[:, node]
        left[:, parent[node]] -= left[:, node]
    return left


def from_the_leaves(parent: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Where a path ends, if the nodes are tried in post-order until one is accepted; the root always is.

    ``parent`` [N], ``thresholds`` [R, N] -> [R, N].
    """
    ends, left = np.zeros_like(thresholds), np.ones(len(thresholds))
    for node in post_order(parent):
        ends[:, node] = left * thresholds[:, node] if node else left
        left = left - ends[:, node]
    return ends


def post_order(parent: np.ndarray, node: int = 0) -> list[int]:
    """Children before their parent, siblings by index; the root, 0, comes last."""
    below = [c for c in range(1, len(parent)) if parent[c] == node]
    return [*itertools.chain.from_iterable(post_order(parent, c) for c in below), node]


def tree_round_law(rule: TreeRule, p: Law, trees: Trees, ends: StopLaw) -> np.ndarray:
    """The joint law [V] * (D+1) of the tokens after one round, continued by ``p`` where it emits fewer.

    A lossless rule gives :func:`specjax.testing.law.joint_law` of ``p``, to
    the rounding of float32.

    Raises:
      ValueError: the kernel ends elsewhere than ``ends`` and its thresholds say.
    """
    outcomes, rest = tree_outcomes(rule, trees), continuations(p)
    weights = ends(trees.parent, outcomes.thresholds) * trees.weights[:, None]
    reached = weights > 0
    if np.any((outcomes.stops != np.arange(len(trees.parent))) & reached):
        raise ValueError(f"{rule} does not end where its thresholds say")
    joint = np.zeros(np.shape(p[-1]))
    for row, node in zip(*np.nonzero(reached), strict=True):
        _emit(joint, rest, trees.path(row, node), weights[row, node] * outcomes.next_law[row, node])
    return joint


def _emit(joint: np.ndarray, rest: list[np.ndarray], path: tuple[int, ...], law: np.ndarray) -> None:
    """Adds rounds that accepted ``path``, with the next token's ``law`` [V], to the joint law."""
    tail = rest[len(path) + 1][path]
    joint[path] += law.reshape(-1, *(1,) * (tail.ndim - 1)) * tail


def walk_law(rule: TreeRule, p: Law, trees: Trees) -> np.ndarray:
    """The same for a rule whose coin of a node is that node's draw; exact for each tree alone.

    Level by level: a node is reached with its ancestors' coins in the middle
    of what draws its own path, which the levels before have measured.
    """
    size, rest = len(trees.parent), continuations(p)
    tree = make_tree(trees.tokens[0], trees.parent, max_depth=trees.max_depth)
    depth = np.asarray(tree.depth)
    joint = np.zeros(np.shape(p[-1]))
    for row, weight in enumerate(trees.weights):
        coins, reach = np.zeros((size, size), np.float32), np.zeros(size)
        reach[0] = 1.0
        arrays = [x[row] for x in (trees.tokens, trees.valid, trees.target_probs)]
        for level in range(trees.max_depth + 1):
            found = np.asarray(walk_boundaries(rule, trees.max_depth, trees.parent, coins, *arrays))
            ends = np.concatenate([np.zeros((size, 1)), found, np.full((size, 1), GRID)], axis=1)
            for node in np.flatnonzero(reach * (depth == level)).tolist():
                path, law = trees.path(row, node), np.diff(ends[node]) / GRID
                nodes = np.flatnonzero((trees.parent == node) & trees.valid[row] & (np.arange(size) > 0))
                for child in nodes:
                    token = trees.tokens[row, child]
                    twins = nodes[trees.tokens[row, nodes] == token]
                    middle = (ends[node, token] + ends[node, token + 1]) // 2 / GRID
                    below = np.asarray(tree.ancestors)[:, child]
                    coins[below] = coins[node]
                    coins[below, node] = middle
                    reach[child] = reach[node] * law[token] * (child == twins[0])
                taken = np.isin(np.arange(len(law)), trees.tokens[row, nodes])
                _emit(joint, rest, path, weight * reach[node] * np.where(taken, 0.0, law))
    return joint


def end_of(verdict: TreeVerdict) -> Array:
    """[] int32: the last node of the accepted path."""
    return jnp.where(verdict.num_accepted > 0, verdict.path[verdict.num_accepted - 1], 0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _boundaries(rule: TreeRule, max_depth: int, parent: Array, tokens, valid, probs, target_probs):
    """(boundaries [R, N, V], ends [R, N]): entry 0 of a node is its coin's, the rest the final coin's."""
    size, vocab_size = target_probs.shape[1:]

    def of_tree(tokens: Array, valid: Array, probs: Array, target_probs: Array):
        tree = make_tree(tokens, parent, max_depth=max_depth, valid=valid)
        proposal = TreeProposal(tree=tree, probs=probs)

        def judge(accept: Array, final: Array) -> tuple[Array, Array]:
            verdict = rule.accept(Coins(accept=accept, final=final), proposal, target_probs)
            return end_of(verdict), verdict.next_token

        def of_query(node: Array, least: Array) -> tuple[Array, Array]:
            coins = jnp.where(tree.ancestors[node], 0.0, jnp.float32(_HIGH))
            is_coin = least == 0

            def differs(u: Array) -> Array:
                end, token = judge(jnp.where(is_coin, coins.at[node].set(u), coins), jnp.where(is_coin, 0, u))
                return jnp.where(is_coin, ~tree.ancestors[end, node], token >= least)

            return first_change(differs), judge(coins, jnp.float32(0))[0]

        of_node = lambda node: jax.vmap(of_query, in_axes=(None, 0))(node, jnp.arange(vocab_size))
        boundaries, ends = jax.vmap(of_node)(jnp.arange(size))
        return boundaries, ends[:, 0]

    return jax.vmap(of_tree)(tokens, valid, probs, target_probs)


@functools.partial(jax.jit, static_argnums=(0, 1))
def walk_boundaries(rule: TreeRule, max_depth: int, parent: Array, coins, tokens, valid, target_probs):
    """[N, V-1]: where node n's coin, the others being ``coins[n]``, draws token v + 1 or a later one."""
    size, vocab_size = target_probs.shape
    tree = make_tree(tokens, parent, max_depth=max_depth, valid=valid)

    def drawn(node: Array, coins: Array) -> Array:
        verdict = rule.accept(
            Coins(accept=coins, final=jnp.float32(0)), TreeProposal(tree=tree, probs=None), target_probs
        )
        emitted = jnp.append(tokens[verdict.path], 0).at[verdict.num_accepted].set(verdict.next_token)
        return emitted[tree.depth[node]]

    one = lambda node, v: first_change(lambda u: drawn(node, coins[node].at[node].set(u)) >= v)
    return jax.vmap(lambda node: jax.vmap(lambda v: one(node, v))(jnp.arange(1, vocab_size)))(
        jnp.arange(size)
    )


# --- a chain as a tree ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnChain:
    """A tree rule as a rule over chains, so that every proof about those applies to it.

    Nodes take their chain's coins in order; the root's own coin is of no use.
    """

    rule: TreeRule

    @property
    def lossless(self) -> bool:
        return self.rule.lossless

    def noise(self, key: Array, round: Array, length: Array, gamma: int, vocab_size: int):
        return self.rule.noise(key, round, length, gamma, vocab_size)

    def draw(self, noise: Array, probs: Array) -> Array:
        """The one child of a node: ``noise`` [] uniform, ``probs`` [V]."""
        return self.rule.draw_children(noise[None], probs)[0][0]

    def accept(self, noise: Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        """Judges G drafts against ``target_probs`` [G+1, V]."""
        assert proposal.probs is not None
        tree: Tree = chain_tree(jnp.append(0, proposal.tokens), proposal.num_drafted)
        probs = jnp.concatenate([proposal.probs, jnp.zeros_like(target_probs[:1])])
        coins = Coins(accept=jnp.append(0.0, noise.accept), final=noise.final)
        verdict = self.rule.accept(coins, TreeProposal(tree=tree, probs=probs), target_probs)
        return Verdict(num_accepted=verdict.num_accepted, next_token=verdict.next_token)
