"""What a family is: which settings its ``config.json`` has, and what its tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from specjax.models.config import DecoderConfig

Settings = dict[str, Any]  # the object in a config.json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture of ``transformers``, as changes to Llama."""

    architecture: str  # its class in transformers
    defaults: Settings  # optional settings, with what an absent one means
    fixed: Settings  # settings that would change the mathematics, with the one value computed here
    read: Callable[[Settings], dict[str, Any]]  # fields of DecoderConfig that are no plain sizes
    write: Callable[[DecoderConfig], Settings]  # its inverse
    ignored: frozenset[str] = frozenset()  # settings of other families that mean nothing here
    # Names: ours on the left, the files' on the right
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of a tensor's name
    prefix: str = "model"
    kernels_transposed: bool = True  # stored [out, in]
    buffers: tuple[str, ...] = ("inv_freq",)  # last words of stored arrays that are no weights

    def __hash__(self) -> int:
        return hash(self.architecture)

    def known(self) -> set[str]:
        """Every setting that this family gives a meaning."""
        return {*self.defaults, *self.fixed, *self.settings, *self.settings.values(), *self.ignored}
