"""Requests about passages that prompts quote: summaries, translations, bare questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
import re

from specjax.data.prompts import Prompt

MIN_PASSAGE_WORDS = 40  # a shorter quotation is a name or a phrase
LANGUAGES = ("German", "French", "Spanish")


def passage_prompts(prompts: Iterable[Prompt], count: int) -> tuple[Prompt, ...]:
    """The first ``count`` requests about passages quoted in ``prompts``.

    Raises ValueError when they quote too few.
    """
    made = tuple(itertools.islice(_requests(prompts), count))
    if len(made) < count:
        raise ValueError(f"{count} passage prompts asked, the prompts quote passages for {len(made)}")
    return made


def _requests(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    """Of each quoted passage a summary and the translation of a sentence; each quoted question alone.

    >>> text = f'Question: "Why so?" Context: "{"It is so. " * 20}"'
    >>> [made.text.split(":")[0] for made in _requests([Prompt(id="0", text=text)])]
    ['Summarize', 'Translate into German', 'Why so?']
    """
    languages = itertools.cycle(LANGUAGES)
    for prompt in prompts:
        quoted = re.findall(r'"([^"]+)"', prompt.text)
        passage = max(quoted, key=len, default="").strip()
        if len(passage.split()) < MIN_PASSAGE_WORDS:
            continue
        sentence = re.split(r"(?<=[.!?])\s", passage)[0]
        texts = {
            "summarization": f"Summarize: {passage}",
            "translation": f"Translate into {next(languages)}: {sentence}",
            "qa": next((text for text in quoted if text.endswith("?")), ""),
        }
        for category, text in texts.items():
            if text:
                yield Prompt(id=f"{prompt.id}/{category}", text=text, category=category)
