"""Trees under processors and filters: the law at every node of an accepted path is that of the finished text.

The rule is judged by the very array whose logarithms the trace holds, so what
these are equal to is what every accepted, residual and bonus token was drawn by.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import processors, sampling
from specjax.acceptance import RecursiveRejection
from specjax.decoding import Program, buffer_length, generate
from specjax.decoding.warping import active_in
from specjax.drafters.tree_model import TreeModelDrafter
from specjax.processors import make_processors
from specjax.request import make_request
from specjax.testing.models import tiny_transformer
from specjax.types import ACCEPTED, BONUS, RESIDUAL

pytestmark = pytest.mark.usefixtures("compile_fast")

V, NEW = 12, 20
CHOICES = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 0, 0))
NODES, DEPTH = 1 + len(CHOICES), 3
TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=3)
_noise = tiny_transformer(vocab_size=V, seed=4)[1]
DRAFT_PARAMS = jax.tree.map(lambda x, noise: 0.9 * x + 0.3 * noise, TARGET_PARAMS, _noise)
LENGTHS = np.array([5, 1, 3, 4, 2])
PROMPTS = np.random.default_rng(0).integers(0, V, (5, 5)).astype(np.int32)
# Greedy, sampled, filtered in three ways; stop tokens that wait; one row has no processor at all.
REQUEST = make_request(
    prompt_length=LENGTHS,
    max_new_tokens=NEW,
    seed=np.arange(5),
    temperature=[0.0, 1.0, 0.7, 1.3, 1.0],
    top_k=[0, 0, 6, 0, 0],
    top_p=[1.0, 1.0, 1.0, 0.9, 1.0],
    min_p=[0.0, 0.0, 0.0, 0.0, 0.05],
    stop_tokens=[[2], [-1], [3], [-1], [4]],
    processors=make_processors(
        frequency_penalty=[0.9, 0.8, 0.0, 0.3, 0.0],
        presence_penalty=[0.0, 0.5, 0.0, -0.4, 0.0],
        repetition_penalty=[1.0, 1.3, 1.0, 1.5, 1.0],
        logit_bias=[{}, {1: 1.5}, {}, {0: -2.0}, {}],
        banned_tokens=[[], [], [5], [], []],
        min_new_tokens=[NEW, 0, NEW, 0, 0],
    ),
)


@functools.cache
def decode(draft):
    """With a draft that resembles the target, or, as the oracle, with the target itself."""
    program = Program(
        target=TARGET,
        drafter=TreeModelDrafter(model=TARGET, choices=CHOICES),
        rule=RecursiveRejection(),
        gammas=(NODES - 1,),
        max_gamma=NODES - 1,
        max_len=buffer_length(5, NEW, NODES - 1),
        logprobs=True,
    )
    params = TARGET_PARAMS, TARGET_PARAMS if draft == "oracle" else DRAFT_PARAMS
    return jax.tree.map(np.asarray, generate(program, params, PROMPTS, REQUEST))


@jax.jit
@jax.vmap
def over_text(tokens, request):
    """(log p warped, raw) [NEW] of the emitted tokens, from one step over the text and no round."""
    length = request.prompt_length
    logits = TARGET.apply(TARGET_PARAMS, tokens, TARGET.init_cache(tokens.shape[0])).logits
    rows = jax.lax.dynamic_slice(logits, (length - 1, 0), (NEW, V))
    emitted = jax.lax.dynamic_slice(tokens, (length,), (NEW,))
    scores = processors.process(
        request.processors,
        active_in(request).processors,
        request.stop_tokens,
        processors.start_history(tokens, length, V),
        jnp.int32(0),
        rows,
        processors.prefixes(emitted)[:NEW],
    )
    of_emitted = lambda x: jnp.take_along_axis(x, emitted[:, None], axis=1)[:, 0]
    warped = jnp.log(sampling.warp(scores, request.sampling))
    return of_emitted(warped), of_emitted(jax.nn.log_softmax(rows))


def test_every_token_was_judged_by_the_law_of_its_text():
    state = decode("similar")
    expected = over_text(state.tokens, REQUEST)
    for row, length in enumerate(LENGTHS):
        count = state.length[row] - length
        new = slice(length, length + count)
        for ours, theirs in zip((state.trace.logprobs.warped, state.trace.logprobs.raw), expected):
            np.testing.assert_allclose(ours[row, new], theirs[row, :count], atol=1e-4)
            assert np.isnan(ours[row, :length]).all() and np.isnan(ours[row, length + count :]).all()
    # All kinds of tokens took part, to every depth, and other branches than the first.
    assert {ACCEPTED, RESIDUAL, BONUS} <= set(state.trace.origin.ravel().tolist())
    nodes = state.statistics.accepted_nodes.sum(axis=0)
    assert nodes[2:].min() > 0, nodes
    # The rows that forbid their stop tokens went on to the end.
    np.testing.assert_array_equal(state.length[[0, 2]], LENGTHS[[0, 2]] + NEW)


def test_the_oracle_is_processed_as_the_target_is():
    """q is p at every node, so the first child of each is accepted, whatever stands before it."""
    state = decode("oracle")
    nodes = state.statistics.accepted_nodes
    rounds = state.statistics.rounds
    first_path = CHOICES.index((0,)) + 1, sorted(CHOICES, key=len).index((0, 0)) + 1
    for node in first_path:
        np.testing.assert_array_equal(nodes[:, node], rounds)
    assert nodes[:, [2, 3]].sum() == 0
    np.testing.assert_array_equal(state.length[[0, 2]], LENGTHS[[0, 2]] + NEW)
