"""Where two decodes of the same requests part, and by how narrow a margin."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax import processors, sampling
from specjax.acceptance import Coupled
from specjax.decoding.warping import active_in, warp_of
from specjax.models.language_model import LanguageModel
from specjax.request import make_request
from specjax.types import PADDING, DecodeState, Params, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first token at which a row differs; what follows it has another history."""

    row: int
    position: int
    expected: int | None  # None: the row had ended
    got: int | None


def divergences(expected: DecodeState, got: DecodeState) -> list[Divergence]:
    """One entry for each row that is not identical, in tokens and in length."""
    found = []
    for row, (ours, theirs) in enumerate(zip(token_rows(expected), token_rows(got), strict=True)):
        if not np.array_equal(ours, theirs):
            common = min(len(ours), len(theirs))
            differ = np.flatnonzero(ours[:common] != theirs[:common])
            at = int(differ[0]) if differ.size else common
            token = lambda tokens, at=at: int(tokens[at]) if at < len(tokens) else None
            found.append(Divergence(row=row, position=at, expected=token(ours), got=token(theirs)))
    return found


def token_rows(state: DecodeState) -> list[np.ndarray]:
    """Prompt and output of every row, without padding."""
    tokens, lengths = np.asarray(state.tokens), np.asarray(state.length)
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def margin(
    model: LanguageModel, params: Params, request: Request, expected: DecodeState, divergence: Divergence
) -> float:
    """How far apart the two best tokens were where a row diverged, in units of logits.

    For a greedy row the gap of the logits; for a sampled one under coupled
    sampling the gap of log p + Gumbel noise. Rounding between batch shapes may
    decide gaps of about 1e-5 and nothing wider.
    """
    row, at = divergence.row, divergence.position
    tokens = jnp.asarray(token_rows(expected)[row][:at])
    logits = model.apply(params, tokens, model.init_cache(at)).logits[-1]
    request = jax.tree.map(lambda x: x[row], request)
    emitted = tokens[request.prompt_length :]
    history = processors.start_history(tokens, request.prompt_length, model.vocab_size)
    history = processors.extend_history(history, emitted, jnp.int32(emitted.shape[0]))
    warp = warp_of(request, active_in(request), history, jnp.int32(at))
    # At temperature 1 and without filters log p is the processed logits, up to a constant.
    unwarped = make_request(prompt_length=[1], max_new_tokens=0, seed=0, temperature=1.0).sampling
    greedy = request.sampling.temperature < sampling.GREEDY_BELOW
    own = jax.tree.map(lambda x: x[0], unwarped) if greedy else request.sampling
    scores = jnp.log(warp(logits[None], jnp.full((1, 0), PADDING), own)[0])
    if not greedy:
        _, noise = Coupled().noise(request.key, jnp.int32(0), jnp.int32(at), 0, model.vocab_size)
        scores -= jnp.log(noise[0])
    best = np.sort(np.asarray(scores))[-2:]
    return float(best[1] - best[0])
