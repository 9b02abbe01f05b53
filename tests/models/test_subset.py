"""A draft that knows some ids of its target's vocabulary; a draft of its target's own layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance.rejection import Rejection
from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import generate
from specjax.decoding.program import Program
from specjax.drafters.model import ModelDrafter
from specjax.models import subset
from specjax.models.language_model import from_config, init_params
from specjax.models.layer_skip import keep_layers
from specjax.testing.models import tiny_transformer
from specjax.types import make_request

V = 12
TARGET, TARGET_PARAMS = tiny_transformer(vocab_size=V, seed=0, layers=2)
IDS = np.array([1, 3, 4, 8, 11])


@pytest.fixture(scope="module")
def draft():
    config = dataclasses.replace(TARGET.config, vocab_size=len(IDS))
    table = np.asarray(TARGET_PARAMS["embed_tokens"])
    maps = {name: jnp.asarray(array) for name, array in subset.maps(IDS, table).items()}
    model = subset.SubsetLM(inner=from_config(config), vocab_size=V)
    return model, {"inner": init_params(config, 1), **maps}


def test_only_the_ids_it_knows_get_a_probability(draft):
    model, params = draft
    tokens = jnp.array([1, 3, 8])
    logits = model.apply(params, tokens, model.init_cache(8)).logits
    inner = model.inner.apply(params["inner"], jnp.array([0, 1, 3]), model.init_cache(8)).logits
    np.testing.assert_array_equal(np.isfinite(logits[0]).nonzero()[0], IDS)
    np.testing.assert_array_equal(logits[:, IDS], inner)


def test_an_unknown_id_is_read_as_the_one_that_points_the_same_way():
    table = np.eye(4)[[0, 1, 2, 3, 1]] * np.array([1, 2, 3, 4, 50])[:, None]
    maps = subset.maps(np.array([0, 1, 3]), table)
    assert maps["read"].tolist()[4] == 1 and maps["read"].tolist()[3] == 2
    assert maps["write"].tolist() == [0, 1, 3, 2, 3]


@pytest.mark.parametrize("kind", ["subset", "layers"])
def test_greedy_output_is_the_targets(draft, kind):
    model, own = draft if kind == "subset" else keep_layers(TARGET, TARGET_PARAMS, (0,))
    prompts = jnp.asarray(np.random.default_rng(0).integers(V, size=(2, 4)))
    request = make_request(prompt_length=[4, 3], max_new_tokens=20, seed=0)
    expected = autoregressive(TARGET, TARGET_PARAMS, prompts, request, rule=Rejection(), max_len=32)
    program = Program(
        target=TARGET,
        drafter=ModelDrafter(model=model),
        rule=Rejection(),
        gammas=(3,),
        max_len=32,
        max_gamma=3,
    )
    state = generate(program, (TARGET_PARAMS, own), prompts, request)
    np.testing.assert_array_equal(state.tokens[:, :24], expected.tokens[:, :24])


def test_kept_layers_are_the_same_arrays():
    _, params = keep_layers(TARGET, TARGET_PARAMS, (0,))
    theirs = {id(leaf) for leaf in jax.tree.leaves(TARGET_PARAMS)}
    assert all(id(leaf) in theirs for leaf in jax.tree.leaves(params))
    with pytest.raises(ValueError, match=r"layers \(9,\) must be some of 0\.\."):
        keep_layers(TARGET, TARGET_PARAMS, (9,))


def test_a_vocabulary_that_does_not_fit_is_refused(draft, tmp_path):
    model, params = draft
    subset.save_maps(tmp_path, params)
    wrapped, loaded = subset.with_vocabulary(tmp_path, model.inner, params["inner"])
    assert wrapped == model
    np.testing.assert_array_equal(loaded["write"], params["write"])
    small = from_config(dataclasses.replace(model.config, vocab_size=2))
    with pytest.raises(ValueError, match="does not fit a model of 2 ids"):
        subset.with_vocabulary(tmp_path, small, {})
