"""The law of one row at each position: processors, and then the warp, of p and q alike."""

from __future__ import annotations

from collections.abc import Callable
import functools

from specjax import processors, sampling
from specjax.types import Array, History, Request, SamplingParams, Warp, pytree


@pytree
class Active:
    """What any row of a batch uses; unbatched, so that the rest is really skipped."""

    filters: sampling.ActiveFilters
    processors: processors.ActiveProcessors | None


def active_in(request: Request) -> Active:
    """Flags over a whole batch (or one row), computed once per decode."""
    params = request.processors
    return Active(
        filters=sampling.active_filters(request.sampling),
        processors=None if params is None else processors.active_processors(params),
    )


def warp_of(request: Request, active: Active, history: History | None, length: Array) -> Warp:
    """``warp(logits, drafted)`` of a row that has ``length`` [] committed tokens.

    Raises:
      ValueError: the request has processors and the state was prefilled without.
    """
    process = _processing(request, active, history, length)

    def warp(logits: Array, drafted: Array, own: SamplingParams | None = None, /) -> Array:
        logits = process(logits, drafted)
        if own is not None:
            return sampling.warp(logits, own)
        return sampling.warp(logits, request.sampling, active.filters)

    return warp


def _processing(
    request: Request, active: Active, history: History | None, length: Array
) -> Callable[[Array, Array], Array]:
    """What the request's processors make of logits [T, V] that stand after ``drafted`` [T, N]."""
    if request.processors is None or active.processors is None:
        return lambda logits, drafted: logits
    if history is None:
        raise ValueError("the request has processors, the state no history: prefill with the same request")
    emitted = length - request.prompt_length
    return functools.partial(
        processors.process, request.processors, active.processors, request.stop_tokens, history, emitted
    )
