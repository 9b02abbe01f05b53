"""A draft made of some of its target's own layers, without training and without weights of its own.

Self-speculative decoding (Zhang et al. 2023, arXiv 2309.08168, section 3.2):
the layers between are skipped, the embeddings and the head stay.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from specjax.models.language_model import TransformerLM, from_config
from specjax.types import Params


def keep_layers(model: TransformerLM, params: Params, layers: Sequence[int]) -> tuple[TransformerLM, Params]:
    """The pair with only ``layers``, in this order; the arrays are the very same, not copies.

    Raises ValueError for a layer that is not there.
    """
    config = model.config
    if not layers or not all(
        type(layer) is int and 0 <= layer < config.num_hidden_layers for layer in layers
    ):
        raise ValueError(f"layers {tuple(layers)} must be some of 0..{config.num_hidden_layers - 1}")
    windows = tuple(config.windows[layer] for layer in layers)
    fewer = dataclasses.replace(
        config, num_hidden_layers=len(layers), sliding_windows=windows if any(windows) else ()
    )
    kept = {number: params["layers"][layer] for number, layer in enumerate(layers)}
    return dataclasses.replace(from_config(fewer, model.taps), num_ids=model.num_ids), {
        **params,
        "layers": kept,
    }


def outer_layers(num_layers: int) -> tuple[int, ...]:
    """The first and the last third: the middle ones change the residual stream least.

    >>> outer_layers(6)
    (0, 1, 4, 5)
    """
    third = -(-num_layers // 3)
    return (*range(third), *range(max(third, num_layers - third), num_layers))
