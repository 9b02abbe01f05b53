"""The draft model that drafts trees: its law at every node, its cache over rounds, what bounds a tree."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.acceptance import OneHotWalk, RecursiveRejection, Rejection, SpecInfer
from specjax.drafters.model import ModelDrafter
from specjax.drafters.tree_model import TreeModelDrafter
from specjax.models.table import TableLM
from specjax.request import make_request
from specjax.testing import caches
from specjax.testing.models import tiny_transformer
from specjax.trees.builders import fixed_branching
from specjax.trees.topology import check_tree, from_choices
from specjax.types import Outcome

V, MAX_LEN = 7, 40
MODEL, PARAMS = tiny_transformer(vocab_size=V, seed=1, layers=2)
CHOICES = ((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0), (0, 1, 1))
PARENT = from_choices(CHOICES)[0]
N, DEPTH, INNER = 9, 3, (0, 1, 3, 5)
DRAFTER = TreeModelDrafter(model=MODEL, choices=CHOICES)
LENGTHS = np.array([4, 1, 3])
PROMPTS = np.random.default_rng(0).integers(0, V, (3, 4)).astype(np.int32)
SAMPLING = make_request(
    prompt_length=LENGTHS, max_new_tokens=1, seed=0, temperature=[1.0, 0.7, 1.5], top_k=[0, 0, 5]
).sampling


def prefixed(tokens, context):
    """A stand-in for processors: scores that depend on what stands before them."""
    return -0.5 * jnp.sum(jax.nn.one_hot(context, tokens.shape[-1]), axis=-2)


def warp(row, logits, drafted, own=None, /):
    """A law that depends on the draft tokens before it, as processors make it."""
    return sampling.warp(logits + prefixed(logits, drafted), row if own is None else own)


@functools.partial(jax.jit, static_argnums=(0, 1))
def propose(drafter, rule, params, state, tokens, length, wanted, noise, row_sampling=SAMPLING):
    def row(row_sampling, *args):
        bound = functools.partial(warp, row_sampling)
        return drafter.propose_tree((None, params), *args, rule.draw_children, bound)

    return jax.vmap(row)(row_sampling, state, tokens, length, wanted, noise)


@functools.partial(jax.jit, static_argnums=0)
def commit(drafter, state, tokens, outcome):
    return jax.vmap(functools.partial(drafter.commit, (None, PARAMS)))(state, tokens, outcome)


@functools.partial(jax.jit, static_argnums=0)
def draw_below(rule, noise, probs):
    """(tokens, valid) [B, n, 3] of the inner nodes, drawn from reported laws; some have fewer children."""
    children = np.array([np.resize(np.flatnonzero(node == PARENT), 3) for node in INNER])
    draw = jax.vmap(jax.vmap(rule.draw_children))
    return draw(noise[:, children], probs[:, INNER])


def start(drafter, params, prompts=PROMPTS, lengths=LENGTHS):
    lengths = jnp.asarray(lengths)
    tokens = jnp.zeros((len(lengths), MAX_LEN), jnp.int32).at[:, : prompts.shape[1]].set(prompts)
    init = lambda prompt, length: drafter.init((None, params), prompt, length, MAX_LEN, N - 1, ())
    return tokens, lengths, *jax.vmap(init)(jnp.asarray(prompts), lengths)


@jax.jit
def teacher_forced(sequences, lengths, paths):
    """The warped law [R, V] after each of the sequences [R, S], by a pass of its own over all of it."""

    def law(row_sampling, sequence, length, path):
        logits = MODEL.apply(PARAMS, sequence, MODEL.init_cache(MAX_LEN)).logits[length - 1]
        return warp(row_sampling, logits[None], path[None])[0]

    over_nodes = jax.vmap(law, in_axes=(None, 0, 0, 0))
    return jax.vmap(over_nodes)(SAMPLING, sequences, lengths, paths)


def expected_laws(proposal, tokens, length):
    """q of the inner nodes, [B, n, V]."""
    tokens, nodes = np.asarray(tokens), np.asarray(proposal.tree.tokens)
    sequences = np.repeat(tokens[:, None], len(INNER), 1)
    lengths = np.repeat(np.asarray(length)[:, None], len(INNER), 1)
    paths = np.full((len(tokens), len(INNER), DEPTH), -1)
    for row in range(len(tokens)):
        for i, node in enumerate(INNER):
            way = []
            while node > 0:
                way, node = [node, *way], PARENT[node]
            at = lengths[row, i]
            sequences[row, i, at : at + len(way)] = paths[row, i, : len(way)] = nodes[row, way]
            lengths[row, i] += len(way)
    return teacher_forced(sequences, lengths, paths)


def test_every_node_has_the_law_of_its_path_round_after_round():
    """1 to D + 1 tokens pending, a frozen row now and then, dead slots poisoned; the tokens emitted are
    not the tree's, which a drafter may not count on."""
    rng, rule, seen = np.random.default_rng(1), RecursiveRejection(), set()
    tokens, length, state, available = start(DRAFTER, PARAMS)
    np.testing.assert_array_equal(available, N - 1)
    for number in range(6):
        noise = rng.random((3, N), np.float32)
        state = dataclasses.replace(state, cache=caches.poisoned(state.cache))
        seen |= set(np.asarray(length - state.cache.length).tolist())
        proposal, after = propose(DRAFTER, rule, PARAMS, state, tokens, length, jnp.full((3,), N), noise)
        np.testing.assert_array_equal(after.cache.length, length)
        laws = expected_laws(proposal, tokens, length)
        np.testing.assert_allclose(np.asarray(proposal.probs)[:, INNER], laws, atol=1e-5)
        assert not np.asarray(proposal.probs)[:, [2, 4, 6, 7, 8]].any()
        assert_drawn_from_reported_laws(rule, proposal, noise)
        np.testing.assert_array_equal(proposal.tree.tokens[:, 0], np.asarray(tokens)[range(3), length - 1])

        live = np.array([True, True, number != 2])
        count = np.where(live, 1 + (number + np.arange(3)) % (DEPTH + 1), 0)
        emitted = rng.integers(0, V, (3, DEPTH + 1)).astype(np.int32)
        for row in range(3):
            at = int(length[row])
            tokens = tokens.at[row, at : at + count[row]].set(emitted[row, : count[row]])
        outcome = Outcome(old_length=length, num_emitted=jnp.asarray(count), emitted=jnp.asarray(emitted))
        before, old = state.cache.length, length
        state, available = commit(DRAFTER, after, tokens, outcome)
        length = length + count
        np.testing.assert_array_equal(state.cache.length, np.where(live, old, before))
        np.testing.assert_array_equal(available, N - 1)
    assert seen == {1, 2, 3, 4}


def assert_drawn_from_reported_laws(rule, proposal, noise):
    tree = jax.tree.map(np.asarray, proposal.tree)
    drawn, in_support = map(np.asarray, draw_below(rule, noise, proposal.probs))
    for i, node in enumerate(INNER):
        children = np.flatnonzero(node == PARENT)
        count = len(children)
        np.testing.assert_array_equal(tree.tokens[:, children], drawn[:, i, :count])
        np.testing.assert_array_equal(
            tree.valid[:, children], in_support[:, i, :count] & tree.valid[:, [node]]
        )


@pytest.mark.parametrize("rule", [SpecInfer(), OneHotWalk()], ids=lambda rule: type(rule).__name__)
def test_each_rule_draws_its_own_way(rule):
    noise = np.random.default_rng(2).random((3, N), np.float32)
    tokens, length, state, _ = start(DRAFTER, PARAMS)
    proposal, _ = propose(DRAFTER, rule, PARAMS, state, tokens, length, jnp.full((3,), N), noise)
    assert_drawn_from_reported_laws(rule, proposal, noise)
    siblings = np.asarray(proposal.tree.tokens)[:, 1:4]
    if isinstance(rule, OneHotWalk):
        likeliest = np.argsort(-np.asarray(proposal.probs)[:, 0], axis=1, kind="stable")[:, :3]
        np.testing.assert_array_equal(siblings, likeliest)
    else:  # for this noise a row has twins, which independent draws keep
        assert any(len(set(row)) < 3 for row in siblings.tolist())


def test_a_chain_is_what_the_draft_model_of_chains_drafts():
    """The same noise gives the same tokens, from the same laws."""
    chain = TreeModelDrafter(model=MODEL, choices=fixed_branching((1, 1, 1)))
    noise = np.random.default_rng(3).random((3, 4), np.float32)
    tokens, length, state, _ = start(chain, PARAMS)
    tree, _ = propose(chain, RecursiveRejection(), PARAMS, state, tokens, length, jnp.full((3,), 3), noise)
    model = ModelDrafter(model=MODEL)
    _, _, state, _ = start(model, PARAMS)

    def row(row_sampling, *args):
        bound = functools.partial(warp, row_sampling)
        return model.propose((None, PARAMS), *args[:3], 3, *args[3:], Rejection().draw, bound)[0]

    proposal = jax.jit(jax.vmap(row))(SAMPLING, state, tokens, length, jnp.full((3,), 3), noise[:, 1:])
    np.testing.assert_array_equal(tree.tree.tokens[:, 1:], proposal.tokens)
    np.testing.assert_allclose(tree.probs[:, :3], proposal.probs, atol=1e-6)


TABLE = TableLM(vocab_size=4, context=8)
# After 0 and 1 two tokens may come, after 2 and 3 one.
TABLE_PARAMS = jnp.log(jnp.array([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1], [1.0, 0, 0, 0]]))
BUSHY = fixed_branching((3, 2))  # nodes 1..3, and pairs (4, 5), (6, 7), (8, 9) below them


@functools.partial(jax.jit, static_argnums=0)
def first_tree(drafter, prompts, lengths, wanted):
    def row(prompt, length):
        tokens = jnp.zeros((MAX_LEN,), jnp.int32).at[: prompt.shape[0]].set(prompt)
        state, available = drafter.init((None, TABLE_PARAMS), prompt, length, MAX_LEN, 9, ())
        greedy = jax.tree.map(lambda x: jnp.zeros_like(x[0]), SAMPLING)
        law = lambda logits, drafted, own=greedy, /: sampling.warp(logits, own)
        noise, draw = jnp.linspace(0.1, 0.9, 10), RecursiveRejection().draw_children
        arguments = (state, tokens, length, wanted, noise, draw, law)
        return drafter.propose_tree((None, TABLE_PARAMS), *arguments)[0], available

    return jax.vmap(row)(prompts, lengths)


def of_table(prompt, length=1, wanted=9, temperature=1.0, **settings):
    """(proposal, available) of one greedy row; the prompt is padded, so that one program serves all."""
    drafter = TreeModelDrafter(model=TABLE, choices=BUSHY, temperature=temperature, **settings)
    prompts = jnp.pad(jnp.array([prompt], jnp.int32), ((0, 0), (0, 9 - len(prompt))))
    return jax.tree.map(lambda x: x[0], first_tree(drafter, prompts, jnp.array([length]), wanted))


def test_past_the_support_nothing_is_valid():
    proposal, available = of_table([0], 1)
    valid, tokens = np.asarray(proposal.tree.valid), np.asarray(proposal.tree.tokens)
    assert available == 9 and set(tokens[1:3].tolist()) == {0, 1}
    # The third child of the root is none, so its children are none; the others have two each.
    np.testing.assert_array_equal(valid, [1, 1, 1, 0, 1, 1, 1, 1, 0, 0])
    check_tree(proposal.tree)
    # After 3 comes 0 alone: one child, and two below it.
    np.testing.assert_array_equal(of_table([3])[0].tree.valid, [1, 1, 0, 0, 1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize("wanted", [0, 1, 4, 5])
def test_as_many_nodes_as_are_wanted(wanted):
    proposal, _ = of_table([0], 1, wanted)
    full = np.array([1, 1, 1, 0, 1, 1, 1, 1, 0, 0], bool)
    np.testing.assert_array_equal(proposal.tree.valid, full & (np.arange(10) <= wanted))
    check_tree(proposal.tree, budget=wanted + 1)


@pytest.mark.parametrize(("length", "depth"), [(6, 2), (7, 1), (8, 0), (9, 0)])
def test_the_context_of_the_draft_model_bounds_the_depth(length, depth):
    """Without an error, up to its last token and past it."""
    proposal, available = of_table([0] * length, length)
    assert available == (9 if depth else 0)
    assert np.asarray(proposal.tree.depth).max() == depth


def test_vocabularies_of_other_sizes():
    """q has zeros for what the target alone knows; an id of padding is never drafted."""
    proposal, _ = of_table([0], 1, vocab_size=6)
    assert proposal.probs.shape == (10, 6) and not np.asarray(proposal.probs)[:, 4:].any()
    proposal, _ = of_table([1], 1, num_ids=2)
    assert np.asarray(proposal.probs)[0].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(("temperature", "valid"), [(None, 3), (0.0, 3), (1.0, 7)])
def test_a_greedy_row_gets_a_tree_from_a_temperature_of_the_drafters_own(temperature, valid):
    """Else its law, like the target's, is one-hot: the root, one child, and one below that."""
    proposal, _ = of_table([0], temperature=temperature)
    assert int(proposal.tree.valid.sum()) == valid
    assert np.asarray(proposal.probs)[0].max() == (0.5 if temperature else 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choices": ((0,), (2,))}, r"\(2,\) has no sibling \(1,\)"),
        ({"choices": ((0,), (1, 0))}, r"\(1, 0\) lies below \(1,\)"),
        ({"choices": ((0,), (0,))}, "listed twice"),
        ({"choices": ((0,),), "temperature": -1.0}, "TreeModelDrafter.temperature"),
        ({"choices": ((0,),), "vocab_size": 0}, "TreeModelDrafter.vocab_size"),
        ({"choices": ((0,),), "num_ids": -1}, "TreeModelDrafter.num_ids"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TreeModelDrafter(model=MODEL, **settings)
