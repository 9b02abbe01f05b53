"""Compilations: kept on disk between runs, and counted.

The cache directory holds executable code: it belongs to you alone.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import contextlib
import dataclasses
import os
from pathlib import Path

import jax

DEFAULT_CACHE = "~/.cache/specjax/compiled"

_COMPILED = "/jax/core/compile/backend_compile_duration"
_HIT = "/jax/compilation_cache/cache_hits"
_MISS = "/jax/compilation_cache/cache_misses"


@dataclasses.dataclass
class Compilations:
    """What was compiled while it was watched; a program read from the disk cache counts as well."""

    programs: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # by name
    cache_hits: int = 0
    cache_misses: int = 0

    def summary(self) -> str:
        """One line for the end of a run."""
        kept = self.cache_hits
        return f"{self.programs.total() - kept} programs compiled, {kept} read from the compilation cache"


def keep_on_disk(folder: str) -> str:
    """Turns the persistent compilation cache on for programs of any size; "" leaves it off.

    JAX_COMPILATION_CACHE_DIR, where set, wins. Returns the folder in use.
    Raises ValueError when it cannot be written.
    """
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or folder
    if not folder:
        return ""
    if "://" not in folder:
        path = Path(folder).expanduser()
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ValueError(f"compilation cache {path}: cannot be written ({error.strerror})") from None
        folder = str(path)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


@contextlib.contextmanager
def watch() -> Iterator[Compilations]:
    """Counts the compilations of the enclosed block."""
    seen = Compilations()

    def on_duration(event: str, duration_secs: float, **labels: str | int) -> None:
        if event == _COMPILED:
            seen.programs[str(labels.get("fun_name", "?"))] += 1

    def on_event(event: str, **labels: str | int) -> None:
        seen.cache_hits += event == _HIT
        seen.cache_misses += event == _MISS

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(on_duration)
        jax.monitoring.unregister_event_listener(on_event)
