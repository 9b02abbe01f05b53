"""Text the target writes itself: what a draft will meet when the two decode together.

A draft distilled on library text alone is judged on text it never saw, the
target's own. Training on some of that is the on-policy part of DistillSpec
(Zhou et al. 2023, arXiv 2310.08461, section 4).
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from specjax.acceptance.rejection import Rejection
from specjax.decoding.autoregressive import autoregressive
from specjax.models.language_model import LanguageModel
from specjax.request import make_request
from specjax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfGenerated:
    """How much text to sample from the target, and how."""

    rows: int
    prompt_length: int = 48  # tokens of training text that each row begins with
    temperatures: tuple[float, ...] = (0.0, 0.6, 1.0)  # rows take turns
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("batch_size", "prompt_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"self_generated.{name} must be at least 1, got {getattr(self, name)}")
        numbers = [t for t in self.temperatures if isinstance(t, int | float) and 0 <= t < math.inf]
        if not numbers or len(numbers) < len(self.temperatures):
            raise ValueError(
                f"self_generated.temperatures {self.temperatures} must be numbers of at least 0, one or more"
            )
        if self.rows <= 0 or self.rows % self.batch_size:
            raise ValueError(f"rows {self.rows} must be a positive multiple of batch_size {self.batch_size}")


def sample_rows(
    settings: SelfGenerated, model: LanguageModel, params: Params, stream: np.ndarray, width: int, seed: int
) -> np.ndarray:
    """[rows, width] int32: beginnings drawn from ``stream`` [N], continued by plain decoding."""
    prompt_length = settings.prompt_length
    if not 0 < prompt_length < width:
        raise ValueError(f"prompt_length {prompt_length} must lie in 1..{width - 1}")
    starts = np.random.default_rng(seed).integers(len(stream) - prompt_length, size=settings.rows)
    prompts = np.stack([stream[start : start + prompt_length] for start in starts])
    rows = np.arange(settings.rows)
    temperatures = np.asarray(settings.temperatures, np.float32)[rows % len(settings.temperatures)]
    texts = []
    for batch in np.split(rows, settings.rows // settings.batch_size):
        request = make_request(
            prompt_length=np.full(len(batch), prompt_length),
            max_new_tokens=width - prompt_length,
            seed=seed + batch,
            temperature=temperatures[batch],
        )
        state = autoregressive(model, params, jnp.asarray(prompts[batch]), request, rule=Rejection())
        texts.append(np.asarray(state.tokens)[:, :width])
    return np.concatenate(texts)
