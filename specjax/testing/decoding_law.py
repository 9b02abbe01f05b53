"""The exact joint law of what decoding emits, through real rounds: ``decode_round`` with every choice forced.

Each round is played once for every draft, accepted length and next token. What
the rule was shown, p and q, gives the weight of each of these choices by
:mod:`specjax.testing.law`; the state after them is the start of the next round.
So whatever a round remembers of an earlier one (caches, histories) takes part.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding.prefill import prefill
from specjax.decoding.program import Program
from specjax.decoding.round import decode_round
from specjax.decoding.warping import Active, active_in
from specjax.testing.law import Drafts, draw_law, outcomes
from specjax.types import Array, DecodeState, Params, Proposal, Request, Rule, Verdict

_ROWS = 1024  # rounds played together: one shape, one compilation
_JUDGED = 256  # proposals judged together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forced:
    """A rule whose draws and verdict are given; it keeps what it was shown."""

    drafts: Array  # [G] int32
    num_accepted: Array  # [] int32
    next_token: Array  # [] int32
    shown: list[tuple[Proposal, Array]] = dataclasses.field(default_factory=list)

    @property
    def lossless(self) -> bool:
        return False

    def noise(self, key: Array, round: Array, length: Array, gamma: int, vocab_size: int):
        return self.drafts, ()

    def draw(self, noise: Array, probs: Array) -> Array:
        return noise

    def accept(self, noise: tuple[()], proposal: Proposal, target_probs: Array) -> Verdict:
        self.shown.append((proposal, target_probs))
        return Verdict(num_accepted=self.num_accepted, next_token=self.next_token)


def forced_round(
    program: Program,
    params: tuple[Params, Params],
    active: Active,
    request: Request,
    state: DecodeState,
    drafts: Array,
    num_accepted: Array,
    next_token: Array,
) -> tuple[DecodeState, Proposal, Array]:
    """(state after, proposal, target_probs [G+1, V]) of one row's round with the choices given."""
    rule = Forced(drafts=drafts, num_accepted=num_accepted, next_token=next_token)
    forced = dataclasses.replace(program, rule=rule)
    state = decode_round(forced, params, active, program.gammas[-1], request, state)
    return state, *rule.shown[0]


def decoding_law(
    program: Program, params: tuple[Params, Params], prompts: Array, request: Request, length: int
) -> np.ndarray:
    """The joint law [B] + [V] * length, float64, of the first tokens after each of ``prompts`` [B, P].

    ``program.rule`` judges; its coins must be thresholds, as those of the
    independent rules are. A drafter that samples must draft its whole gamma,
    and no row may stop before ``length`` tokens.
    """
    gamma, vocab_size, batch = program.gammas[-1], program.target.vocab_size, prompts.shape[0]
    one_row = functools.partial(forced_round, program, params, active_in(request))
    play = in_chunks(jax.jit(jax.vmap(one_row)), _ROWS)
    every_draft = np.array(list(itertools.product(range(vocab_size), repeat=gamma)), np.int32)
    keyless = dataclasses.replace(request, key=jnp.zeros(batch))  # nothing is drawn
    requests = jax.tree.map(np.asarray, keyless)
    joint = np.zeros((batch, *(vocab_size,) * length))

    # The frontier: states that have emitted fewer than ``length`` tokens, and how likely each is.
    row, weight, emitted = np.arange(batch), np.ones(batch), [()] * batch
    states = jax.tree.map(np.asarray, prefill(program, params, prompts, request))
    while len(row):
        at, draft = map(np.ravel, np.indices((len(row), len(every_draft))))
        start = jax.tree.map(lambda x: x[row[at]], requests), jax.tree.map(lambda x: x[at], states)
        zeros = np.zeros(len(at), np.int32)
        _, proposal, target_probs = play(*start, every_draft[draft], zeros, zeros)
        chances = weight[at][:, None, None] * _chances(program.of_chains()[0], proposal, target_probs)
        if proposal.probs is None:  # the drafter chose: what is forced changes nothing
            chances[draft > 0] = 0

        index, count, token = np.nonzero(chances)
        weight, draft = chances[index, count, token], draft[index]
        emitted = [
            (*emitted[at[i]], *proposal.tokens[i, :n], t) for i, n, t in zip(index, count, token, strict=True)
        ]
        row, start = row[at[index]], jax.tree.map(lambda x: x[index], start)
        for b, tokens, chance in zip(row, emitted, weight, strict=True):
            if len(tokens) >= length:
                joint[(b, *tokens[:length])] += chance

        goes_on = np.flatnonzero([len(tokens) < length for tokens in emitted])
        row, weight, emitted = row[goes_on], weight[goes_on], [emitted[i] for i in goes_on]
        if len(row):
            choices = every_draft[draft], count.astype(np.int32), token.astype(np.int32)
            states, _, _ = play(*jax.tree.map(lambda x: x[goes_on], (*start, *choices)))
    return joint


def _chances(rule: Rule, proposal: Proposal, target_probs: np.ndarray) -> np.ndarray:
    """[N, G+1, V] float64: the probability of each draft times that of each verdict on it."""
    num = len(proposal.tokens)
    parts = (proposal.tokens, proposal.num_drafted, target_probs, proposal.probs)
    rows = np.concatenate([x.reshape(num, -1).astype(np.float64) for x in parts if x is not None], axis=1)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    judge = in_chunks(functools.partial(_judge, rule), _JUDGED)
    return judge(*jax.tree.map(lambda x: x[first], (proposal, target_probs)))[np.ravel(inverse)]


def _judge(rule: Rule, proposal: Proposal, target_probs: np.ndarray) -> np.ndarray:
    tokens, num_drafted = np.asarray(proposal.tokens), np.asarray(proposal.num_drafted)
    probs = None if proposal.probs is None else np.asarray(proposal.probs)
    num, gamma = tokens.shape
    weights = np.ones(num)
    if probs is not None:
        for i in range(gamma):
            weights *= draw_law(rule, probs[:, i])[np.arange(num), tokens[:, i]]
    drafts = Drafts(
        tokens=tokens,
        weights=weights,
        probs=probs,
        num_drafted=num_drafted,
        target_probs=target_probs,
    )
    num_accepted, cells, laws = outcomes(rule, drafts)
    chances = np.zeros((num, *target_probs.shape[1:]))
    for cell in range(cells.shape[1]):
        share = (weights * cells[:, cell])[:, None] * laws[:, cell]
        np.add.at(chances, (np.arange(num), num_accepted[:, cell]), share)
    return chances


def in_chunks(function: Callable[..., Any], size: int) -> Callable[..., Any]:
    """``function`` of arrays [N, ...], called with ``size`` rows at a time, the last ones repeated."""

    def run(*arrays: Any) -> Any:
        total, results = len(jax.tree.leaves(arrays)[0]), []
        for start in range(0, total, size):
            rows = np.minimum(np.arange(start, start + size), total - 1)
            chunk = jax.tree.map(lambda x, rows=rows: x[rows], arrays)
            results.append(jax.tree.map(np.asarray, function(*chunk)))
        return jax.tree.map(lambda *parts: np.concatenate(parts)[:total], *results)

    return run
