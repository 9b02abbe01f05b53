"""Which files of responses a run trains on, and which it is evaluated on."""

from __future__ import annotations

from collections.abc import Sequence
import json

from etils import epath

from specjax.models.checkpoint import Checkpoint


def split_files(
    folders: Sequence[str] | str, held_out: int, checkpoint: Checkpoint
) -> tuple[list[epath.Path], list[epath.Path]]:
    """(training, held out): the first ``held_out`` files of every folder are held out.

    ValueError for a folder without enough files, or written by another target.
    """
    if held_out < 1:
        raise ValueError(f"config.held_out_files: must be at least 1, got {held_out}")
    training: list[epath.Path] = []
    kept: list[epath.Path] = []
    named = [folders] if isinstance(folders, str) else folders or ("",)
    places = [epath.Path(folder) for folder in named]
    if twice := [folder for folder in places if places.count(folder) > 1]:
        raise ValueError(f"config.responses: {twice[0]} is named twice, so its responses would count double")
    for folder in named:
        files = sorted(epath.Path(folder or ".").glob("responses-*.jsonl")) if folder else []
        if len(files) <= held_out:
            raise ValueError(
                f"config.responses: {len(files)} files responses-*.jsonl in {folder!r}; "
                f"{held_out} are held out and at least one more is needed"
            )
        written_by = _weights_of(epath.Path(folder) / "config.json")
        if written_by != checkpoint.weights_hash():
            raise ValueError(
                f"config.responses: {folder} was written by a target with weights {written_by}, "
                f"{checkpoint.where} has {checkpoint.weights_hash()}"
            )
        kept += files[:held_out]
        training += files[held_out:]
    return training, kept


def _weights_of(config: epath.Path) -> str | None:
    """The hash of the target that wrote a folder, if it says so."""
    try:
        stored = json.loads(config.read_text()) if config.exists() else {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config.responses: {config} is not JSON ({error})") from None
    return stored.get("weights_sha256") if isinstance(stored, dict) else None
