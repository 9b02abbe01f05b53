"""Chi-square against an exactly enumerated law, with the power of the test computed, not hoped for."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from specjax import sampling
from specjax.models.language_model import LanguageModel
from specjax.types import Params, SamplingParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChiSquare:
    """Pearson's test of counts against a known law."""

    statistic: float
    dof: int
    p_value: float
    effect: float  # w^2 = sum (observed - expected)^2 / expected, of frequencies


def chi_square(counts: np.ndarray, law: np.ndarray) -> ChiSquare:
    """Tests ``counts`` (ints) against ``law`` (probabilities, same shape).

    The rarest outcomes are pooled until each cell expects 5 samples. An
    outcome of probability 0 that was seen gives p = 0.
    """
    counts, law = np.ravel(counts), np.ravel(law)
    counts, law, impossible = counts[law > 0], law[law > 0], counts[law == 0]
    order, total = np.argsort(law), counts.sum() + impossible.sum()
    counts, law = counts[order], law[order] / law.sum()
    pooled = np.searchsorted(np.cumsum(law) * total, 5) + 1  # outcomes in the first cell
    starts = np.append(0, np.arange(pooled, len(law)))
    keep = starts[:1].tolist() + [i for i in starts[1:] if law[i] * total >= 5]
    counts, law = np.add.reduceat(counts, keep) / total, np.add.reduceat(law, keep)
    dof = len(law) - 1
    if impossible.any():
        return ChiSquare(statistic=np.inf, dof=dof, p_value=0.0, effect=np.inf)
    effect = float(np.sum((counts - law) ** 2 / law))
    p_value = float(stats.chi2.sf(total * effect, dof))
    return ChiSquare(statistic=total * effect, dof=dof, p_value=p_value, effect=effect)


def power(effect: float, *, samples: int, dof: int, level: float) -> float:
    """Probability that the test at ``level`` rejects a law ``effect`` = sum (p' - p)^2 / p away.

    >>> power(1e-3, samples=200_000, dof=124, level=1e-5) > 0.99
    True
    """
    return float(stats.ncx2.sf(stats.chi2.isf(level, dof), dof, samples * effect))


def model_joint(
    model: LanguageModel, params: Params, prompt: np.ndarray, length: int, row: SamplingParams
) -> np.ndarray:
    """The joint law [V] * length, float64, of the tokens after ``prompt`` [P], from teacher-forced steps.

    Each of the V^(length-1) continuations is one forward pass over the whole
    sequence, so neither cache nor round has a part in it.
    """
    vocab_size = model.vocab_size
    tails = np.array(list(itertools.product(range(vocab_size), repeat=length - 1)), np.int32)
    tails = tails.reshape(-1, length - 1)
    sequences = np.concatenate([np.tile(prompt, (len(tails), 1)).astype(np.int32), tails], axis=1)

    @jax.jit
    @jax.vmap
    def laws(tokens):
        logits = model.apply(params, tokens, model.init_cache(tokens.shape[0])).logits
        return sampling.warp(logits[len(prompt) - 1 :], row)

    probs = np.asarray(laws(jnp.asarray(sequences)), np.float64)
    probs = probs.reshape(*(vocab_size,) * (length - 1), length, vocab_size)
    joint = np.ones(())
    for i in range(length):
        index: Any = (..., *(0,) * (length - 1 - i), i, slice(None))
        law = probs[index]
        joint = joint[..., None] * law / law.sum(-1, keepdims=True)
    return joint


def count_outcomes(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Counts [V] * n of the sequences ``tokens`` [N, n]."""
    shape = (vocab_size,) * tokens.shape[1]
    index = np.ravel_multi_index(tuple(np.asarray(tokens).T), shape)
    return np.bincount(index, minlength=np.prod(shape)).reshape(shape)
