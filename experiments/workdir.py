"""What a sweep leaves on disk, and how it survives being killed at any moment.

    config.json                   the settings, extended when a sweep is
    cells/<cell_id>.json          one finished or failed cell, whole or not there
    cells/<cell_id>.records.jsonl one line per decoded prompt, as they come
    results.jsonl                 the cells merged, one line each
    traces/<cell_id>.json         one decode of the cell, token by token
    report.md report.html figures/

Whole files are written under a temporary name and renamed. Several processes
may share a workdir, each with cells of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import json
import os
from typing import Any

from etils import epath

from experiments.settings import AXES, SweepSettings, fingerprint, shared
from specjax.analysis.trace import DecodeTrace

Row = dict[str, Any]


class Workdir:
    """Reads and writes the files of one sweep."""

    def __init__(self, path: epath.PathLike):
        if not os.fspath(path):
            raise ValueError("--workdir is empty; it takes a folder")
        self.path = epath.Path(path)
        self.cells = self.path / "cells"
        self.traces = self.path / "traces"

    def open(self, settings: SweepSettings, resolved: dict[str, Any]) -> str:
        """Creates or extends the workdir and returns the hash of the config as launched.

        ``resolved`` holds what names in the settings stand for (hashes of
        prompts and weights). New values on the axes extend a workdir.

        Raises ValueError when the path cannot be written, or belongs to a sweep
        with other shared settings: every difference is shown with both values.
        """
        launched = {"settings": dataclasses.asdict(settings), "resolved": resolved}
        try:
            stored = self._stored()
            if stored is not None:
                self._refuse_conflicts(stored, settings, resolved)
            for folder in (self.path, self.cells, self.traces):
                folder.mkdir(parents=True, exist_ok=True)
            _write_atomically(self.path / "config.json", _dump(_extended(stored, launched), indent=2))
        except OSError as error:
            raise ValueError(f"workdir {self.path}: cannot be written ({error.strerror or error})") from None
        return fingerprint(launched)

    def cell(self, cell_id: str) -> Row | None:
        """The row of a finished or failed cell."""
        return _read_json(self.cells / f"{cell_id}.json")

    def is_finished(self, cell_id: str) -> bool:
        row = self.cell(cell_id)
        return row is not None and row.get("status") == "ok"

    def write_cell(self, cell_id: str, row: Row) -> None:
        """The moment a cell ends; ``results.jsonl`` follows."""
        _write_atomically(self.cells / f"{cell_id}.json", _dump(row))
        self.merge()

    def write_trace(self, cell_id: str, trace: DecodeTrace) -> None:
        _write_atomically(self.traces / f"{cell_id}.json", _dump(trace.to_dict()))

    def trace(self, cell_id: str) -> DecodeTrace | None:
        """The decode of the cell that was kept, if it is there."""
        fields = _read_json(self.traces / f"{cell_id}.json")
        return fields and DecodeTrace.from_dict(fields)

    def merge(self) -> list[Row]:
        """All rows, and ``results.jsonl`` holding them; again if another process added one meanwhile."""
        while True:
            files = self._cell_files()
            rows = sorted((row for row in map(_read_json, files) if row is not None), key=_place)
            _write_atomically(self.path / "results.jsonl", "".join(_dump(row) + "\n" for row in rows))
            if self._cell_files() == files:
                return rows

    def read_records(self, cell_id: str, provenance: Row) -> list[Row]:
        """The records of an interrupted cell, if the same software on the same device wrote them.

        Otherwise they are dropped: a cell's times must be comparable. A last
        line torn by a kill is cut off.
        """
        path = self._records(cell_id)
        lines = _whole_lines(path)
        if not lines or lines[0] != provenance:
            lines = [provenance]
        _write_atomically(path, "".join(_dump(line) + "\n" for line in lines))
        return lines[1:]

    def append_records(self, cell_id: str, records: Iterable[Row]) -> None:
        """Whole lines in one write, so that a kill can tear only the last of them."""
        text = "".join(_dump(record) + "\n" for record in records)
        path = self._records(cell_id)
        if "://" in str(path):  # object stores cannot append
            path.write_text(path.read_text() + text)
            return
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)

    def _records(self, cell_id: str) -> epath.Path:
        return self.cells / f"{cell_id}.records.jsonl"

    def _cell_files(self) -> list[epath.Path]:
        return sorted(self.cells.glob("*.json"))

    def _stored(self) -> Any:
        """What config.json holds; None without one."""
        try:
            return _read_json(self.path / "config.json")
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"workdir {self.path}: its config.json is not JSON ({error})") from None
        except OSError as error:  # a folder of that name, or not ours to read
            raise ValueError(f"workdir {self.path}: cannot read its config.json ({error})") from None

    def _refuse_conflicts(self, stored: Any, settings: SweepSettings, resolved: Row) -> None:
        parts: Any = (stored.get("settings"), stored.get("resolved")) if isinstance(stored, dict) else ()
        if not parts or not all(isinstance(part, dict) for part in parts) or not parts[0].keys() >= {*AXES}:
            raise ValueError(f"workdir {self.path}: no sweep wrote its config.json. Use another --workdir")
        ours = json.loads(_dump({**shared(settings), **resolved}))
        theirs = {k: v for k, v in {**parts[0], **parts[1]}.items() if k not in AXES}
        # A name that is new to the workdir (a further draft model) is no conflict.
        known = [key for key in sorted(theirs) if key in ours or key in shared(settings)]
        differing = [(key, theirs[key], ours.get(key)) for key in known if theirs[key] != ours.get(key)]
        if differing:
            words = "; ".join(f"{key} is {old!r} there and {now!r} here" for key, old, now in differing)
            raise ValueError(
                f"workdir {self.path} belongs to a sweep with other settings: {words}. Use another --workdir"
            )


def _place(row: Row) -> tuple[Any, ...]:
    """Sorts the lines of results: neighbours are cells that one compares."""
    return tuple(row[key] for key in ("target", "drafter", "acceptance", "temperature", "gamma", "cell_id"))


def _extended(stored: Row | None, launched: Row) -> Row:
    """The launched config with the axis values and resolved names that the workdir already had."""
    if stored is None:
        return launched
    settings = dict(launched["settings"])
    for axis in AXES:
        settings[axis] = list(dict.fromkeys([*stored["settings"][axis], *settings[axis]]))
    return {"settings": settings, "resolved": {**stored["resolved"], **launched["resolved"]}}


def _whole_lines(path: epath.Path) -> list[Row]:
    """The lines of a JSONL file up to the first that is torn."""
    if not path.exists():
        return []
    lines: list[Row] = []
    for line in path.read_text().split("\n")[:-1]:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def _read_json(path: epath.Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_atomically(path: epath.Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def _dump(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False)
