"""A model folder in Hugging Face's format, opened as a checkpoint."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

from etils import epath
from tokenizers import Tokenizer

from specjax.data.chat import ChatTemplate, choose_template
from specjax.data.tokenizers import load_tokenizer
from specjax.models import safetensors_file
from specjax.models.checkpoint import Identity, StoredTensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PROVENANCE = "provenance.json"  # an Identity, beside config.json
CHAT_TEMPLATE = "chat_template.jinja"

READ_SIZE = 2**22  # bytes hashed at a time


class Folder:
    """``config.json``, one or more safetensors files, ``tokenizer.json``; a :class:`Checkpoint`.

    ``identity`` is what ``provenance.json`` says, else what is given, else the
    folder's name.
    """

    def __init__(self, folder: epath.PathLike, identity: Identity | None = None):
        self.path = epath.Path(folder)
        self._given = identity

    @property
    def where(self) -> str:
        return str(self.path)

    @functools.cached_property
    def identity(self) -> Identity:
        path = self.path / PROVENANCE
        if self._given is not None or not path.exists():
            return self._given or Identity(source=self.path.name)
        stated = read_json(path)
        fields = {name: stated.get(name, "") for name in Identity.__dataclass_fields__}
        if not all(isinstance(value, str) for value in fields.values()) or not fields["source"]:
            raise ValueError(f"{path} must name its source, revision, quantization and sha256 as strings")
        return Identity(**fields)

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    @functools.cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        for path in self._weight_files():
            found = safetensors_file.open_file(path)
            if twice := sorted(tensors.keys() & found.keys()):
                raise ValueError(f"{path}: {', '.join(twice)} stored in another file as well")
            tensors |= found
        return tensors

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.path)

    def chat_template(self) -> ChatTemplate | None:
        """From ``chat_template.jinja``, else from ``tokenizer_config.json``."""
        stated = self._optional("tokenizer_config.json")
        alone = self.path / CHAT_TEMPLATE
        where = str(self.path / "tokenizer_config.json")
        text = _read(alone) if alone.exists() else choose_template(stated.get("chat_template"), where)
        if text is None:
            return None
        tokens = {name: _token(stated.get(name)) for name in ("bos_token", "eos_token")}
        return ChatTemplate(text=text, **tokens)

    def stop_tokens(self) -> tuple[int, ...]:
        """``eos_token_id`` of generation_config.json, else of config.json; one id, several or none."""
        for file in ("generation_config.json", "config.json"):
            ids = self._optional(file).get("eos_token_id")
            if ids is not None:
                stops = tuple(ids) if isinstance(ids, list) else (ids,)
                size = self.settings.get("vocab_size", 0)
                if any(type(stop) is not int or not 0 <= stop < size for stop in stops):
                    raise ValueError(f"{self.path / file}: eos_token_id {ids!r} must be ids in 0..{size - 1}")
                return stops
        return ()

    def companion(self, name: str) -> epath.Path | None:
        path = self.path / name
        return path if path.exists() else None

    def weights_hash(self) -> str:
        digest = hashlib.sha256()
        for path in self._weight_files():
            update_from_file(digest, path)
        return digest.hexdigest()

    def _optional(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name) if (self.path / name).exists() else {}

    def _weight_files(self) -> list[epath.Path]:
        names = [WEIGHTS]
        if (self.path / INDEX).exists():
            weight_map = read_json(self.path / INDEX).get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
                raise ValueError(f"{self.path / INDEX} has no weight_map that names a file for each tensor")
            names = sorted(set(weight_map.values()))
        absent = [name for name in names if not (self.path / name).exists() or (self.path / name).is_dir()]
        if absent:
            raise ValueError(f"{self.path} lacks {', '.join(absent)}")
        return [self.path / name for name in names]


def update_from_file(digest: Any, path: epath.Path) -> None:
    """Feeds a file to a hash, a piece at a time."""
    with path.open("rb") as file:
        while piece := file.read(READ_SIZE):
            digest.update(piece)


def read_json(path: epath.Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError when it is missing or holds anything else."""
    if not path.exists():
        raise ValueError(f"no {path.name} in {path.parent}")
    try:
        content = json.loads(_read(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def _read(path: epath.Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _token(stated: Any) -> str:
    """A special token of ``tokenizer_config.json``: text, or an object that holds it."""
    token = stated.get("content") if isinstance(stated, dict) else stated
    return token if isinstance(token, str) else ""
