"""Rotary position embeddings (Su et al. 2021, arXiv 2104.09864), half-split layout as in Llama.

A scaling stretches the context a model was trained for: it maps the
frequencies of the planes, [Dh/2] float32, to lower ones.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """Position interpolation (Chen et al. 2023, arXiv 2306.15595): all planes slow down alike.

    >>> Linear(factor=4.0).scaled(jnp.array([1.0, 0.5]), theta=4.0).tolist()
    [0.25, 0.125]
    """

    factor: float

    @property
    def magnitude(self) -> float:
        return 1.0

    def scaled(self, frequencies: Array, theta: float) -> Array:
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3:
    """Llama 3.1's rule (Grattafiori et al. 2024, arXiv 2407.21783): by rotations within the original context.

    A plane that turns at least ``high_freq_factor`` times there keeps its
    frequency, one below ``low_freq_factor`` is slowed by ``factor``, and
    between the two the frequency is interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        low, high = self.low_freq_factor, self.high_freq_factor
        if high <= low:
            raise ValueError(f"high_freq_factor {high} must be above low_freq_factor {low}")

    @property
    def magnitude(self) -> float:
        return 1.0

    def scaled(self, frequencies: Array, theta: float) -> Array:
        rotations = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = jnp.clip(kept, 0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yarn:
    """YaRN (Peng et al. 2023, arXiv 2309.00071, section 3.2 and eq. 22).

    The ramp between kept and slowed planes is linear in the plane's index,
    from the plane with ``beta_fast`` rotations within the original context to
    the one with ``beta_slow``. ``attention_factor`` multiplies queries and
    keys each; None is 0.1 ln(factor) + 1.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True  # the ramp's ends to whole planes

    @property
    def magnitude(self) -> float:
        return yarn_magnitude(self.factor) if self.attention_factor is None else self.attention_factor

    def scaled(self, frequencies: Array, theta: float) -> Array:
        planes = frequencies.shape[0]
        first, last = self._plane(self.beta_fast, planes, theta), self._plane(self.beta_slow, planes, theta)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # The upper clip is transformers' (the head's size, not its number of planes).
        first, last = max(first, 0), min(last, 2 * planes - 1)
        width = max(last - first, 1e-3)
        slowed = jnp.clip((jnp.arange(planes, dtype=jnp.float32) - first) / width, 0, 1)
        return slowed * frequencies / self.factor + (1 - slowed) * frequencies

    def _plane(self, rotations: float, planes: int, theta: float) -> float:
        """The index, a fraction, of the plane that turns so often within the original context."""
        wavelength = self.original_max_position_embeddings / rotations
        return planes * math.log(wavelength / (2 * math.pi)) / math.log(theta)


Scaling = Linear | Llama3 | Yarn


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """0.1 m ln(s) + 1, from eq. 22 of YaRN; 1 where the context does not grow."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotations(
    positions: Array, head_dim: int, theta: float, scaling: Scaling | None = None
) -> tuple[Array, Array]:
    """(cos, sin), each [T, 1, Dh/2] float32, for ``positions`` [T].

    Computed, not looked up: there is no table whose end a position could pass.
    """
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequencies = theta**-exponent
    if scaling is not None:
        frequencies = scaling.scaled(frequencies, theta)
    angles = positions.astype(jnp.float32)[:, None, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if scaling is not None and scaling.magnitude != 1:
        cos, sin = cos * scaling.magnitude, sin * scaling.magnitude
    # Once a step: XLA would otherwise make them again in every layer, for queries and for keys.
    return jax.lax.optimization_barrier((cos, sin))


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates ``x`` [T, H, Dh]: its two halves are the coordinates of each plane."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
