"""From one row to a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

Rows = Callable[[Callable[..., Any]], Callable[..., Any]]  # makes a function of one row one of the batch


def over_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(rows, *batches)`` with ``rows`` = ``jax.vmap``, or nothing at all for a batch of one.

    A batch of one loses its axis before ``function`` begins and gets it back
    at its end. Under vmap a cache write is a scatter, which XLA's CPU backend
    turns into reading, selecting and updating; with one row that has cost
    copies of whole caches in every round, and so has dropping the axis inside
    of a loop. So wrap the loop, not its body.

    >>> import jax.numpy as jnp
    >>> over_batch(lambda rows, x: rows(jnp.sum)(x))(jnp.ones((1, 3))).shape
    (1,)
    """

    def run(*batches: Any) -> Any:
        if {leaf.shape[0] for leaf in jax.tree.leaves(batches)} != {1}:
            return function(jax.vmap, *batches)
        row = function(lambda of_one_row: of_one_row, *jax.tree.map(lambda leaf: leaf[0], batches))
        return jax.tree.map(lambda leaf: leaf[None], row)

    return run
