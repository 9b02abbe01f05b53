"""What heads are worth: accuracies on held-out responses, the tau they predict, and tau as decoded."""

from __future__ import annotations

import dataclasses

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
from specjax.models.heads.ranks import label_ranks
from specjax.models.language_model import TransformerLM
from specjax.request import make_request
from specjax.training.heads import Frozen
from specjax.training.heads_stream import ResponseStream
from specjax.trees.builders import greedy_tree
from specjax.trees.label_ranks import TOP, predicted_tau, rank_accuracies
from specjax.trees.topology import Choices
from specjax.types import Params

CHUNK = 256  # positions ranked at once


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
        draft = self._draft(params)
        figures["held_out_real_tau_chain"] = self.decoding.tau(chain_drafter(self.heads), draft)
        for nodes in self.decoded_nodes:
            tree = MedusaTree(heads=self.heads, choices=trees[nodes])
            figures[f"held_out_real_tau_tree{nodes}"] = self.decoding.tau(tree, draft)
        return figures

    def ranks(self, params: Params) -> np.ndarray:
        """[N, H]: see :func:`label_ranks`, of every held-out position."""
        return stream_ranks(self.heads, self._draft(params), self.held_out)

    def _draft(self, params: Params) -> HeadParams:
        table = None if self.heads.has_projection else self.frozen.table
        return HeadParams(network=params, table=table, ids=jnp.asarray(self.ids, jnp.int32))


def stream_ranks(heads: Heads, params: HeadParams, stream: ResponseStream) -> np.ndarray:
    """[N, H]: see :func:`label_ranks`, of every place of ``stream``."""
    starts = range(0, len(stream), CHUNK)
    windows = (stream.window(np.array([start]), CHUNK, heads.num_heads) for start in starts)
    ranked = [
        np.asarray(label_ranks(heads, params, features[0, :CHUNK].astype(np.float32), labels[0]))
        for features, labels in windows
    ]
    return np.concatenate(ranked)[: len(stream)]


def chain_drafter(heads: Heads) -> Medusa | Blockwise:
    """The drafter of chains that a network of heads was made for."""
    return Medusa(heads=heads) if isinstance(heads.config, MedusaConfig) else Blockwise(heads=heads)
