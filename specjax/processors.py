"""Logit processors: scores changed by what stands before them, for p and q alike.

The law at a position depends on every token before it, so a draft position is
processed as if the draft tokens before it had been committed (its hypothetical
prefix). A draft that is rejected was never committed and leaves no trace.

In this order, as ``transformers`` and vLLM have it:

1. logit bias, and bans, which are a bias of -inf;
2. repetition penalty (Keskar et al. 2019, section 4.1): scores of ids in the
   prompt or among the emitted tokens are divided by it if positive, else
   multiplied (the paper divides both, which would favour what has a negative score);
3. frequency and presence penalties (the convention of OpenAI's API): each id
   loses ``frequency * count + presence * (count > 0)``, counted over emitted
   tokens alone, not the prompt;
4. min_new_tokens: stop tokens have no probability before.

The warp comes after them all. A row that uses none keeps its scores to the last
bit, and a processor that no row of the batch uses is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import PADDING, Array, History, ProcessorParams, pytree


@pytree
class ActiveProcessors:
    """Which processors any row of a batch uses; unbatched [] bool, so a ``cond`` really skips."""

    bias: Array
    penalties: Array
    min_new_tokens: Array


def active_processors(params: ProcessorParams) -> ActiveProcessors:
    """Flags over a whole batch (or one row), computed once per decode."""
    penalties = (
        (params.repetition_penalty != 1) | (params.presence_penalty != 0) | (params.frequency_penalty != 0)
    )
    return ActiveProcessors(
        bias=jnp.any(params.bias_tokens != PADDING),
        penalties=jnp.any(penalties),
        min_new_tokens=jnp.any(params.min_new_tokens > 0),
    )


def process(
    params: ProcessorParams,
    active: ActiveProcessors,
    stop_tokens: Array,
    history: History,
    num_emitted: Array,
    logits: Array,
    drafted: Array,
) -> Array:
    """The scores [T, V] float32 that are warped, from ``logits`` [T, V] of one row.

    Args:
      params: of the row.
      active: of the batch.
      stop_tokens: [K] int32, padded with PADDING.
      history: the row's committed tokens.
      num_emitted: [] int32: how many of them were emitted.
      logits: the model's own.
      drafted: [T, N] int32: row t stands after these draft tokens too; PADDING where there is none.
    """

    def add_bias(logits: Array) -> Array:
        return logits.at[:, _or_none(params.bias_tokens, logits)].add(params.bias, mode="drop")

    def penalise(logits: Array) -> Array:
        places = jnp.arange(logits.shape[0])[:, None], _or_none(drafted, logits)
        counts = jnp.broadcast_to(history.emitted, logits.shape).at[places].add(1, mode="drop")
        theta = params.repetition_penalty
        repeated = jnp.where(logits > 0, logits / theta, logits * theta)
        logits = jnp.where(history.in_prompt | (counts > 0), repeated, logits)
        return logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)

    def forbid_stops(logits: Array) -> Array:
        stops = jnp.zeros(logits.shape[-1:], bool).at[_or_none(stop_tokens, logits)].set(True, mode="drop")
        emitted = num_emitted + jnp.sum(drafted != PADDING, axis=1)
        return jnp.where(stops & (emitted < params.min_new_tokens)[:, None], -jnp.inf, logits)

    logits = logits.astype(jnp.float32)
    steps: tuple[tuple[Array, Callable[[Array], Array]], ...] = (
        (active.bias, add_bias),
        (active.penalties, penalise),
        (active.min_new_tokens, forbid_stops),
    )
    for flag, step in steps:
        logits = jax.lax.cond(flag, step, lambda logits: logits, logits)
    return logits


def prefixes(tokens: Array) -> Array:
    """[G+1, G] int32: the draft tokens before each position of a chain ``tokens`` [G], for a warp.

    >>> prefixes(jnp.array([7, 8])).tolist()
    [[-1, -1], [7, -1], [7, 8]]
    """
    gamma = tokens.shape[0]
    before = jnp.arange(gamma)[None, :] < jnp.arange(gamma + 1)[:, None]
    return jnp.where(before, tokens, PADDING)


def start_history(prompt: Array, length: Array, vocab_size: int) -> History:
    """The history of a row that emitted nothing yet; ``prompt`` [P], of which ``length`` tokens count."""
    used = jnp.where(jnp.arange(prompt.shape[0]) < length, prompt, vocab_size)
    return History(
        in_prompt=jnp.zeros((vocab_size,), bool).at[used].set(True, mode="drop"),
        emitted=jnp.zeros((vocab_size,), jnp.int32),
    )


def extend_history(history: History, emitted: Array, num_emitted: Array) -> History:
    """``history`` with the first ``num_emitted`` of ``emitted`` [N] committed."""
    used = jnp.where(jnp.arange(emitted.shape[0]) < num_emitted, emitted, history.emitted.shape[0])
    return dataclasses.replace(history, emitted=history.emitted.at[used].add(1, mode="drop"))


def _or_none(ids: Array, logits: Array) -> Array:
    """PADDING moved past the vocabulary, where a scatter drops it; -1 would be the last id."""
    return jnp.where(ids < 0, logits.shape[-1], ids)


def make_processors(
    *,
    repetition_penalty: Any = 1.0,
    presence_penalty: Any = 0.0,
    frequency_penalty: Any = 0.0,
    logit_bias: Mapping[int, float] | Sequence[Mapping[int, float]] = (),
    banned_tokens: Sequence[int] | Sequence[Sequence[int]] = (),
    min_new_tokens: Any = 0,
) -> ProcessorParams:
    """The ``processors`` of :func:`specjax.request.make_request`, arrays [B, ...], or [1, ...] for all rows.

    Numbers are shared by the batch or given one a row; so are ``logit_bias``,
    {id: added to its score}, and ``banned_tokens``, a list of ids. Another
    value never recompiles; another number of biased and banned ids does.

    >>> processors = make_processors(presence_penalty=[0.5, 0.0], banned_tokens=[7])
    >>> processors.presence_penalty.shape, processors.bias.tolist()
    ((2,), [[-inf]])

    Raises:
      ValueError: a value no processor can have; says which.
    """
    number = lambda name, value, valid, words: jnp.asarray(_checked(name, value, valid, words), jnp.float32)
    whole = lambda n: (n >= 0) & (n < 2**31) & (n == np.floor(n))
    finite, positive = np.isfinite, lambda x: (x > 0) & np.isfinite(x)
    bias_tokens, bias = _bias_rows(logit_bias, banned_tokens)
    return ProcessorParams(
        repetition_penalty=number("repetition_penalty", repetition_penalty, positive, "above 0; 1 is none"),
        presence_penalty=number("presence_penalty", presence_penalty, finite, "finite; 0 is none"),
        frequency_penalty=number("frequency_penalty", frequency_penalty, finite, "finite; 0 is none"),
        bias_tokens=jnp.asarray(bias_tokens),
        bias=jnp.asarray(bias),
        min_new_tokens=jnp.asarray(
            _checked("min_new_tokens", min_new_tokens, whole, "whole and at least 0"), jnp.int32
        ),
    )


def _checked(name: str, value: Any, valid: Callable[[Any], Any], words: str) -> np.ndarray:
    """[1] or [B] float64."""
    values = np.atleast_1d(np.asarray(value, np.float64))
    if values.ndim != 1:
        raise ValueError(f"{name} takes one number, or one a row; got shape {values.shape}")
    bad = ~np.asarray(valid(values))
    if bad.any():
        raise ValueError(f"{name} must be {words}; got {values[bad][0]:g}")
    return values


def _bias_rows(logit_bias: Any, banned_tokens: Any) -> tuple[np.ndarray, np.ndarray]:
    """(ids [1 or B, N] int32, padded with PADDING; what is added to each, float32)."""
    biases = [logit_bias] if isinstance(logit_bias, Mapping) else list(logit_bias) or [{}]
    bans = list(banned_tokens)
    bans = bans if bans and np.ndim(bans[0]) else [bans]
    if 1 not in (len(biases), len(bans)) and len(biases) != len(bans):
        raise ValueError(f"logit_bias is given for {len(biases)} rows, banned_tokens for {len(bans)}")
    count = max(len(biases), len(bans))
    entries = [
        [*biases[row % len(biases)].items(), *((token, -np.inf) for token in bans[row % len(bans)])]
        for row in range(count)
    ]
    ids = np.full((count, max(1, *map(len, entries))), PADDING, np.int32)
    added = np.zeros(ids.shape, np.float32)
    for row, pairs in enumerate(entries):
        for column, (token, value) in enumerate(pairs):
            if token != int(token) or not 0 <= token < 2**31:
                raise ValueError(f"logit_bias and banned_tokens take token ids; got {token!r}")
            if not value < np.inf:
                raise ValueError(f"logit_bias of token {token} must be below infinity; got {value!r}")
            ids[row, column], added[row, column] = token, value
    return ids, added
