"""Making requests: the one place where what a user asks for becomes arrays of explicit dtypes."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import PADDING, Array, ProcessorParams, Request, SamplingParams


def _check_values(
    name: str, value: Any, valid: Callable[[Any], Any], words: str, whole: bool = False
) -> None:
    """ValueError with the first value that is not ``valid``; silent under a trace."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        return
    values = np.asarray(value)
    values = values.astype(np.float64) if values.dtype.kind not in "biu" else values
    bad = ~np.asarray(valid(values)) | (whole & (values != np.floor(values)))
    if bad.any():
        kind = "whole numbers " if whole else ""
        raise ValueError(f"{name} must be {kind}{words}, got {values[bad].flat[0]}")


def make_request(
    *,
    prompt_length: Any,
    max_new_tokens: Any,
    seed: Any,
    temperature: Any = 0.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    stop_tokens: Any = (),
    gamma: Any = 2**30,
    processors: ProcessorParams | None = None,
) -> Request:
    """A batch of requests; the one constructor, so that every dtype is explicit.

    Each argument is a scalar shared by the batch or one value per row;
    ``prompt_length`` [B] gives the batch size. ``stop_tokens`` is one list of
    ids for all rows, or [B, K] padded with PADDING. ``processors`` comes from
    :func:`specjax.processors.make_processors`.

    >>> request = make_request(prompt_length=[3, 5], max_new_tokens=8, seed=[0, 1], temperature=1)
    >>> request.sampling.temperature.dtype, request.stop_tokens.shape
    (dtype('float32'), (2, 1))

    Raises ValueError for a value no request can have, unless it is traced.
    """
    _check_values("temperature", temperature, lambda t: (t >= 0) & (t < math.inf), "finite and at least 0")
    _check_values("top_k", top_k, lambda k: (k >= 0) & (k < 2**31), "in 0..2**31-1; 0 keeps all", whole=True)
    _check_values("top_p", top_p, lambda p: (p > 0) & (p <= 1), "in (0, 1]; 1 keeps all")
    _check_values("min_p", min_p, lambda p: (p >= 0) & (p < 1), "in [0, 1); 0 keeps all")
    _check_values("seed", seed, lambda s: (s >= 0) & (s < 2**32), "in 0..2**32-1", whole=True)
    _check_values("gamma", gamma, lambda g: (g >= 0) & (g < 2**31), "in 0..2**31-1", whole=True)
    for name, value in (("max_new_tokens", max_new_tokens), ("prompt_length", prompt_length)):
        _check_values(name, value, lambda n: (n >= 0) & (n < 2**31), "in 0..2**31-1", whole=True)
    _check_values("stop_tokens", stop_tokens, lambda t: t >= PADDING, "token ids", whole=True)
    lengths = jnp.asarray(prompt_length, jnp.int32)
    if lengths.ndim != 1:
        raise ValueError(f"prompt_length must be one length per row, [B], got {prompt_length!r}")
    batch = lengths.shape

    for name, value in vars(processors).items() if processors else ():
        if value.shape[0] not in (1, *batch):
            raise ValueError(f"processors.{name} has {value.shape[0]} rows, the batch {batch[0]}")

    def row(value: Any, dtype: Any) -> Array:
        return jnp.broadcast_to(jnp.asarray(value, dtype), batch)

    stops = jnp.asarray(stop_tokens if jnp.size(jnp.asarray(stop_tokens)) else [PADDING], jnp.int32)
    return Request(
        key=jax.vmap(jax.random.key)(row(seed, jnp.uint32)),
        sampling=SamplingParams(
            temperature=row(temperature, jnp.float32),
            top_k=row(top_k, jnp.int32),
            top_p=row(top_p, jnp.float32),
            min_p=row(min_p, jnp.float32),
        ),
        max_new_tokens=row(max_new_tokens, jnp.int32),
        prompt_length=lengths,
        stop_tokens=jnp.broadcast_to(stops, (*batch, stops.shape[-1])),
        gamma=row(gamma, jnp.int32),
        processors=jax.tree.map(lambda x: jnp.broadcast_to(x, (*batch, *x.shape[1:])), processors),
    )
