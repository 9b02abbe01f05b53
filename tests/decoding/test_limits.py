"""Where a row ends: its own limit, the context and the buffer, up to the largest int32."""

import types

import jax.numpy as jnp
import pytest

from specjax.acceptance import Rejection
from specjax.decoding import Program
from specjax.decoding.commit import _cut
from specjax.models.table import TableLM
from specjax.request import make_request

PROGRAM = Program(target=TableLM(vocab_size=3, context=24), rule=Rejection(), max_len=32)


@pytest.mark.parametrize(
    ("length", "new", "emitted", "stopped"),
    [
        (2, 9, 3, False),
        (10, 9, 1, True),
        (2, 2**31 - 1, 3, False),
        (22, 2**31 - 1, 2, True),
    ],
)
def test_a_row_ends_at_the_nearest_limit(length, new, emitted, stopped):
    request = make_request(prompt_length=[2], max_new_tokens=new, seed=0)
    row = types.SimpleNamespace(
        prompt_length=request.prompt_length[0],
        max_new_tokens=request.max_new_tokens[0],
        stop_tokens=request.stop_tokens[0],
    )
    state = types.SimpleNamespace(length=jnp.int32(length), done=jnp.array(False))
    assert _cut(PROGRAM, row, state, jnp.array([1, 1, 1]), jnp.int32(2)) == (emitted, stopped)
