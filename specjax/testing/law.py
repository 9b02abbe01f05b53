"""The exact output law of a rule's own kernels: no samples, no tolerance for noise.

``jax.random.uniform`` makes float32 numbers k / 2^23, all equally likely. For
a fixed draft a rule's coins are thresholds on such numbers, so its law is
found by bisecting each threshold over k and adding up the cells between them.
What comes out is the law of the compiled float32 code, not of a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.acceptance.chain import Coins
from specjax.types import Array, Proposal, Rule

GRID = 2**23  # how many values a float32 uniform takes
_STEPS = 24  # bisection steps that tell GRID + 1 boundaries apart

# A law over the next tokens: entry i, shape [V] * (i + 1), holds the next token after i tokens.
Law = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drafts:
    """Every draft one round may propose, and what it is judged by."""

    tokens: np.ndarray  # [N, G] int32
    weights: np.ndarray  # [N] float64: the probability of each
    probs: np.ndarray | None  # [N, G, V] float32: the law the drafter reports; None is one-hot
    num_drafted: np.ndarray  # [N] int32
    target_probs: np.ndarray  # [N, G+1, V] float32


def enumerate_drafts(
    rule: Rule,
    p: Law,
    q: Law,
    *,
    reported: Law | None = None,
    one_hot: bool = False,
    num_drafted: Callable[[tuple[int, ...]], int] | None = None,
) -> Drafts:
    """The V^G drafts drawn from ``q`` by ``rule.draw``, weighted by that kernel's exact law.

    Args:
      rule: supplies ``draw``.
      p: the target's law, G + 1 entries.
      q: the law each token is drawn from, G entries.
      reported: the law the drafter says it drew from; a lossless drafter reports ``q``.
      one_hot: report no probabilities, as a deterministic drafter does.
      num_drafted: how many tokens of a draft are submitted; default all G.
    """
    gamma, vocab_size = len(q), p[0].shape[-1]
    tokens = np.array(list(itertools.product(range(vocab_size), repeat=gamma)), np.int32)
    drawn_rows = draw_law(rule, np.concatenate([law.reshape(-1, vocab_size) for law in q]))
    by_position = np.split(drawn_rows, np.cumsum([law.size // vocab_size for law in q])[:-1])
    drawn = [law.reshape((vocab_size,) * (i + 1)) for i, law in enumerate(by_position)]
    weights = np.prod([law[tuple(tokens[:, : i + 1].T)] for i, law in enumerate(drawn)], axis=0)
    rows = lambda law: np.stack(
        [x[tuple(tokens[:, :i].T)] + np.zeros((len(tokens), 1)) for i, x in enumerate(law)], 1
    )
    count = num_drafted or (lambda draft: gamma)
    return Drafts(
        tokens=tokens,
        weights=weights,
        probs=None if one_hot else rows(q if reported is None else reported).astype(np.float32),
        num_drafted=np.array([count(tuple(draft.tolist())) for draft in tokens], np.int32),
        target_probs=rows(p).astype(np.float32),
    )


def round_law(rule: Rule, p: Law, drafts: Drafts) -> np.ndarray:
    """The joint law [V] * (G+1) of the tokens after one round, continued by ``p`` where it emits fewer.

    A lossless rule gives :func:`joint_law` of ``p``, to the rounding of float32.

    Raises:
      ValueError: the accept coins are no independent thresholds, so this method does not apply.
    """
    gamma, vocab_size = drafts.tokens.shape[1], p[0].shape[-1]
    rest = continuations(p)
    joint = np.zeros((vocab_size,) * (gamma + 1))
    num_accepted, cells, next_law = outcomes(rule, drafts)
    for draft, weight, ns, cell_weights, laws in zip(
        drafts.tokens, drafts.weights, num_accepted, cells, next_law, strict=True
    ):
        for n, cell, law in zip(ns, weight * cell_weights, laws, strict=True):
            prefix = tuple(draft[:n])
            tail = rest[n + 1][prefix]
            joint[prefix] += cell * law.reshape(-1, *(1,) * (tail.ndim - 1)) * tail
    return joint


def outcomes(rule: Rule, drafts: Drafts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the coins can do to each draft; C = 2^G cells, one for each set of low coins.

    Returns (num_accepted [N, C] int32, cell probability [N, C] float64, law of
    the next token given the cell [N, C, V] float64).
    """
    gamma, vocab_size = drafts.tokens.shape[1], drafts.target_probs.shape[-1]
    boundaries, num_accepted = jax.tree.map(
        np.asarray, _boundaries(rule, drafts.tokens, drafts.probs, drafts.num_drafted, drafts.target_probs)
    )
    index = _queries(gamma, vocab_size)[0]
    bits = _cells(gamma)
    cells = np.ones(num_accepted.shape)
    for i in range(gamma):
        threshold = _one_threshold(boundaries[..., index == i], f"{rule}: coin {i}")
        cells *= np.where(bits[:, i], 1 - threshold[:, None] / GRID, threshold[:, None] / GRID)
    return num_accepted, cells, law_between(boundaries[..., index == gamma])


def _one_threshold(boundaries: np.ndarray, coin: str) -> np.ndarray:
    """[N] of [N, C, finals]: a coin's threshold; GRID where it changes nothing."""
    lowest = boundaries.min(axis=(1, 2))
    if np.any((boundaries != lowest[:, None, None]) & (boundaries < GRID)):
        raise ValueError(f"{coin} has a threshold that depends on the other uniforms")
    return lowest


def law_between(boundaries: np.ndarray) -> np.ndarray:
    """[..., V] of [..., V-1]: the share of the grid that yields each token."""
    ends = np.zeros((*boundaries.shape[:-1], 1))
    return np.diff(np.concatenate([ends, boundaries, ends + GRID], axis=-1) / GRID, axis=-1)


def draw_law(rule: Rule, probs: np.ndarray) -> np.ndarray:
    """The exact law [N, V] float64 of ``rule.draw`` from one uniform, given ``probs`` [N, V]."""
    padded = np.zeros((-(-len(probs) // 16) * 16, probs.shape[1]), np.float32)  # few shapes, few compilations
    padded[: len(probs)] = probs
    return law_between(np.asarray(_draw_boundaries(rule, padded)))[: len(probs)]


def joint_law(p: Law) -> np.ndarray:
    """The joint law [V] * len(p) of the first tokens under ``p``, in float64."""
    return continuations(p)[0]


def random_law(rng: np.random.Generator, vocab_size: int, length: int, zeros: float = 0.0) -> Law:
    """Random next-token laws after 0..length-1 tokens; a share ``zeros`` of the entries is 0."""

    def law(i: int) -> np.ndarray:
        raw = rng.dirichlet(np.full(vocab_size, 0.7), size=(vocab_size,) * i)
        kept = rng.random(raw.shape) >= zeros
        kept[..., 0] |= ~kept.any(-1)
        raw = np.where(kept, np.maximum(raw, 1e-3), 0.0)
        return raw / raw.sum(-1, keepdims=True)

    return [law(i) for i in range(length)]


def continuations(p: Law) -> list[np.ndarray]:
    """Entry m, [V] * len(p): the law of the tokens after the first m, given those m."""
    rest = [np.ones(np.shape(p[-1]))]
    for law in reversed([np.asarray(law, np.float64) for law in p]):
        rest.append(rest[-1] * law.reshape(*law.shape, *(1,) * (len(p) - law.ndim)))
    return rest[::-1]


def _cells(gamma: int) -> np.ndarray:
    """[C, G] bool: which coins lie on the high side of their threshold."""
    return np.array(list(itertools.product([False, True], repeat=gamma)), bool).reshape(2**gamma, gamma)


def first_change(holds: Callable[[Array], Array]) -> Array:
    """Smallest k in 0..GRID with ``holds(k / GRID)``, which must stay true from there on; GRID if none."""

    def step(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends  # holds(high) or high == GRID; nothing below low holds
        middle = (low + high) // 2
        found = holds(middle.astype(jnp.float32) / GRID) | (low >= high)
        return jnp.where(found, low, middle + 1), jnp.where(found, middle, high)

    _, high = jax.lax.fori_loop(0, _STEPS, step, (jnp.int32(0), jnp.int32(GRID)))
    return high


@functools.partial(jax.jit, static_argnums=0)
def _draw_boundaries(rule: Rule, probs: Array) -> Array:
    """[N, V-1]: the smallest k at which token v + 1 or a later one is drawn."""
    one = lambda row, v: first_change(lambda u: rule.draw(u, row) >= v)
    return jax.vmap(lambda row: jax.vmap(lambda v: one(row, v))(jnp.arange(1, probs.shape[1])))(probs)


def _queries(gamma: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The K uniforms to move: (index: coin i, or gamma for the final; the final meanwhile; token sought)."""
    coins = [(i, final, 0) for i in range(gamma) for final in (0.0, 0.5, (GRID - 1) / GRID)]
    index, finals, least = zip(*coins, *((gamma, 0.0, v) for v in range(1, vocab_size)), strict=True)
    return np.array(index, np.int32), np.array(finals, np.float32), np.array(least, np.int32)


@functools.partial(jax.jit, static_argnums=0)
def _boundaries(rule: Rule, tokens: Array, probs: Array | None, num_drafted: Array, target_probs: Array):
    """(boundaries [N, C, K], num_accepted [N, C]): where a verdict changes as one uniform rises from 0."""
    gamma, vocab_size = tokens.shape[1], target_probs.shape[-1]
    queries = [jnp.asarray(x) for x in _queries(gamma, vocab_size)]
    ends = jnp.where(jnp.asarray(_cells(gamma)), jnp.float32((GRID - 1) / GRID), 0.0)

    def of_draft(tokens, probs, num_drafted, target_probs):
        proposal = Proposal(tokens=tokens, probs=probs, num_drafted=num_drafted)

        def judge(uniforms: Array) -> Array:
            verdict = rule.accept(
                Coins(accept=uniforms[:gamma], final=uniforms[gamma]), proposal, target_probs
            )
            return jnp.stack([verdict.num_accepted, verdict.next_token])

        def of_query(coins: Array, index: Array, final: Array, least: Array) -> tuple[Array, Array]:
            moved = lambda u: judge(jnp.append(coins, final).at[index].set(u))
            at_zero = moved(0.0)
            differs = lambda now: jnp.where(index == gamma, now[1] >= least, jnp.any(now != at_zero))
            return first_change(lambda u: differs(moved(u))), moved(
                jnp.where(index == gamma, 0.0, coins[index])
            )[0]

        of_cell = lambda coins: jax.vmap(of_query, in_axes=(None, 0, 0, 0))(coins, *queries)
        boundaries, num_accepted = jax.vmap(of_cell)(ends)
        return boundaries, num_accepted[:, -1]

    in_axes = (0, None if probs is None else 0, 0, 0)
    return jax.vmap(of_draft, in_axes=in_axes)(tokens, probs, num_drafted, target_probs)
