"""Blockwise Parallel Decoding (Stern, Shazeer & Uszkoreit 2018, arXiv 1811.03115)."""

from __future__ import annotations

import dataclasses

from specjax.drafters.head_chain import HeadChain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blockwise(HeadChain):
    """The likeliest token of heads p_2..p_k, in the combined form: one forward pass a round (section 4).

    The pass that scores a block also holds the hidden state from which the
    next block is guessed. p_1 is the target: the token that a round adds
    after the accepted ones is its guess, already verified, so k heads draft
    k - 1 tokens. Deterministic (q is one-hot), so lossless under every
    lossless rule; at temperature 0 that is the paper's exact criterion, whose
    accepted block k-hat is the round's accepted tokens and the one after.

    Needs a target with ``taps=("final",)``; drafts nothing after a prompt of
    one token, of which no feature is known.
    """
