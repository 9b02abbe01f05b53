"""Decoding with trees of a draft model is plain decoding, token for token; a row does not know its batch.

Greedy rows of likeliest and of sampled children. 384 tokens of the embedded
pair too. There a row that differs is counted once, at its first token, and must
show a margin under 1e-4: rounding differs between steps of one token and of N.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.acceptance import OneHotWalk, RecursiveRejection, Rejection
from specjax.data.corpora import held_out_prompts
from specjax.data.tokenizers import load_tokenizer
from specjax.decoding import Program, autoregressive, buffer_length, generate, stream
from specjax.drafters.tree_model import TreeModelDrafter
from specjax.models import huggingface
from specjax.request import make_request
from specjax.testing.models import tiny_transformer
from specjax.testing.parity import divergences, margin, token_rows
from specjax.trees.builders import fixed_branching

V, PROMPT, NEW = 8, 6, 18
TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=3)
DRAFT, _noise = tiny_transformer(vocab_size=V, seed=4)
# A draft that resembles its target, so that trees are accepted to every depth.
DRAFT_PARAMS = jax.tree.map(lambda x, noise: 0.8 * x + 0.4 * noise, TARGET_PARAMS, _noise)
PARAMS = (TARGET_PARAMS, DRAFT_PARAMS)
CHOICES = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
NODES = 1 + len(CHOICES)
MAX_LEN = buffer_length(PROMPT, NEW, NODES - 1)

LENGTHS = np.array([6, 1, 4, 3, 5, 2])
PROMPTS = np.random.default_rng(0).integers(0, V, (len(LENGTHS), PROMPT)).astype(np.int32)
ROWS = {
    "max_new_tokens": [18, 17, 16, 18, 18, 3],
    "seed": [10, 11, 12, 13, 14, 15],
    "temperature": [0.0, 0.0, 0.0, 0.7, 1.0, 1.0],
    "top_k": [0, 3, 0, 3, 0, 0],
    "top_p": [1.0, 0.5, 1.0, 1.0, 0.8, 1.0],
    "gamma": [7, 2, 7, 7, 5, 0],
}
GREEDY = [0, 1, 2]


@pytest.fixture
def small_programs(compile_fast):
    """What the embedded pair, which runs for longer, does without."""


def program(rule):
    # A temperature of its own, so that the trees of greedy rows are no chains.
    drafter = TreeModelDrafter(model=DRAFT, choices=CHOICES, temperature=1.0)
    gamma = NODES - 1
    return Program(
        target=TARGET, drafter=drafter, rule=rule, gammas=(gamma,), max_gamma=gamma, max_len=MAX_LEN
    )


def with_trees(rule, prompts=PROMPTS, lengths=LENGTHS, **changes):
    request = make_request(prompt_length=lengths, **(ROWS | changes))
    return generate(program(rule), PARAMS, prompts, request)


def plain(**changes):
    request = make_request(prompt_length=LENGTHS, **(ROWS | changes))
    return autoregressive(TARGET, TARGET_PARAMS, PROMPTS, request, rule=Rejection(), max_len=MAX_LEN)


def pick(rows):
    return {name: [values[row] for row in rows] for name, values in ROWS.items()}


@pytest.mark.usefixtures("small_programs")
@pytest.mark.parametrize("rule", [OneHotWalk(), RecursiveRejection()], ids=lambda rule: type(rule).__name__)
def test_equals_plain_decoding(rule):
    """One batch mixes greedy and sampled rows, filters, prompt lengths, wishes for 0 to 7 nodes, limits."""
    expected, got = plain(), with_trees(rule)
    assert [d for d in divergences(expected, got) if d.row in GREEDY] == []
    np.testing.assert_array_equal(got.length, LENGTHS + ROWS["max_new_tokens"])
    for row, length in enumerate(LENGTHS):
        np.testing.assert_array_equal(got.tokens[row, :length], PROMPTS[row, :length])
        assert not np.any(got.tokens[row, got.length[row] :])
    # The test bites: trees were accepted to every depth, in other branches than the first, and not at all.
    accepted, tested = np.asarray(got.statistics.accepted)[GREEDY], np.asarray(got.statistics.tested)[GREEDY]
    assert accepted[:, 2].sum() > 0 and accepted.sum() < tested.sum()
    assert np.asarray(got.statistics.accepted_nodes)[GREEDY, 2:4].sum() > 0


@pytest.mark.usefixtures("small_programs")
def test_a_row_does_not_depend_on_its_batch():
    """Other places, garbage in the padding, other neighbours that end early, alone, streamed."""
    rule = RecursiveRejection()
    base = token_rows(with_trees(rule))
    order = np.array([3, 5, 0, 4, 1, 2])
    shuffled = with_trees(rule, PROMPTS[order], LENGTHS[order], **pick(order))
    for place, row in enumerate(order):
        np.testing.assert_array_equal(token_rows(shuffled)[place], base[row])
    padded = np.where(np.arange(PROMPT) < LENGTHS[:, None], PROMPTS, V - 1)
    np.testing.assert_array_equal(with_trees(rule, padded).tokens, with_trees(rule).tokens)

    for row in (0, 3, 4):  # greedy, filtered, nucleus
        others = np.full(len(LENGTHS), row)
        settings = pick(others) | {
            "seed": [*range(5), ROWS["seed"][row]],
            "max_new_tokens": [1, 2, 3, 4, 5, 18],
        }
        settings |= {"temperature": [0, 0.5, 2, 0, 1, ROWS["temperature"][row]]}
        crowd = with_trees(rule, PROMPTS[others], LENGTHS[others], **settings)
        np.testing.assert_array_equal(token_rows(crowd)[-1], base[row])
        alone = with_trees(rule, PROMPTS[[row]], LENGTHS[[row]], **pick([row]))
        np.testing.assert_array_equal(token_rows(alone)[0], base[row])

    request = make_request(prompt_length=LENGTHS, **ROWS)
    pieces = zip(*stream(program(rule), PARAMS, PROMPTS, request))
    for row, length, blocks in zip(base, LENGTHS, pieces):
        np.testing.assert_array_equal(np.concatenate(blocks), row[length:])


@pytest.mark.usefixtures("small_programs")
def test_stops_and_limits():
    """Ends with the first stop token, wherever on a path it falls; a longer limit extends an output."""
    rule, full, cut = OneHotWalk(), token_rows(plain()), 0
    for stop in range(V):
        state = with_trees(rule, stop_tokens=[stop])
        cut += int(state.statistics.cut.sum())
        for row in GREEDY:
            length, output = LENGTHS[row], full[row][LENGTHS[row] :]
            at = np.flatnonzero(output == stop)
            end = length + (at[0] + 1 if at.size else len(output))
            np.testing.assert_array_equal(token_rows(state)[row], full[row][:end])
    assert cut > 0
    for new in (0, 1, 7):
        for long, short, length in zip(
            token_rows(with_trees(rule)), token_rows(with_trees(rule, max_new_tokens=new)), LENGTHS
        ):
            assert len(short) == length + new
            np.testing.assert_array_equal(long[: len(short)], short[: len(long)])


# --- the embedded pair ----------------------------------------------------------------------

ASSETS = pathlib.Path(specjax.__file__).parent / "assets"
TREE = fixed_branching((3, 2, 1))
NARROW, NUM_PROMPTS, PAIR_PROMPT, PAIR_NEW = 1e-4, 8, 40, 48


def test_parity_of_the_embedded_pair():
    (target, target_params), (draft, draft_params) = (
        huggingface.load(ASSETS / name) for name in ("target", "draft")
    )
    tokenizer = load_tokenizer(ASSETS / "target")
    ids = [tokenizer.encode(text).ids for text in held_out_prompts(NUM_PROMPTS)]
    lengths = [min(len(row), PAIR_PROMPT - i) for i, row in enumerate(ids)]
    prompts = np.zeros((NUM_PROMPTS, PAIR_PROMPT), np.int32)
    for row, (tokens, length) in enumerate(zip(ids, lengths)):
        prompts[row, :length] = tokens[:length]
    request = make_request(prompt_length=lengths, max_new_tokens=PAIR_NEW, seed=0)
    max_len = buffer_length(PAIR_PROMPT, PAIR_NEW, len(TREE))
    expected = autoregressive(
        target, target_params, jnp.asarray(prompts), request, rule=Rejection(), max_len=max_len
    )
    pair = Program(
        target=target,
        drafter=TreeModelDrafter(model=draft, choices=TREE, temperature=1.0),
        rule=OneHotWalk(),
        gammas=(len(TREE),),
        max_gamma=len(TREE),
        max_len=max_len,
    )
    state = generate(pair, (target_params, draft_params), jnp.asarray(prompts), request)
    for found in divergences(expected, state):
        gap = margin(target, target_params, request, expected, found)
        print(f"{found}, margin {gap:.2e}")
        assert gap < NARROW, found
    nodes = np.asarray(state.statistics.accepted_nodes).sum(axis=0)
    print(
        f"accepted nodes {nodes.tolist()}, tau {(nodes[0] + state.statistics.accepted.sum()) / nodes[0]:.2f}"
    )
    assert nodes[2:4].sum() > 0
