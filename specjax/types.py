"""The contracts of specjax: what flows between target, drafter, rule and loop.

Everything here is written for ONE sequence (a row); ``jax.vmap`` makes the
batch. The letters used in shape comments, here and everywhere else:

    V   vocabulary size
    T   tokens fed in one step (one forward pass)
    S   length of the token buffer and of every cache (static)
    G   gamma: draft tokens per round, static per compiled bucket
    K   stop tokens per request (padded with -1)
    M   max_gamma: the largest gamma of a sweep; buffers have M + 2 slack
    L   layers of a model,  D  its width,  H  heads,  Hkv  key/value heads

A *round* is draft + score + accept + commit; a *step* is one forward pass.
p is the target's law after warping (temperature, top-k, ...), q the law a
draft token was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, Protocol, dataclass_transform

import jax

Array = jax.Array
Params = Any  # a pytree of arrays
DraftState = Any  # a pytree only its drafter looks into
Noise = Any  # a pytree only its rule looks into

PADDING = -1  # an id that no vocabulary holds: unused stop tokens, "no token here"

# Where an emitted token came from (``Trace.origin``).
PROMPT, ACCEPTED, RESIDUAL, BONUS = 0, 1, 2, 3
ORIGINS = ("prompt", "accepted", "residual", "bonus")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def pytree(cls: type) -> type:
    """A frozen, keyword-only dataclass that jit, vmap and tree_map see as a pytree."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


@pytree
class SamplingParams:
    """How logits become the law that is sampled. Arrays, so changing one never recompiles."""

    temperature: Array  # [] float32; below 1e-5 greedy
    top_k: Array  # [] int32; 0 keeps all
    top_p: Array  # [] float32 in (0, 1]; 1 keeps all
    min_p: Array  # [] float32 in [0, 1); 0 keeps all


@pytree
class ProcessorParams:
    """How scores are changed before they are warped, by what stands before them; see ``processors.py``."""

    repetition_penalty: Array  # [] float32 > 0; 1 changes nothing
    presence_penalty: Array  # [] float32; 0 changes nothing
    frequency_penalty: Array  # [] float32; 0 changes nothing
    bias_tokens: Array  # [N] int32, padded with PADDING
    bias: Array  # [N] float32, added to the scores of bias_tokens; -inf bans
    min_new_tokens: Array  # [] int32: no stop token before so many were emitted


@pytree
class Request:
    """What one row asks for. A jit argument, constant through the loop."""

    key: Array  # [] typed PRNG key, from the row's seed
    sampling: SamplingParams
    max_new_tokens: Array  # [] int32
    prompt_length: Array  # [] int32
    stop_tokens: Array  # [K] int32, padded with PADDING
    gamma: Array  # [] int32: drafts at most this many tokens a round
    processors: ProcessorParams | None = None  # None, which is static, costs nothing


@pytree
class ModelOutput:
    """One forward pass over T tokens."""

    logits: Array  # [T, V] float32
    cache: Any  # the cache after the T rows were written
    features: tuple[Array, ...] = ()  # statically chosen taps, [T, D] each


@pytree
class Proposal:
    """What a drafter submits to be scored.

    ``probs`` is the law each token was ACTUALLY drawn from, float32, after
    warping; None states that the drafter is deterministic (q is one-hot), so
    that no [G, V] array is made. Entries at and past ``num_drafted`` are
    ignored, whatever they hold.
    """

    tokens: Array  # [G] int32
    probs: Array | None  # [G, V] float32
    num_drafted: Array  # [] int32 in 0..G


@pytree
class Verdict:
    """What a rule decided about a proposal."""

    num_accepted: Array  # [] int32 in 0..num_drafted
    next_token: Array  # [] int32: residual after a rejection, bonus after full acceptance


@pytree
class Outcome:
    """What a round did to one row, as a drafter needs to know it."""

    old_length: Array  # [] int32
    num_emitted: Array  # [] int32; 0 for a frozen row
    emitted: Array  # [G+1] int32; valid up to num_emitted
    features: tuple[Array, ...] = ()  # taps of the emitted path, [G+1, D] each


@pytree
class Statistics:
    """Counters of one row, counted only in rounds that began while it was live."""

    rounds: Array  # [] int32; also the row's random-number clock
    rounds_by_bucket: Array  # [number of buckets] int32: the gamma the batch ran
    rounds_by_drafted: Array  # [M+1] int32: rounds by num_drafted
    tested: Array  # [M] int32 by position; min(num_accepted + 1, num_drafted) each round
    accepted: Array  # [M] int32 by position
    accepted_nodes: (
        Array  # [M+1] int32: rounds that accepted node i of the tree; node i of a chain is its i-th draft
    )
    overlap: Array  # [M] float32: sum of min(p, q) over tested positions
    cut: Array  # [] int32: tokens of the last block removed by a stop


@pytree
class Logprobs:
    """log p of each emitted token given all before it, NaN in the slots of all others.

    Nothing a lossless rule emits has p = 0; a token that a lossy rule emitted
    against p has -inf.
    """

    warped: Array  # [S] float32: p the law that is sampled; greedy rows have 0, since p is one-hot
    raw: Array  # [S] float32: p the softmax of the target's own logits, whatever the request asks


@pytree
class Trace:
    """For each slot of the token buffer, enough to draw Fig. 1 of Leviathan et al."""

    origin: Array  # [S] int8: PROMPT, ACCEPTED, RESIDUAL or BONUS
    rejected: Array  # [S] int32: the draft token rejected there, else PADDING
    round: Array  # [S] int32: the round that emitted it, PADDING for the prompt
    logprobs: Logprobs | None = None  # where the Program asks for them


@pytree
class History:
    """What a row's processors look back on. Committed tokens only: a rejected draft was never here."""

    in_prompt: Array  # [V] bool
    emitted: Array  # [V] int32: how often each id was emitted


@pytree
class DecodeState:
    """One row between two rounds. Invariant: target_cache.length == length - 1."""

    # Evolving state
    tokens: Array  # [S] int32: prompt and emitted tokens
    length: Array  # [] int32: how many of them are committed
    done: Array  # [] bool
    target_cache: Any
    draft_state: DraftState
    want: Array  # [] int32: the row's next draft length
    history: History | None = None  # where the Request has processors
    # Reported
    statistics: Statistics
    trace: Trace


# draw(noise of one position, probs [V]) -> token []
Draw = Callable[[Noise, Array], Array]


class Warp(Protocol):
    """The one function from scores to the law that is sampled, for p and q, with a row's own request."""

    def __call__(self, logits: Array, drafted: Array, sampling: SamplingParams | None = None, /) -> Array:
        """Probabilities [T, V] float32 of ``logits`` [T, V].

        Row t is the law of the token after the committed ones and the draft
        tokens ``drafted[t]`` [N] int32, PADDING where there is none: what a
        processor sees before it. ``sampling`` stands in for the request's own.
        """
        ...


class Rule(Protocol):
    """How drafts are accepted: one frozen dataclass per file of ``acceptance/``.

    Independent and coupled sampling differ in this object alone.
    """

    @property
    def lossless(self) -> bool:
        """Whether the output law is the target's for every drafter."""
        ...

    def noise(
        self, key: Array, round: Array, length: Array, gamma: int, vocab_size: int
    ) -> tuple[Noise, Noise]:
        """(draft noise, leaves [G, ...]; accept noise) of one row's round."""
        ...

    def draw(self, noise: Noise, probs: Array) -> Array:
        """One token from ``probs`` [V] with the noise of one position."""
        ...

    def accept(self, noise: Noise, proposal: Proposal, target_probs: Array) -> Verdict:
        """Judges G drafts against ``target_probs`` [G+1, V]."""
        ...


class Drafter(Protocol):
    """Who drafts: one frozen, keyword-only dataclass per file of ``drafters/``; jit-static.

    ``params`` is the pair (target params, draft params). Shapes of the state
    depend on ``max_gamma`` and ``max_len``, never on the gamma of a bucket.
    """

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,  # [P] int32, right-padded
        length: Array,  # [] int32: the prompt's own length
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],  # taps of the prompt, [P, D] each
    ) -> tuple[DraftState, Array]:
        """(state, available): ``available`` [] int32 = how many tokens it could draft next."""
        ...

    def propose(
        self,
        params: tuple[Params, Params],
        state: DraftState,
        tokens: Array,  # [S] int32
        length: Array,  # [] int32
        gamma: int,
        num_wanted: Array,  # [] int32
        noise: Noise,  # leaves [G, ...]
        draw: Draw,
        warp: Warp,
    ) -> tuple[Proposal, DraftState]: ...

    def commit(
        self, params: tuple[Params, Params], state: DraftState, tokens: Array, outcome: Outcome
    ) -> tuple[DraftState, Array]:
        """(state, available) after the round; a frozen row (num_emitted 0) is left as it was."""
        ...
