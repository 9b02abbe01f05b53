"""One line per target pass, from the arrays of a row to text."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from specjax.analysis.trace import DecodeTrace, Piece, from_arrays, to_plain, to_text
from specjax.types import ACCEPTED, BONUS, PADDING, PROMPT, RESIDUAL

WORDS = ["<s>", "import ", "os", "\n", "sys", "def", "pad"]


@pytest.fixture
def trace() -> DecodeTrace:
    """Prompt "<s>import "; pass 1 rejects "sys" at once, pass 2 accepts one and adds the bonus."""
    origins = SimpleNamespace(
        origin=np.array([PROMPT, PROMPT, RESIDUAL, ACCEPTED, BONUS, 0], np.int8),
        rejected=np.array([PADDING, PADDING, 4, PADDING, PADDING, PADDING]),
        round=np.array([PADDING, PADDING, 0, 1, 1, PADDING]),
    )
    return from_arrays(np.array([0, 1, 2, 3, 5, 6]), np.int32(5), origins, WORDS.__getitem__, title="a title")


def test_lines_are_target_passes(trace):
    assert [line.number for line in trace.lines] == [0, 1, 2]
    assert trace.lines[0].pieces == (Piece("<s>import ", "prompt"),)
    assert trace.lines[1].pieces == (Piece("sys", "rejected"), Piece("os", "residual"))
    assert trace.lines[2].pieces == (Piece("\n", "accepted"), Piece("def", "bonus"))


def test_counts_leave_out_prompt_and_rejected_tokens(trace):
    assert [line.num_emitted for line in trace.lines] == [0, 1, 2]
    assert trace.summary == "3 tokens in 2 target passes"


def test_terminal_text_strikes_rejected_tokens_and_keeps_a_pass_on_its_line(trace):
    text = to_text(trace)
    assert text.plain.splitlines()[3].endswith("↵def")
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert styles["sys"] == "red strike" and styles["↵"] == "green"


def test_plain_text_marks_what_was_rejected(trace):
    assert to_plain(trace).splitlines()[1] == "   1 +1   [-sys-]{+os+}"


def test_traces_survive_json(trace):
    assert DecodeTrace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="unknown kind 'draft'"):
        Piece("x", "draft")
