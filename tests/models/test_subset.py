"""A draft that knows some ids of its target's vocabulary; a draft of its target's own layers."""

import dataclasses
import fnmatch

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save

from specjax.acceptance.rejection import Rejection
from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import generate
from specjax.decoding.program import Program
from specjax.drafters.model import ModelDrafter
from specjax.models import subset
from specjax.models.folder import Folder
from specjax.models.language_model import from_config, init_params
from specjax.models.layer_skip import keep_layers
from specjax.models.sources import open_checkpoint
from specjax.request import make_request
from specjax.testing.models import tiny_transformer

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


def test_rare_ids_are_read_and_scored_by_rows_of_low_rank():
    """At full rank they do what full rows do; at a lower one, something else."""
    table, ids = np.asarray(TARGET_PARAMS["embed_tokens"]), np.array([1, 3, 4, 8, 11, 0, 2])
    tied = {**{k: v for k, v in TARGET_PARAMS.items() if k != "lm_head"}}
    config = dataclasses.replace(TARGET.config, tie_word_embeddings=True)
    maps = {name: jnp.asarray(array) for name, array in subset.maps(ids, table).items()}
    tokens, logits = jnp.array([2, 1, 0, 8]), {}
    for frequent, rank in ((7, 0), (5, 16), (5, 1)):
        inner = from_config(dataclasses.replace(config, vocab_size=frequent))
        params = {"inner": {**tied, "embed_tokens": jnp.asarray(table[ids[:frequent]])}, **maps}
        params |= subset.low_rank(table[ids[frequent:]], rank) if rank else {}
        model = subset.SubsetLM(inner=inner, vocab_size=V)
        logits[rank] = model.apply(params, tokens, model.init_cache(8)).logits
    np.testing.assert_allclose(logits[16], logits[0], atol=2e-4)
    assert np.isfinite(logits[16][0]).sum() == 7
    assert np.abs(logits[1][:, ids] - logits[0][:, ids]).max() > 0.1


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
    subset.save_vocabulary(tmp_path, params)
    wrapped, loaded = subset.with_vocabulary(Folder(tmp_path), model.inner, params["inner"])
    assert wrapped == model
    np.testing.assert_array_equal(loaded["write"], params["write"])
    width = model.config.hidden_size
    rare = {"rare_rows": jnp.full((3, 2), 0.5), "rare_basis": jnp.ones((2, width))}
    subset.save_vocabulary(tmp_path, {**params, **rare})
    loaded = subset.with_vocabulary(Folder(tmp_path), model.inner, params["inner"])[1]
    jax.tree.map(np.testing.assert_array_equal, loaded, {**params, **rare})
    subset.save_vocabulary(tmp_path, {**params, **rare, "rare_basis": jnp.ones((2, 3))})
    with pytest.raises(ValueError, match=rf"width {width}: rare_rows is \(3, 2\), rare_basis \(2, 3\)"):
        subset.with_vocabulary(Folder(tmp_path), model.inner, {})
    subset.save_vocabulary(tmp_path, params)
    small = from_config(dataclasses.replace(model.config, vocab_size=2))
    with pytest.raises(ValueError, match="does not fit a model of 2 ids: read must be ids in"):
        subset.with_vocabulary(Folder(tmp_path), small, {})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"abc", "is damaged"),
        (
            save({"read": np.zeros(3, np.int32)}),
            "must hold read and write, and rare_rows and rare_basis or neither; it holds read",
        ),
        (
            save({"read": np.zeros(3, np.int32), "write": np.zeros(4, np.int32)}),
            r"read \(3,\) and write \(4,\)",
        ),
        (
            save({"read": np.zeros(3, np.int32), "write": np.full(3, 6, np.int32)}),
            "write must be ids in 0..5",
        ),
        (
            save({"read": np.full(3, -1, np.int32), "write": np.zeros(3, np.int32)}),
            "read must be ids in 0..4",
        ),
        (save({"read": np.zeros(3), "write": np.zeros(3, np.int32)}), "read is of type F64, not U16"),
    ],
)
def test_a_damaged_vocabulary_is_refused(draft, tmp_path, content, told):
    model, _ = draft
    (tmp_path / subset.FILE).write_bytes(content)
    with pytest.raises(ValueError, match=told):
        subset.with_vocabulary(Folder(tmp_path), model.inner, {})


def test_a_draft_of_the_hub_has_its_vocabulary(draft, tmp_path, monkeypatch):
    """The client's snapshot stands in for the hub; a repository without the file stays as it was loaded."""
    model, params = draft
    asked = []

    def download(name, **options):
        asked.append(options["allow_patterns"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    checkpoint = open_checkpoint("hf://org/draft")
    assert subset.with_vocabulary(checkpoint, model.inner, params["inner"])[0] is model.inner
    subset.save_vocabulary(tmp_path, params)
    wrapped, loaded = subset.with_vocabulary(open_checkpoint("hf://org/draft"), model.inner, params["inner"])
    assert wrapped == model
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert all(any(fnmatch.fnmatch(subset.FILE, pattern) for pattern in patterns) for patterns in asked)
