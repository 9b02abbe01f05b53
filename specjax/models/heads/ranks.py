"""How high each head ranks what was in fact written."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specjax.models.heads.heads import HeadParams, Heads
from specjax.trees.label_ranks import MISSED, NONE
from specjax.types import Array


@functools.partial(jax.jit, static_argnums=0)
def label_ranks(heads: Heads, params: HeadParams, features: Array, labels: Array) -> Array:
    """[T, H] int32: how many ids head i holds likelier than its label.

    ``features`` [T, D], ``labels`` [T, H] ids. NONE where there is no label,
    MISSED where the head does not score it. Ties go to the lower id, as when
    drafting.
    """
    scores = jax.vmap(lambda feature: heads.scores(params, feature, heads.num_heads))(features)  # [T, H, K]
    column = jnp.searchsorted(params.ids, labels)  # of the label among the scored ids, if it is one
    column = jnp.minimum(column, len(params.ids) - 1)
    own = jnp.take_along_axis(scores, column[..., None], axis=-1)
    before = (scores > own) | ((scores == own) & (jnp.arange(scores.shape[-1]) < column[..., None]))
    ranks = jnp.where(params.ids[column] == labels, before.sum(axis=-1), MISSED)
    return jnp.where(labels == NONE, NONE, ranks).astype(jnp.int32)
