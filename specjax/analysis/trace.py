"""A decode as coloured text, one line per target pass: Fig. 1 of Leviathan et al. 2023.

``from_arrays`` reads a finished row; ``to_text`` colours it for the terminal;
the HTML report draws the same lines through its template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import numpy as np
from rich.text import Text

from specjax.types import ORIGINS, PADDING, PROMPT, Array
from specjax.types import Trace as TokenOrigins

REJECTED = "rejected"
KINDS = (*ORIGINS, REJECTED)

# What each colour says, in the words of every legend.
MEANING = {
    "prompt": "prompt",
    "accepted": "draft token, accepted",
    "rejected": "draft token, rejected",
    "residual": "target's token after a rejection",
    "bonus": "target's token after full acceptance",
}
TERMINAL_STYLE = {
    "prompt": "dim",
    "accepted": "green",
    "rejected": "red strike",
    "residual": "bold blue",
    "bonus": "bold magenta",
}


@dataclasses.dataclass(frozen=True)
class Piece:
    """One token, or the prompt as a whole."""

    text: str
    kind: str  # one of KINDS

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind {self.kind!r}; known are {', '.join(KINDS)}")


@dataclasses.dataclass(frozen=True)
class TraceLine:
    """What one target pass did; the prompt is a line of its own, number 0."""

    number: int  # of the pass, from 1
    pieces: tuple[Piece, ...]

    @property
    def num_emitted(self) -> int:
        return sum(piece.kind not in ("prompt", REJECTED) for piece in self.pieces)


@dataclasses.dataclass(frozen=True)
class DecodeTrace:
    """A decode of one prompt."""

    title: str
    lines: tuple[TraceLine, ...]

    @property
    def num_tokens(self) -> int:
        return sum(line.num_emitted for line in self.lines)

    @property
    def num_passes(self) -> int:
        return sum(line.number > 0 for line in self.lines)

    @property
    def summary(self) -> str:
        return f"{self.num_tokens} tokens in {self.num_passes} target passes"

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DecodeTrace:
        lines = (
            TraceLine(line["number"], tuple(Piece(**piece) for piece in line["pieces"]))
            for line in values["lines"]
        )
        return cls(values["title"], tuple(lines))


def from_arrays(
    tokens: Array,
    length: int | Array,
    origins: TokenOrigins,
    token_text: Callable[[int], str],
    *,
    title: str = "",
) -> DecodeTrace:
    """The lines of one row.

    Args:
      tokens: [S] int32, the row's ``DecodeState.tokens``.
      length: how many of them are committed.
      origins: the row's ``DecodeState.trace``.
      token_text: the text of one token id.
      title: shown above the lines.

    >>> import types
    >>> origins = types.SimpleNamespace(origin=[0, 1, 2], rejected=[-1, -1, 4], round=[-1, 0, 0])
    >>> trace = from_arrays([1, 2, 3], 3, origins, "abcde".__getitem__)
    >>> [(piece.text, piece.kind) for piece in trace.lines[1].pieces]
    [('c', 'accepted'), ('e', 'rejected'), ('d', 'residual')]
    >>> trace.summary
    '2 tokens in 1 target passes'
    """
    ids, kinds = np.asarray(tokens), np.asarray(origins.origin)
    rejected, rounds = np.asarray(origins.rejected), np.asarray(origins.round)
    prompt: list[str] = []
    by_round: dict[int, list[Piece]] = {}
    for slot in range(int(length)):
        token = token_text(int(ids[slot]))
        if kinds[slot] == PROMPT:
            prompt.append(token)
            continue
        pieces = by_round.setdefault(int(rounds[slot]) + 1, [])
        if rejected[slot] != PADDING:
            pieces.append(Piece(token_text(int(rejected[slot])), REJECTED))
        pieces.append(Piece(token, ORIGINS[int(kinds[slot])]))
    lines = [TraceLine(0, (Piece("".join(prompt), "prompt"),))] if prompt else []
    lines += [TraceLine(number, tuple(by_round[number])) for number in sorted(by_round)]
    return DecodeTrace(title, tuple(lines))


def visible(text: str) -> str:
    """``text`` on one line: line ends and tabs as signs, since a pass may emit several."""
    return text.replace("\r\n", "↵").replace("\n", "↵").replace("\r", "↵").replace("\t", "⇥")


def to_text(trace: DecodeTrace) -> Text:
    """For the terminal: the prompt as it reads, then one numbered, coloured line per target pass."""
    text = Text()
    if trace.title:
        text.append(f"{trace.title}\n", style="bold")
    for line in trace.lines:
        if line.number:
            text.append(f"{line.number:4d} ", style="dim")
            text.append(f"+{line.num_emitted:<3d} ", style="dim")
        for piece in line.pieces:
            shown = visible(piece.text) if line.number else piece.text
            text.append(shown, style=TERMINAL_STYLE[piece.kind])
        text.append("\n")
    text.append(trace.summary, style="bold").append("   ")
    for kind in KINDS[1:]:
        text.append(MEANING[kind], style=TERMINAL_STYLE[kind]).append("   ")
    return text


def to_plain(trace: DecodeTrace) -> str:
    """For Markdown and pipes: accepted tokens bare, rejected ones in [-...-], the target's own in {+...+}."""
    marks = {REJECTED: ("[-", "-]"), "residual": ("{+", "+}"), "bonus": ("{+", "+}")}
    lines = []
    for line in trace.lines:
        parts = [marks.get(p.kind, ("", "")) for p in line.pieces]
        text = "".join(left + visible(p.text) + right for p, (left, right) in zip(line.pieces, parts))
        lines.append(
            f"{line.number:4d} +{line.num_emitted:<3d} {text}" if line.number else f"          {text}"
        )
    return "\n".join(lines)
