"""What heads are worth: accuracies on held-out responses, the tau they predict, and tau as decoded."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.acceptance.rejection import Rejection
from specjax.acceptance.tree_one_hot import OneHotWalk
from specjax.decoding.generate import generate
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.blockwise import Blockwise
from specjax.drafters.medusa import Medusa, MedusaTree
from specjax.models.heads.heads import HeadParams, Heads
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import TransformerLM
from specjax.request import make_request
from specjax.training.heads import Frozen, columns_of
from specjax.training.heads_stream import NONE, ResponseStream
from specjax.trees.builders import greedy_tree
from specjax.trees.topology import Choices
from specjax.types import Array, Params

TOP = 10  # ranks in tables, as Medusa's
CHUNK = 256  # positions ranked at once
MISSED = 2**31 - 1  # the rank of a label that a head does not score


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Held-out prompts to decode greedily, and the target that decides."""

    target: TransformerLM  # with taps=("final",)
    params: Params
    prompts: np.ndarray  # [B, P] int32, right-padded
    lengths: np.ndarray  # [B]
    max_new_tokens: int
    stop_tokens: tuple[int, ...] = ()

    def tau(self, drafter: Medusa | Blockwise | MedusaTree, params: HeadParams) -> float:
        """Tokens a round, those that a stop cut included, at temperature 0."""
        is_tree = isinstance(drafter, MedusaTree)
        gamma = drafter.num_nodes - 1 if isinstance(drafter, MedusaTree) else drafter.heads.num_heads
        program = Program(
            target=self.target,
            rule=OneHotWalk() if is_tree else Rejection(),
            drafter=drafter,
            gammas=(gamma,),
            max_gamma=gamma,
            max_len=buffer_length(self.prompts.shape[1], self.max_new_tokens, gamma),
        )
        request = make_request(
            prompt_length=self.lengths,
            max_new_tokens=self.max_new_tokens,
            seed=0,
            stop_tokens=self.stop_tokens,
        )
        state = generate(program, (self.params, params), jnp.asarray(self.prompts), request)
        emitted = np.asarray(state.length) - self.lengths + np.asarray(state.statistics.cut)
        return float(emitted.sum() / np.asarray(state.statistics.rounds).sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsEvaluation:
    """Held-out figures of a network of heads, by name.

    ``held_out_top1_headI`` and ``headI_topK``: how often head I's K likeliest
    hold the label, labels that no head scores counted as missed.
    ``held_out_predicted_tau_*``: the walk along held-out responses, with the
    chain and with Medusa's greedy tree of so many nodes;
    ``held_out_real_tau_*``: the same shapes as decoded.
    """

    heads: Heads
    frozen: Frozen
    ids: np.ndarray  # [K] int32
    held_out: ResponseStream
    decoding: Decoding | None = None
    predicted_nodes: tuple[int, ...] = (16, 32, 64)
    decoded_nodes: tuple[int, ...] = ()  # of these trees, those that are decoded with

    def __call__(self, params: Params) -> dict[str, float]:
        ranks = self.ranks(params)
        accuracies = rank_accuracies(ranks, top=min(TOP, len(self.ids)))
        figures = {}
        for head, row in enumerate(np.cumsum(accuracies, axis=1), start=1):
            figures[f"held_out_top1_head{head}"] = float(row[0])
            figures |= {f"head{head}_top{k}": float(value) for k, value in enumerate(row, start=1)}
        chain: Choices = tuple((0,) * depth for depth in range(1, self.heads.num_heads + 1))
        figures["held_out_predicted_tau_chain"] = predicted_tau(ranks, self.held_out.response, chain)
        trees = {nodes: greedy_tree(accuracies, nodes) for nodes in self.predicted_nodes}
        for nodes, choices in trees.items():
            figures[f"held_out_predicted_tau_tree{nodes}"] = predicted_tau(
                ranks, self.held_out.response, choices
            )
        if self.decoding is None:
            return figures
        table = None if self.heads.has_projection else self.frozen.table
        draft = HeadParams(network=params, table=table, ids=jnp.asarray(self.ids, jnp.int32))
        figures["held_out_real_tau_chain"] = self.decoding.tau(chain_drafter(self.heads), draft)
        for nodes in self.decoded_nodes:
            tree = MedusaTree(heads=self.heads, choices=trees[nodes])
            figures[f"held_out_real_tau_tree{nodes}"] = self.decoding.tau(tree, draft)
        return figures

    def ranks(self, params: Params) -> np.ndarray:
        """[N, H]: see :func:`label_ranks`, of every held-out position."""
        starts = range(0, len(self.held_out), CHUNK)
        windows = (self.held_out.window(np.array([start]), CHUNK, self.heads.num_heads) for start in starts)
        ranked = [
            np.asarray(label_ranks(self.heads, params, self.frozen, features[0, :CHUNK], labels[0]))
            for features, labels in windows
        ]
        return np.concatenate(ranked)[: len(self.held_out)]


def chain_drafter(heads: Heads) -> Medusa | Blockwise:
    """The drafter of chains that a network of heads was made for."""
    return Medusa(heads=heads) if isinstance(heads.config, MedusaConfig) else Blockwise(heads=heads)


@functools.partial(jax.jit, static_argnums=0)
def label_ranks(heads: Heads, params: Params, frozen: Frozen, features: Array, labels: Array) -> Array:
    """[T, H] int32: how many ids head i holds likelier than its label.

    ``features`` [T, D], ``labels`` [T, H]. NONE where there is no label,
    MISSED where the head does not score it. Ties go to the lower id, as when
    drafting.
    """
    states = heads.states(params, features.astype(jnp.float32))
    columns, ranks = columns_of(frozen, labels), []
    for head in range(heads.num_heads):
        table = heads.projection(params, frozen.table, head)
        scores, column = states[:, head] @ table.T, columns[:, head, None]
        own = jnp.take_along_axis(scores, jnp.maximum(column, 0), axis=1)
        before = (scores > own) | ((scores == own) & (jnp.arange(scores.shape[1]) < column))
        ranks.append(jnp.where(column[:, 0] == NONE, MISSED, before.sum(axis=1)))
    return jnp.where(labels == NONE, NONE, jnp.stack(ranks, axis=1)).astype(jnp.int32)


def rank_accuracies(ranks: np.ndarray, *, top: int = TOP, conditional: bool = False) -> np.ndarray:
    """[H, top]: how often the label of head i has rank k, of those that exist.

    ``conditional`` counts those alone whose earlier labels have a rank below
    ``top`` as well: what a tree meets on its way down.

    >>> rank_accuracies(np.array([[0, 1], [0, 0], [9, 0], [0, -1]]), top=2)
    array([[0.75      , 0.        ],
           [0.66666667, 0.33333333]])
    >>> rank_accuracies(np.array([[0, 1], [0, 0], [9, 0], [0, -1]]), top=2, conditional=True)[1]
    array([0.5, 0.5])
    """
    table = np.zeros((ranks.shape[1], top))
    reached = np.ones(len(ranks), bool)
    for head, column in enumerate(ranks.T):
        counted = column[reached & (column != NONE)]
        table[head] = [(counted == rank).sum() / max(len(counted), 1) for rank in range(top)]
        if conditional:
            reached &= (column >= 0) & (column < top)
    return table


def predicted_tau(ranks: np.ndarray, response: np.ndarray, choices: Sequence[Sequence[int]]) -> float:
    """Tokens a round along given text: a round passes the nodes of ``choices`` that the labels' ranks spell.

    ``ranks`` [N, H] of all places of the stream, ``response`` [N] whose they
    are. Rounds follow one another as in decoding: where a round ends decides
    where the next begins, and what is hard to guess ends more rounds than
    its share of the text. A round that a response's end would cut is not counted.

    >>> ranks = np.array([[0, 1], [0, 0], [9, 0], [9, -1], [-1, -1]])
    >>> predicted_tau(ranks, np.zeros(5), [(0,), (0, 1)])  # from place 0 two are passed; then the end is near
    3.0
    """
    passed = np.zeros(len(ranks), int)
    for choice in choices:
        passed += (ranks[:, : len(choice)] == np.asarray(choice)).all(axis=1)
    whole = (ranks != NONE).all(axis=1)
    rounds = tokens = place = 0
    while place < len(ranks):
        if whole[place]:
            rounds, tokens = rounds + 1, tokens + 1 + int(passed[place])
            place += 1 + int(passed[place])
        else:
            place = int(np.searchsorted(response, response[place], side="right"))
    return tokens / max(rounds, 1)
