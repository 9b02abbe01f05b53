"""Table models: a next-token law written by hand, for exact tests and for teaching."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax.types import Array, ModelOutput, Params, pytree


@pytree
class TableCache:
    """The tokens themselves stand in for keys and values, so rewinding works as with a ``KVCache``."""

    tokens: Array  # [S] int32
    length: Array  # [] int32

    @property
    def max_len(self) -> int:
        return self.tokens.shape[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableLM:
    """Logits looked up by the last ``order`` tokens (1 or 2).

    ``params`` is one array: [V, V] logits by last token, or [V, V, V] by the
    last but one and the last; before the first token stands id 0. Make it
    from probabilities with ``jnp.log``: a 0 becomes -inf and stays impossible.

    >>> model = TableLM(vocab_size=2)
    >>> law = jnp.log(jnp.array([[0.25, 0.75], [1.0, 0.0]]))
    >>> output = model.apply(law, jnp.array([1, 0]), model.init_cache(4))
    >>> jnp.exp(output.logits).tolist(), int(output.cache.length)
    ([[1.0, 0.0], [0.25, 0.75]], 2)
    """

    vocab_size: int
    order: int = 1
    context: int = 2**30

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise ValueError(f"TableLM.order must be 1 or 2, got {self.order!r}")
        if self.vocab_size < 1:
            raise ValueError(f"TableLM.vocab_size must be at least 1, got {self.vocab_size!r}")

    def init_cache(self, max_len: int) -> TableCache:
        return TableCache(tokens=jnp.zeros((max_len,), jnp.int32), length=jnp.zeros((), jnp.int32))

    def apply(
        self,
        params: Params,
        tokens: Array,
        cache: TableCache,
        positions: Array | None = None,
        mask: Array | None = None,
    ) -> ModelOutput:
        """One step over ``tokens`` [T]; see :class:`~specjax.models.language_model.LanguageModel`.

        ``mask`` [T, S] bool over cache slots defaults to causal. The token
        before row t is the last slot that t may see beside its own, which in a
        draft tree is its parent. ``positions`` change nothing.
        """
        expected = (self.vocab_size,) * (self.order + 1)
        if params.shape != expected:
            raise ValueError(f"TableLM of order {self.order} needs logits {expected}, got {params.shape}")
        stored = jax.lax.dynamic_update_slice(cache.tokens, tokens.astype(jnp.int32), (cache.length,))
        new_cache = TableCache(tokens=stored, length=cache.length + tokens.shape[0])
        if self.order == 1:
            return ModelOutput(logits=params[tokens].astype(jnp.float32), cache=new_cache)

        slots = jnp.arange(cache.max_len)
        own = cache.length + jnp.arange(tokens.shape[0])
        if mask is None:
            mask = slots[None, :] <= own[:, None]
        parent = jnp.max(jnp.where(mask & (slots[None, :] != own[:, None]), slots, -1), axis=1)
        before = jnp.where(parent >= 0, stored[jnp.maximum(parent, 0)], 0)
        return ModelOutput(logits=params[before, tokens].astype(jnp.float32), cache=new_cache)
