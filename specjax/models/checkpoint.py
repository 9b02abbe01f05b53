"""What a checkpoint holds, wherever it lies: a folder, the hub or a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, Protocol

from etils import epath
import numpy as np
from tokenizers import Tokenizer

from specjax.data.chat import ChatTemplate


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor of a checkpoint, untouched until it is read.

    ``read`` gives it as [out, in], a view of the mapped file where its type
    allows, else a new float32 array: keep one at a time.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """Which model this is. Two quantizations of one release are two models."""

    source: str  # a folder's or a file's name, hf://org/name, or what a folder was converted from
    revision: str = ""  # a commit of the hub, the version of a package
    quantization: str = ""  # of the stored weights: "" where they were never quantized
    sha256: str = ""  # of the one file it was made from

    def __str__(self) -> str:
        """
        >>> print(Identity(source="hf://org/name", revision="0123abc"))
        hf://org/name@0123abc
        >>> print(Identity(source="model.gguf", quantization="Q4_1", sha256="ab" * 32))
        model.gguf (Q4_1, sha256 abababababab)
        """
        where = f"{self.source}@{self.revision}" if self.revision else self.source
        details = [self.quantization, self.sha256 and f"sha256 {self.sha256[:12]}"]
        told = ", ".join(detail for detail in details if detail)
        return f"{where} ({told})" if told else where


class Checkpoint(Protocol):
    """Opened, and nothing read yet but settings and the list of tensors.

    Every complaint is a ValueError that names the file and what is wrong in it.
    """

    @property
    def where(self) -> str:
        """For messages."""
        ...

    @property
    def identity(self) -> Identity: ...

    @property
    def settings(self) -> dict[str, Any]:
        """As in a ``config.json``."""
        ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """By the names Hugging Face gives them."""
        ...

    def tokenizer(self) -> Tokenizer: ...

    def chat_template(self) -> ChatTemplate | None:
        """None where the checkpoint states none."""
        ...

    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end an answer; none where the checkpoint names none."""
        ...

    def companion(self, name: str) -> epath.Path | None:
        """A further file that lies beside the weights; None where there is none."""
        ...

    def weights_hash(self) -> str:
        """SHA-256 of the files that hold the weights, in order of their names."""
        ...
