"""A tree of draft tokens as arrays: static size, contents per row; a chain is the special case.

One more letter: N, the nodes of a tree with its root, static per compiled
bucket; and D, its greatest depth. Node 0 is the root, the pending token, which
is committed but not yet in the cache. Parents come before their children and
siblings in the order they were drawn in, so ascending indices are a path's order.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array, pytree

Choices = tuple[tuple[int, ...], ...]  # a shape: each node by the ranks that lead to it, without the root


@pytree
class Tree:
    """One row's candidates. What an entry that is not ``valid`` holds has no meaning."""

    tokens: Array  # [N] int32
    parent: Array  # [N] int32; the root is its own, so that no index is negative
    depth: Array  # [N] int32; a node's position is the root's plus its depth
    ancestors: Array  # [N, N] bool: [i, j] if node i sees node j, an ancestor or itself
    valid: Array  # [N] bool
    max_depth: int = dataclasses.field(metadata={"static": True})  # D


def make_tree(
    tokens: Array | np.ndarray,
    parent: Array | np.ndarray,
    *,
    max_depth: int,
    valid: Array | np.ndarray | None = None,
) -> Tree:
    """The tree of ``tokens`` [N] whose node i hangs below ``parent[i]`` [N].

    Args:
      tokens: [N] int32.
      parent: [N] int32; the root's own entry is -1 or 0.
      max_depth: D, static: no node lies deeper.
      valid: [N] bool; a node that is not is in no path and is seen by none. Default all.

    >>> tree = make_tree(np.array([7, 4, 5, 6]), np.array([-1, 0, 0, 2]), max_depth=2)
    >>> tree.depth.tolist(), tree.ancestors[3].astype(int).tolist()
    ([0, 1, 1, 2], [1, 0, 1, 1])

    Raises ValueError for parents that make no tree, unless they are traced.
    """
    valid = jnp.ones(tokens.shape, bool) if valid is None else jnp.asarray(valid)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in (parent, valid)):
        check_parents(np.asarray(parent), max_depth=max_depth, valid=np.asarray(valid))
    nodes = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    parent = jnp.where(valid, jnp.maximum(jnp.asarray(parent, jnp.int32), 0), 0)

    ancestors, depth, at = nodes == nodes[:, None], jnp.zeros_like(nodes), nodes
    for _ in range(max_depth):
        depth = depth + (valid & (at > 0))
        at = parent[at]
        ancestors = ancestors | (valid[:, None] & (at[:, None] == nodes))
    return Tree(
        tokens=jnp.asarray(tokens, jnp.int32),
        parent=parent,
        depth=depth,
        ancestors=ancestors,
        valid=valid,
        max_depth=max_depth,
    )


def chain_tree(tokens: Array | np.ndarray, num_drafted: Array) -> Tree:
    """The chain of ``tokens`` [G+1], the pending one first, of which ``num_drafted`` [] were drafted.

    >>> chain_tree(np.array([7, 4, 5]), 1).valid.tolist()
    [True, True, False]
    """
    gamma = tokens.shape[0] - 1
    parent = np.arange(-1, gamma)
    return make_tree(tokens, parent, max_depth=gamma, valid=jnp.arange(gamma + 1) <= num_drafted)


def path_to(tree: Tree, node: Array) -> Array:
    """[D] int32: the nodes from below the root to ``node`` []; past its depth 0, which any array has.

    >>> path_to(make_tree(np.zeros(4), np.array([-1, 0, 0, 2]), max_depth=3), 3).tolist()
    [2, 3, 0]
    """
    nodes = jnp.arange(tree.parent.shape[0], dtype=jnp.int32)
    at_depth = tree.depth == jnp.arange(1, tree.max_depth + 1)[:, None]
    return jnp.sum(jnp.where(tree.ancestors[node] & at_depth, nodes, 0), axis=1, dtype=jnp.int32)


def from_choices(choices: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(parent [N] int32 with -1 at the root, rank [N] int32): the nodes by depth, then by rank.

    ``rank[i]`` tells which of its parent's candidates node i takes, 0 the
    first; the root's is 0. The notation is Medusa's (Cai et al. 2024,
    2401.10774, section 2.1.2): a node is the tuple of ranks that leads to it.

    >>> [array.tolist() for array in from_choices([(1,), (0,), (1, 0)])]
    [[-1, 0, 0, 2], [0, 0, 1, 0]]

    Raises:
      ValueError: a node without its parent, twice, or of a negative rank.
    """
    nodes = sorted((tuple(choice) for choice in choices), key=lambda choice: (len(choice), choice))
    index = {(): 0} | {choice: i for i, choice in enumerate(nodes, 1)}
    for i, choice in enumerate(nodes, 1):
        if not choice or index[choice] != i:
            raise ValueError(f"node {choice} is " + ("listed twice" if choice else "the root, never listed"))
        if min(choice) < 0:
            raise ValueError(f"node {choice} has a negative rank; the first child is 0")
        if choice[:-1] not in index:
            raise ValueError(f"node {choice} lies below {choice[:-1]}, which is not among the nodes")
    parent = [-1, *(index[choice[:-1]] for choice in nodes)]
    return np.array(parent, np.int32), np.array([0, *(choice[-1] for choice in nodes)], np.int32)


def check_parents(
    parent: np.ndarray, *, max_depth: int, valid: np.ndarray | None = None, budget: int | None = None
) -> None:
    """Whether ``parent`` [N] is a tree with its root first and each parent before its children.

    Raises:
      ValueError: it is not, has a node deeper than ``max_depth`` or more valid nodes than ``budget``.
    """
    if parent.ndim != 1 or not len(parent):
        raise ValueError(f"parent must be [N] with N >= 1, got shape {parent.shape}")
    valid = np.ones(len(parent), bool) if valid is None else valid
    if valid.shape != parent.shape:
        raise ValueError(f"valid has shape {valid.shape}, parent {parent.shape}")
    if budget is not None and valid.sum() > budget:
        raise ValueError(f"the tree has {valid.sum()} nodes, its root included; the budget is {budget}")
    if parent[0] not in (-1, 0) or not valid[0]:
        raise ValueError(f"node 0 must be the root, valid and of parent -1 (or 0), got {parent[0]}")

    depth = np.zeros(len(parent), int)
    for node in np.flatnonzero(valid)[1:]:
        above = parent[node]
        if above == -1:
            raise ValueError(f"node {node} is a second root; node 0 is the only one")
        if not 0 <= above < len(parent):
            raise ValueError(f"node {node} has parent {above}; nodes are 0..{len(parent) - 1}")
        if above >= node:
            raise ValueError(_out_of_order(parent, int(node)))
        if not valid[above]:
            raise ValueError(f"node {node} is valid, its parent {above} is not")
        depth[node] = depth[above] + 1
        if depth[node] > max_depth:
            raise ValueError(f"node {node} has depth {depth[node]}; max_depth is {max_depth}")


def _out_of_order(parent: np.ndarray, node: int) -> str:
    """What is wrong with a node whose parent is not before it."""
    cycle = [node]
    while 0 <= (above := int(parent[cycle[-1]])) < len(parent) and above not in cycle:
        cycle.append(above)
    if above == node:
        return "the tree has a cycle: " + " -> ".join(map(str, [*cycle, node]))
    return f"node {node} comes before its parent {parent[node]}; parents come first"


def check_tree(tree: Tree, *, budget: int | None = None) -> None:
    """Whether the arrays of one concrete ``tree`` agree with each other.

    Raises:
      ValueError: see :func:`check_parents`; or ``depth`` or ``ancestors`` is not what ``parent`` says.
    """
    check_parents(
        np.asarray(tree.parent), max_depth=tree.max_depth, valid=np.asarray(tree.valid), budget=budget
    )
    right = make_tree(tree.tokens, tree.parent, max_depth=tree.max_depth, valid=tree.valid)
    for name in ("depth", "ancestors"):
        is_wrong = np.asarray(getattr(tree, name) != getattr(right, name)).reshape(len(tree.parent), -1)
        wrong = np.flatnonzero(is_wrong.any(axis=1))
        if len(wrong):
            node = int(wrong[0])
            raise ValueError(
                f"{name}[{node}] is {getattr(tree, name)[node].tolist()}, "
                f"by its parents {getattr(right, name)[node].tolist()}"
            )
