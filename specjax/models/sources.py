"""A source is what a config may name: a model folder, ``hf://org/name[@revision]``, or a ``.gguf`` file."""

from __future__ import annotations

import os

from etils import epath

from specjax.models.checkpoint import Checkpoint
from specjax.models.folder import Folder

# Imports inside: a folder needs neither huggingface_hub nor gguf.


def open_checkpoint(source: epath.PathLike) -> Checkpoint:
    """The checkpoint behind a source; of the hub's, files not in its cache are fetched.

    Raises ValueError for a file that is neither, and what :mod:`specjax.models.hub` raises.
    """
    name = os.fspath(source)
    if name.startswith("hf://"):
        from specjax.models import hub

        return hub.open_repository(name)
    path = epath.Path(source)
    if path.suffix == ".gguf":
        if not path.exists() or path.is_dir():
            raise ValueError(f"no file {path}")
        from specjax.models.gguf_file import GGUFFile

        return GGUFFile(path)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; a model is a folder, hf://org/name or a .gguf file")
    return Folder(path)


def is_source(name: str) -> bool:
    """Whether ``name`` has the form of a source rather than that of a plain word."""
    return "/" in name or name.endswith(".gguf") or epath.Path(name).is_dir()
