"""A draft model that knows only the most frequent ids of its target's vocabulary.

A small draft spends most of its weights and time on the vocabulary; a quarter
of it covers nearly all text (FR-Spec, Zhao et al. 2025, arXiv 2502.14856). Ids
outside have q = 0, which no rule minds: the output law stays the target's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from etils import epath
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from specjax.models.checkpoint import Checkpoint
from specjax.models.language_model import TransformerLM
from specjax.types import Array, ModelOutput, Params

FILE = "vocabulary.safetensors"  # beside the weights of a draft with a vocabulary of its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetLM:
    """A model over K ids, seen as one over all V.

    Its params are {"inner": the model's own, "read": [V] int32, the inner id
    that stands for each id when read, "write": [V] int32, the inner id whose
    logit each id gets, K for none}.
    """

    inner: TransformerLM
    vocab_size: int  # V

    @property
    def context(self) -> int:
        return self.inner.context

    @property
    def config(self) -> Any:
        return self.inner.config

    def init_cache(self, max_len: int) -> Any:
        return self.inner.init_cache(max_len)

    def apply(
        self,
        params: Params,
        tokens: Array,
        cache: Any,
        positions: Array | None = None,
        mask: Array | None = None,
    ) -> ModelOutput:
        """Logits [T, V]; -inf outside the subset."""
        output = self.inner.apply(params["inner"], params["read"][tokens], cache, positions, mask)
        known = jnp.pad(output.logits, ((0, 0), (0, 1)), constant_values=-jnp.inf)
        return dataclasses.replace(output, logits=known[:, params["write"]])


def most_frequent(counts: np.ndarray, size: int, always: tuple[int, ...] = ()) -> np.ndarray:
    """The ``size`` most frequent ids by ``counts`` [V], ``always`` among them, ascending.

    >>> most_frequent(np.array([5, 0, 9, 7]), 2, always=(1,)).tolist()
    [1, 2]
    """
    order = np.argsort(-counts, kind="stable")
    rest = order[~np.isin(order, always)]
    return np.sort(np.concatenate([np.asarray(always, order.dtype), rest[: size - len(always)]]))


def maps(ids: np.ndarray, table: np.ndarray) -> dict[str, np.ndarray]:
    """ "read" and "write" of :class:`SubsetLM` for the ascending ``ids`` [K] of a vocabulary.

    An id outside is read as the one of ``ids`` whose row of the target's
    embedding ``table`` [V, D] points most nearly the same way.
    """
    rows = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)
    write = np.full(len(table), len(ids), np.int32)
    write[ids] = np.arange(len(ids))
    outside = np.flatnonzero(write == len(ids))
    read = write.copy()
    for part in np.array_split(outside, max(1, len(outside) // 4096)):
        read[part] = (rows[part] @ rows[ids].T).argmax(axis=1)
    return {"read": read, "write": write}


def save_maps(folder: epath.PathLike, params: Params) -> None:
    """Writes a draft's vocabulary beside its weights."""
    arrays = {name: np.asarray(params[name]) for name in ("read", "write")}
    (epath.Path(folder) / FILE).write_bytes(safetensors.numpy.save(arrays))


def with_vocabulary(
    checkpoint: Checkpoint, model: TransformerLM, params: Params
) -> tuple[TransformerLM | SubsetLM, Params]:
    """The pair as loaded, wrapped if ``checkpoint`` holds a vocabulary of its own.

    Raises ValueError for one that is damaged, or made for a model of another size.
    """
    path = checkpoint.companion(FILE)
    if path is None:
        return model, params
    read, write = _checked_maps(path, model.vocab_size)
    wrapped = SubsetLM(inner=model, vocab_size=len(read))
    return wrapped, {"inner": params, "read": jnp.asarray(read), "write": jnp.asarray(write)}


def _checked_maps(path: epath.Path, num_ids: int) -> tuple[np.ndarray, np.ndarray]:
    """(read, write) [V] int32 of a file made for a model of ``num_ids`` ids."""
    try:
        arrays = safetensors.numpy.load(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if set(arrays) != {"read", "write"}:
        raise ValueError(
            f"{path} must hold read and write, it holds {', '.join(sorted(arrays)) or 'nothing'}"
        )
    read, write = arrays["read"], arrays["write"]
    if read.ndim != 1 or read.shape != write.shape or not read.size:
        raise ValueError(f"{path}: read {read.shape} and write {write.shape} must have one entry for each id")
    for name, most in (("read", num_ids - 1), ("write", num_ids)):
        ids = arrays[name]
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > most:
            raise ValueError(f"{path} does not fit a model of {num_ids} ids: {name} must be ids in 0..{most}")
    return read.astype(np.int32), write.astype(np.int32)
