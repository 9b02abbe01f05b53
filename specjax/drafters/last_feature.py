"""The state of drafters that read the target's last hidden state: the feature of the newest known token.

At a round boundary the last token is pending, not yet read by the target, so
the newest feature is the one that gave the pending token its law.
"""

from __future__ import annotations

import jax.numpy as jnp

from specjax.types import Array, Outcome


def of_prompt(features: tuple[Array, ...], length: Array) -> tuple[Array, Array]:
    """(feature [D] of token length - 2, known [] bool); a prompt of one token has none."""
    rows = _only(features)
    return rows[jnp.maximum(length - 2, 0)], length >= 2


def after_round(state: Array, outcome: Outcome) -> Array:
    """The feature that gave the last emitted token its law.

    The round fed the old pending token and its drafts; row i is the state
    after the i-th of them, from which emitted token i follows. A frozen row
    emitted nothing and keeps its feature.
    """
    rows = _only(outcome.features)
    return jnp.where(outcome.num_emitted > 0, rows[jnp.maximum(outcome.num_emitted - 1, 0)], state)


def _only(features: tuple[Array, ...]) -> Array:
    if len(features) != 1:
        raise ValueError(
            f"the drafter reads one feature of the target, which gives {len(features)}: "
            'use dataclasses.replace(target, taps=("final",))'
        )
    return features[0]
