"""Cells of the noise of one tree round: boxes of uniforms within which the rule draws and decides the same.

A bound is in units of 1 / GRID. Every bound is bisected through the rule's own
kernel; together the cells of one question fill the cube of its uniforms.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.testing.decoding_law import in_chunks
from specjax.testing.law import GRID, first_change
from specjax.testing.tree_drafts import Trees
from specjax.testing.tree_law import post_order, tree_outcomes, walk_boundaries
from specjax.trees.contracts import TreeRule
from specjax.types import Array

_CHUNK = 64  # questions asked in one call, so that a rule is compiled once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
    """C boxes over U uniforms, the answers to several questions."""

    row: np.ndarray  # [C] int: the question that each belongs to
    bounds: np.ndarray  # [C, U, 2] int64: from the first up to, but without, the second


# (rule, trees) -> the cells [C, N + 1, 2] of each tree's coins and of the final one
JudgedCells = Callable[[TreeRule, Trees], Cells]


def whole(*shape: int) -> np.ndarray:
    """[*shape, 2] int64: bounds that say nothing."""
    return np.broadcast_to(np.array([0, GRID]), (*shape, 2)).copy()


def middle(bounds: np.ndarray) -> np.ndarray:
    """[...] float32: a uniform inside of each of ``bounds`` [..., 2]."""
    return (bounds.sum(-1) // 2 / GRID).astype(np.float32)


def sibling_cells(rule: TreeRule, probs: np.ndarray, width: int) -> Cells:
    """The cells of the ``width`` uniforms that siblings are drawn with, from each of ``probs`` [R, V]."""
    boundaries = in_chunks(functools.partial(_sibling_boundaries, rule), _CHUNK)
    row, bounds = np.arange(len(probs)), whole(len(probs), width)
    for at in range(width):
        ends = _with_ends(boundaries(middle(bounds), np.full(len(row), at), probs[row]))
        item, token = np.nonzero(ends[:, 1:] > ends[:, :-1])
        row, bounds = row[item], bounds[item]
        bounds[:, at] = np.stack([ends[item, token], ends[item, token + 1]], axis=-1)
    return Cells(row=row, bounds=bounds)


def from_root_cells(rule: TreeRule, trees: Trees) -> Cells:
    """:data:`JudgedCells` of a rule that tries children in order and enters the first accepted."""
    parent = trees.parent
    accepted, rejected = np.zeros((2, len(parent), len(parent)), bool)
    for end in range(len(parent)):
        accepted[end, _path(parent, end)] = True
        for node in range(1, len(parent)):
            # A child of the path that is not on it was tried if it comes before the one that is.
            below = [c for c in _path(parent, end) if parent[c] == parent[node]]
            reached = parent[node] == end or (below and node < below[0])
            rejected[end, node] = reached and not accepted[end, node]
    return _coin_cells(rule, trees, accepted, rejected)


def from_leaves_cells(rule: TreeRule, trees: Trees) -> Cells:
    """:data:`JudgedCells` of a rule that tries the nodes in post-order until one is accepted."""
    order = post_order(trees.parent)
    accepted, rejected = np.zeros((2, len(order), len(order)), bool)
    for place, end in enumerate(order):
        accepted[end, end] = end > 0  # the root needs no coin
        rejected[end, order[:place]] = True
    return _coin_cells(rule, trees, accepted, rejected)


def walk_cells(rule: TreeRule, trees: Trees) -> Cells:
    """:data:`JudgedCells` of a rule whose coin of a node is that node's draw; the final one plays no part."""
    num, size = trees.tokens.shape
    boundaries = in_chunks(functools.partial(_walk_boundaries, rule, trees.max_depth, trees.parent), _CHUNK)
    reached, bounds = np.zeros((num, size), bool), whole(num, size, size)
    reached[:, 0] = True
    rows, boxes = [], []
    for depth in range(trees.max_depth + 1):
        ends = _with_ends(boundaries(middle(bounds), trees.tokens, trees.valid, trees.target_probs))
        at_depth = np.array([len(_path(trees.parent, node)) == depth for node in range(size)])
        for row, node in zip(*np.nonzero(reached & at_depth), strict=True):
            children = np.flatnonzero(trees.valid[row] & (trees.parent == node) & (np.arange(size) > 0))
            for token in np.flatnonzero(np.diff(ends[row, node])):
                box = bounds[row, node].copy()
                box[node] = ends[row, node, token : token + 2]
                twins = children[trees.tokens[row, children] == token]
                if len(twins):
                    reached[row, twins[0]], bounds[row, twins[0]] = True, box
                else:
                    rows.append(row)
                    boxes.append(box)
    final = whole(len(rows), 1)
    return Cells(row=np.array(rows), bounds=np.concatenate([np.array(boxes), final], axis=1))


def _coin_cells(rule: TreeRule, trees: Trees, accepted: np.ndarray, rejected: np.ndarray) -> Cells:
    """Of a rule whose path ends at a node iff the coins of some, [N, N], are low, and of others high.

    Raises:
      ValueError: it ends elsewhere.
    """
    outcomes = tree_outcomes(rule, trees)
    num, size = trees.tokens.shape
    threshold = np.rint(outcomes.thresholds * GRID).astype(np.int64)[:, None]
    coins = np.stack([np.where(rejected, threshold, 0), np.where(accepted, threshold, GRID)], axis=-1)
    ends = _with_ends(np.rint(np.cumsum(outcomes.next_law, axis=-1) * GRID).astype(np.int64)[..., :-1])
    final = np.stack([ends[..., :-1], ends[..., 1:]], axis=-1)  # [R, N, V, 2]

    wide = (num, size, final.shape[2], size, 2)
    bounds = np.concatenate([np.broadcast_to(coins[:, :, None], wide), final[:, :, :, None]], axis=3)
    row, end, token = np.nonzero(np.all(bounds[..., 1] > bounds[..., 0], axis=-1))
    if np.any(outcomes.stops[row, end] != end):
        raise ValueError(f"{rule} does not end where its thresholds say")
    return Cells(row=row, bounds=bounds[row, end, token])


def _path(parent: np.ndarray, node: int) -> list[int]:
    """``node`` and its ancestors below the root."""
    return [node, *_path(parent, int(parent[node]))] if node > 0 else []


def _with_ends(boundaries: np.ndarray) -> np.ndarray:
    """[..., V+1] int64: 0, ``boundaries`` [..., V-1] and GRID."""
    ends = np.zeros((*boundaries.shape[:-1], 1), np.int64)
    return np.concatenate([ends, boundaries, ends + GRID], axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def _sibling_boundaries(rule: TreeRule, uniforms: Array, at: Array, probs: Array) -> Array:
    """[C, V-1]: where uniform ``at`` [C] of ``uniforms`` [C, K] draws token v + 1 or a later one."""

    def one(uniforms: Array, at: Array, probs: Array, v: Array) -> Array:
        return first_change(lambda u: rule.draw_children(uniforms.at[at].set(u), probs)[0][at] >= v)

    each_token = jax.vmap(one, in_axes=(None, None, None, 0))
    return jax.vmap(each_token, in_axes=(0, 0, 0, None))(uniforms, at, probs, jnp.arange(1, probs.shape[1]))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _walk_boundaries(rule: TreeRule, max_depth: int, parent: Array, coins, tokens, valid, target_probs):
    """[R, N, V-1]: :func:`walk_boundaries` of R trees."""
    return jax.vmap(lambda *tree: walk_boundaries(rule, max_depth, parent, *tree))(
        coins, tokens, valid, target_probs
    )
