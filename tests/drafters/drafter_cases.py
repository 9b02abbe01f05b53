"""One small instance of every drafter, and a round whose acceptance counts the test decides."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.acceptance import Coupled, Rejection
from specjax.decoding import Program, autoregressive
from specjax.drafters import ngram, theory
from specjax.drafters.model import ModelDrafter
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.models.table import TableLM
from specjax.request import make_request
from specjax.types import Outcome

V, MAX_LEN, MAX_GAMMA = 7, 32, 3
TARGET, DRAFT = TableLM(vocab_size=V, order=2), TableLM(vocab_size=V)

_rng = np.random.default_rng(0)
TARGET_PARAMS = jnp.asarray(_rng.normal(size=(V, V, V)) * 2, jnp.float32)
DRAFT_PARAMS = jnp.asarray(_rng.normal(size=(V, V)) * 2, jnp.float32)
CORPUS = _rng.integers(0, V, size=200)

LENGTHS = jnp.array([6, 1, 4, 3])
PROMPTS = jnp.array(
    [[1, 2, 3, 1, 2, 3], [5, 0, 0, 0, 0, 0], [4, 4, 4, 4, 0, 0], [0, 6, 0, 0, 0, 0]], jnp.int32
)
# Greedy, filtered, nucleus and plain rows together; one row ends long before the others.
REQUEST = make_request(
    prompt_length=LENGTHS,
    max_new_tokens=[12, 18, 2, 20],
    seed=[3, 4, 5, 6],
    temperature=[0.0, 1.0, 0.7, 1.0],
    top_k=[0, 3, 0, 0],
    top_p=[1.0, 1.0, 0.8, 1.0],
)
BATCH = LENGTHS.shape[0]


@functools.cache
def plain_tokens():
    """(tokens [B, S], lengths [B]) of plain decoding with coupled noise."""
    state = autoregressive(TARGET, TARGET_PARAMS, PROMPTS, REQUEST, rule=Coupled(), max_len=MAX_LEN)
    return state.tokens, state.length


@functools.cache
def all_drafters():
    """Name -> (drafter, draft params)."""
    truth = theory.Truth(tokens=plain_tokens()[0], length=plain_tokens()[1])
    script = theory.ScriptedParams(truth=truth, script=jnp.array([0, 2, 1, 3]))
    alpha = theory.SimulatedParams(truth=truth, alpha=jnp.float32(0.7))
    bigram = ngram.fit_bigram(CORPUS, V, max_successors=3)
    adversary = ModelDrafter(model=theory.Opposite(model=TARGET), temperature=0.0)
    return {
        "model": (ModelDrafter(model=DRAFT), DRAFT_PARAMS),
        "model_argmax": (ModelDrafter(model=DRAFT, temperature=0.0), DRAFT_PARAMS),
        "model_own_temperature": (ModelDrafter(model=DRAFT, temperature=0.5), DRAFT_PARAMS),
        "oracle": (ModelDrafter(model=TARGET), TARGET_PARAMS),
        "adversary": (adversary, TARGET_PARAMS),
        "unigram": (ngram.NgramDrafter(), ngram.fit_unigram(CORPUS, V)),
        "bigram": (ngram.NgramDrafter(), bigram),
        "bigram_argmax": (ngram.NgramDrafter(argmax=True), bigram),
        "prompt_lookup": (PromptLookup(), ()),
        "uniform": (theory.Uniform(vocab_size=V), ()),
        "scripted": (theory.Scripted(vocab_size=V), script),
        "simulated": (theory.Simulated(vocab_size=V), alpha),
    }


NAMES = tuple(all_drafters())
DETERMINISTIC = ("model_argmax", "adversary", "bigram_argmax", "prompt_lookup", "scripted")


def program(drafter, rule, gammas=(MAX_GAMMA,)):
    return Program(
        target=TARGET, drafter=drafter, rule=rule, gammas=gammas, max_len=MAX_LEN, max_gamma=MAX_GAMMA
    )


def start(drafter, params, prompts, lengths, max_len=MAX_LEN, max_gamma=MAX_GAMMA):
    """(tokens [B, S], draft state, available) before the first round."""
    tokens = jnp.zeros((prompts.shape[0], max_len), jnp.int32).at[:, : prompts.shape[1]].set(prompts)
    init = lambda prompt, length: drafter.init(params, prompt, length, max_len, max_gamma, ())
    return tokens, *jax.vmap(init)(prompts, lengths)


def propose_row(drafter, params, gamma, row_sampling, state, tokens, length, wanted, uniforms):
    """``propose`` of one row, with uniform noise ``uniforms`` [G]."""
    warp = lambda logits, drafted, own=row_sampling: sampling.warp(logits, own)
    return drafter.propose(params, state, tokens, length, gamma, wanted, uniforms, Rejection().draw, warp)


@functools.partial(jax.jit, static_argnums=(0, 2))
def forced_round(drafter, params, gamma, row_sampling, state, tokens, length, wanted, uniforms, accept, live):
    """A round of which ``accept`` [B] drafts (or all there are) are kept, and then the id 0.

    Returns (proposal, state, tokens, length, available); rows not ``live`` are frozen.
    """

    def row(row_sampling, state, tokens, length, wanted, uniforms, accept, live):
        proposal, state = propose_row(
            drafter, params, gamma, row_sampling, state, tokens, length, wanted, uniforms
        )
        n = jnp.minimum(accept, proposal.num_drafted)
        emitted = jnp.append(proposal.tokens, 0).at[n].set(0)
        num_emitted = jnp.where(live, n + 1, 0)
        slots = length + jnp.arange(gamma + 1)
        kept = jnp.where(jnp.arange(gamma + 1) < num_emitted, emitted, tokens[slots])
        tokens = tokens.at[slots].set(kept)
        outcome = Outcome(old_length=length, num_emitted=num_emitted, emitted=emitted)
        state, available = drafter.commit(params, state, tokens, outcome)
        return proposal, state, tokens, length + num_emitted, available

    return jax.vmap(row)(row_sampling, state, tokens, length, wanted, uniforms, accept, live)


def uniforms(seed, gamma=MAX_GAMMA, batch=BATCH):
    return jax.random.uniform(jax.random.key(seed), (batch, gamma))
