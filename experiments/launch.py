"""The command line: a config file, dotted overrides, and errors in one or two lines.

--config=configs/quickstart.py:smoke --config.gammas=3,7 --config.prompts=my.jsonl
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import logging
import re
import sys
import traceback
from typing import Any, NoReturn

from absl import flags
from etils import epath
from ml_collections import ConfigDict, config_flags
from ml_collections.config_flags import tuple_parser

from experiments.settings import SweepSettings, from_config, nearest


class CommaTuple(tuple_parser.TupleParser):
    """``3,7`` and ``draft,./my/folder`` as well as Python literals."""

    def parse(self, argument):
        """A tuple; numbers become numbers, anything else stays a string.

        >>> CommaTuple().parse("3,7"), CommaTuple().parse("draft,runs/x"), CommaTuple().parse("(0, 0.6)")
        ((3, 7), ('draft', 'runs/x'), (0, 0.6))
        """
        if not isinstance(argument, str):
            return super().parse(argument)
        elements = argument.strip().strip("()[]").split(",")
        return tuple(_number_or_text(element.strip().strip("'\"")) for element in elements if element.strip())


def _number_or_text(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def define_config(
    default: str | None = None, flag_values: flags.FlagValues = flags.FLAGS, argv: Sequence[str] | None = None
) -> flags.FlagHolder:
    """The --config flag of a sweep-shaped main; its keys are those of ``SweepSettings``.

    ``flag_values`` and ``argv`` stand in for the command line of the process in tests.
    """
    config_flags.register_flag_parser_for_type(tuple, CommaTuple())
    help_text = "configs/FILE.py[:variant]; --config.KEY=VALUE overrides"
    return config_flags.DEFINE_config_file("config", default, help_text, flag_values, sys_argv=argv)


def parse_flags(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """For ``app.run(main, flags_parser=parse_flags)``: absl's parsing with errors a reader can act on."""
    try:
        check_override_names(argv)
    except ValueError as error:
        fail(str(error))
    return parse_any_flags(argv, flag_values)


def parse_any_flags(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """``parse_flags`` for a main whose config has keys of its own."""
    # JAX tells at INFO, which absl shows, that it looked for a TPU and found none.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    try:
        return flag_values(argv)
    except (flags.Error, AttributeError, KeyError, ValueError, OSError) as error:
        fail(last_line(error))
    except Exception as error:  # a config file is a program, and anything can be wrong with it
        fail(f"--config: {_place(error)}: {type(error).__name__}: {getattr(error, 'msg', error)}")


def read_settings(config: flags.FlagHolder) -> SweepSettings:
    """The settings behind the --config flag. ValueError for a file that is missing or not a valid config."""
    return from_config(read_config(config))


def read_config(config: flags.FlagHolder) -> ConfigDict:
    """The ConfigDict behind a --config flag. ValueError for a file that is missing or gives none."""
    found = config.value
    try:
        getattr(found, "keys", None)
    except OSError as error:  # ml_collections reports a file it could not load when it is first looked into
        raise ValueError(f"--config: {last_line(error)}") from None
    if not isinstance(found, ConfigDict):
        raise ValueError(f"--config: get_config() returned a {type(found).__name__}, not a ConfigDict")
    return found


def read_keys(config: flags.FlagHolder, *examples: ConfigDict) -> dict[str, Any]:
    """The settings behind a --config flag whose keys are those of ``examples``.

    Raises ValueError for a key that no example has, with the nearest, and for
    one that all have and the config lacks.
    """
    settings: dict[str, Any] = read_config(config).to_dict()
    known = {key for example in examples for key in example}
    for key in settings:
        if key not in known:
            raise ValueError(f"config.{key}: no such key; {nearest(key, sorted(known))}")
    if absent := [key for key in sorted(known) if key not in settings and all(key in e for e in examples)]:
        raise ValueError(f"--config: the config lacks {', '.join(absent)}")
    return settings


def check_override_names(argv: Sequence[str]) -> None:
    """ValueError for ``--config.KEY`` with a KEY that no sweep has; offers the nearest."""
    known = [field.name for field in dataclasses.fields(SweepSettings)]
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        if match and match.group(1) not in known:
            raise ValueError(f"--config.{match.group(1)}: no such key; {nearest(match.group(1), known)}")


def make_workdir(path: str | None) -> epath.Path:
    """The folder of --workdir, there and writable; ValueError where it cannot be."""
    if not path:
        raise ValueError("--workdir is empty; it takes a folder")
    folder = epath.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (probe := folder / ".writable").write_text("")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"workdir {path}: cannot be written ({error.strerror or error})") from None
    return folder


def in_words_of(names: Mapping[str, str], error: Exception) -> str:
    """The message of an ``error`` about the keys of a sweep, for a main that calls them otherwise.

    >>> in_words_of({"config.drafters": "--draft"}, ValueError("config.drafters: unknown 'drft'"))
    "--draft: unknown 'drft'"
    """
    message = str(error)
    for theirs, ours in names.items():
        message = re.sub(rf"(--)?{re.escape(theirs)}\b", ours, message)
    return message


def last_line(error: BaseException) -> str:
    """What went wrong, without the traceback text that ml_collections puts into its messages."""
    text = str(error.args[0]) if isinstance(error, KeyError | AttributeError) and error.args else str(error)
    lines = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip()]
    for line in lines:
        if "does not exist and cannot be added" in line:  # an unknown key set by a config file
            return " ".join(lines).strip("'\"")
        if match := re.match(r"Did you mean \"(.+)\" instead of \"(.+)\"\?", line):  # by an override
            return f"config.{match[2]}: no such key; nearest is {match[1]!r}"
    last = lines[-1] if lines else type(error).__name__
    if isinstance(error, KeyError | AttributeError) and (match := re.fullmatch(r"\W*(\w+)\W*", last)):
        return f"config.{match[1]}: no such key"  # by an override that nothing is near to
    return last


def _place(error: Exception) -> str:
    """The line of the config file at fault."""
    if isinstance(error, SyntaxError):
        return f"{error.filename} line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename} line {last.lineno}"


def fail(message: str) -> NoReturn:
    """Ends the program as a command line does: the message alone, exit status 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
