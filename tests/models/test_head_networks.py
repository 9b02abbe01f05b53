"""Heads as networks, over a subset of ids, and as folders that fit one target."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.heads import folder
from specjax.models.heads.blockwise import BlockwiseConfig
from specjax.models.heads.heads import from_config, head_params, init_network, logical_axes
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import from_config as model_from_config
from specjax.models.language_model import init_params
from specjax.testing.models import tiny_config

D, V, H = 8, 12, 3
TARGET_CONFIG = tiny_config(V)
TARGET, TARGET_PARAMS = model_from_config(TARGET_CONFIG, ("final",)), init_params(TARGET_CONFIG, 0)
IDS = np.array([1, 2, 5, 7, 11], np.int32)
CONFIGS = {
    "medusa": MedusaConfig(num_heads=H, width=D, num_ids=len(IDS)),
    "medusa of two blocks": MedusaConfig(num_heads=H, width=D, num_ids=len(IDS), blocks=2),
    "medusa with projections": MedusaConfig(num_heads=H, width=D, num_ids=len(IDS), own_projection=True),
    "blockwise": BlockwiseConfig(num_heads=H, width=D, num_ids=len(IDS), hidden_size=6),
}
FEATURE = jax.random.normal(jax.random.key(1), (D,))
SHA = "a" * 64


def table():
    return TARGET_PARAMS["embed_tokens"][IDS]


def randomized(config, seed=3):
    """A network far from its start."""
    network = init_network(config, seed, table())
    leaves, tree = jax.tree.flatten(network)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noisy = [leaf + jax.random.normal(key, leaf.shape) * 0.3 for key, leaf in zip(keys, leaves)]
    return jax.tree.unflatten(tree, noisy)


def by_hand(name, network, x):
    """[H, D] by the formulas of the papers, head by head."""
    silu = lambda y: y / (1 + np.exp(-y))
    network = jax.tree.map(np.asarray, network)
    if name == "blockwise":
        up, down = network["up_proj"], network["down_proj"]
        slices = np.maximum(x @ up["kernel"] + up["bias"], 0) @ down["kernel"] + down["bias"]
        return np.stack([x + slices[head * D : (head + 1) * D] for head in range(H)])
    states = []
    for head in range(H):
        own = slice(head * D, (head + 1) * D)
        y = x + silu(x @ network["kernel"][:, own] + network["bias"][own])
        for block in network.get("deeper", {}).values():
            y = y + silu(y @ block["kernel"][head] + block["bias"][own])
        states.append(y)
    return np.stack(states)


@pytest.mark.parametrize("name", CONFIGS)
def test_untrained_heads_say_what_the_target_says(name):
    heads, network = from_config(CONFIGS[name]), init_network(CONFIGS[name], 0, table())
    params = head_params(heads, network, IDS, TARGET, TARGET_PARAMS)
    own = np.asarray(table() @ FEATURE)
    np.testing.assert_allclose(heads.scores(params, FEATURE, H), np.tile(own, (H, 1)), rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_heads_are_the_papers_formulas(name):
    heads, network = from_config(CONFIGS[name]), randomized(CONFIGS[name])
    states = by_hand(name, network, np.asarray(FEATURE))
    np.testing.assert_allclose(heads.states(network, FEATURE), states, rtol=1e-4, atol=1e-5)
    params = head_params(heads, network, IDS, TARGET, TARGET_PARAMS)
    rows = np.asarray(network["lm_head"]) if heads.has_projection else np.tile(table(), (H, 1, 1))
    scores = np.einsum("hkd,hd->hk", rows, states)
    np.testing.assert_allclose(heads.scores(params, FEATURE, 2), scores[:2], rtol=1e-4, atol=1e-4)
    likeliest = heads.likeliest(params, FEATURE, (1, 3))
    assert [found.tolist() for found in likeliest] == [
        IDS[np.argsort(-scores[head], kind="stable")[:count]].tolist() for head, count in enumerate((1, 3))
    ]


def test_a_head_with_a_projection_of_its_own_needs_no_rows_of_the_target():
    heads = from_config(CONFIGS["medusa with projections"])
    network = init_network(heads.config, 0, table())
    assert head_params(heads, network, IDS, TARGET, TARGET_PARAMS).table is None
    with pytest.raises(ValueError, match="give table"):
        init_network(heads.config, 0)


def test_all_ids_share_the_targets_own_array():
    config = dataclasses.replace(CONFIGS["medusa"], num_ids=V)
    heads = from_config(config)
    params = head_params(heads, init_network(config, 0), np.arange(V), TARGET, TARGET_PARAMS)
    assert params.table is TARGET_PARAMS["embed_tokens"]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_weight_has_axes(name):
    network, axes = init_network(CONFIGS[name], 0, table()), logical_axes(CONFIGS[name])
    assert all(jax.tree.leaves(jax.tree.map(lambda leaf, names: leaf.ndim == len(names), network, axes)))


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
        MedusaConfig(num_heads=0, width=D, num_ids=4)
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got -1"):
        BlockwiseConfig(num_heads=1, width=D, num_ids=4, hidden_size=-1)


TRAINED_FOR = folder.TrainedFor(weights_sha256=SHA, vocab_size=V, taps=("final",), identity="tiny")
TABLES = [np.full((H, 10), 0.25, np.float32), np.full((H, 10), 0.5, np.float32)]


@pytest.fixture
def saved(tmp_path):
    """A folder of each kind."""

    def save(name="medusa of two blocks", trained_for=TRAINED_FOR, ids=IDS):
        path = tmp_path / name.replace(" ", "-")
        folder.save(path, CONFIGS[name], randomized(CONFIGS[name]), ids, trained_for, TABLES, "Figures.\n")
        return path

    return save


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_gives_back_what_was_saved(saved, name):
    path = saved(name)
    loaded = folder.load(path, TARGET, TARGET_PARAMS, SHA)
    assert loaded.heads == from_config(CONFIGS[name])
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), randomized(CONFIGS[name]))
    jax.tree.map(np.testing.assert_array_equal, loaded.params.network, rounded)
    np.testing.assert_array_equal(loaded.params.ids, IDS)
    np.testing.assert_array_equal(loaded.rank_accuracies, TABLES[0])
    np.testing.assert_array_equal(loaded.conditional_rank_accuracies, TABLES[1])
    assert folder.is_heads(path) and folder.read_target(path) == TRAINED_FOR


def test_heads_of_another_target_are_refused_with_all_that_differs(saved):
    path = saved()
    with pytest.raises(ValueError, match=r"another target, tiny: weights_sha256 a+ there, b+ here"):
        folder.load(path, TARGET, TARGET_PARAMS, "b" * 64)
    other = dataclasses.replace(TARGET_CONFIG, vocab_size=V + 4)
    with pytest.raises(ValueError, match=rf"vocab_size {V} there, {V + 4} here; taps .* there, \(\) here"):
        folder.load(path, model_from_config(other), {}, SHA)
    wider = dataclasses.replace(TARGET_CONFIG, hidden_size=16)
    with pytest.raises(ValueError, match="hidden_size 8 there, 16 here"):
        folder.load(path, model_from_config(wider, ("final",)), {}, SHA)


def test_damaged_folders_are_named(saved, tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        folder.load(tmp_path / "nowhere", TARGET, TARGET_PARAMS, SHA)
    path = saved(ids=np.array([0, 1, 2, 3, V], np.int32))
    with pytest.raises(ValueError, match=f"ids reach {V}"):
        folder.load(path, TARGET, TARGET_PARAMS, SHA)
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "blocks": 1}))
    with pytest.raises(ValueError, match=r"tensors do not match config.json: deeper.0.bias, deeper.0.kernel"):
        folder.load(path, TARGET, TARGET_PARAMS, SHA)
    (path / "config.json").write_text(json.dumps({**settings, "kind": "hydra"}))
    with pytest.raises(ValueError, match="kind 'hydra'; heads are medusa or blockwise"):
        folder.load(path, TARGET, TARGET_PARAMS, SHA)
    assert not folder.is_heads(path)
    (path / "config.json").write_text(json.dumps(settings))
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(ValueError, match="is not a safetensors file"):
        folder.load(path, TARGET, TARGET_PARAMS, SHA)
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors beside config\.json"):
        folder.load(path, TARGET, TARGET_PARAMS, SHA)
    shutil.rmtree(path)
    assert not folder.is_heads(path)


@pytest.mark.parametrize(
    ("taps", "match"),
    [
        ((3,), "feature layer 3: the target has 0 .*2"),
        ((-1,), "feature layer -1"),
        ((1, 1), "1 is named twice"),
    ],
)
def test_layers_that_are_not_there_or_named_twice(saved, taps, match):
    with pytest.raises(ValueError, match=match):
        folder.check_taps(taps, 2)
    with pytest.raises(ValueError, match=match):
        folder.load(
            saved(trained_for=dataclasses.replace(TRAINED_FOR, taps=taps)), TARGET, TARGET_PARAMS, SHA
        )
    folder.check_taps((0, 2, "final"), 2)
