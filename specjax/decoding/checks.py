"""Errors a user can act on, raised before anything is compiled."""

from __future__ import annotations

import jax
import numpy as np

from specjax.decoding.program import Program
from specjax.types import Array, Request


def check_batch(program: Program, prompts: Array, request: Request) -> None:
    """Refuses prompts that do not fit; silent under a trace, where values are not known.

    Raises:
      ValueError: says which row, which model, and by how much.
    """
    if isinstance(request.prompt_length, jax.core.Tracer):
        return
    lengths, ids = np.asarray(request.prompt_length), np.asarray(prompts)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"prompts must be integer token ids, got {ids.dtype}")
    if ids.ndim != 2 or ids.shape[0] != lengths.shape[0]:
        raise ValueError(f"prompts must be [B, P] with B = {lengths.shape[0]} requests, got {ids.shape}")
    if (row := _first(lengths < 1)) is not None:
        raise ValueError(f"prompt {row} is empty: a prompt needs at least one token")
    if (row := _first(lengths > ids.shape[1])) is not None:
        raise ValueError(f"prompt {row} claims {lengths[row]} tokens, its row holds {ids.shape[1]}")
    used = np.arange(ids.shape[1]) < lengths[:, None]
    outside = used & ((ids < 0) | (ids >= program.target.vocab_size))
    if (row := _first(np.asarray(outside.any(axis=1)))) is not None:
        raise ValueError(
            f"prompt {row} holds id {ids[row][outside[row]][0]}, "
            f"the target's vocabulary is 0..{program.target.vocab_size - 1}"
        )
    _check_processors(request, program.target.vocab_size, getattr(program.target, "num_ids", None))
    if ids.shape[1] + program.max_gamma + 2 > program.max_len:
        raise ValueError(
            f"prompts of {ids.shape[1]} slots and max_gamma {program.max_gamma} + 2 of slack "
            f"exceed the buffer of {program.max_len}"
        )
    context = program.target.context
    if (row := _first(lengths > context)) is not None:
        raise ValueError(
            f"prompt {row} has {lengths[row]} tokens, {lengths[row] - context} more than "
            f"the target's context of {context}"
        )
    needed = lengths + np.minimum(np.asarray(request.max_new_tokens), context - lengths)
    if (row := _first(needed > program.capacity)) is not None:
        raise ValueError(
            f"prompt {row} and its new tokens need {needed[row]} slots, the buffer of {program.max_len} "
            f"holds {program.capacity}: use buffer_length()"
        )


def _check_processors(request: Request, vocab_size: int, num_ids: int | None) -> None:
    """Refuses ids that the target does not know, and bans that leave nothing to sample."""
    if request.processors is None:
        return
    ids, bias = np.asarray(request.processors.bias_tokens), np.asarray(request.processors.bias)
    if (row := _first(np.asarray((ids >= vocab_size).any(axis=1)))) is not None:
        raise ValueError(
            f"row {row} biases or bans token {ids[row].max()}, the target's vocabulary is 0..{vocab_size - 1}"
        )
    stops, waits = np.asarray(request.stop_tokens), np.asarray(request.processors.min_new_tokens) > 0
    for at in range(len(ids)):
        banned = set(ids[at][np.isneginf(bias[at])].tolist())
        if waits[at]:
            banned |= set(stops[at].tolist())
        if banned.issuperset(range(num_ids or vocab_size)):  # past num_ids lies padding that no token has
            waiting = " while min_new_tokens forbids its stop tokens" if waits[at] else ""
            raise ValueError(
                f"row {at} bans all {num_ids or vocab_size} tokens{waiting}: nothing is left to sample"
            )


def _first(mask: np.ndarray) -> int | None:
    """Index of the first True."""
    return int(np.argmax(mask)) if mask.any() else None
