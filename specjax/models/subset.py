"""A draft model with a vocabulary of its own: full rows for frequent ids, rows of low rank for rarer ones.

A small draft spends most of its weights and time on the vocabulary; a quarter
of it covers nearly all text (FR-Spec, Zhao et al. 2025, arXiv 2502.14856), and
rows of a few dozen numbers hold names and other rare words (adaptive
embeddings, Baevski & Auli 2019, arXiv 1809.10853, section 3). Ids outside have
q = 0, which no rule minds: the output law stays the target's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from etils import epath
import jax.numpy as jnp
import numpy as np
import safetensors.flax

from specjax.models.checkpoint import Checkpoint
from specjax.models.config import DecoderConfig
from specjax.models.decoder import table_logits
from specjax.models.language_model import TransformerLM
from specjax.types import Array, ModelOutput, Params

FILE = "vocabulary.safetensors"  # beside the weights of a draft with a vocabulary of its own
MAPS = ("read", "write")  # tensors of that file
RARE = ("rare_rows", "rare_basis")  # more of them, both or neither
DTYPES = {"U16": np.uint16, "I32": np.int32, "BF16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetLM:
    """A model over K ids, seen as one over all V.

    The first F of the K are the inner model's; the embedding of the others,
    rare ones, is a row [r] times a basis [r, D], read and scored alike. Its
    params are {"inner": the model's own, "rare_rows" [K - F, r] and
    "rare_basis" [r, D] unless K = F, "read": [V] int32, the one of the K that
    stands for each id when read, "write": [V] int32, the one of the K whose
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
        states, cache = self.states(params, params["read"][tokens], cache, positions, mask)
        known = jnp.pad(self.scores(params, states), ((0, 0), (0, 1)), constant_values=-jnp.inf)
        return ModelOutput(logits=known[:, params["write"]], cache=cache, features=())

    def states(
        self,
        params: Params,
        known: Array,
        cache: Any,
        positions: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Array, Any]:
        """(what :meth:`scores` reads [T, D], cache) after ``known`` [T], numbers among the K."""
        frequent = jnp.minimum(known, self.inner.vocab_size - 1)
        embeddings = params["inner"]["embed_tokens"][frequent]
        if "rare_rows" in params:
            rare = params["rare_rows"][jnp.maximum(known - self.inner.vocab_size, 0)] @ params["rare_basis"]
            embeddings = jnp.where((known >= self.inner.vocab_size)[:, None], rare, embeddings)
        inner = dataclasses.replace(self.inner, taps=("final",))
        output = inner.apply(params["inner"], frequent, cache, positions, mask, embeddings)
        return output.features[0], output.cache

    def scores(self, params: Params, states: Array) -> Array:
        """Logits of the K [T, K] float32 of ``states`` [T, D]."""
        logits = self.inner.logits(params["inner"], states)
        if "rare_rows" not in params:
            return logits
        rare = table_logits(params["rare_rows"], states @ params["rare_basis"].T)
        return jnp.concatenate([logits, rare], axis=1)


def most_frequent(counts: np.ndarray, size: int, always: tuple[int, ...] = ()) -> np.ndarray:
    """The ``size`` most frequent ids by ``counts`` [V], ``always`` among them, ascending.

    >>> most_frequent(np.array([5, 0, 9, 7]), 2, always=(1,)).tolist()
    [1, 2]
    """
    order = np.argsort(-counts, kind="stable")
    rest = order[~np.isin(order, always)]
    return np.sort(np.concatenate([np.asarray(always, order.dtype), rest[: size - len(always)]]))


def maps(ids: np.ndarray, table: np.ndarray) -> dict[str, np.ndarray]:
    """ "read" and "write" of :class:`SubsetLM` for the ``ids`` [K] of a vocabulary, in the model's order.

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


def low_rank(rows: np.ndarray, rank: int) -> dict[str, np.ndarray]:
    """ "rare_rows" [N, rank] and "rare_basis" [rank, D] nearest to ``rows`` [N, D] (Eckart & Young 1936).

    >>> parts = low_rank(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), 1)
    >>> (parts["rare_rows"] @ parts["rare_basis"]).round(6).tolist()
    [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
    """
    left, sizes, right = np.linalg.svd(rows.astype(np.float32), full_matrices=False)
    share = np.sqrt(sizes[:rank])  # of each side: one step of training moves both alike
    return {"rare_rows": left[:, :rank] * share, "rare_basis": share[:, None] * right[:rank]}


def save_vocabulary(folder: epath.PathLike, params: Params) -> None:
    """Writes a draft's vocabulary beside its weights; rows of rare ids in bfloat16."""
    widest = jnp.uint16 if len(params["write"]) < 2**16 else jnp.int32
    arrays = {name: jnp.asarray(params[name], widest) for name in MAPS}
    arrays |= {name: jnp.asarray(params[name], jnp.bfloat16) for name in RARE if name in params}
    (epath.Path(folder) / FILE).write_bytes(safetensors.flax.save(arrays))


def with_vocabulary(
    checkpoint: Checkpoint, model: TransformerLM, params: Params
) -> tuple[TransformerLM | SubsetLM, Params]:
    """The pair as loaded, wrapped if ``checkpoint`` holds a vocabulary of its own.

    Raises ValueError for one that is damaged, or made for a model of another size.
    """
    path = checkpoint.companion(FILE)
    if path is None:
        return model, params
    vocabulary = _checked(path, model.config)
    wrapped = SubsetLM(inner=model, vocab_size=len(vocabulary["read"]))
    dtype = model.config.dtype
    rare = {name: jnp.asarray(vocabulary[name], dtype) for name in RARE if name in vocabulary}
    return wrapped, {
        "inner": params,
        **{name: jnp.asarray(vocabulary[name], jnp.int32) for name in MAPS},
        **rare,
    }


def _checked(path: epath.Path, config: DecoderConfig) -> dict[str, np.ndarray]:
    """The arrays of a file made for an inner model like ``config``."""
    try:
        stored = dict(safetensors.deserialize(path.read_bytes()))
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    for name, view in stored.items():
        if view["dtype"] not in DTYPES:
            raise ValueError(f"{path}: {name} is of type {view['dtype']}, not {', '.join(DTYPES)}")
    arrays = {
        name: np.frombuffer(view["data"], DTYPES[view["dtype"]]).reshape(view["shape"])
        for name, view in stored.items()
    }
    if set(arrays) not in (set(MAPS), {*MAPS, *RARE}):
        raise ValueError(
            f"{path} must hold {' and '.join(MAPS)}, and {' and '.join(RARE)} or neither; "
            f"it holds {', '.join(sorted(arrays)) or 'nothing'}"
        )
    num_ids = config.vocab_size
    if RARE[0] in arrays:
        rows, basis = (arrays[name] for name in RARE)
        if rows.ndim != 2 or basis.shape != (rows.shape[-1], config.hidden_size):
            raise ValueError(
                f"{path} does not fit a model of width {config.hidden_size}: "
                f"rare_rows is {rows.shape}, rare_basis {basis.shape}"
            )
        num_ids += len(rows)
    read, write = (arrays[name] for name in MAPS)
    if read.ndim != 1 or read.shape != write.shape or not read.size:
        raise ValueError(f"{path}: read {read.shape} and write {write.shape} must have one entry for each id")
    for name, most in (("read", num_ids - 1), ("write", num_ids)):
        ids = arrays[name]
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > most:
            raise ValueError(f"{path} does not fit a model of {num_ids} ids: {name} must be ids in 0..{most}")
    return arrays
