"""Unigram and bigram tables as drafters: Leviathan et al. 2023 (2211.17192), section 4.1.

Their cost ratio c is almost 0, so even a small alpha pays. Tables are counted
on the host from a corpus of token ids and used as the drafter's params.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import PADDING, Array, Draw, Noise, Outcome, Params, Proposal, Warp, pytree


@pytree
class UnigramTable:
    """Token frequencies with add-one smoothing, so that no token has probability 0."""

    probs: Array  # [V] float32
    best: Array  # [] int32: the likeliest token

    @property
    def vocab_size(self) -> int:
        return self.probs.shape[0]

    def law(self, last: Array) -> Array:
        """[V] float32: the law of the next token; ``last`` [] plays no part."""
        return self.probs

    def likeliest(self, last: Array) -> Array:
        return self.best


@pytree
class BigramTable:
    """Sparse rows over a unigram law: P(v | u) = weights[u, v] + backoff[u] * unigram[v].

    R successors a row, so V = 49,152 with R = 32 takes 13 MB where a dense
    table would take 9.7 GB.
    """

    successors: Array  # [V, R] int32: ids, most frequent first; unused entries have weight 0
    weights: Array  # [V, R] float32
    backoff: Array  # [V] float32 = 1 - the row's weights
    unigram: Array  # [V] float32
    best: Array  # [V] int32: the likeliest token after each

    @property
    def vocab_size(self) -> int:
        return self.unigram.shape[0]

    def law(self, last: Array) -> Array:
        """[V] float32: the law of the token after ``last`` []."""
        return (self.backoff[last] * self.unigram).at[self.successors[last]].add(self.weights[last])

    def likeliest(self, last: Array) -> Array:
        """The argmax of ``law``, the lowest id among equals."""
        return self.best[last]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramDrafter:
    """Drafts from a table given as draft params: a :class:`UnigramTable` or a :class:`BigramTable`.

    Sampled by default, from the table's law under the request's warp, which is
    the q it reports. ``argmax`` drafts the likeliest token of the table, whatever
    the request's processors say, and reports none (q is one-hot). Lossless
    either way under every lossless rule.
    """

    argmax: bool = False

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[Array, Array]:
        """The state is the answer to "how many next": a table can always draft ``max_gamma``."""
        return jnp.int32(max_gamma), jnp.int32(max_gamma)

    def propose(
        self,
        params: tuple[Params, UnigramTable | BigramTable],
        state: Array,
        tokens: Array,
        length: Array,
        gamma: int,
        num_wanted: Array,
        noise: Noise,
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, Array]:
        """G tokens, each from the table's row of the one before it."""
        table = params[1]

        positions, nothing = jnp.arange(gamma), jnp.full((gamma,), PADDING, jnp.int32)

        def step(carry: tuple[Array, Array], position: tuple[Array, Noise]):
            (last, drafted), (index, noise) = carry, position
            if self.argmax:
                token, q = table.likeliest(last), None
            else:
                q = warp(jnp.log(table.law(last))[None], drafted[None])[0]
                token = draw(noise, q)
            return (token, jnp.where(positions == index, token, drafted)), q

        (_, drafts), probs = jax.lax.scan(step, (tokens[length - 1], nothing), (positions, noise))
        return Proposal(tokens=drafts, probs=probs, num_drafted=jnp.minimum(num_wanted, gamma)), state

    def commit(
        self, params: tuple[Params, Params], state: Array, tokens: Array, outcome: Outcome
    ) -> tuple[Array, Array]:
        return state, state


def fit_unigram(ids: np.ndarray, vocab_size: int) -> UnigramTable:
    """Counts ``ids`` [N] (ints in 0..V-1).

    >>> fit_unigram(np.array([0, 0, 2]), 3).probs.tolist()
    [0.5, 0.1666666716337204, 0.3333333432674408]
    """
    probs = _smoothed_frequencies(_checked(ids, vocab_size), vocab_size)
    return UnigramTable(probs=jnp.asarray(probs, jnp.float32), best=jnp.int32(np.argmax(probs)))


def fit_bigram(ids: np.ndarray, vocab_size: int, max_successors: int = 32) -> BigramTable:
    """Counts pairs of neighbours in ``ids`` [N]; documents are joined by their separator token.

    Witten-Bell interpolation (Bell, Cleary and Witten 1990): a row seen n
    times with t distinct successors gives n / (n + t) to its counts and the
    rest to the unigram law. Successors past the ``max_successors`` most
    frequent (ties by lowest id) give their weight to the unigram law too.

    >>> table = fit_bigram(np.array([0, 1, 0, 1, 0, 2]), 3)
    >>> [f"{p:.3f}" for p in table.law(0)], table.best.tolist()
    (['0.178', '0.533', '0.289'], [1, 0, 0])
    """
    ids = _checked(ids, vocab_size)
    if max_successors < 1:
        raise ValueError(f"max_successors must be at least 1, got {max_successors}")
    unigram = _smoothed_frequencies(ids, vocab_size)
    pairs, counts = np.unique(ids[:-1] * vocab_size + ids[1:], return_counts=True)
    last, following = pairs // vocab_size, pairs % vocab_size

    order = np.lexsort((following, -counts, last))
    last, following, counts = last[order], following[order], counts[order]
    distinct = np.bincount(last, minlength=vocab_size)
    seen = np.bincount(last, weights=counts, minlength=vocab_size)
    rank = np.arange(len(last)) - (np.cumsum(distinct) - distinct)[last]

    kept = rank < max_successors
    width = int(min(max_successors, max(distinct.max(), 1)))
    successors = np.zeros((vocab_size, width), np.int32)
    weights = np.zeros((vocab_size, width), np.float32)
    successors[last[kept], rank[kept]] = following[kept]
    weights[last[kept], rank[kept]] = (counts / (seen + distinct)[last])[kept]
    backoff = (1.0 - weights.sum(axis=1, dtype=np.float64)).astype(np.float32)
    return BigramTable(
        successors=jnp.asarray(successors),
        weights=jnp.asarray(weights),
        backoff=jnp.asarray(backoff),
        unigram=jnp.asarray(unigram, jnp.float32),
        best=jnp.asarray(_likeliest(successors, weights, backoff, unigram.astype(np.float32))),
    )


def _likeliest(successors: np.ndarray, weights: np.ndarray, backoff: np.ndarray, unigram: np.ndarray):
    """[V] int32: the argmax of every row, which is one of its successors or the unigram's argmax."""
    probs = weights + backoff[:, None] * unigram[successors]
    # The unigram's argmax stands first; where it is a successor too, that entry is the larger one.
    common = int(np.argmax(unigram))
    ids = np.concatenate([np.full((len(successors), 1), common, np.int32), successors], axis=1)
    probs = np.concatenate([(backoff * unigram[common])[:, None], probs], axis=1)
    equal = probs == probs.max(axis=1, keepdims=True)
    return np.where(equal, ids, len(unigram)).min(axis=1).astype(np.int32)


def _smoothed_frequencies(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    counts = np.bincount(ids, minlength=vocab_size) + 1.0
    return counts / counts.sum()


def _checked(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """``ids`` as int64 [N], refused if anything in them is no token id."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"ids must be integers of shape [N], got {ids.dtype} of shape {ids.shape}")
    if ids.size == 0:
        raise ValueError("ids is empty: there is nothing to count")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(f"ids must lie in 0..{vocab_size - 1}, got {ids.min()}..{ids.max()}")
    return ids.astype(np.int64)
