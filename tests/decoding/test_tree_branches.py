"""Every node of a tree wins in turn: a drafter that knows the text hides it behind one path after another."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import OneHotWalk, RecursiveRejection, Rejection, SpecInfer, Traversal, Typical
from specjax.decoding import Program, autoregressive, buffer_length, generate
from specjax.drafters.theory import Truth
from specjax.request import make_request
from specjax.testing.models import tiny_transformer
from specjax.testing.parity import divergences
from specjax.testing.tree_drafters import ScriptedTree, ScriptedTreeParams
from specjax.trees.builders import fixed_branching
from specjax.trees.topology import from_choices
from specjax.types import ACCEPTED, BONUS, RESIDUAL

pytestmark = pytest.mark.usefixtures("compile_fast")

V, PROMPT = 11, 5
# Of a few random models the one whose greedy texts are least like a loop.
TARGET, PARAMS = tiny_transformer(vocab_size=V, seed=9, layers=2)
CHOICES = fixed_branching((3, 2, 1))
PARENT, _ = from_choices(CHOICES)
NODES, DEPTH = 1 + len(CHOICES), 3
DEPTH_OF = np.array([0, *map(len, sorted(CHOICES, key=len))])
# Each node once, and three in a row of the deepest: enough rounds for all of them.
SCRIPT = np.append(np.random.default_rng(1).permutation(NODES), [NODES - 1, NODES - 2, NODES - 1])
NEW = int(np.sum(DEPTH_OF[SCRIPT] + 1))
LENGTHS = np.array([5, 1, 3])
PROMPTS = np.random.default_rng(4).integers(0, V, (3, PROMPT)).astype(np.int32)
MAX_LEN = buffer_length(PROMPT, NEW, NODES - 1)
RULES = [OneHotWalk(), RecursiveRejection(), SpecInfer(), Traversal(), Typical()]
by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)


def request(**changes):
    settings = {"max_new_tokens": NEW, "seed": np.arange(3), "temperature": 0.0}
    return make_request(prompt_length=LENGTHS, **settings | changes)


@pytest.fixture(scope="module")
def plain():
    return autoregressive(TARGET, PARAMS, PROMPTS, request(), rule=Rejection(), max_len=MAX_LEN)


def scripted(rule, plain, script=SCRIPT, **changes):
    truth = Truth(tokens=plain.tokens, length=plain.length)
    program = Program(
        target=TARGET,
        drafter=ScriptedTree(choices=CHOICES, vocab_size=V, uniform=True),
        rule=rule,
        gammas=(NODES - 1,),
        max_gamma=NODES - 1,
        max_len=MAX_LEN,
    )
    params = ScriptedTreeParams(truth=truth, script=jnp.asarray(script, jnp.int32))
    return generate(program, (PARAMS, params), PROMPTS, request(**changes))


def ways(script):
    """[R, N] bool: the accepted nodes of each round."""
    table = np.zeros((len(script), NODES), bool)
    for row, node in zip(table, script):
        while node > 0:
            row[node], node = True, PARENT[node]
        row[0] = True
    return table


@by_rule
def test_each_node_wins_in_its_turn(rule, plain):
    """Rows of a batch stand at different places; all accept exactly the scripted path, round after round."""
    state = scripted(rule, plain)
    assert divergences(plain, state) == []
    statistics, expected = state.statistics, ways(SCRIPT)
    np.testing.assert_array_equal(statistics.rounds, len(SCRIPT))
    np.testing.assert_array_equal(statistics.accepted_nodes, np.tile(expected.sum(axis=0), (3, 1)))
    assert np.asarray(statistics.accepted_nodes).min() > 0
    # Round by round: the trace tells how long each path was, and what ended it.
    is_leaf = ~np.isin(np.arange(NODES), PARENT)
    for row, length in enumerate(LENGTHS):
        new = slice(length, length + NEW)
        rounds, origin = np.asarray(state.trace.round[row, new]), np.asarray(state.trace.origin[row, new])
        np.testing.assert_array_equal(np.bincount(rounds), DEPTH_OF[SCRIPT] + 1)
        last = np.append(np.diff(rounds) > 0, True)
        np.testing.assert_array_equal(origin[~last], ACCEPTED)
        np.testing.assert_array_equal(origin[last], np.where(is_leaf[SCRIPT], BONUS, RESIDUAL))


def test_a_wrong_script_is_noticed(plain):
    """The control: truth that is not the target's wins nothing, and the text stays the target's."""
    wrong = plain.tokens.at[:, PROMPT:].set((plain.tokens[:, PROMPT:] + 1) % V)
    state = scripted(OneHotWalk(), type(plain)(**vars(plain) | {"tokens": wrong}))
    assert divergences(plain, state) == []
    # A wrong sibling of a wrong token may be right; the scripted paths are not.
    assert not np.array_equal(state.statistics.accepted_nodes[0], ways(SCRIPT).sum(axis=0))
    assert int(state.statistics.accepted[:, 0].sum()) < np.asarray(plain.length - LENGTHS).sum() / 4


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_stop_token_anywhere_on_the_path_ends_the_row(cut, plain):
    """The path to the deepest of the last branch: its first, second, third token, and the bonus."""
    first = np.asarray(plain.tokens)[np.arange(3), LENGTHS + cut - 1]
    state = scripted(OneHotWalk(), plain, np.full(SCRIPT.shape, NODES - 1), stop_tokens=first[:, None])
    for row, length in enumerate(LENGTHS):
        text = np.asarray(plain.tokens[row, length:])
        end = int(np.flatnonzero(text == first[row])[0]) + 1
        assert int(state.length[row]) == length + end and bool(state.done[row])
        np.testing.assert_array_equal(state.tokens[row, length : length + end], text[:end])
        assert not np.any(state.tokens[row, length + end :])
        assert int(state.statistics.cut[row]) == (DEPTH + 1 - end)


def test_rows_that_want_fewer_nodes_than_the_tree_has(plain):
    """Only nodes up to the number wanted are accepted; a path that needs others is cut short."""
    wanted = np.array([0, 4, 8])
    state = scripted(OneHotWalk(), plain, gamma=wanted)
    assert divergences(plain, state) == []
    nodes = np.asarray(state.statistics.accepted_nodes)
    for row, most in enumerate(wanted):
        assert not nodes[row, most + 1 :].any()
        assert nodes[row, 1:].any() == (most > 0)
    drafted = np.asarray(state.statistics.rounds_by_drafted)
    np.testing.assert_array_equal(drafted[np.arange(3), wanted], state.statistics.rounds)


@pytest.mark.parametrize("new", [0, 1, 2, 6])
def test_exactly_as_many_tokens_as_asked_for(new, plain):
    state = scripted(OneHotWalk(), plain, np.full(SCRIPT.shape, NODES - 1), max_new_tokens=new)
    np.testing.assert_array_equal(state.length, LENGTHS + new)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_array_equal(state.tokens[row, : length + new], plain.tokens[row, : length + new])
    np.testing.assert_array_equal(state.statistics.rounds, -(-new // (DEPTH + 1)))
