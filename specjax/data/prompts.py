"""Prompt sets: JSONL files of prompts, checked line by line.

One JSON object a line, with ``prompt`` (a string) or ``turns`` (a list of
strings, of which the first is decoded: later turns need an answer and a chat
template between them), and optionally ``id`` and ``category``.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import hashlib
import itertools
import json
import re
from typing import Any

from etils import epath

# The categories of MT-bench (Zheng et al. 2023, arXiv 2306.05685).
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """One text to continue."""

    id: str
    text: str
    category: str = ""


def read_jsonl(path: str) -> tuple[Prompt, ...]:
    """The prompts of a file, in its order; blank lines are skipped.

    Raises ValueError when the file is missing, holds no prompt, or when a line
    is malformed (the message names it).
    """
    file = epath.Path(path)
    if not file.exists():
        raise ValueError(f"prompts: no file {path}")
    if file.is_dir():
        raise ValueError(f"prompts: {path} is a folder, not a JSONL file")
    prompts = []
    for number, line in enumerate(_lines(file, path), start=1):
        if line.strip():
            prompts.append(_parse(line, where=f"{path} line {number}", default_id=str(number - 1)))
    if not prompts:
        raise ValueError(f"prompts: {path} holds no prompt")
    return tuple(prompts)


def take_turns(prompts: Sequence[Prompt], groups: Sequence[str]) -> tuple[Prompt, ...]:
    """The prompts of ``groups``, one of each in turn for as long as it has any.

    A group is a category, or ``mt_bench``: MT-bench's eight, which take turns
    in it and are named after it from there on. ValueError for a group of which
    there is no prompt.

    >>> prompts = [Prompt(id=id, text="x", category=id[0]) for id in ("a0", "a1", "b0", "c0")]
    >>> [prompt.id for prompt in take_turns(prompts, ("b", "a"))]
    ['b0', 'a0', 'a1']
    """
    members = [_members(prompts, group) for group in groups]
    for group, found in zip(groups, members, strict=True):
        if not found:
            known = ", ".join(sorted({prompt.category or "(none)" for prompt in prompts}))
            raise ValueError(f"prompts: the group {group!r} is empty; there are {known}")
    return _in_turn(members)


def _members(prompts: Sequence[Prompt], group: str) -> Sequence[Prompt]:
    of = lambda category: [prompt for prompt in prompts if prompt.category == category]
    if group == "mt_bench" and not of(group):
        mixed = _in_turn([of(category) for category in MT_BENCH])
        return [dataclasses.replace(prompt, category=group) for prompt in mixed]
    return of(group)


def _in_turn(members: Sequence[Sequence[Prompt]]) -> tuple[Prompt, ...]:
    turns = itertools.zip_longest(*members)
    return tuple(prompt for turn in turns for prompt in turn if prompt is not None)


def content_hash(prompts: Sequence[Prompt]) -> str:
    """A short hash of the texts in order; ids and categories do not change it."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(prompt.text.encode() + b"\0")
    return digest.hexdigest()[:12]


def common_category(prompts: Sequence[Prompt]) -> str:
    """The category all prompts share, else "mixed".

    >>> common_category([Prompt(id=kind, text="x", category=kind) for kind in ("code", "math")])
    'mixed'
    """
    categories = {prompt.category for prompt in prompts}
    return categories.pop() if len(categories) == 1 else "mixed"


def _lines(file: epath.Path, path: str) -> list[str]:
    try:
        return file.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"prompts: {path} is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None


def _parse(line: str, where: str, default_id: str) -> Prompt:
    try:
        fields: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"prompts: {where}: not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError(f"prompts: {where}: nested too deeply to be a prompt") from None
    if not isinstance(fields, dict):
        raise ValueError(
            f"prompts: {where}: expected an object with 'prompt' or 'turns', got {type(fields).__name__}"
        )
    if "prompt" in fields:
        text = fields["prompt"]
    elif "turns" in fields:
        turns = fields["turns"]
        if not isinstance(turns, list) or not turns:
            raise ValueError(f"prompts: {where}: 'turns' must be a list of at least one string")
        text = turns[0]
    else:
        raise ValueError(f"prompts: {where}: no 'prompt' or 'turns' (fields: {', '.join(fields) or 'none'})")
    if not isinstance(text, str):
        raise ValueError(f"prompts: {where}: the prompt must be a string, got {type(text).__name__}")
    if not text:
        raise ValueError(f"prompts: {where}: the prompt is empty; it needs at least one token")
    if (half := re.search("[\ud800-\udfff]", text)) is not None:
        raise ValueError(f"prompts: {where}: {half[0]!r} at character {half.start()} is half a character")
    return Prompt(id=str(fields.get("id", default_id)), text=text, category=str(fields.get("category", "")))
