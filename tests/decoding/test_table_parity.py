"""Parity over drafters, rules, gammas, buckets and limits, on tables whose greedy text is known by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Block, Coupled, Rejection
from specjax.decoding import Program, autoregressive, buffer_length, generate
from specjax.drafters import ngram, theory
from specjax.drafters.model import ModelDrafter
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.models.table import TableLM
from specjax.request import make_request
from specjax.testing.parity import divergences, token_rows

V, GAMMA, PROMPT, NEW = 6, 5, 4, 16
MAX_LEN = buffer_length(PROMPT, NEW, GAMMA)
TARGET, DRAFT = TableLM(vocab_size=V, order=2), TableLM(vocab_size=V)
_rng = np.random.default_rng(5)
TARGET_PARAMS = jnp.asarray(_rng.normal(size=(V, V, V)) * 2, jnp.float32)
DRAFT_PARAMS = jnp.asarray(np.asarray(TARGET_PARAMS).mean(axis=0) + _rng.normal(size=(V, V)), jnp.float32)
CORPUS = _rng.integers(0, V, size=100)

# One row for each gamma that the single bucket of 5 serves.
GAMMAS = np.array([0, 1, 2, 3, 4, 5])
LENGTHS = np.array([4, 1, 2, 4, 3, 4])
PROMPTS = _rng.integers(0, V, (len(GAMMAS), PROMPT)).astype(np.int32)


def greedy_by_hand(prompt, count):
    """Plain Python: the argmax of the table, ``count`` times."""
    tokens, table = list(prompt), np.asarray(TARGET_PARAMS)
    for _ in range(count):
        before = tokens[-2] if len(tokens) > 1 else 0
        tokens.append(int(table[before, tokens[-1]].argmax()))
    return tokens


TRUTH = [greedy_by_hand(prompt[:length], NEW) for prompt, length in zip(PROMPTS.tolist(), LENGTHS)]
_truth = theory.Truth(
    tokens=jnp.asarray([tokens + [0] * (MAX_LEN - len(tokens)) for tokens in TRUTH], jnp.int32),
    length=jnp.asarray(LENGTHS + NEW),
)
_bigram = ngram.fit_bigram(CORPUS, V, max_successors=3)
_adversary = ModelDrafter(model=theory.Opposite(model=TARGET), temperature=0.0)
DRAFTERS = {
    "model": (ModelDrafter(model=DRAFT), DRAFT_PARAMS),
    "model, argmax": (ModelDrafter(model=DRAFT, temperature=0.0), DRAFT_PARAMS),
    "oracle": (ModelDrafter(model=TARGET), TARGET_PARAMS),
    "adversary": (_adversary, TARGET_PARAMS),
    "bigram": (ngram.NgramDrafter(), _bigram),
    "prompt lookup": (PromptLookup(), ()),
    "uniform": (theory.Uniform(vocab_size=V), ()),
    "scripted": (
        theory.Scripted(vocab_size=V),
        theory.ScriptedParams(truth=_truth, script=jnp.arange(GAMMA + 1)),
    ),
    "simulated": (
        theory.Simulated(vocab_size=V),
        theory.SimulatedParams(truth=_truth, alpha=jnp.float32(0.7)),
    ),
}
# Every drafter under an independent rule (their contract suite runs all of them coupled).
CASES = [(name, Block() if index % 2 else Rejection()) for index, name in enumerate(DRAFTERS)]


def decode(name, rule, gammas=(GAMMA,), **settings):
    drafter, params = DRAFTERS[name]
    program = Program(
        target=TARGET, drafter=drafter, rule=rule, gammas=gammas, max_gamma=GAMMA, max_len=MAX_LEN
    )
    settings = dict(max_new_tokens=NEW, seed=np.arange(len(GAMMAS)), gamma=GAMMAS) | settings
    request = make_request(prompt_length=LENGTHS, **settings)
    return generate(program, (TARGET_PARAMS, params), PROMPTS, request)


@pytest.mark.parametrize(
    ("name", "rule"), CASES, ids=lambda case: case if isinstance(case, str) else type(case).__name__
)
def test_greedy_text_is_the_tables(name, rule):
    """Gammas 0 to 5 in one batch; what the drafter is changes the number of rounds and nothing else."""
    state = decode(name, rule)
    assert [row.tolist() for row in token_rows(state)] == TRUTH
    rounds, tested = np.asarray(state.statistics.rounds), np.asarray(state.statistics.tested)
    accepted = np.asarray(state.statistics.accepted)
    assert rounds[0] == NEW and not tested[0].any()
    if name == "oracle":
        np.testing.assert_array_equal(rounds, -(-NEW // (GAMMAS + 1)))
    if name == "adversary":
        assert not accepted.any() and np.all(rounds == NEW)
    if name == "scripted":
        # gamma 5: 0, 1, .. 4 accepted in rounds 0 to 4; one token is left for round 5, and one draft.
        np.testing.assert_array_equal(state.statistics.accepted[5], [5, 3, 2, 1, 0])


def test_buckets_change_the_cost_only():
    """Rows that want 0 to 5 in buckets (0, 2, 5): coupled output as in a single bucket, and as plain."""
    sampled = dict(temperature=[1, 1, 0, 0.7, 1, 1])
    one, three = (decode("model", Coupled(), gammas, **sampled) for gammas in ((5,), (0, 2, 5)))
    request = make_request(prompt_length=LENGTHS, max_new_tokens=NEW, seed=np.arange(6), **sampled)
    plain = autoregressive(TARGET, TARGET_PARAMS, PROMPTS, request, rule=Coupled(), max_len=MAX_LEN)
    assert divergences(plain, one) == [] == divergences(plain, three)
    by_bucket = np.asarray(three.statistics.rounds_by_bucket)
    assert by_bucket.shape[1] == 3 and by_bucket[5, 2] > 0
    # When only rows that want less are left, the batch runs their bucket.
    assert by_bucket[:3, :2].any()
    assert np.all(np.asarray(three.statistics.rounds) == by_bucket.sum(axis=1))


def test_prompt_lookup_without_a_match_takes_plain_steps():
    """Buckets (0, 5): a round that finds nothing drafts nothing, and counts as a round."""
    state = decode("prompt lookup", Block(), (0, 5))
    assert [row.tolist() for row in token_rows(state)] == TRUTH
    by_drafted = np.asarray(state.statistics.rounds_by_drafted)
    assert by_drafted[1:, 0].any() and by_drafted[:, 1:].any()
    assert np.all(np.asarray(state.statistics.rounds) <= NEW)


def test_the_context_is_filled_exactly():
    """Context 12, prompts of 1 to 12 tokens, room asked for 100: stops at 12, as plain decoding does."""
    context, lengths = 12, np.array([4, 7, 10, 11, 12, 1])
    target = TableLM(vocab_size=V, order=2, context=context)
    prompts = np.random.default_rng(1).integers(0, V, (6, 12)).astype(np.int32)
    request = make_request(prompt_length=lengths, max_new_tokens=100, seed=np.arange(6), temperature=1.0)
    run = lambda drafter, gammas: generate(
        Program(
            target=target, drafter=drafter, rule=Coupled(), gammas=gammas, max_gamma=5, max_len=context + 7
        ),
        (TARGET_PARAMS, DRAFT_PARAMS),
        prompts,
        request,
    )
    state = run(ModelDrafter(model=DRAFT), (5,))
    assert divergences(run(None, (0,)), state) == []
    np.testing.assert_array_equal(state.length, np.full(6, context))
    assert state.statistics.rounds[4] == 0


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([4, 0], "prompt 1 is empty"),
        ([4, 5], "prompt 1 claims 5 tokens, its row holds 4"),
        ([4], "prompts must be"),
    ],
)
def test_bad_batches_are_refused(lengths, message):
    program = Program(target=TARGET, rule=Rejection(), max_len=MAX_LEN)
    request = make_request(prompt_length=lengths, max_new_tokens=2, seed=0)
    with pytest.raises(ValueError, match=message):
        generate(program, (TARGET_PARAMS, ()), np.zeros((2, 4), np.int32), request)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (np.zeros((2, 4)), "integer token ids, got float64"),
        (np.array([[0, 1, 0], [0, V, 0]]), f"prompt 1 holds id {V}, the target's vocabulary is 0..{V - 1}"),
        (np.array([[-1, 1, 0], [0, 0, 0]]), "prompt 0 holds id -1"),
    ],
)
def test_prompts_that_are_no_ids_are_refused(prompts, message):
    program = Program(target=TARGET, rule=Rejection(), max_len=MAX_LEN)
    request = make_request(prompt_length=[2, 2], max_new_tokens=2, seed=0)
    with pytest.raises(ValueError, match=message):
        generate(program, (TARGET_PARAMS, ()), prompts, request)


def test_prompts_that_do_not_fit_are_refused():
    short = TableLM(vocab_size=V, order=2, context=3)
    request = make_request(prompt_length=[4], max_new_tokens=2, seed=0)
    prompts = np.zeros((1, 4), np.int32)
    with pytest.raises(ValueError, match="1 more than the target's context of 3"):
        generate(Program(target=short, rule=Rejection(), max_len=20), (TARGET_PARAMS, ()), prompts, request)
    with pytest.raises(ValueError, match="exceed the buffer of 5"):
        generate(Program(target=TARGET, rule=Rejection(), max_len=5), (TARGET_PARAMS, ()), prompts, request)
    with pytest.raises(ValueError, match="need 6 slots, the buffer of 7"):
        generate(Program(target=TARGET, rule=Rejection(), max_len=7), (TARGET_PARAMS, ()), prompts, request)


@pytest.mark.parametrize(
    ("gammas", "message"),
    [
        ((), "ascending"),
        ((2, 1), "ascending"),
        ((1, 1), "ascending"),
        ((-1,), ">= 0"),
        ((9,), "exceeds max_gamma"),
    ],
)
def test_bad_programs_are_refused(gammas, message):
    drafter = ModelDrafter(model=DRAFT)
    with pytest.raises(ValueError, match=message):
        Program(target=TARGET, drafter=drafter, rule=Rejection(), gammas=gammas, max_gamma=5, max_len=20)
    with pytest.raises(ValueError, match="without a drafter"):
        Program(target=TARGET, rule=Rejection(), gammas=(1,), max_gamma=5, max_len=20)


def test_a_tied_maximum_is_the_lowest_id_in_every_batch():
    """Logits tied at 1 and 3; the drafter proposes 3; a sampled neighbour makes no difference."""
    tied = jnp.zeros((V, V, V)).at[:, :, 1].set(1.0).at[:, :, 3].set(1.0)
    drafter = ModelDrafter(model=TableLM(vocab_size=V), temperature=0.0)
    wrong = jnp.zeros((V, V)).at[:, 3].set(1.0)
    program = Program(
        target=TARGET,
        drafter=drafter,
        rule=Rejection(),
        gammas=(2,),
        max_gamma=2,
        max_len=buffer_length(4, 5, 2),
    )
    for seed in range(3):
        request = make_request(
            prompt_length=[4, 4], max_new_tokens=5, seed=[seed, seed + 1], temperature=[0, 1], top_p=[0.5, 1]
        )
        state = generate(program, (tied, wrong), PROMPTS[:2], request)
        assert np.asarray(state.tokens)[0, 4:9].tolist() == [1] * 5
        assert not np.any(state.statistics.accepted[0])
