"""Plain decoding, without a drafter: the baseline, and the reference of every parity test."""

from __future__ import annotations

from specjax.decoding.generate import generate
from specjax.decoding.program import Program, buffer_length
from specjax.models.language_model import LanguageModel
from specjax.types import Array, DecodeState, Params, Request, Rule


def autoregressive(
    target: LanguageModel,
    params: Params,
    prompts: Array,
    request: Request,
    *,
    rule: Rule,
    max_len: int | None = None,
    logprobs: bool = False,
) -> DecodeState:
    """One token a round, from p. ``rule`` decides only where its random numbers come from.
    ``logprobs`` as in :class:`Program`.

    With :class:`specjax.acceptance.Coupled` the tokens are those of every
    speculative run with the same seeds.
    """
    if max_len is None:
        max_len = buffer_length(prompts.shape[1], int(request.max_new_tokens.max()), 0)
    program = Program(target=target, rule=rule, max_len=max_len, logprobs=logprobs)
    return generate(program, (params, ()), prompts, request)
