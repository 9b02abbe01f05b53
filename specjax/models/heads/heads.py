"""Heads as the drafters see them: functions of a pytree, over the K ids that they score.

A head's product with a vocabulary of 49,152 rows would cost more than all
else it does, so only the rows of the K most frequent ids are kept (FR-Spec,
Zhao et al. 2025, arXiv 2502.14856), gathered once when the heads are loaded.
A guess of another id is never made, which costs acceptance and no law.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.models.heads.blockwise import BlockwiseConfig
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import TransformerLM
from specjax.types import Array, Params, pytree

HeadsConfig = MedusaConfig | BlockwiseConfig


@pytree
class HeadParams:
    """What a head drafter needs beside the target."""

    network: Params  # the trained weights
    table: (
        Array | None
    )  # [K, D]: the target's vocabulary projection at ``ids``; None where heads have their own
    ids: Array  # [K] int32, ascending


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heads:
    """A network of heads split into a static graph and a pytree of weights; jit-static."""

    graphdef: Any
    config: HeadsConfig

    @property
    def num_heads(self) -> int:
        return self.config.num_heads

    @property
    def has_projection(self) -> bool:
        """Whether the heads bring vocabulary projections of their own."""
        return isinstance(self.config, MedusaConfig) and self.config.own_projection

    def states(self, network: Params, features: Array) -> Array:
        """[..., D] hidden states of the target -> [..., H, D], what the projection reads."""
        return nnx.merge(self.graphdef, network)(features)

    def projection(self, network: Params, table: Array, head: int | Array) -> Array:
        """[K, D]: the vocabulary projection of ``head``, ``table`` unless it has one of its own."""
        return network["lm_head"][head] if self.has_projection else table

    def scores(self, params: HeadParams, feature: Array, num_heads: int) -> Array:
        """[num_heads, K] float32: what the first heads say after one hidden state [D]."""
        states = self.states(params.network, feature)[:num_heads]
        if params.table is None:
            heads = params.network["lm_head"][:num_heads]
            return jnp.einsum("hkd,hd->hk", heads, states, preferred_element_type=jnp.float32)
        # As in models/decoder.py: the table lies [K, D], and without the barrier it would be transposed.
        product = jnp.matmul(params.table, states.T, preferred_element_type=jnp.float32)
        return jax.lax.optimization_barrier(product).T

    def likeliest(self, params: HeadParams, feature: Array, ranks: Sequence[int]) -> tuple[Array, ...]:
        """The ``ranks[i]`` likeliest ids of head i, best first, int32; ties to the lower id."""
        scores = self.scores(params, feature, len(ranks))
        return tuple(params.ids[_top(row, count)] for row, count in zip(scores, ranks))


def _top(scores: Array, count: int) -> Array:
    if count == 1:
        return sampling.first_argmax(scores)[None]
    return jax.lax.top_k(scores, count)[1]


def from_config(config: HeadsConfig) -> Heads:
    """The network alone, without weights (no array is made)."""
    module = nnx.eval_shape(lambda: config.module(nnx.Rngs(0)))
    return Heads(graphdef=nnx.split(module)[0], config=config)


def init_network(config: HeadsConfig, seed: int, table: Array | None = None) -> Params:
    """Weights before training: every head says what the target's own says, one place too early.

    ``table`` [K, D] starts projections of the heads' own.
    """
    network = nnx.to_pure_dict(nnx.split(config.module(nnx.Rngs(seed)))[1])
    if "lm_head" in network:
        if table is None:
            raise ValueError(
                "heads with a projection of their own start from the target's: give table [K, D]"
            )
        network["lm_head"] = jnp.broadcast_to(table, network["lm_head"].shape).astype(config.dtype)
    return network


def logical_axes(config: HeadsConfig) -> dict[str, Any]:
    """The logical axis names of every weight, in the structure of the network."""
    flat = nnx.to_flat_state(nnx.split(nnx.eval_shape(lambda: config.module(nnx.Rngs(0))))[1])
    return nnx.to_pure_dict(nnx.from_flat_state([(path, leaf.replace(leaf.axes)) for path, leaf in flat]))


def vocabulary_projection(target: TransformerLM, params: Params) -> Array:
    """[V, D]: what the target multiplies its last hidden state with."""
    return params["embed_tokens"] if target.config.tie_word_embeddings else params["lm_head"]


def head_params(
    heads: Heads, network: Params, ids: np.ndarray | Array, target: TransformerLM, target_params: Params
) -> HeadParams:
    """``network`` beside its rows of the target's projection; all V ids share the target's own array."""
    ids = jnp.asarray(ids, jnp.int32)
    table = None
    if not heads.has_projection:
        table = vocabulary_projection(target, target_params)
        table = table if len(ids) == len(table) else table[ids]
    return HeadParams(network=network, table=table, ids=ids)
