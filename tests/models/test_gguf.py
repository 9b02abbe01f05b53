"""GGUF files against the model and tokenizer they were written from."""

import dataclasses
import re

import gguf
import gguf_files
import jax
import numpy as np
import pytest

from specjax.models import gguf_file, gguf_settings, huggingface
from specjax.models.config import DecoderConfig
from specjax.models.language_model import init_params
from specjax.models.sources import open_checkpoint

CONFIG = DecoderConfig(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=256,  # a row of down_proj is one block of Q4_K
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def tokenizer():
    return gguf_files.tokenizer()


def random_params(config):
    shapes, random = jax.eval_shape(lambda: init_params(config, 0)), np.random.default_rng(0)
    return jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def params():
    return random_params(CONFIG)


@pytest.fixture(scope="module")
def path(tmp_path_factory, params, tokenizer):
    return gguf_files.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", CONFIG, params, tokenizer)


def refusal(path):
    with pytest.raises(ValueError) as caught:
        huggingface.load(path)
    return str(caught.value)


def test_float32_is_the_model_it_was_written_from(path, params):
    model, loaded = huggingface.load(path)
    assert model.config == CONFIG
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_without_undoing_the_reordering_it_is_another_model(path, params, monkeypatch):
    monkeypatch.setattr(gguf_file, "halved", lambda rows, heads: rows)
    attention = huggingface.load(path)[1]["layers"][0]["self_attn"]
    expected = params["layers"][0]["self_attn"]
    assert not np.array_equal(attention["q_proj"]["kernel"], expected["q_proj"]["kernel"])
    assert np.array_equal(attention["v_proj"]["kernel"], expected["v_proj"]["kernel"])


@pytest.mark.parametrize(
    ("kind", "error"),
    [("F16", 1e-3), ("BF16", 5e-3), ("Q8_0", 0.01), ("Q4_0", 0.2), ("Q4_1", 0.1)],
)
def test_each_type_is_near_what_was_stored(tmp_path, params, tokenizer, kind, error):
    kinds = {"token_embd.weight": kind, "blk.1.attn_q.weight": kind, "blk.1.ffn_down.weight": kind}
    path = gguf_files.write(tmp_path / "m.gguf", CONFIG, params, tokenizer, kinds=kinds)
    _, loaded = huggingface.load(path)
    for take in (
        lambda tree: tree["embed_tokens"],
        lambda tree: tree["layers"][1]["self_attn"]["q_proj"]["kernel"],
        lambda tree: tree["layers"][1]["mlp"]["down_proj"]["kernel"],
    ):
        got, stored = np.asarray(take(loaded)), np.asarray(take(params))
        assert 0 < np.abs(got - stored).max() <= error * np.abs(stored).max()


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_types_of_256_weights_a_block(tmp_path, params, tokenizer, kind):
    kinds = {"blk.0.ffn_down.weight": kind}
    path = gguf_files.write(tmp_path / "m.gguf", CONFIG, params, tokenizer, kinds=kinds)
    got = huggingface.load(path)[1]["layers"][0]["mlp"]["down_proj"]["kernel"]
    quantization = gguf.GGMLQuantizationType[kind]
    blocks = gguf_files.encoded(np.zeros((32, 256)), quantization)
    np.testing.assert_array_equal(np.asarray(got).T, gguf.dequantize(blocks, quantization))


def test_one_block_of_q4_k_by_hand():
    """d = 2, dmin = 1, all scales 3, all minima 5, all weights 7: 2 * 3 * 7 - 1 * 5 = 37."""
    halves = np.array([2, 1], np.float16).view(np.uint8)
    scales = [3] * 4 + [5] * 4 + [5 << 4 | 3] * 4
    block = np.concatenate([halves, np.array(scales, np.uint8), np.full(128, 0x77, np.uint8)])
    assert set(gguf.dequantize(block[None], gguf.GGMLQuantizationType.Q4_K).ravel()) == {37}


def test_tokenizer_is_the_original_on_text(path, tokenizer):
    rebuilt = open_checkpoint(path).tokenizer()
    texts = [*gguf_files.TEXTS, "", " 007  8", "<|im_start|>user\n3.14<|im_end|>", "a\r\n\tb  ", "日本 12½"]
    for text in texts:
        assert rebuilt.encode(text).ids == tokenizer.encode(text).ids
        assert rebuilt.decode(rebuilt.encode(text).ids, skip_special_tokens=False) == text
    assert rebuilt.get_vocab() == tokenizer.get_vocab()


def test_chat_template_and_ends(path):
    checkpoint = open_checkpoint(path)
    prompt = checkpoint.chat_template().render([{"role": "user", "content": "Hi"}])
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert checkpoint.stop_tokens() == (2,)
    assert (checkpoint.chat_template().bos_token, checkpoint.chat_template().eos_token) == (
        "<|im_start|>",
        "<|im_end|>",
    )


def test_unused_tokens_are_padding_of_the_vocabulary(tmp_path, tokenizer):
    config = dataclasses.replace(CONFIG, vocab_size=304)
    path = gguf_files.write(tmp_path / "m.gguf", config, random_params(config), tokenizer, padding=4)
    assert open_checkpoint(path).tokenizer().get_vocab_size() == 300
    assert huggingface.load(path)[0].vocab_size == 304


def test_identity_names_the_quantization_and_the_file(tmp_path, params, tokenizer, path):
    assert open_checkpoint(path).identity.quantization == ""
    kinds = {f"blk.{n}.ffn_{part}.weight": "Q4_1" for n in (0, 1) for part in ("up", "gate", "down")}
    quantized = gguf_files.write(tmp_path / "m.gguf", CONFIG, params, tokenizer, kinds=kinds)
    identity = open_checkpoint(quantized).identity
    assert (identity.source, identity.quantization) == ("m.gguf", "Q4_1")
    assert identity.sha256 == huggingface.weights_hash(quantized)


@pytest.mark.parametrize(
    ("metadata", "rope"),
    [
        ({"rope.freq_base": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.5},
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
        ),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
            },
            {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_rope(tmp_path, params, tokenizer, metadata, rope):
    path = gguf_files.write(tmp_path / "m.gguf", CONFIG, params, tokenizer, metadata=metadata)
    assert open_checkpoint(path).settings["rope_parameters"] == rope


def test_divisors_of_frequencies_are_the_scaling_of_llama_3(tmp_path, params, tokenizer):
    """Frequencies of head_dim 8 at theta 1e6: untouched, between, divided by 8."""
    wavelengths = 2 * np.pi * 1e6 ** (np.arange(0, 8, 2) / 8)
    smooth = (8192 / wavelengths - 1) / 3
    between = 1 / ((1 - smooth) / 8 + smooth)
    factors = np.where(wavelengths > 8192, 8, np.where(wavelengths < 2048, 1, between))
    metadata = {"rope.freq_base": 1e6}
    write = lambda name, divisors: gguf_files.write(
        tmp_path / name,
        CONFIG,
        params,
        tokenizer,
        metadata=metadata,
        extra={"rope_freqs.weight": divisors.astype(np.float32)},
    )
    rope = open_checkpoint(write("a.gguf", factors)).settings["rope_parameters"]
    assert rope["rope_type"] == "llama3" and rope["factor"] == 8
    assert huggingface.load(tmp_path / "a.gguf")[0].config.rope_scaling is not None
    assert "cannot be stated as settings" in refusal(write("b.gguf", factors[::-1]))


def test_cut_short_anywhere_is_told(tmp_path, path):
    content = path.read_bytes()
    checkpoint = open_checkpoint(path)
    last = checkpoint._reader.tensors[-1]
    for length, told in (
        (len(content) - 40, f"cut short: {last.name} ends at byte"),
        (200, "cut short: bytes"),
        (10, "cut short: bytes"),
        (0, "not a readable GGUF file"),
    ):
        broken = tmp_path / "cut.gguf"
        broken.write_bytes(content[:length])
        assert told in refusal(broken)


def test_other_files_and_corrupt_lengths(tmp_path, path):
    broken = tmp_path / "other.gguf"
    broken.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "GGUF magic invalid" in refusal(broken)
    content = bytearray(path.read_bytes())
    at = content.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    content[at : at + 8] = (2**60).to_bytes(8, "little")  # tokens, says the file
    broken.write_bytes(content)
    assert "cut short: bytes" in refusal(broken)
    assert "no file" in refusal(tmp_path / "nowhere.gguf")


def test_unknown_quantization_names_the_tensor(tmp_path, path):
    reader = open_checkpoint(path)._reader
    tensor = next(each for each in reader.tensors if each.name == "blk.1.ffn_up.weight")
    at = tensor.field.offset + sum(part.nbytes for part in tensor.field.parts[:4])
    content = bytearray(path.read_bytes())
    for kind, name in ((99, "99"), (int(gguf.GGMLQuantizationType.IQ2_XS), "IQ2_XS")):
        content[at : at + 4] = kind.to_bytes(4, "little")
        broken = tmp_path / "unknown.gguf"
        broken.write_bytes(content)
        assert f"blk.1.ffn_up.weight is quantized as {name}, which is not one of F32" in refusal(broken)


def test_every_tensor_is_accounted_for(tmp_path, params, tokenizer):
    path = gguf_files.write(
        tmp_path / "m.gguf", CONFIG, params, tokenizer, extra={"blk.0.attn_q.bias": np.zeros(32, np.float32)}
    )
    assert re.search(r"unexpected: \S*blk.0.attn_q.bias", refusal(path))
    path = gguf_files.write(tmp_path / "n.gguf", CONFIG, params, tokenizer, metadata={"block_count": 3})
    assert "missing: model.layers.2.input_layernorm.weight" in refusal(path)


@pytest.mark.parametrize(
    ("metadata", "architecture", "told"),
    [
        ({"embedding_length": None}, "llama", "lacks llama.embedding_length"),
        ({"rope.dimension_count": 4}, "llama", "rotates 4 of each head's 8 features"),
        ({"rope.scaling.type": "longrope"}, "llama", "rope.scaling.type 'longrope' is not supported"),
        ({}, "mamba", "architecture 'mamba' is not supported in GGUF, only llama, qwen2, qwen3"),
    ],
)
def test_unsupported_settings(tmp_path, params, tokenizer, metadata, architecture, told):
    path = gguf_files.write(
        tmp_path / "m.gguf", CONFIG, params, tokenizer, metadata=metadata, architecture=architecture
    )
    assert told in refusal(path)


def test_names_of_every_tensor_of_every_architecture():
    for kind in gguf_settings.ARCHITECTURES:
        settings = {
            "model_type": kind,
            "vocab_size": 8,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 8,
        }
        names = gguf_settings.stored_names(settings)
        assert {"token_embd.weight", "output_norm.weight", "output.weight"} < names.keys()
        assert not [name for name in names if name.startswith("None")]
