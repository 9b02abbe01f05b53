"""The decode loop lowers for accelerators that are not here."""

import functools

import jax
from jax import export
import jax.numpy as jnp
import pytest

from specjax.acceptance.block import Block
from specjax.acceptance.coupled import Coupled
from specjax.acceptance.rejection import Rejection
from specjax.decoding.generate import decode, prefill
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.model import ModelDrafter
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params
from specjax.request import make_request


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", [Rejection(), Block(), Coupled()], ids=lambda rule: type(rule).__name__)
def test_the_decode_loop_lowers_for_tpu_and_cuda(rule, dtype):
    config = DecoderConfig(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        max_position_embeddings=32,
        dtype=dtype,
    )
    model, params = from_config(config), jax.eval_shape(lambda: init_params(config, 0))
    program = Program(
        target=model,
        drafter=ModelDrafter(model=model),
        rule=rule,
        gammas=(0, 3),
        max_gamma=3,
        max_len=buffer_length(4, 8, 3),
    )
    request = make_request(prompt_length=[4, 2], max_new_tokens=8, seed=0, temperature=0.7, top_p=0.9)
    pair = (params, params)
    state = jax.eval_shape(functools.partial(prefill, program), pair, jnp.ones((2, 4), jnp.int32), request)
    loop = jax.jit(functools.partial(decode, program))
    lowered = export.export(loop, platforms=("tpu", "cuda"))(pair, request, state)
    assert lowered.platforms == ("tpu", "cuda")
    assert lowered.mlir_module().count("stablehlo.while") >= 2  # the rounds of each bucket
    assert [leaf.shape for leaf in lowered.out_avals] == [leaf.shape for leaf in jax.tree.leaves(state)]
