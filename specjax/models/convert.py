"""Any checkpoint as a model folder in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import json
from typing import Any

from etils import epath

from specjax.models import safetensors_file
from specjax.models.checkpoint import Checkpoint, Identity
from specjax.models.folder import CHAT_TEMPLATE, PROVENANCE, WEIGHTS


def convert(
    checkpoint: Checkpoint, folder: epath.PathLike, dtype: str, identity: Identity | None = None
) -> Iterator[str]:
    """Writes ``folder`` with weights of ``dtype``; yields the name of each tensor once it is written.

    Exact if ``dtype`` holds every weight. One tensor is in memory at a time.
    The folder appears when the last name has been yielded: a run that ends
    before leaves a folder of another name. ``identity`` defaults to the
    checkpoint's own, and lies in ``provenance.json``.
    """
    folder = epath.Path(folder)
    partial = folder.parent / f"{folder.name}.partial"
    if partial.exists():
        partial.rmtree()
    partial.mkdir(parents=True)
    yield from safetensors_file.write_file(partial / WEIGHTS, checkpoint.tensors, dtype)
    (partial / "tokenizer.json").write_text(checkpoint.tokenizer().to_str(pretty=False))
    if (template := checkpoint.chat_template()) is not None:
        (partial / CHAT_TEMPLATE).write_text(template.text)
    _write_json(partial / "config.json", {**checkpoint.settings, "dtype": dtype, "torch_dtype": dtype})
    _write_json(partial / "tokenizer_config.json", _tokenizer_config(checkpoint))
    _write_json(partial / "generation_config.json", {"eos_token_id": list(checkpoint.stop_tokens()) or None})
    _write_json(partial / PROVENANCE, dataclasses.asdict(identity or checkpoint.identity))
    if folder.exists():
        folder.rmtree()
    partial.rename(folder)


def _tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """What ``transformers`` wants beside a ``tokenizer.json``."""
    tokenizer, settings, stops = checkpoint.tokenizer(), checkpoint.settings, checkpoint.stop_tokens()
    begin, end = settings.get("bos_token_id"), stops[0] if stops else None
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if begin is None else tokenizer.id_to_token(begin),
        "eos_token": None if end is None else tokenizer.id_to_token(end),
        "model_max_length": settings["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: epath.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
