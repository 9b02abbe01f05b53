"""A mesh changes where arrays live, not what is decoded."""

import functools
import logging
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from specjax import sharding
from specjax.acceptance.block import Block
from specjax.acceptance.coupled import Coupled
from specjax.acceptance.rejection import Rejection
from specjax.decoding.generate import decode, generate, prefill, stream
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.model import ModelDrafter
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params, logical_axes
from specjax.request import make_request

MESHES = [(8, 1), (1, 2), (2, 2), (4, 2)]
RULES = [Rejection(), Block(), Coupled()]
V, BATCH, GAMMA, NEW = 16, 8, 3, 16


def config(width: int, heads: int, kv_heads: int, layers: int) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=V,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=4,
        max_position_embeddings=64,
    )


def random_model(shape: DecoderConfig, seed: int):
    """(model, params) with weights large enough for laws that are far from uniform."""
    return from_config(shape), jax.tree.map(lambda x: 3 * x, init_params(shape, seed))


TARGET, TARGET_PARAMS = random_model(config(16, 4, 2, 1), 0)
DRAFT, DRAFT_PARAMS = random_model(config(8, 2, 1, 1), 1)
PROMPTS = np.random.default_rng(0).integers(0, V, (BATCH, 6), dtype=np.int32)
# Greedy and sampled rows; they end at different rounds.
REQUEST = make_request(
    prompt_length=[3, 4, 5, 6, 6, 5, 4, 3],
    max_new_tokens=[NEW, NEW, 5, NEW, NEW, 9, NEW, NEW],
    seed=range(BATCH),
    temperature=[0.0, 1.0] * 4,
    top_k=[0, 0, 0, 0, 0, 9, 0, 0],
)


def program(rule) -> Program:
    return Program(
        target=TARGET,
        drafter=ModelDrafter(model=DRAFT),
        rule=rule,
        gammas=(GAMMA,),
        max_gamma=GAMMA,
        max_len=buffer_length(6, NEW, GAMMA),
    )


@functools.cache
def on_one_device(rule):
    return generate(program(rule), (TARGET_PARAMS, DRAFT_PARAMS), PROMPTS, REQUEST)


@functools.cache
def placed(sizes):
    """The mesh, the params on it, and a prefilled state: the rule plays no part in either."""
    mesh = sharding.make_mesh(*sizes)
    params = (
        sharding.place_params(TARGET_PARAMS, logical_axes(TARGET), sharding.AxisRules(), mesh, head_dim=4),
        sharding.replicate(DRAFT_PARAMS, mesh),
    )
    return mesh, params, prefill(program(RULES[0]), params, PROMPTS, REQUEST)


def assert_same_decode(state, reference):
    rows = slice(0, state.length.shape[0])
    np.testing.assert_array_equal(state.tokens, reference.tokens[rows])
    np.testing.assert_array_equal(state.length, reference.length[rows])
    for counter in ("rounds", "tested", "accepted", "rounds_by_drafted", "cut"):
        counts = getattr(state.statistics, counter)
        np.testing.assert_array_equal(counts, getattr(reference.statistics, counter)[rows], err_msg=counter)


def collectives(hlo: str) -> list[tuple[str, int]]:
    """(kind, elements of the largest result) of each instruction that talks to other devices."""
    kinds = "all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter|collective-broadcast"
    found = re.findall(rf"= (\(.*?\)|\S+) ({kinds})(?:-start)?\(", hlo)
    size = lambda dims: int(np.prod([int(n) for n in dims.split(",") if n] or [1]))
    return [(kind, max(size(dims) for dims in re.findall(r"\[([\d,]*)\]", result))) for result, kind in found]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_a_mesh_decodes_what_one_device_decodes(sizes, rule):
    mesh, params, state = placed(sizes)
    rows, heads = P("data"), P("data", "model")
    request = sharding.place_batch(PROMPTS, REQUEST, mesh)[1]
    compiled = decode.lower(program(rule), params, request, state).compile()
    final = compiled(params, request, state)

    assert_same_decode(final, on_one_device(rule))
    split = lambda spec: jax.sharding.NamedSharding(mesh, spec)
    for each in (state, final):
        for cache in (*each.target_cache.keys, *each.target_cache.values):
            assert cache.sharding.is_equivalent_to(split(heads), cache.ndim), cache.sharding
        for array in (*each.draft_state.cache.keys, each.tokens, each.length, each.done, each.trace.origin):
            assert array.sharding.is_equivalent_to(split(rows), array.ndim), array.sharding
    # Two sums over "model" a layer, and scalars of the loop's own condition over "data".
    widest = (GAMMA + 1) * TARGET.config.hidden_size * BATCH // mesh.shape["data"]
    talk = collectives(compiled.as_text())
    assert {kind for kind, _ in talk} == {"all-reduce"}
    assert max(size for _, size in talk) <= widest
    assert sum(size > 1 for _, size in talk) == (2 if mesh.shape["model"] > 1 else 0)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_every_weight_lies_where_the_rules_say(sizes):
    mesh, (target, draft), _ = placed(sizes)
    model_size = mesh.shape["model"]
    layer = target["layers"][0]
    expected = {
        "q_proj": (16, 16 // model_size),
        "k_proj": (16, 8 // model_size),
        "v_proj": (16, 8 // model_size),
        "o_proj": (16 // model_size, 16),
    }
    for name, shape in expected.items():
        kernel = layer["self_attn"][name]["kernel"]
        assert {shard.data.shape for shard in kernel.addressable_shards} == {shape}, name
    down, up = layer["mlp"]["down_proj"]["kernel"], layer["mlp"]["up_proj"]["kernel"]
    assert down.sharding.spec == P("model", None)
    assert up.sharding.spec == P(None, "model")
    for leaf in (*jax.tree.leaves(draft), target["embed_tokens"], target["norm"]["weight"]):
        assert leaf.sharding.is_fully_replicated
        assert leaf.sharding.device_set == set(mesh.devices.flat)


def test_sizes_that_do_not_divide(caplog):
    """Key/value heads that stay whole, a draft with rules of its own, five rows on two devices."""
    mesh = sharding.make_mesh(2, 4)
    rules = sharding.AxisRules(vocab="model")
    with caplog.at_level(logging.WARNING):
        target = sharding.place_params(TARGET_PARAMS, logical_axes(TARGET), rules, mesh, head_dim=4)
        draft = sharding.place_params(
            DRAFT_PARAMS, logical_axes(DRAFT), sharding.AxisRules(), mesh, head_dim=4
        )
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert said[0].startswith("kv_heads of size 2 does not divide over 'model' of mesh (data=2, model=4)")
    assert any(message.startswith("heads of size 2") for message in said)
    assert target["embed_tokens"].sharding.spec == P("model", None)
    assert draft["layers"][0]["mlp"]["up_proj"]["kernel"].sharding.spec == P(None, "model")
    assert draft["layers"][0]["self_attn"]["q_proj"]["kernel"].sharding.is_fully_replicated

    first = jax.tree.map(lambda x: x[:5], REQUEST)
    state = generate(program(Rejection()), (target, draft), PROMPTS[:5], first)
    assert state.tokens.shape[0] == 5
    assert_same_decode(state, on_one_device(Rejection()))


def test_streaming_pads_and_drops_rows_as_generate_does():
    _, params, _ = placed((4, 2))
    rounds = stream(program(Coupled()), params, PROMPTS[:5], jax.tree.map(lambda x: x[:5], REQUEST))
    rows = [[] for _ in range(5)]
    for new in rounds:
        assert len(new) == 5
        for row, tokens in zip(rows, new, strict=True):
            row.extend(tokens.tolist())
    reference = on_one_device(Coupled())
    for row, tokens, start, end in zip(rows, reference.tokens, REQUEST.prompt_length, reference.length):
        assert row == tokens[start:end].tolist()


def test_a_remainder_without_a_stated_meaning_is_an_error():
    mesh, params, _ = placed((8, 1))
    with pytest.raises(ValueError, match=r"batch of 5 .* 'data' of mesh \(data=8, model=1\)"):
        prefill(program(Rejection()), params, PROMPTS[:5], jax.tree.map(lambda x: x[:5], REQUEST))
    three = {"weight": jnp.zeros((3, 2))}
    with pytest.raises(ValueError, match=r"'weight'.*embed of size 3 .* 'data' of mesh \(data=8, model=1\)"):
        sharding.place_params(three, {"weight": ("embed", "norm")}, sharding.AxisRules(embed="data"), mesh)
    with pytest.raises(ValueError, match=r"needs 16 devices, 8 cpu present"):
        sharding.make_mesh(8, 2)
