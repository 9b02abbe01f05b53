"""The exact joint law of what decoding with trees emits, through real rounds: every noise enumerated.

``decode_tree_round`` is played as it is, with the rule's own draws and verdict.
Only the numbers of the noise are chosen: one inside of each cell of
:mod:`specjax.testing.tree_cells`, whose width is its probability. The tokens
are read from the state that the round leaves, and this state, with all it holds
of earlier rounds (cache rows, lengths, statistics), begins the next round.

Which number is which is learned from the rule's real ``noise`` of the row's
real key, round and length: two entries that are equal are one and the same
uniform. One that comes back in a later round is still where it was found to
lie, so noise that is used again is in the law.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.acceptance.chain import Coins
from specjax.decoding.prefill import prefill
from specjax.decoding.program import Program
from specjax.decoding.tree_round import decode_tree_round
from specjax.decoding.warping import active_in
from specjax.testing.decoding_law import in_chunks
from specjax.testing.law import GRID
from specjax.testing.tree_cells import Cells, JudgedCells, middle, sibling_cells, whole
from specjax.testing.tree_drafts import Trees
from specjax.trees.contracts import TreeProposal, TreeRule, TreeVerdict
from specjax.types import Array, DecodeState, Params, Request, pytree

_ROWS = 1024  # rounds played together: one shape, one compilation


@pytree
class Seen:
    """What a round showed: the names of its uniforms, and what the rule judged."""

    names: Array  # [U] float32: draws [N], coins [N] and the final one, as the rule's noise has them
    proposal: TreeProposal
    target_probs: Array  # [N, V]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Injected:
    """A rule whose own kernels get the uniforms of another's choice; it keeps what it was shown."""

    rule: TreeRule
    uniforms: Array  # [U] float32: draws [N], coins [N] and the final one
    shown: list[Any] = dataclasses.field(default_factory=list)

    @property
    def lossless(self) -> bool:
        return self.rule.lossless

    def noise(self, key: Array, round: Array, length: Array, num_nodes: int, vocab_size: int):
        draws, coins = self.rule.noise(key, round, length, num_nodes, vocab_size)
        self.shown.append(jnp.concatenate([draws, coins.accept, coins.final[None]]))
        draws, accept, final = jnp.split(self.uniforms, [num_nodes, 2 * num_nodes])
        return draws, Coins(accept=accept, final=final[0])

    def draw_children(self, noise: Array, probs: Array) -> tuple[Array, Array]:
        return self.rule.draw_children(noise, probs)

    def accept(self, noise: Coins, proposal: TreeProposal, target_probs: Array) -> TreeVerdict:
        self.shown.extend([proposal, target_probs])
        return self.rule.accept(noise, proposal, target_probs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Paths:
    """R ways that decoding may have gone: where each is, how likely, and which noise leads there."""

    state: DecodeState  # arrays [R, ...]
    weight: np.ndarray  # [R] float64
    names: np.ndarray  # [R, K] float32: the uniforms of the rounds before
    bounds: np.ndarray  # [R, K, 2] int64: where each is known to lie
    box: np.ndarray  # [R, U, 2] int64: where those of this round are

    def take(self, index: np.ndarray) -> _Paths:
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _Paths(**jax.tree.map(lambda x: x[index], parts))

    def split(self, question: np.ndarray, cells: Cells, entries: np.ndarray) -> tuple[_Paths, np.ndarray]:
        """Each path for every cell of its ``question`` [R] that the uniforms ``entries`` may lie in.

        Returns (the paths, which of these each comes from).
        """
        order, count = np.argsort(cells.row, kind="stable"), np.bincount(cells.row)
        first, count = (np.cumsum(count) - count)[question], count[question]
        path = np.repeat(np.arange(len(question)), count)
        cell = order[np.arange(len(path)) + np.repeat(first - (np.cumsum(count) - count), count)]
        old, new = self.box[path][:, entries], cells.bounds[cell]
        new = np.stack([np.maximum(old[..., 0], new[..., 0]), np.minimum(old[..., 1], new[..., 1])], axis=-1)
        width = np.maximum(np.diff(new)[..., 0], 0)
        share = np.prod(width / np.diff(old)[..., 0], axis=1)
        kept = np.flatnonzero(np.all(width > 0, axis=1))
        split = self.take(path[kept])
        split.box[:, entries] = new[kept]
        return dataclasses.replace(split, weight=split.weight * share[kept]), path[kept]


def tree_decoding_law(
    program: Program,
    params: tuple[Params, Params],
    prompt: Array,
    request: Request,
    length: int,
    judged_cells: JudgedCells,
) -> np.ndarray:
    """The joint law [V] * length, float64, of the first tokens after ``prompt`` [1, P].

    It covers every draw, verdict and final token of as many rounds as
    ``length`` tokens take. The rule's noise must be uniforms, draws [N] and
    :class:`Coins`, and the drafter's tree of one shape, of which nodes may be
    missing. No row may stop before ``length`` tokens. Inside of a cell one
    number stands for all.

    Args:
      program: of trees.
      params: (target params, draft params).
      prompt: [1, P] int32.
      request: of one row.
      length: how many tokens.
      judged_cells: in which order ``program.rule`` tries the nodes.

    Raises:
      ValueError: a round uses one number twice, or its trees are of several shapes.
    """
    rule, vocab_size = program.of_trees()[0], program.target.vocab_size
    row = jax.tree.map(lambda x: x[0], request)
    one = functools.partial(_injected_round, program, params, row)
    play = in_chunks(jax.jit(jax.vmap(one)), _ROWS)
    num_uniforms = 2 * program.gammas[-1] + 3
    joint = np.zeros((vocab_size,) * length)
    paths = _Paths(
        state=jax.tree.map(np.asarray, prefill(program, params, prompt, request)),
        weight=np.ones(1),
        names=np.zeros((1, 0), np.float32),
        bounds=whole(1, 0),
        box=whole(1, num_uniforms),
    )
    while len(paths.weight):
        _, seen = play(paths.state, middle(paths.box))
        paths = _recognised(paths, seen.names)
        paths, seen = _drawn(rule, program.of_trees()[1].max_depth, play, paths)
        paths = _judged(rule, judged_cells, paths, seen)
        state, seen = play(paths.state, middle(paths.box))

        start = int(row.prompt_length)
        is_over = state.length >= start + length
        tokens = state.tokens[is_over, start : start + length]
        np.add.at(joint, tuple(tokens.T), paths.weight[is_over])
        after = dataclasses.replace(
            paths,
            state=state,
            names=np.concatenate([paths.names, seen.names], axis=1),
            bounds=np.concatenate([paths.bounds, paths.box], axis=1),
        )
        paths = after.take(np.flatnonzero(~is_over))
    return joint


def _injected_round(
    program: Program, params: tuple[Params, Params], request: Request, state: DecodeState, uniforms: Array
) -> tuple[DecodeState, Seen]:
    """One row's round with ``uniforms`` [U] for its noise."""
    rule = Injected(rule=program.of_trees()[0], uniforms=uniforms)
    injected = dataclasses.replace(program, rule=rule)
    gamma, active = program.gammas[-1], active_in(request)
    state = decode_tree_round(injected, params, active, gamma, request, state)
    names, proposal, target_probs = rule.shown
    return state, Seen(names=names, proposal=proposal, target_probs=target_probs)


def _recognised(paths: _Paths, names: np.ndarray) -> _Paths:
    """``paths`` with what is known of this round's uniforms ``names`` [R, U] from rounds before."""
    if np.any(np.diff(np.sort(names, axis=1), axis=1) == 0):
        raise ValueError("a round uses one number of its noise twice")
    same = names[:, :, None] == paths.names[:, None, :]
    low = np.max(np.where(same, paths.bounds[:, None, :, 0], 0), axis=2, initial=0)
    high = np.min(np.where(same, paths.bounds[:, None, :, 1], GRID), axis=2, initial=GRID)
    return dataclasses.replace(paths, box=np.stack([low, high], axis=-1))


def _drawn(rule: TreeRule, max_depth: int, play, paths: _Paths) -> tuple[_Paths, Seen]:
    """Every tree that may be drawn, level by level: a level's laws are known once those above are drawn."""
    for depth in range(max_depth):
        _, seen = play(paths.state, middle(paths.box))
        if seen.proposal.probs is None:  # the tree was fixed before any noise
            break
        tree, at = seen.proposal.tree, np.arange(len(paths.weight))
        is_child = tree.valid & (tree.depth == depth + 1)
        for node in np.unique(tree.parent[is_child]):
            below = is_child & (tree.parent == node)
            children = np.flatnonzero(below.any(axis=0))
            # Of a node that is missing nothing is drawn.
            probs = np.where(below.any(axis=1)[:, None], seen.proposal.probs[:, node], 0)[at]
            first, question = _distinct(probs)
            cells = sibling_cells(rule, probs[first], len(children))
            paths, source = paths.split(question, cells, children)
            at = at[source]
    return paths, play(paths.state, middle(paths.box))[1]


def _judged(rule: TreeRule, judged_cells: JudgedCells, paths: _Paths, seen: Seen) -> _Paths:
    """Every verdict on the trees that were drawn."""
    tree, target_probs = seen.proposal.tree, np.asarray(seen.target_probs)
    tokens, valid, num_nodes = np.asarray(tree.tokens), np.asarray(tree.valid), target_probs.shape[1]
    parent = np.where(valid, tree.parent, 0).max(axis=0)
    if np.any(valid & (np.asarray(tree.parent) != parent)):
        raise ValueError("trees of several shapes: a node has not the same parent in all")
    probs = np.zeros_like(target_probs) if seen.proposal.probs is None else np.asarray(seen.proposal.probs)
    first, question = _distinct(np.where(valid, tokens, -1), valid, probs, target_probs)
    trees = Trees(
        parent=parent,
        tokens=tokens[first],
        valid=valid[first],
        weights=np.ones(len(first)),
        probs=probs[first],
        target_probs=target_probs[first],
        max_depth=tree.max_depth,
    )
    coins = np.arange(num_nodes, 2 * num_nodes + 1)
    return paths.split(question, judged_cells(rule, trees), coins)[0]


def _distinct(*arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first [Q], question [R]): the distinct rows of ``arrays`` [R, ...], and which of them each row is."""
    flat = np.concatenate([x.reshape(len(x), -1).astype(np.float64) for x in arrays], axis=1)
    _, first, question = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    return first, np.ravel(question)
