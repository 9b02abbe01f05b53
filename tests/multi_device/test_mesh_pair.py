"""The embedded pair on a mesh: greedy and coupled rows decode what one device decodes."""

import functools
from pathlib import Path

import jax
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

import specjax
from specjax import sharding
from specjax.acceptance.coupled import Coupled
from specjax.data.corpora import held_out_prompts
from specjax.data.tokenizers import load_tokenizer
from specjax.decoding.generate import generate
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.model import ModelDrafter
from specjax.models import huggingface
from specjax.models.language_model import logical_axes
from specjax.request import make_request
from specjax.testing.parity import divergences, margin

ASSETS = Path(specjax.__file__).parent / "assets"
BATCH, PROMPT, NEW, GAMMA = 8, 12, 24, 3
REQUEST = make_request(
    prompt_length=[PROMPT] * BATCH, max_new_tokens=NEW, seed=range(BATCH), temperature=[0.0, 1.0] * 4
)


@functools.cache
def pair():
    """(program, target params, draft params, prompts)."""
    (target, target_params), (draft, draft_params) = (
        huggingface.load(ASSETS / name) for name in ("target", "draft")
    )
    tokenizer = load_tokenizer(ASSETS / "target")
    prompts = [tokenizer.encode(text).ids[:PROMPT] for text in held_out_prompts(BATCH)]
    program = Program(
        target=target,
        drafter=ModelDrafter(model=draft),
        rule=Coupled(),
        gammas=(GAMMA,),
        max_gamma=GAMMA,
        max_len=buffer_length(PROMPT, NEW, GAMMA),
    )
    return program, target_params, draft_params, np.array(prompts, np.int32)


@functools.cache
def on_one_device():
    program, target, draft, prompts = pair()
    return generate(program, (target, draft), prompts, REQUEST)


@pytest.mark.parametrize("sizes", [(8, 1), (1, 2), (2, 2), (4, 2)], ids=str)
def test_the_pair_decodes_what_one_device_decodes(sizes, record_property):
    program, target, draft, prompts = pair()
    mesh = sharding.make_mesh(*sizes)
    axes, head_dim = logical_axes(program.target), program.target.config.head_dim
    placed = sharding.place_params(target, axes, sharding.AxisRules(), mesh, head_dim=head_dim)
    state = generate(program, (placed, sharding.replicate(draft, mesh)), prompts, REQUEST)

    expected = on_one_device()
    found = divergences(expected, state)
    margins = [margin(program.target, target, REQUEST, expected, each) for each in found]
    record_property("divergences", [*map(str, zip(found, margins, strict=True))])
    assert all(each < 1e-4 for each in margins), (found, margins)
    assert len(found) <= 1
    same = np.setdiff1d(np.arange(BATCH), [each.row for each in found])
    for counter in ("rounds", "tested", "accepted"):
        counts, reference = (getattr(each.statistics, counter) for each in (state, expected))
        np.testing.assert_array_equal(np.asarray(counts)[same], np.asarray(reference)[same], err_msg=counter)
    assert int(state.statistics.accepted.sum()) > BATCH  # the drafts are worth something
    for cache in state.target_cache.keys:
        assert cache.sharding.is_equivalent_to(
            jax.sharding.NamedSharding(mesh, P("data", "model")), cache.ndim
        )
