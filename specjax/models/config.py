"""What distinguishes one decoder from another: a frozen, hashable description."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from specjax.models.rope import Scaling

Norm = Literal["rms", "rms_plus_one", "layer"]
Bias = Literal["none", "qkv", "all"]
Activation = Literal["silu", "gelu_pytorch_tanh", "gelu_new"]
PositionEmbedding = Literal["rope", "learned"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Shape and mathematics of a decoder; names as in a Hugging Face ``config.json``.

    The defaults are Llama's. Every other family is a set of changes to them,
    listed in its file of :mod:`specjax.models.families`.

    Raises:
      ValueError: a choice that does not exist, windows for another number of
        layers, query heads that do not divide over the key/value heads, or an
        odd head size under RoPE.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    model_type: str = "llama"  # whose names and layouts its files have; changes no mathematics
    # Positions
    position_embedding: PositionEmbedding = "rope"
    rope_theta: float = 10_000.0
    rope_scaling: Scaling | None = None
    rope_local_base_freq: float | None = None  # theta of the layers with a window, never scaled
    sliding_windows: tuple[int | None, ...] = ()  # one per layer, None sees everything; () for no window
    # Norms
    norm: Norm = "rms"
    rms_norm_eps: float = 1e-5  # of every norm, LayerNorm too
    post_norms: bool = False  # a norm after each sublayer as well as before
    qk_norm: bool = False
    # Attention
    attention_bias: Bias = "none"
    fused_qkv: bool = False  # one kernel [D, 3 D] for queries, keys and values
    query_pre_attn_scalar: float | None = None  # scores are divided by its root; None is head_dim
    attn_logit_softcapping: float | None = None
    # MLP
    hidden_act: Activation = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False
    # Both ends
    scale_embeddings: bool = False  # by the root of hidden_size
    tie_word_embeddings: bool = True
    final_logit_softcapping: float | None = None
    dtype: str = "float32"  # of weights and activations; logits and softmax are float32

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name} {value!r} is not supported, only {', '.join(choices)}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.fused_qkv and self.num_key_value_heads != self.num_attention_heads:
            raise ValueError("fused_qkv needs as many key/value heads as query heads")
        if self.position_embedding == "rope" and self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even: RoPE rotates pairs")
        windows = self.sliding_windows
        if windows and (len(windows) != self.num_hidden_layers or not any(windows)):
            raise ValueError(
                f"sliding_windows {windows} must name a window, or None, for each of the "
                f"{self.num_hidden_layers} layers, or be () when no layer has one"
            )
        if any(window is not None and window < 1 for window in windows):
            raise ValueError(f"sliding_windows {windows}: a window holds at least 1 token")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        return self.sliding_windows or (None,) * self.num_hidden_layers


CHOICES: dict[str, tuple[str, ...]] = {
    "position_embedding": get_args(PositionEmbedding),
    "norm": get_args(Norm),
    "attention_bias": get_args(Bias),
    "hidden_act": get_args(Activation),
}
