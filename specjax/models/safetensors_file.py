"""One safetensors file, memory-mapped: its header checked to the byte, its tensors read when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import functools
import json
import math
import struct
from typing import Any, TypeGuard

from etils import epath
import jax.numpy as jnp
import numpy as np

from specjax.models.checkpoint import StoredTensor

DTYPES = {"BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}

LARGEST_HEADER = 100_000_000  # bytes; the limit of the format's reference implementation


def open_file(path: epath.Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Raises ValueError, naming the tensor or the byte, for a file that is no
    safetensors file, was cut short, or holds anything but floating point.
    """
    content = _map(path)
    header, start = _header(path, content)
    end, tensors = start, {}
    for name, entry in sorted(header.items(), key=lambda item: _first_byte(item[1])):
        dtype, shape, (first, last) = _entry(path, name, entry)
        size = math.prod(shape) * dtype.itemsize
        if start + first != end or last - first != size:
            raise ValueError(
                f"{path} is not a safetensors file: {name} {shape} takes {size} bytes from {end - start}, "
                f"the header says {first} to {last}"
            )
        end = start + last
        if end > len(content):
            raise ValueError(f"{path} is cut short: {name} ends at byte {end}, the file at {len(content)}")
        view = functools.partial(_view, content, start + first, end, dtype, shape)
        tensors[name] = StoredTensor(shape=shape, read=view)
    if end != len(content):
        raise ValueError(f"{path} is not a safetensors file: {len(content) - end} bytes follow its tensors")
    return tensors


def write_file(path: epath.Path, tensors: Mapping[str, StoredTensor], dtype: str) -> Iterable[str]:
    """Writes ``tensors`` as ``dtype``, one in memory at a time; yields each name once it is written.

    In the order of their names, as the format's reference implementation does.
    """
    kind, header, start = np.dtype(jnp.dtype(dtype)), {}, 0
    ordered = sorted(tensors.items())
    for name, tensor in ordered:
        end = start + math.prod(tensor.shape) * kind.itemsize
        header[name] = {"dtype": NAMES[kind], "shape": tensor.shape, "data_offsets": (start, end)}
        start = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in ordered:
            file.write(np.ascontiguousarray(tensor.read(), kind).tobytes())
            yield name


def _map(path: epath.Path) -> np.ndarray:
    """The bytes of a file: mapped where the system can, else read."""
    if "://" in str(path):
        return np.frombuffer(path.read_bytes(), np.uint8)
    if path.stat().length == 0:  # which nothing can map
        return np.zeros(0, np.uint8)
    return np.memmap(str(path), np.uint8, mode="r")


def _header(path: epath.Path, content: np.ndarray) -> tuple[dict[str, Any], int]:
    """(entries by tensor, the byte at which the data begins)."""
    size = struct.unpack("<Q", content[:8].tobytes())[0] if len(content) >= 8 else 0
    if not 2 <= size <= LARGEST_HEADER:
        raise ValueError(f"{path} is not a safetensors file: its header cannot have {size} bytes")
    if 8 + size > len(content):
        raise ValueError(
            f"{path} is cut short: its header ends at byte {8 + size}, the file at {len(content)}"
        )
    try:
        header = json.loads(content[8 : 8 + size].tobytes())
    except ValueError as error:
        raise ValueError(f"{path} is not a safetensors file: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is not a safetensors file: its header is a {type(header).__name__}")
    header.pop("__metadata__", None)
    return header, 8 + size


def _first_byte(entry: Any) -> int:
    """Where an entry begins; entries too broken to say so come first and are refused there."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    return offsets[0] if isinstance(offsets, list) and offsets and isinstance(offsets[0], int) else -1


def _entry(path: epath.Path, name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], tuple[int, int]]:
    """(dtype, shape, first and last byte of the data) that the header states for a tensor."""
    stated = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = (stated.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        raise ValueError(f"{path} is not a safetensors file: the entry of {name} is {entry!r}")
    if kind not in DTYPES:
        raise ValueError(f"{path}: {name} is {kind}, not one of {', '.join(DTYPES)}")
    return np.dtype(DTYPES[kind]), tuple(shape), (offsets[0], offsets[1])


def _whole(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(n) is int and n >= 0 for n in values)


def _view(content: np.ndarray, first: int, last: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(content[first:last]).view(dtype).reshape(shape)
