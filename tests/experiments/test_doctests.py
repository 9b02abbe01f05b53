"""Examples in docstrings behind the mains; those define flags, which two in one process cannot."""

import doctest
import importlib
import pathlib

import pytest

import experiments

OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
FILES = sorted(pathlib.Path(experiments.__file__).parent.glob("*.py"))
WITH_EXAMPLES = [
    path.stem for path in FILES if ">>>" in path.read_text() and "__main__" not in path.read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(f"experiments.{name}"), optionflags=OPTIONS)
    assert tried and not failed
