"""Decoding: one round (``round.py``), the loop over it (``generate.py``), and the plain baseline."""

from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import decode, generate, prefill, stream
from specjax.decoding.program import Program, buffer_length

__all__ = ["Program", "autoregressive", "buffer_length", "decode", "generate", "prefill", "stream"]
