"""Rules that are wrong on purpose: every proof of losslessness has to fail on them.

Each repeats, in one changed line, a fault that speculative decoders have had.
All look plausible: they emit fluent text and accept about as much as they should.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.acceptance import Block, Rejection, chain
from specjax.types import Array, Proposal, Verdict, pytree


class Lossy:
    """Marks a control: its output law is not the target's."""

    @property
    def lossless(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResampleTarget(Lossy, Rejection):
    """After a rejection draws from p instead of from the residual."""

    def accept(self, noise: chain.Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        n = super().accept(noise, proposal, target_probs).num_accepted
        return Verdict(num_accepted=n, next_token=sampling.draw(noise.final, target_probs[n]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftmaxResidual(Lossy, Rejection):
    """Normalises the residual by a softmax, which revives tokens of no mass."""

    def accept(self, noise: chain.Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        n = super().accept(noise, proposal, target_probs).num_accepted
        q = chain.draft_law(proposal, n, target_probs.shape[-1])
        residual = jnp.where(
            n < proposal.num_drafted, jax.nn.softmax(jnp.maximum(target_probs[n] - q, 0.0)), target_probs[n]
        )
        return Verdict(num_accepted=n, next_token=sampling.draw(noise.final, residual))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutToBatch(Lossy, Rejection):
    """Cuts the block where another row of the batch was rejected, and draws the next token anew."""

    others_accepted: int = 0

    def accept(self, noise: chain.Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        verdict = super().accept(noise, proposal, target_probs)
        n = jnp.minimum(verdict.num_accepted, self.others_accepted)
        anew = sampling.draw(noise.final, target_probs[n])
        cut = n < verdict.num_accepted
        return Verdict(num_accepted=n, next_token=jnp.where(cut, anew, verdict.next_token))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockPlainResidual(Lossy, Block):
    """The block rule with the token rule's residual: relu(p - q) without b."""

    def accept(self, noise: chain.Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        n = super().accept(noise, proposal, target_probs).num_accepted
        q = chain.draft_law(proposal, n, target_probs.shape[-1])
        residual = jnp.maximum(target_probs[n] - q, 0.0)
        residual = jnp.where(residual.sum() > 0, residual, target_probs[n])
        return Verdict(num_accepted=n, next_token=sampling.draw(noise.final, residual))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockFirstFailure(Lossy, Block):
    """The block rule stopped at the first coin that fails, as the token rule is."""

    def accept(self, noise: chain.Coins, proposal: Proposal, target_probs: Array) -> Verdict:
        """A coin succeeds on its own if the block rule keeps its length when all later coins fail."""
        lengths = jnp.arange(1, proposal.tokens.shape[0] + 1)

        def succeeds(length: Array) -> Array:
            alone = jnp.where(lengths == length, noise.accept, 1.0)  # 1 fails against every h
            return (
                super(BlockFirstFailure, self)
                .accept(chain.Coins(accept=alone, final=noise.final), proposal, target_probs)
                .num_accepted
                == length
            )

        run = jnp.cumprod(jax.vmap(succeeds)(lengths))
        coins = jnp.where(run == 1, noise.accept, 1.0)
        return super().accept(chain.Coins(accept=coins, final=noise.final), proposal, target_probs)


@pytree
class PositionCoins:
    """Uniforms of the absolute positions length..length+G."""

    accept: Array  # [G]
    finals: Array  # [G+1]: the final token takes the one of its own position


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockByPosition(Lossy, Block):
    """The block rule with noise keyed by absolute position, so that a later round uses it again.

    The accepted length depends on the coins and drafts beyond it, which are
    then no longer fresh. One round alone cannot show it.
    """

    def noise(self, key: Array, round: Array, length: Array, gamma: int, vocab_size: int):
        del round, vocab_size
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, length + jnp.arange(gamma + 1))
        draft, accept, finals = jax.vmap(lambda key: jax.random.uniform(key, (3,)), out_axes=1)(keys)
        return draft[:gamma], PositionCoins(accept=accept[:gamma], finals=finals)

    def accept(  # type: ignore[override]  # its noise is another type, as a Rule's may be
        self, noise: PositionCoins, proposal: Proposal, target_probs: Array
    ) -> Verdict:
        judge = lambda final: super(BlockByPosition, self).accept(
            chain.Coins(accept=noise.accept, final=final), proposal, target_probs
        )
        return judge(noise.finals[judge(noise.finals[0]).num_accepted])
