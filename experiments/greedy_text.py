"""What a target writes at temperature 0 after the prompts of a sweep, and what tau of heads is there."""

from __future__ import annotations

from collections.abc import Iterable
import functools

import jax
import numpy as np

from experiments.runner import Batch
from specjax.drafters.head_chain import HeadChain
from specjax.drafters.medusa import MedusaTree
from specjax.models.heads.heads import HeadParams
from specjax.models.language_model import TransformerLM
from specjax.training.heads_figures import stream_ranks
from specjax.training.heads_stream import CachedFeatures, Response, ResponseStream, make_stream
from specjax.trees.builders import expected_tokens
from specjax.trees.label_ranks import path_accuracies, predicted_tau, whole
from specjax.trees.topology import Choices
from specjax.types import Array, DecodeState, Params

# Where there is nothing to predict: no heads, or draws at a temperature.
NOT_PREDICTED: dict[str, float | None] = {"tau_of_ranks": None, "tau_of_accuracies": None}


def read(
    target: TransformerLM, params: Params, decodes: Iterable[tuple[Batch, DecodeState]]
) -> ResponseStream:
    """The text of greedy ``decodes`` and the target's features along it, in one pass over each batch.

    A place of the stream is a pending token, beginning with a prompt's last
    one, whose feature drafts what follows: rounds of a decode begin at places.
    A prompt of one token, of which no feature is known, begins with the first
    token after it.

    ``target`` has one tap. Features are [N, D] in its own dtype.
    """
    responses, features = [], []
    for batch, state in decodes:
        known = np.maximum(np.asarray(state.tokens), 0)  # padding is no id
        rows = np.asarray(_features(target, params, known))
        for row in range(len(batch.index)):
            first, end = max(int(batch.lengths[row]) - 1, 1), int(state.length[row])
            tokens = known[row].tolist()
            responses.append(
                Response(prompt=tuple(tokens[:first]), tokens=tuple(tokens[first:end]), temperature=0.0)
            )
            features.append(rows[row, first - 1 : end - 1])
    return make_stream(responses, CachedFeatures(features=np.concatenate(features)))


@functools.partial(jax.jit, static_argnums=0)
def _features(target: TransformerLM, params: Params, tokens: Array) -> Array:
    """[B, S] ids -> [B, S, D]."""
    (features,) = jax.vmap(lambda row: target.apply(params, row, target.init_cache(row.shape[0])).features)(
        tokens
    )
    return features


def predicted(
    text: ResponseStream, drafter: HeadChain | MedusaTree, params: HeadParams, gamma: int
) -> dict[str, float | None]:
    """tau of a drafter's shape on ``text``, as fields of a results line.

    ``tau_of_ranks`` walks the text as decoding does and differs from the
    decoded tau by the last rounds of each row alone; ``tau_of_accuracies``
    adds up products of conditional rank accuracies. None where every row is
    shorter than the heads reach.
    """
    ranks = stream_ranks(drafter.heads, params, text)
    if not whole(ranks).any():
        return NOT_PREDICTED
    shape = shape_of(drafter, gamma)
    return {
        "tau_of_ranks": predicted_tau(ranks, text.response, shape),
        "tau_of_accuracies": expected_tokens(shape, path_accuracies(ranks, shape)),
    }


def shape_of(drafter: HeadChain | MedusaTree, gamma: int) -> Choices:
    """The nodes that are drafted: of a chain, the likeliest token of each head up to ``gamma``."""
    if isinstance(drafter, MedusaTree):
        return drafter.choices
    return tuple((0,) * depth for depth in range(1, min(gamma, drafter.heads.num_heads) + 1))
