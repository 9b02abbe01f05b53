"""Settings of config.json in all their spellings; no array is made here."""

import dataclasses

import jax
import pytest

from specjax.models import families
from specjax.models.decoder import DecoderConfig
from specjax.models.families import by_usual_name, config_from_json, config_to_json
from specjax.models.rope import Linear, Llama3, Yarn

SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 30, "n_embd": 16, "n_layer": 4, "n_head": 4, "n_positions": 128}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
FULL, SLIDING = "full_attention", "sliding_attention"


def read(family, **settings):
    base = GPT2 if family == "gpt2" else {**SIZES, "model_type": family}
    return config_from_json({**base, **settings})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        ),
        (
            {"rope_scaling": {**YARN, "attention_factor": None, "truncate": False}},
            {"rope_parameters": {**YARN, "truncate": False}},
        ),
        ({"rope_scaling": LLAMA3}, {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 128}}),
        ({"rope_scaling": None, "rope_theta": 10000}, {}),
    ],
)
def test_rope_of_transformers_4_and_5(old, new):
    assert read("llama", **old) == read("llama", **new)
    assert read("llama", **old, **new) == read("llama", **new)


def test_scalings_are_read_whole():
    assert read("llama", rope_scaling={"type": "linear", "factor": 2}).rope_scaling == Linear(factor=2.0)
    llama3 = {**LLAMA3, "original_max_position_embeddings": 64}
    assert read("llama", rope_parameters=llama3).rope_scaling == Llama3(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    )
    yarn = read("llama", rope_scaling={**YARN, "beta_fast": 16, "mscale": 1.0, "mscale_all_dim": 1.0})
    assert yarn.rope_scaling == Yarn(
        factor=4.0, original_max_position_embeddings=32, beta_fast=16.0, attention_factor=1.0
    )


def test_the_two_ropes_of_gemma_3():
    old = {"rope_theta": 1e5, "rope_local_base_freq": 5e3, "rope_scaling": {"type": "linear", "factor": 8.0}}
    new = {
        FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
        SLIDING: {"rope_type": "default", "rope_theta": 5e3},
    }
    assert read("gemma3_text", **old) == read("gemma3_text", rope_parameters=new)
    defaults = read("gemma3_text")
    assert (defaults.rope_theta, defaults.rope_local_base_freq, defaults.rope_scaling) == (1e6, 1e4, None)


@pytest.mark.parametrize(
    ("model_type", "settings", "windows"),
    [
        ("llama", {}, ()),
        ("mistral", {}, (4096,) * 4),
        ("mistral", {"sliding_window": None}, ()),
        ("qwen2", {"sliding_window": 9}, ()),
        (
            "qwen2",
            {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3},
            (None,) * 3 + (9,),
        ),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": True}, ()),
        (
            "qwen3",
            {"sliding_window": 9, "use_sliding_window": True, "layer_types": [SLIDING, FULL, FULL, SLIDING]},
            (9, None, None, 9),
        ),
        ("gemma2", {"sliding_window": 9}, (9, None, 9, None)),
        ("gemma3_text", {"sliding_window": 9}, (9,) * 4),
        ("gemma3_text", {"sliding_window": 9, "sliding_window_pattern": 2}, (9, None, 9, None)),
        (
            "gemma3_text",
            {"sliding_window": 9, "layer_types": [FULL, FULL, SLIDING, FULL]},
            (None, None, 9, None),
        ),
        ("gpt2", {}, ()),
    ],
)
def test_windows(model_type, settings, windows):
    assert read(model_type, **settings).sliding_windows == windows


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("llama", {"head_dim": 4, "tie_word_embeddings": False, "rms_norm_eps": 1e-6}),
        ("qwen2", {"head_dim": 4, "attention_bias": "qkv", "qk_norm": False}),
        ("qwen3", {"head_dim": 128, "attention_bias": "none", "qk_norm": True}),
        (
            "gemma2",
            {
                "head_dim": 256,
                "query_pre_attn_scalar": 256,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
                "tie_word_embeddings": True,
            },
        ),
        ("gemma3_text", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "qk_norm": True}),
        (
            "gpt2",
            {
                "intermediate_size": 64,
                "num_key_value_heads": 4,
                "rms_norm_eps": 1e-5,
                "hidden_act": "gelu_new",
            },
        ),
    ],
)
def test_absent_settings_mean_what_they_mean_to_transformers(model_type, expected):
    config = read(model_type)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize("model_type", families.FAMILIES)
def test_a_config_survives_its_file(model_type):
    settings = {"n_inner": 20, "layer_norm_epsilon": 1e-3} if model_type == "gpt2" else {"rope_theta": 77.0}
    config = read(model_type, **settings)
    written = config_to_json(config, "bfloat16", end_of_text=None)
    assert config_from_json(written) == config
    assert written["architectures"] == [families.FAMILIES[model_type].architecture]


def test_a_family_that_cannot_express_a_config_is_refused():
    config = dataclasses.replace(read("llama"), qk_norm=True, norm="layer")
    with pytest.raises(
        ValueError, match=r"a config\.json of llama cannot express norm='layer', qk_norm=True"
    ):
        config_to_json(config, "float32", None)
    uneven = dataclasses.replace(read("gemma2"), sliding_windows=(3, None, 5, None))
    with pytest.raises(ValueError, match="cannot express sliding_windows"):
        config_to_json(uneven, "float32", None)


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        (
            "llama",
            {"model_type": "mamba"},
            "'mamba' is not supported, only llama, mistral, qwen2, qwen3, gemma2",
        ),
        ("llama", {"model_type": None}, "model_type None is not supported"),
        ("llama", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported, only silu, gelu"),
        ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 has no meaning for llama"),
        ("llama", {"sliding_window": 512}, "sliding_window 512 has no meaning for llama"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved True is not supported for llama, only False"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config .* is not supported"),
        ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps '1e-5' must be a positive number"),
        ("llama", {"rope_theta": -1}, "rope_theta -1 must be a number above 1"),
        (
            "llama",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "'dynamic' is not supported, only default",
        ),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling 'linear' must be an object"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "of type 'linear' lacks factor"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor 0 must be a positive number"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}}, "has no beta_fast"),
        ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "high_freq_factor 4.0 must be above"),
        ("llama", {"rope_parameters": {FULL: {}}}, "of type 'default' has no full_attention"),
        ("llama", {"rope_scaling": YARN, "rope_parameters": LLAMA3}, "contradicts rope_scaling"),
        (
            "llama",
            {"num_key_value_heads": 3},
            "num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        ("llama", {"head_dim": 5}, "head_dim 5 must be even"),
        ("mistral", {"sliding_window": 0}, "sliding_window 0 must be a whole number"),
        ("qwen2", {"layer_types": [SLIDING] * 4}, "sliding_window None must be a whole number"),
        ("qwen2", {"layer_types": [FULL]}, "for each of 4 layers"),
        (
            "qwen2",
            {"layer_types": ["chunked_attention"] * 4},
            "must name full_attention or sliding_attention",
        ),
        (
            "gemma2",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention True is not supported",
        ),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping 0 must be a positive number"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported"),
        ("gemma3_text", {"rope_parameters": {FULL: 3}}, "full_attention 3 must be an object"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 1e4}}, "not rope_theta"),
        ("gemma3_text", {"rope_parameters": {SLIDING: YARN}}, "type 'yarn' is not supported, only 'default'"),
        ("gpt2", {"n_embd": None}, "config.json lacks n_embd"),
        ("gpt2", {"n_layer": 2.0}, "n_layer 2.0 must be a whole number"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "is not supported for gpt2, only False"),
        ("gpt2", {"rope_theta": 1e4}, "rope_theta 10000.0 has no meaning for gpt2"),
    ],
)
def test_other_mathematics_is_refused(model_type, settings, message):
    with pytest.raises(ValueError, match=message):
        read(model_type, **settings)


def test_tensors_of_files_without_prefix_and_buffers():
    llama, gpt2 = read("llama"), read("gpt2")
    file = {"wte.weight": 0, "h.0.attn.bias": 1, "h.0.attn.c_attn.bias": 2, "transformer.ln_f.bias": 3}
    assert by_usual_name(gpt2, file) == {
        families.embedding_name(gpt2): 0,
        "transformer.h.0.attn.c_attn.bias": 2,
        "transformer.ln_f.bias": 3,
    }
    file = {"model.layers.0.self_attn.rotary_emb.inv_freq": 0, "lm_head.weight": 1}
    assert by_usual_name(llama, file) == {"lm_head.weight": 1}
    with pytest.raises(ValueError, match=r"transformer\.wte\.weight is stored twice"):
        by_usual_name(gpt2, {"wte.weight": 0, "transformer.wte.weight": 1})


def test_layouts():
    kernel, table = (jax.tree_util.DictKey("kernel"),), (jax.tree_util.DictKey("embed_tokens"),)
    array = jax.ShapeDtypeStruct((2, 3), "float32")
    shape = lambda config, path: jax.eval_shape(lambda x: families.as_stored(config, path, x), array).shape
    assert shape(read("llama"), kernel) == (3, 2)
    assert shape(read("gpt2"), kernel) == (2, 3)
    assert shape(read("llama"), table) == (2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm": "batch"}, "norm 'batch' is not supported, only rms, rms_plus_one, layer"),
        ({"sliding_windows": (3,)}, "for each of the 4 layers"),
        ({"sliding_windows": (None,) * 4}, r"or be \(\) when no layer has one"),
        ({"sliding_windows": (3, -1, None, 3)}, "a window holds at least 1 token"),
        ({"fused_qkv": True}, "fused_qkv needs as many key/value heads as query heads"),
    ],
)
def test_configs_that_make_no_model(change, message):
    sizes = {**SIZES, "head_dim": 4}
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**sizes, **change)
