"""The decode loop updates its caches in place: nothing in its body makes an array of a cache's shape.

Read off the optimized HLO: within the computations that a while loop reaches,
an instruction whose result has a cache's shape may only pass the array on or
write rows into it.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest

from specjax.acceptance import OneHotWalk, Rejection
from specjax.decoding.generate import decode_donated, prefill
from specjax.decoding.program import Program
from specjax.drafters.cascade import Cascade
from specjax.drafters.model import ModelDrafter
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params
from specjax.processors import make_processors
from specjax.request import make_request
from tests.decoding.guessed_tree import GuessedTree

MAX_LEN, HEADS, HEAD_DIM = 77, 2, 16  # sizes that no other array of the loop has
PASSES_ON = {
    "parameter",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "while",
    "conditional",
    "call",
    "dynamic-update-slice",
    "scatter",
    "optimization-barrier",
}
INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\(")


def _computations(hlo: str) -> dict[str, list[str]]:
    """Lines of each computation of an HLO module, by name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in hlo.splitlines():
        if line.rstrip().endswith("{") and "->" in line:
            lines = found.setdefault(line.replace("ENTRY", "").split()[0].lstrip("%"), [])
        else:
            lines.append(line)
    return found


def _size(shape: str) -> int:
    """Elements of an array such as f32[3,2,77,16]{3,2,1,0}; a transposed or flattened copy has as many."""
    dims = re.match(r"\w+\[([\d,]*)\]", shape)
    return math.prod(map(int, filter(None, dims[1].split(",")))) if dims else 0


def _called(line: str) -> list[str]:
    return re.findall(r"(?:body|condition|calls|to_apply|branch_computations)=\{?%?([\w.\-]+)", line)


def _copies_in_loops(hlo: str, shape: str) -> list[str]:
    """Instructions reached from a while loop that make a new array of ``shape``."""
    computations = _computations(hlo)
    pending = [
        name
        for lines in computations.values()
        for line in lines
        if " while(" in line
        for name in _called(line)
    ]
    seen: set[str] = set()
    bad = []
    while pending:
        name = pending.pop()
        if name in seen or name not in computations:
            continue
        seen.add(name)
        for line in computations[name]:
            match = INSTRUCTION.match(line)
            if match is None:
                continue
            pending += _called(line) if match[4] != "fusion" else []
            if _size(match[3]) == _size(shape) and match[4] not in PASSES_ON:
                roots = [
                    text for call in _called(line) for text in computations.get(call, []) if "ROOT" in text
                ]
                if match[4] != "fusion" or not any(
                    op in root for root in roots for op in ("-update-slice(", "scatter(")
                ):
                    bad.append(line.strip()[:160])
    return bad


@functools.cache
def _pair():
    shape = dict(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_attention_heads=4, head_dim=HEAD_DIM
    )
    config = DecoderConfig(
        **shape, num_hidden_layers=2, num_key_value_heads=HEADS, max_position_embeddings=64
    )
    return from_config(config), jax.eval_shape(lambda: init_params(config, 0))


def _optimized(batch: int, gammas: tuple[int, ...], drafter=None, **settings) -> str:
    model, params = _pair()
    program = Program(
        target=model,
        rule=Rejection(),
        max_len=MAX_LEN,
        drafter=drafter or ModelDrafter(model=model),
        gammas=gammas,
        max_gamma=gammas[-1],
    )
    request = make_request(prompt_length=[4] * batch, max_new_tokens=8, seed=0, temperature=0.5, **settings)
    state = jax.eval_shape(
        functools.partial(prefill, program), (params, params), jnp.ones((batch, 4), jnp.int32), request
    )
    return decode_donated.lower(program, (params, params), request, state).compile().as_text()


@pytest.mark.parametrize(("batch", "gammas"), [(1, (3,)), (3, (3,)), (1, (0, 3))])
def test_no_cache_sized_copy_in_the_loop(batch, gammas):
    hlo = _optimized(batch, gammas)
    shape = f"f32[{batch},{HEADS},{MAX_LEN},{HEAD_DIM}]"
    assert shape in hlo
    assert _copies_in_loops(hlo, shape) == []


def test_a_cascade_copies_no_cache_where_its_model_catches_up():
    """One row: in a batch, the catch-up loop of a row that is done copies its draft cache."""
    model, _ = _pair()
    beside = ModelDrafter(model=model, catch_up=4)
    hlo = _optimized(1, (1, 3), Cascade(copier=PromptLookup(min_ngram=3), model=beside, model_gamma=1))
    shape = f"f32[1,{HEADS},{MAX_LEN},{HEAD_DIM}]"
    assert shape in hlo and _copies_in_loops(hlo, shape) == []


def test_processors_copy_no_cache_either():
    hlo = _optimized(3, (3,), processors=make_processors(repetition_penalty=1.3, banned_tokens=[7]))
    shape = f"f32[3,{HEADS},{MAX_LEN},{HEAD_DIM}]"
    assert shape in hlo and _copies_in_loops(hlo, shape) == []


@pytest.mark.parametrize("batch", [1, 3])
def test_a_tree_and_its_path_copy_no_cache_either(batch):
    model, params = _pair()
    drafter = GuessedTree(branching=(2, 2), vocab_size=model.vocab_size)
    nodes = drafter.num_nodes
    program = Program(
        target=model,
        rule=OneHotWalk(),
        max_len=MAX_LEN,
        drafter=drafter,
        gammas=(nodes - 1,),
        max_gamma=nodes,
    )
    request = make_request(prompt_length=[4] * batch, max_new_tokens=8, seed=0, temperature=0.5)
    state = jax.eval_shape(
        functools.partial(prefill, program), (params, ()), jnp.ones((batch, 4), jnp.int32), request
    )
    hlo = decode_donated.lower(program, (params, ()), request, state).compile().as_text()
    shape = f"f32[{batch},{HEADS},{MAX_LEN},{HEAD_DIM}]"
    assert shape in hlo and _copies_in_loops(hlo, shape) == []


def test_a_loop_that_copies_is_caught():
    """Control: adding to a cache in the body makes a new array of its size."""
    shape = (1, HEADS, MAX_LEN, HEAD_DIM)

    def spoil(cache):
        body = lambda carry: (carry[0] + 1, carry[1][:, :, ::-1])
        return jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, cache))

    hlo = jax.jit(spoil, donate_argnums=0).lower(jnp.zeros(shape)).compile().as_text()
    assert _copies_in_loops(hlo, "f32[" + ",".join(map(str, shape)) + "]")
