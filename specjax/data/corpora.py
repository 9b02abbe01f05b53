"""A corpus every Python installation carries: the source of its own standard library.

No library text is stored here: training, held-out evaluation and the prompts
of the quickstart all read it from the running interpreter.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import itertools
import sysconfig
import textwrap

from etils import epath

# Folders that are no library code, or mostly tables (encodings, pydoc_data).
LEFT_OUT_FOLDERS = frozenset(
    {
        "__pycache__",
        "__phello__",
        "encodings",
        "ensurepip",
        "idlelib",
        "lib-dynload",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)
# Generated for one machine.
LEFT_OUT_PREFIXES = ("_sysconfigdata", "_sysconfig_vars", "config-")

# Never trained on. Whole modules that exist in Python 3.11, 3.12 and 3.13.
HELD_OUT_MODULES = (
    "argparse.py",
    "bdb.py",
    "cmd.py",
    "colorsys.py",
    "configparser.py",
    "dataclasses.py",
    "graphlib.py",
    "heapq.py",
    "json/decoder.py",
    "queue.py",
    "sched.py",
    "shelve.py",
    "statistics.py",
    "textwrap.py",
    "wave.py",
)

PROMPT_CHARACTERS = (200, 340)  # about 50 to 100 tokens of the embedded pair's tokenizer
LINES_AFTER_PROMPT = 4  # what is left of the function, so that there is something to continue


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
    """One source file; ``name`` is its path inside the standard library."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """Source files in a fixed order."""

    modules: tuple[Module, ...]

    @property
    def num_bytes(self) -> int:
        return sum(len(module.text.encode()) for module in self.modules)

    @property
    def sha256(self) -> str:
        """Hash of every name and text, in order."""
        digest = hashlib.sha256()
        for module in self.modules:
            digest.update(f"{module.name}\0{module.text}\0".encode())
        return digest.hexdigest()


def standard_library(folder: epath.PathLike | None = None) -> tuple[Corpus, Corpus]:
    """(training, held-out) modules of the running interpreter's standard library.

    Ordered by name. Files that are not UTF-8 are left out.

    >>> training, held_out = standard_library()
    >>> "heapq.py" in {module.name for module in held_out.modules}
    True
    """
    root = epath.Path(folder or sysconfig.get_path("stdlib"))
    training: list[Module] = []
    held_out: list[Module] = []
    for path in sorted(_python_files(root)):
        name = path.relative_to(root).as_posix()
        try:
            text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        (held_out if name in HELD_OUT_MODULES else training).append(Module(name=name, text=text))
    if not training or not held_out:
        raise ValueError(f"no standard library source under {root}: was this Python installed without it?")
    return Corpus(modules=tuple(training)), Corpus(modules=tuple(held_out))


def held_out_prompts(num_prompts: int, corpus: Corpus | None = None) -> list[str]:
    """Beginnings of functions of the held-out modules, for a model to continue.

    Each starts at its ``def``, dedented, and ends at the end of a line of the
    body. Modules take turns, so that a few prompts already mix them; the same
    interpreter always gives the same prompts. Raises ValueError when there are
    fewer than ``num_prompts``.
    """
    corpus = corpus or standard_library()[1]
    turns = itertools.zip_longest(*(_function_beginnings(module) for module in corpus.modules))
    prompts = [prompt for turn in turns for prompt in turn if prompt is not None]
    if num_prompts > len(prompts):
        raise ValueError(f"num_prompts {num_prompts}: the held-out modules give {len(prompts)} at most")
    return prompts[:num_prompts]


def _python_files(folder: epath.Path) -> list[epath.Path]:
    files = []
    for entry in folder.iterdir():
        if entry.name.startswith(LEFT_OUT_PREFIXES) or entry.name in LEFT_OUT_FOLDERS:
            continue
        if entry.is_dir():
            files += _python_files(entry)
        elif entry.suffix == ".py":
            files.append(entry)
    return files


def _function_beginnings(module: Module) -> list[str]:
    shortest, longest = PROMPT_CHARACTERS
    lines, beginnings = module.text.splitlines(), []
    for node in ast.walk(ast.parse(module.text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])).splitlines()
        for count in range(2, len(body) - LINES_AFTER_PROMPT + 1):
            beginning = "\n".join(body[:count])
            if len(beginning) >= shortest:
                if len(beginning) <= longest and body[count - 1].strip():
                    beginnings.append(beginning)
                break
    return beginnings
