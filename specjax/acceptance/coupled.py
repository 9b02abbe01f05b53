"""Coupled sampling: draft and target share their Gumbel noise (after Daliri et al. 2024, 2408.07978)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.acceptance import chain
from specjax.types import Array, Proposal, Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coupled:
    """Accepts a draft while it equals the target's own draw; emits the target's draws.

    The noise is fixed by (row seed, absolute position). So each emitted token
    is what plain decoding draws with the same seed: the output equals it token
    for token, for every drafter, gamma and schedule. Lossless for each seed,
    not only in law.

    The price: a draft from q is accepted with probability
    sum_v 1 / sum_u max(p_u / p_v, q_u / q_v) >= (1 - TV) / (1 + TV), where the
    independent rule reaches sum min(p, q) = 1 - TV, and V Gumbel values a
    position in place of one uniform.
    """

    @property
    def lossless(self) -> bool:
        return True

    def noise(self, key: Array, round: Array, length: Array, gamma: int, vocab_size: int):
        """Noise of positions length..length+G: ([G, V] for drafts, [G+1, V] for the target).

        Gumbel noise g is kept as the exponential e = exp(-g), since
        argmax(log p + g) = argmax(p / e) needs no logarithm of p.
        """
        del round
        bits = _random_bits(key, length + jnp.arange(gamma + 1), vocab_size)
        # The smallest e win: all 32 bits keep them apart, where 23 would tie them in large vocabularies
        # (and 16, two values a word, in small ones: no law would be finer than 1 / 65,536).
        uniform = jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
        # Made once a round: without the barrier each reader's fusion would make it again.
        exponential = jax.lax.optimization_barrier(-jnp.log1p(-uniform))
        return exponential[:gamma], exponential

    def draw(self, noise: Array, probs: Array) -> Array:
        """Gumbel-max: ``noise`` [V] from :meth:`noise`, ``probs`` [V]."""
        return sampling.first_argmax(probs / noise)

    def accept(self, noise: Array, proposal: Proposal, target_probs: Array) -> Verdict:
        """Compares G drafts with the target's draws from ``target_probs`` [G+1, V]; q plays no part."""
        gamma = proposal.tokens.shape[0]
        own = jax.vmap(self.draw)(noise, target_probs)
        equal = (own[:gamma] == proposal.tokens) & chain.is_live(proposal)
        n = jnp.sum(jnp.cumprod(equal), dtype=jnp.int32)
        return Verdict(num_accepted=n, next_token=own[n])


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def _random_bits(key: Array, positions: Array, count: int) -> Array:
    """[T, count] uint32: entry v of row t is a function of (key, positions[t], v, count).

    One Threefry-2x32 block (Salmon et al. 2011, 20 rounds) at the counter
    (position, v) makes two entries. ``jax.random.bits`` gives the same quality
    at three times the cost on a CPU: it spends a block on each entry, and its
    rounds there are a loop that writes whole arrays; these are one fused pass.
    """
    half = -(-count // 2)
    blocks = jnp.broadcast_to(jnp.arange(half, dtype=jnp.uint32), (positions.shape[0], half))
    places = jnp.broadcast_to(positions.astype(jnp.uint32)[:, None], blocks.shape)
    return jnp.concatenate(_threefry(jax.random.key_data(key)[-2:], places, blocks), axis=1)[:, :count]


def _threefry(key: Array, left: Array, right: Array) -> tuple[Array, Array]:
    """The block cipher: the two words of each counter (``left``, ``right``) under ``key`` [2] uint32."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    left, right = left + schedule[0], right + schedule[1]
    for group in range(5):
        for bits in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(bits)) | (right >> np.uint32(32 - bits)))
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return left, right
