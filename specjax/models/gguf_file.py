"""A GGUF file, opened as a checkpoint: parsing and dequantizing by the ``gguf`` package.

Settings come from the metadata, tensors get Hugging Face's names and layouts,
and quantized ones become float32 when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
import hashlib
import math
from typing import Any, TypeVar

from etils import epath
import gguf
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from specjax.data import gguf_tokenizer
from specjax.data.chat import ChatTemplate
from specjax.models.checkpoint import Identity, StoredTensor
from specjax.models.folder import update_from_file
from specjax.models.gguf_settings import settings_from_metadata, stored_names

Found = TypeVar("Found")

PLAIN = ("F32", "F16", "BF16")
QUANTIZATIONS = (*PLAIN, "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")


class GGUFFile:
    """One ``.gguf`` file; a :class:`Checkpoint`.

    Raises ValueError, with the byte or the tensor, for a file that is cut
    short, of another format, or quantized in a way not listed in QUANTIZATIONS.
    """

    def __init__(self, path: epath.PathLike):
        self.path = epath.Path(path)

    @property
    def where(self) -> str:
        return str(self.path)

    @functools.cached_property
    def identity(self) -> Identity:
        sizes: dict[str, int] = {}
        for tensor in self._reader.tensors:
            sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + int(tensor.n_elements)
        most = max(sizes, key=lambda name: sizes[name])
        kind = next((name for name in QUANTIZATIONS if f".{name}." in self.path.name), most)
        quantization = "" if kind in PLAIN else kind
        return Identity(source=self.path.name, quantization=quantization, sha256=self.weights_hash())

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        return {name: field.contents() for name, field in self._reader.fields.items()}

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        metadata, tensors = self.metadata, self._by_gguf_name()
        try:
            return settings_from_metadata(metadata, tensors)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error

    @functools.cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """By Hugging Face's names; a tensor that has none there keeps its own."""
        names = stored_names(self.settings)
        by_name = {}
        for name, tensor in self._by_gguf_name().items():
            heads = self._interleaved_heads(name)
            shape = tuple(int(size) for size in reversed(tensor.shape))
            read = functools.partial(_read, tensor, shape, heads)
            if name != "rope_freqs.weight":  # a setting in disguise
                by_name[names.get(name, name)] = StoredTensor(shape=shape, read=read)
        return by_name

    def tokenizer(self) -> Tokenizer:
        metadata = self.metadata
        try:
            return gguf_tokenizer.read_tokenizer(metadata)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error

    def chat_template(self) -> ChatTemplate | None:
        text = self.metadata.get("tokenizer.chat_template")
        special = gguf_tokenizer.special_token
        tokens = {f"{name}_token": self._special(special, name) for name in ("bos", "eos")}
        return ChatTemplate(text=text, **tokens) if text else None

    def stop_tokens(self) -> tuple[int, ...]:
        """The end of the text and, where it has an id of its own, the end of a turn."""
        ids = (self._special(gguf_tokenizer.special_id, name) for name in ("eos", "eot"))
        return tuple(dict.fromkeys(index for index in ids if index is not None))

    def companion(self, name: str) -> None:
        """One file holds all there is."""

    def weights_hash(self) -> str:
        digest = hashlib.sha256()
        update_from_file(digest, self.path)
        return digest.hexdigest()

    @functools.cached_property
    def _reader(self) -> gguf.GGUFReader:
        try:
            return _CheckedReader(self.path)
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise ValueError(f"{self.path} is not a readable GGUF file: {error}") from error

    def _special(self, look_up: Callable[[Mapping[str, Any], str], Found], name: str) -> Found:
        metadata = self.metadata
        try:
            return look_up(metadata, name)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error

    def _by_gguf_name(self) -> dict[str, gguf.ReaderTensor]:
        return {tensor.name: tensor for tensor in self._reader.tensors}

    def _interleaved_heads(self, name: str) -> int | None:
        """Heads of a q or k projection whose rows llama.cpp has reordered, for models of the Llama kind."""
        for end, count in ((".attn_q.", "num_attention_heads"), (".attn_k.", "num_key_value_heads")):
            if self.settings["model_type"] == "llama" and end in name:
                return self.settings[count]
        return None


class _CheckedReader(gguf.GGUFReader):
    """The package's reader, which slices past the end of a file without a word, made to look first."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> np.ndarray:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise ValueError(f"cut short: bytes {int(offset)} to {end} are wanted, it has {len(self.data)}")
        return super()._get(offset, dtype, count, override_order)

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        for field in fields:
            _, _, _, dims, kind, offset = field.parts
            known = {int(gguf.GGMLQuantizationType[name]): name for name in QUANTIZATIONS}
            if int(kind[0]) not in known:
                stated = {int(each): each.name for each in gguf.GGMLQuantizationType}.get(
                    int(kind[0]), kind[0]
                )
                raise ValueError(
                    f"{field.name} is quantized as {stated}, which is not one of {', '.join(QUANTIZATIONS)}"
                )
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(kind[0]))]
            end = start_offs + int(offset[0]) + math.prod(map(int, dims)) // block * size
            if end > len(self.data):
                raise ValueError(f"cut short: {field.name} ends at byte {end}, the file at {len(self.data)}")
        super()._build_tensors(start_offs, fields)


def _read(tensor: gguf.ReaderTensor, shape: tuple[int, ...], heads: int | None) -> np.ndarray:
    """A tensor in Hugging Face's layout: a view of the file if that is plain floating point."""
    if tensor.tensor_type.name == "BF16":
        stored = np.asarray(tensor.data).view(jnp.bfloat16)
    elif tensor.tensor_type.name in PLAIN:
        stored = np.asarray(tensor.data)
    else:
        stored = gguf.dequantize(tensor.data, tensor.tensor_type)
    stored = stored.reshape(shape)
    return stored if heads is None else halved(stored, heads)


def halved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection whose rotary pairs are neighbours, as llama.cpp wants them, as two halves again.

    >>> halved(np.array([0, 2, 1, 3]), heads=1)
    array([0, 1, 2, 3])
    """
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
