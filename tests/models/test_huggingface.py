import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from safetensors.flax import save as to_bytes

from specjax.data.tokenizers import train_tokenizer
from specjax.models import huggingface
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params

CONFIG = DecoderConfig(
    vocab_size=280,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=11,  # two digits: "10" sorts before "2"
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=6,
    max_position_embeddings=64,
    rope_theta=5e4,
)
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["def f(x):\n    return x\n"], vocab_size=280)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def pair(request):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=request.param)
    shapes, random = jax.eval_shape(lambda: init_params(config, 0)), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), leaf.dtype), shapes)
    return from_config(config), params


@pytest.fixture
def folder(pair, tokenizer, tmp_path):
    huggingface.save(tmp_path, *pair, tokenizer, dtype="float32")
    return tmp_path


def tensors(folder):
    with safetensors.safe_open(folder / WEIGHTS, framework="flax") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def edit_config(folder, **changes):
    settings = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        settings[name] = value
    (folder / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if v != "absent"}))


def assert_same(params, other):
    assert jax.tree.structure(params) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, params, other)


def test_round_trip_is_bit_equal(pair, folder):
    model, params = huggingface.load(folder)
    assert model == pair[0]
    assert_same(params, pair[1])


def test_bfloat16_file_loads_as_float32_and_saves_back_byte_for_byte(pair, tokenizer, tmp_path):
    huggingface.save(tmp_path / "a", *pair, tokenizer)
    model, params = huggingface.load(tmp_path / "a")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert_same(params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), pair[1]))
    huggingface.save(tmp_path / "b", model, params, tokenizer)
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()
    assert huggingface.weights_hash(tmp_path / "a") == huggingface.weights_hash(tmp_path / "b")


def test_sharded_folder(pair, folder):
    single = huggingface.weights_hash(folder)
    parts = list(tensors(folder).items())
    weight_map = {}
    for number, part in enumerate((parts[::2], parts[1::2])):
        name = f"model-{number}.safetensors"
        (folder / name).write_bytes(to_bytes(dict(part)))
        weight_map |= {tensor: name for tensor, _ in part}
    (folder / WEIGHTS).unlink()
    (folder / huggingface.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert_same(huggingface.load(folder)[1], pair[1])
    assert huggingface.weights_hash(folder) != single
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lacks model-1\.safetensors"):
        huggingface.load(folder)


def test_missing_unexpected_and_misshapen_tensors_are_named_in_one_error(folder):
    broken = tensors(folder)
    broken["model.layers.10.mlp.gate_proj.bias"] = broken.pop("model.layers.2.mlp.up_proj.weight")
    broken["model.norm.weight"] = jnp.zeros(3)
    (folder / WEIGHTS).write_bytes(to_bytes(broken))
    with pytest.raises(ValueError) as error:
        huggingface.load(folder)
    assert "missing: model.layers.2.mlp.up_proj.weight" in str(error.value)
    assert "unexpected: model.layers.10.mlp.gate_proj.bias" in str(error.value)
    assert "misshapen: model.norm.weight is (3,), not (8,)" in str(error.value)


def test_tying_follows_the_arrays(pair, tokenizer, tmp_path):
    huggingface.save(tmp_path, *pair, tokenizer, dtype="float32")
    tied = pair[0].config.tie_word_embeddings
    stored = tensors(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=not tied)
    message = "is true but lm_head.weight differs" if not tied else "is false but lm_head.weight is missing"
    with pytest.raises(ValueError, match=message):
        huggingface.load(tmp_path)
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
    (tmp_path / WEIGHTS).write_bytes(to_bytes(stored))
    edit_config(tmp_path, tie_word_embeddings=True)
    model, params = huggingface.load(tmp_path)
    assert model.config.tie_word_embeddings and "lm_head" not in params


def test_both_spellings_of_rope(folder):
    edit_config(folder, rope_theta="absent")
    assert huggingface.load(folder)[0].config.rope_theta == 5e4
    edit_config(folder, rope_parameters="absent", rope_theta=5e4)
    assert huggingface.load(folder)[0].config.rope_theta == 5e4
    edit_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    with pytest.raises(ValueError, match="contradicts"):
        huggingface.load(folder)
    edit_config(folder, rope_parameters={"rope_type": "dynamic", "rope_theta": 5e4})
    with pytest.raises(ValueError, match="rope_parameters of type 'dynamic'"):
        huggingface.load(folder)
    edit_config(folder, rope_parameters="absent", rope_scaling={"type": "longrope", "factor": 2.0})
    with pytest.raises(ValueError, match="rope_scaling of type 'longrope'"):
        huggingface.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported, only llama, mistral"),
        ({"attention_bias": True}, "missing: model.layers.0.self_attn.k_proj.bias"),
        ({"use_sliding_window": True}, "use_sliding_window True has no meaning for llama"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"hidden_size": "absent"}, "config.json lacks hidden_size"),
        ({"hidden_size": "8"}, "hidden_size '8' must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads 0 must be a whole number, at least 1"),
    ],
)
def test_other_mathematics_is_refused(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        huggingface.load(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (WEIGHTS, None, "lacks model.safetensors"),
        (WEIGHTS, b"no weights", "is not a safetensors file"),
        ("config.json", None, "no config.json in"),
        ("config.json", b"{", "is not JSON"),
        ("config.json", b"\xff", "config.json cannot be read"),
        ("config.json", b"[]", "holds a list, not an object"),
    ],
)
def test_unreadable_folders(folder, name, content, message):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        huggingface.load(folder)


def test_integer_weights_are_refused(folder):
    broken = tensors(folder) | {"model.norm.weight": jnp.zeros(8, jnp.int8)}
    (folder / WEIGHTS).write_bytes(to_bytes(broken))
    with pytest.raises(ValueError, match=r"model\.norm\.weight is I8, not one of BF16"):
        huggingface.load(folder)
