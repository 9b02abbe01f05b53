"""From the start of a process to its first token, and the memory that takes.

Run as a module it is that process; :func:`measure_starts` starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import json
import os
from pathlib import Path
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from experiments import compilation, runner
from experiments.profile_setup import ProfileSettings, set_up

CACHES = ("cold", "warm")  # the compilation cache: empty, and as the cold start left it
PHASES = ("import", "load", "compile", "decode")


def measure_starts(settings: ProfileSettings, tell: Callable[[str], None]) -> dict[str, Any]:
    """Medians over ``settings.starts`` processes for each state of the compilation cache.

    Raises:
      RuntimeError: a process failed; with the end of what it said.
    """
    runs: dict[str, list[dict[str, Any]]] = {cache: [] for cache in CACHES}
    for start in range(settings.starts):
        with tempfile.TemporaryDirectory() as folder:
            for cache in CACHES:
                tell(f"process start, {cache} compilation cache, {start + 1} of {settings.starts}")
                runs[cache].append(_started(settings, folder))
    median = lambda found, name: statistics.median(each[name] for each in found)
    return {
        cache: {name: median(found, name) for name in (*PHASES, "total", "peak_bytes", "anonymous_bytes")}
        | {"compiled": found[0]["compiled"], "runs": found}
        for cache, found in runs.items()
        if found
    }


def _started(settings: ProfileSettings, folder: str) -> dict[str, Any]:
    root = Path(__file__).parents[1]
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-m", __spec__.name, json.dumps(dataclasses.asdict(settings)), folder]
    spawned = time.time()
    done = subprocess.run(
        [*command, str(spawned)], capture_output=True, text=True, cwd=root, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a started process failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _first_token(settings: ProfileSettings, folder: str, spawned: float, imported: float) -> dict[str, Any]:
    """What one process does: load the pair, compile, emit one token; then a second time, compiled."""
    compilation.keep_on_disk(folder)
    pair = set_up(settings)
    program = pair.program(settings.rules[0], settings.gammas[0])
    loaded = time.time()
    with compilation.watch() as seen:
        runner.decode_timed(program, pair.params, pair.batch, pair.request(1))
        first = time.time()
    again = runner.decode_timed(program, pair.params, pair.batch, pair.request(1))
    decode = again.seconds + again.prefill_seconds
    return {
        "import": imported - spawned,
        "load": loaded - imported,
        "compile": first - loaded - decode,  # tracing, and compiling or reading what was compiled
        "decode": decode,  # prefill and one round
        "total": first - spawned,
        "compiled": seen.summary(),
        "peak_bytes": status("VmHWM"),
        "anonymous_bytes": status("RssAnon"),
    }


def status(field: str) -> int:
    """Bytes of a field of this process in /proc; 0 where the system has none."""
    path = Path("/proc/self/status")
    found = re.search(rf"{field}:\s+(\d+) kB", path.read_text()) if path.exists() else None
    return int(found[1]) * 1024 if found else 0


def _main(arguments: Sequence[str]) -> None:
    imported = time.time()
    settings, folder, spawned = arguments
    parsed = ProfileSettings.from_config(json.loads(settings))
    print(json.dumps(_first_token(parsed, folder, float(spawned), imported)))


if __name__ == "__main__":
    _main(sys.argv[1:])
