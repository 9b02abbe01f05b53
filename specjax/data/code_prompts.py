"""Requests to write a function, made from the signatures and docstrings of Python's standard library."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from specjax.data.corpora import Corpus
from specjax.data.prompts import Prompt


def code_prompts(corpus: Corpus, count: int) -> tuple[Prompt, ...]:
    """The first ``count`` documented functions of ``corpus``, one request each.

    Raises ValueError when the corpus has fewer.
    """
    prompts = []
    for module in corpus.modules:
        for number, request in enumerate(_requests(module.text)):
            prompts.append(Prompt(id=f"{module.name}/{number}", text=request, category="code"))
            if len(prompts) == count:
                return tuple(prompts)
    if len(prompts) < count:
        raise ValueError(f"{count} code prompts asked, the corpus has {len(prompts)} documented functions")
    return tuple(prompts)


def _requests(source: str) -> Iterator[str]:
    """One request for each function with a docstring of reasonable length.

    >>> source = 'def area(r: float) -> float:\\n    "Area of a circle of radius r."\\n    return 3 * r * r'
    >>> print(next(_requests(source)).splitlines()[-2])
    def area(r: float) -> float:
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            summary = (ast.get_docstring(node) or "").split("\n\n")[0]
            if 20 <= len(summary) <= 300:
                returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                head = f"def {node.name}({ast.unparse(node.args)}){returns}:"
                yield f'Complete this Python function:\n\n{head}\n    """{summary}"""'
