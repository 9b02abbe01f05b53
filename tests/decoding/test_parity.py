"""Speculative decoding of tiny transformers is plain decoding, token for token and row by row.

Greedy rows under every rule, all rows under coupled sampling. Programs and
shapes are shared by the tests of a rule, so each compiles once.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Block, Coupled, Rejection
from specjax.decoding import Program, buffer_length, generate, prefill, stream
from specjax.decoding.generate import decode_donated
from specjax.drafters.model import ModelDrafter
from specjax.request import make_request
from specjax.testing.models import tiny_transformer
from specjax.testing.parity import divergences, token_rows
from specjax.types import ACCEPTED, BONUS, PADDING, RESIDUAL

V, GAMMA, PROMPT, NEW = 8, 3, 6, 18
TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=3, layers=2)
DRAFT, _noise = tiny_transformer(vocab_size=V, seed=4, layers=2)
# A draft that resembles its target, so that blocks are accepted whole, in part and not at all.
DRAFT_PARAMS = jax.tree.map(lambda x, noise: 0.8 * x + 0.4 * noise, TARGET_PARAMS, _noise)
MAX_LEN = buffer_length(PROMPT, NEW, GAMMA)
RULES = [Rejection(), Block(), Coupled()]
by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)

LENGTHS = np.array([6, 1, 4, 3, 5, 2])
PROMPTS = np.random.default_rng(0).integers(0, V, (len(LENGTHS), PROMPT)).astype(np.int32)
ROWS = dict(
    max_new_tokens=[18, 17, 18, 16, 18, 3],
    seed=[10, 11, 12, 13, 14, 15],
    temperature=[0.0, 0.0, 1.0, 0.7, 1.0, 1.0],
    top_k=[0, 3, 0, 3, 0, 0],
    top_p=[1.0, 0.5, 1.0, 1.0, 0.8, 1.0],
    gamma=[3, 1, 3, 2, 3, 0],
)
GREEDY = [0, 1]


def program(rule, drafter):
    gammas = (GAMMA,) if drafter else (0,)
    return Program(target=TARGET, drafter=drafter, rule=rule, gammas=gammas, max_gamma=GAMMA, max_len=MAX_LEN)


def speculative(rule, prompts=PROMPTS, lengths=LENGTHS, **changes):
    request = make_request(prompt_length=lengths, **(ROWS | changes))
    return generate(program(rule, ModelDrafter(model=DRAFT)), (TARGET_PARAMS, DRAFT_PARAMS), prompts, request)


def plain(prompts=PROMPTS, lengths=LENGTHS, **changes):
    """The reference: no drafter. Coupled noise, which greedy rows do not notice."""
    request = make_request(prompt_length=lengths, **(ROWS | changes))
    return generate(program(Coupled(), None), (TARGET_PARAMS, ()), prompts, request)


def pick(rows, settings=ROWS):
    return {name: [values[row] for row in rows] for name, values in settings.items()}


def comparable(rule):
    """The rows that must equal plain decoding's: greedy ones, under coupled sampling all."""
    return range(len(LENGTHS)) if isinstance(rule, Coupled) else GREEDY


@by_rule
def test_equals_plain_decoding(rule):
    """One batch mixes greedy and sampled rows, filters, prompt lengths, draft lengths 0 to 3, limits."""
    expected, got = plain(), speculative(rule)
    assert [d for d in divergences(expected, got) if d.row in comparable(rule)] == []
    np.testing.assert_array_equal(got.length, LENGTHS + ROWS["max_new_tokens"])
    assert np.all(got.done)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_array_equal(got.tokens[row, :length], PROMPTS[row, :length])
        assert not np.any(got.tokens[row, got.length[row] :])
    # The test bites: drafts were accepted and drafts were rejected.
    tested, accepted = np.sum(got.statistics.tested), np.sum(got.statistics.accepted)
    assert 0 < accepted < tested


@by_rule
def test_a_row_does_not_depend_on_its_batch(rule):
    """Alone and in four batches: other neighbours, other places, garbage in the padding, early ends."""
    base = token_rows(speculative(rule))
    order = np.array([3, 5, 0, 4, 1, 2])
    shuffled = speculative(rule, PROMPTS[order], LENGTHS[order], **pick(order))
    for place, row in enumerate(order):
        np.testing.assert_array_equal(token_rows(shuffled)[place], base[row])

    padded = np.where(np.arange(PROMPT) < LENGTHS[:, None], PROMPTS, V - 1)
    np.testing.assert_array_equal(speculative(rule, padded).tokens, speculative(rule).tokens)

    for row in (0, 2, 4):  # greedy, sampled, nucleus
        others = np.full(len(LENGTHS), row)
        settings = pick(others) | {
            "seed": [*range(5), ROWS["seed"][row]],
            "max_new_tokens": [1, 2, 3, 4, 5, 18],
        }
        settings |= {"temperature": [0, 0.5, 2, 0, 1, ROWS["temperature"][row]]}
        crowd = speculative(rule, PROMPTS[others], LENGTHS[others], **settings)
        np.testing.assert_array_equal(token_rows(crowd)[-1], base[row])
        alone = speculative(rule, PROMPTS[[row]], LENGTHS[[row]], **pick([row]))
        np.testing.assert_array_equal(token_rows(alone)[0], base[row])


@by_rule
def test_more_tokens_extend_and_seeds_differ(rule):
    longer, shorter = speculative(rule), speculative(rule, max_new_tokens=7)
    for long, short, length in zip(token_rows(longer), token_rows(shorter), LENGTHS):
        assert len(short) == length + 7 or len(long) < len(short)
        np.testing.assert_array_equal(long[: len(short)], short[: len(long)])
    other = token_rows(speculative(rule, seed=np.arange(6) + 100))
    sampled = [row for row in range(2, 5) if not np.array_equal(other[row], token_rows(longer)[row])]
    assert len(sampled) >= 2
    for row in GREEDY:
        np.testing.assert_array_equal(other[row], token_rows(longer)[row])


@pytest.mark.parametrize("rule", [Rejection(), Coupled()], ids=lambda rule: type(rule).__name__)
def test_stop_tokens(rule):
    """Ends with the first stop token, wherever in a block it falls; one in the prompt stops nothing."""
    full = token_rows(plain())
    endings = set()
    for stop in range(V):
        state = speculative(rule, stop_tokens=[stop])
        for row in comparable(rule):
            length, output = LENGTHS[row], full[row][LENGTHS[row] :]
            at = np.flatnonzero(output == stop)
            end = length + (at[0] + 1 if at.size else len(output))
            np.testing.assert_array_equal(token_rows(state)[row], full[row][:end])
            stats = jax.tree.map(lambda x, row=row: np.asarray(x[row]), state.statistics)
            assert stats.accepted.sum() + stats.rounds == end - length + stats.cut
            if at.size:
                endings.add((int(state.trace.origin[row, end - 1]), bool(stats.cut)))
    # The first of two accepted stop tokens cuts a block; a residual or bonus token can only end it.
    assert (RESIDUAL, False) in endings
    assert not isinstance(rule, Coupled) or {(ACCEPTED, True), (BONUS, False)} <= endings


@pytest.mark.parametrize("new", [0, 1, 2, 5])
def test_short_outputs(new):
    """Exactly ``max_new_tokens``; the first token is judged like all others; none asked for, none given."""
    expected, got = plain(max_new_tokens=new), speculative(Coupled(), max_new_tokens=new)
    assert divergences(expected, got) == []
    np.testing.assert_array_equal(got.length, LENGTHS + new)
    assert new > 0 or not np.any(got.statistics.rounds)


@by_rule
def test_statistics_and_trace_agree(rule):
    state = speculative(rule)
    stats, trace = state.statistics, state.trace
    emitted = np.asarray(state.length) - LENGTHS
    rounds, cut = np.asarray(stats.rounds), np.asarray(stats.cut)
    tested, accepted = np.asarray(stats.tested), np.asarray(stats.accepted)
    assert np.all(rounds <= emitted)
    np.testing.assert_array_equal(accepted.sum(1) + rounds, emitted + cut)  # tau = (emitted + cut) / rounds
    assert np.all(tested >= accepted) and np.all(accepted[:, :-1] >= tested[:, 1:])
    np.testing.assert_array_equal(np.sum(stats.rounds_by_drafted, axis=1), rounds)
    np.testing.assert_array_equal(np.sum(stats.rounds_by_bucket, axis=1), rounds)
    assert np.all(np.asarray(stats.overlap) <= tested + 1e-5) and np.all(np.asarray(stats.overlap) >= 0)
    # Draft lengths never exceed what the row asked for.
    drafted = np.asarray(stats.rounds_by_drafted)
    assert not any(drafted[row, gamma + 1 :].any() for row, gamma in enumerate(ROWS["gamma"]))
    assert not tested[5].any() and rounds[5] == 3  # gamma 0: plain steps

    for row, length in enumerate(LENGTHS):
        new = slice(length, int(state.length[row]))
        origin, rejected = np.asarray(trace.origin[row, new]), np.asarray(trace.rejected[row, new])
        last = np.isin(origin, (RESIDUAL, BONUS))
        whole = cut[row] == 0
        assert (
            np.sum(origin == ACCEPTED) == accepted[row].sum() if whole else accepted[row].sum() - cut[row] + 1
        )
        assert last.sum() == rounds[row] - (0 if whole else 1)
        np.testing.assert_array_equal(rejected != PADDING, origin == RESIDUAL)
        number = np.asarray(trace.round[row, new])
        assert number[0] == 0 and number[-1] == rounds[row] - 1 and np.all(np.diff(number) == last[:-1])
        assert np.all(np.asarray(trace.round[row, :length]) == PADDING)


def test_oracle_accepts_everything():
    """The target as its own drafter, gamma 1 to 5 in one batch, greedy and sampled."""
    gammas, lengths = np.tile(np.arange(1, 6), 2), np.full(10, 4)
    oracle = Program(
        target=TARGET,
        drafter=ModelDrafter(model=TARGET),
        rule=Rejection(),
        gammas=(5,),
        max_gamma=5,
        max_len=buffer_length(4, 60, 5),
    )
    request = make_request(
        prompt_length=lengths,
        max_new_tokens=60,
        seed=np.arange(10),
        temperature=np.repeat([0, 1], 5),
        gamma=gammas,
    )
    prompts = np.random.default_rng(1).integers(0, V, (10, 4))
    stats = generate(oracle, (TARGET_PARAMS, TARGET_PARAMS), prompts, request).statistics
    np.testing.assert_array_equal(stats.accepted, stats.tested)
    np.testing.assert_array_equal(stats.rounds, -(-60 // (gammas + 1)))


def test_stream_and_eager_equal_generate():
    """The same round driven from Python, and once more without any compilation."""
    rows = [0, 2]
    arguments = dict(prompt_length=LENGTHS[rows], **(pick(rows) | {"max_new_tokens": [4, 5]}))
    spec = program(Coupled(), ModelDrafter(model=DRAFT))
    params = (TARGET_PARAMS, DRAFT_PARAMS)

    def streamed():
        pieces = list(stream(spec, params, PROMPTS[rows], make_request(**arguments)))
        return [np.concatenate(row) for row in zip(*pieces)]

    expected = token_rows(plain(max_new_tokens=[4, 5, 5, 5, 5, 3]))
    expected = [expected[0][LENGTHS[0] :], expected[2][LENGTHS[2] :]]
    with jax.disable_jit():
        eager = streamed()
    for compiled, uncompiled, tokens in zip(streamed(), eager, expected):
        np.testing.assert_array_equal(compiled, tokens)
        np.testing.assert_array_equal(uncompiled, tokens)


def test_new_values_compile_nothing():
    """Temperatures, filters, seeds, stop tokens, prompts, draft lengths, limits: arrays, all of them."""
    rule = Rejection()
    speculative(rule)
    before = decode_donated._cache_size(), prefill_cache_size()
    speculative(rule, temperature=0.3)
    speculative(rule, temperature=[0, 1, 0.5, 2, 1, 1], top_k=4, top_p=0.9, min_p=0.1)
    speculative(rule, seed=np.arange(6, dtype=np.int64), stop_tokens=[5], max_new_tokens=4, gamma=2)
    speculative(rule, (PROMPTS + 1) % V, LENGTHS[::-1].copy(), max_new_tokens=10)
    speculative(rule, jnp.asarray(PROMPTS))
    assert (decode_donated._cache_size(), prefill_cache_size()) == before


def prefill_cache_size():
    from specjax.decoding.prefill import _prefill

    return _prefill._cache_size()


def test_no_array_outlives_its_decode():
    """Counts and bytes of live arrays stay flat over 20 decodes and 20 abandoned ones."""
    rule = Rejection()
    spec, params = program(rule, ModelDrafter(model=DRAFT)), (TARGET_PARAMS, DRAFT_PARAMS)

    def once(seed):
        state = speculative(rule, seed=seed)
        rounds = int(np.sum(state.statistics.rounds))
        # A caller who gives up after the prefill, and one who passes something impossible.
        prefill(spec, params, PROMPTS, make_request(prompt_length=LENGTHS, **ROWS))
        with pytest.raises(ValueError, match="empty"):
            speculative(rule, lengths=LENGTHS * 0)
        return rounds

    def live():
        arrays = jax.live_arrays()
        return len(arrays), sum(array.nbytes for array in arrays)

    once(0)
    before = live()
    for seed in range(20):
        once(seed)
    assert live() == before
