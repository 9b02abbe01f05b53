"""Small GGUF files, written with the ``gguf`` package as llama.cpp's converter would."""

from __future__ import annotations

import json

import gguf
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specjax.models import families
from specjax.models.config import DecoderConfig

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["In 1984 there were 12 cats.  And 345 dogs!", "def f(x):\n    return x**2  # naïve ¾ \U0001f34e\n"]
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tokenizer(vocab_size: int = 300) -> Tokenizer:
    """With SmolLM's way of splitting: every digit alone, then GPT-2's words."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS * 4, trainer)
    return made


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    stem, _, end = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{end}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{LAYER[rest]}.{end}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """The reordering that llama.cpp's converter makes of q and k: rotary pairs become neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write(
    path,
    config: DecoderConfig,
    params,
    made: Tokenizer,
    *,
    kinds: dict[str, str] | None = None,
    metadata: dict | None = None,
    extra: dict[str, np.ndarray] | None = None,
    architecture: str = "llama",
    padding: int = 0,
):
    """Tensors are F32 but for ``kinds`` (GGUF's name -> type); ``metadata`` of None drops a key."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
    }
    sizes |= {key: value for key, value in (metadata or {}).items() if value is None or type(value) is int}
    for key, value in sizes.items():
        if value is not None:
            writer.add_uint32(f"{architecture}.{key}", value)
    for key, value in (metadata or {}).items():
        if isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        elif isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    _write_tokenizer(writer, made, padding)
    tensors = {name: np.asarray(leaf) for name, leaf in families.stored(config, params).items()}
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(gguf_name(name), "F32")]
        for end, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if architecture == "llama" and f".{end}." in name:
                values = interleaved(values, heads)
        writer.add_tensor(gguf_name(name), encoded(values, kind), raw_dtype=kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encoded(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Bytes of a tensor; for the types the package cannot write, blocks of small random numbers."""
    if kind.name in ("Q4_K", "Q6_K"):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (*values.shape[:-1], values.shape[-1] // block, size)
        blocks = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        scale = np.frombuffer(np.float16(1e-3).tobytes(), np.uint8)
        blocks[..., :2] = scale  # Q4_K: d, dmin; Q6_K: its d comes last
        blocks[..., 2:4] = scale
        blocks[..., -2:] = scale
        return blocks.reshape(*values.shape[:-1], -1)
    return gguf.quantize(np.ascontiguousarray(values, np.float32), kind)


def _write_tokenizer(writer: gguf.GGUFWriter, made: Tokenizer, padding: int) -> None:
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    kinds = [3 if token in SPECIAL else 1 for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens + [f"[PAD{index}]" for index in range(padding)])
    writer.add_token_types(kinds + [5] * padding)
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """``values`` as bfloat16 rounds them, in float32."""
    return np.asarray(jnp.asarray(values, jnp.bfloat16), np.float32)
