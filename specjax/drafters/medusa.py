"""Medusa: heads on the target's last hidden state guess the next tokens at once (2401.10774)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.drafters import last_feature
from specjax.drafters.head_chain import HeadChain
from specjax.models.heads.heads import HeadParams, Heads
from specjax.trees.contracts import DrawChildren, TreeProposal
from specjax.trees.topology import Choices, from_choices, make_tree
from specjax.types import Array, Noise, Outcome, Params, Warp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Medusa(HeadChain):
    """The likeliest token of each head, as a chain.

    Deterministic (q is one-hot), so lossless under every lossless rule. Needs
    a target with ``taps=("final",)`` and draft params from
    :func:`specjax.models.heads.folder.load`. Drafts nothing after a prompt of
    one token, of which no feature is known. A gamma beyond the heads drafts
    as many tokens as there are heads.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaTree:
    """The likeliest tokens of each head, as a static tree (section 2.1.2 and 2.3.3 of the paper).

    ``choices`` is its shape, from :mod:`specjax.trees.builders`: a node of
    depth i and rank r holds the r-th likeliest token of head i - 1, the same
    below every parent. Fixed before the coins, so the law reported is none and
    a one-hot walk is lossless; for the rest see :class:`Medusa`.
    """

    heads: Heads
    choices: Choices

    def __post_init__(self) -> None:
        from_choices(self.choices)
        if self.max_depth > self.heads.num_heads:
            raise ValueError(
                f"the tree is {self.max_depth} deep, the heads reach {self.heads.num_heads} tokens ahead"
            )
        if max(self._ranks, default=0) > self.heads.config.num_ids:
            raise ValueError(
                f"the tree asks for rank {max(self._ranks) - 1}, heads score {self.heads.config.num_ids} ids"
            )

    @property
    def num_nodes(self) -> int:
        return 1 + len(self.choices)

    @property
    def max_depth(self) -> int:
        return max(map(len, self.choices), default=0)

    @property
    def _ranks(self) -> tuple[int, ...]:
        """How many candidates of each depth the shape uses."""
        ends = [(len(choice), choice[-1]) for choice in self.choices]
        return tuple(
            1 + max(rank for depth, rank in ends if depth == level) for level in range(1, self.max_depth + 1)
        )

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[Array, Array]:
        feature, known = last_feature.of_prompt(features, length)
        return feature, known * jnp.int32(self.num_nodes - 1)

    def propose_tree(
        self,
        params: tuple[Params, HeadParams],
        state: Array,
        tokens: Array,
        length: Array,
        num_wanted: Array,
        noise: Noise,
        draw_children: DrawChildren,
        warp: Warp,
    ) -> tuple[TreeProposal, Array]:
        """The tree of the newest feature's guesses; no noise is used."""
        parent, rank = from_choices(self.choices)
        ranks = self._ranks
        depth = [0, *sorted(map(len, self.choices))]
        first = [sum(ranks[: level - 1]) for level in depth[1:]]  # where a depth's candidates begin
        pending = tokens[length - 1][None]
        if self.choices:
            candidates = jnp.concatenate(self.heads.likeliest(params[1], state, ranks))
            drafted = candidates[rank[1:] + jnp.asarray(first)]
            pending = jnp.concatenate([pending, drafted])
        valid = jnp.arange(self.num_nodes) <= num_wanted
        tree = make_tree(pending, parent, max_depth=self.max_depth, valid=valid)
        return TreeProposal(tree=tree, probs=None), state

    def commit(
        self, params: tuple[Params, Params], state: Array, tokens: Array, outcome: Outcome
    ) -> tuple[Array, Array]:
        return last_feature.after_round(state, outcome), jnp.int32(self.num_nodes - 1)
