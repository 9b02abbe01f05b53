"""SIGKILL at random file operations of a sweep: no finished cell lost, none twice, a torn line forgiven."""

import collections
import contextlib
import json
import multiprocessing
import os
from pathlib import Path
import random
import signal
import sys

import pytest

KILLS = 20


def launch(fields, path, cache, kill_at, operations):
    """One launch in a process of its own; dies before its ``kill_at``-th write or rename in the workdir."""
    from experiments import compilation, sweep
    from experiments.plan import prepare
    from experiments.settings import SweepSettings
    from experiments.workdir import Workdir

    def hook(event, arguments):
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if (writes or event == "os.rename") and str(arguments[0]).startswith(path):
            operations.value += 1
            if operations.value == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    compilation.keep_on_disk(cache)
    sweep.write_report = lambda *arguments: None
    settings = SweepSettings(**fields)
    plan = prepare(settings)
    workdir = Workdir(path)
    config_hash = workdir.open(settings, plan.resolved())
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        sys.exit(sweep.run(plan, workdir, config_hash))


@pytest.fixture
def start(tiny, tmp_path, monkeypatch):
    """start(path, kill_at) -> (exit code, file operations)."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.sweep"])
    fields = tiny | {
        "gammas": (1,),
        "temperatures": (0.0, 0.3, 0.6, 1.0),
        "max_new_tokens": 4,
        "cost_repeats": 1,
    }

    def start(path, kill_at=0):
        operations = context.Value("i", 0)
        child = context.Process(
            target=launch, args=(fields, str(path), str(tmp_path / "cache"), kill_at, operations)
        )
        child.start()
        child.join()
        return child.exitcode, operations.value

    return start


def finished_cells(path):
    """Bytes of every finished cell; each file must be whole."""
    files = {file.name: file.read_bytes() for file in (path / "cells").glob("*.json")}
    assert all(json.loads(content)["status"] == "ok" for content in files.values())
    return files


def tear_a_record(path, rng):
    """What a kill in the middle of an append leaves."""
    unfinished = [
        file
        for file in (path / "cells").glob("*.records.jsonl")
        if not file.with_name(file.name.replace(".records.jsonl", ".json")).exists()
    ]
    for file in unfinished[:1]:
        text = file.read_text()
        file.write_text(text[: len(text) - rng.randint(1, 40)])


def test_a_sweep_killed_again_and_again_ends_as_if_it_had_not_been(start, tmp_path):
    rng = random.Random(0)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, operations = start(whole)
    assert code == 0
    expected = {row["cell_id"]: row for row in rows_of(whole)}
    assert len(expected) == 8

    before, codes = {}, []
    for _ in range(KILLS):
        code, _ = start(killed, kill_at=rng.randint(1, max(2, 2 * operations // KILLS)))
        codes.append(code)
        after = finished_cells(killed) if (killed / "cells").exists() else {}
        assert before.items() <= after.items()  # none lost, none run again
        before = after
        tear_a_record(killed, rng)

    assert set(codes) <= {-signal.SIGKILL, 0}
    assert codes.count(-signal.SIGKILL) > KILLS // 2  # a sweep that has ended cannot be killed
    assert start(killed)[0] == 0
    after = finished_cells(killed)
    assert before.items() <= after.items()
    rows = rows_of(killed)
    assert collections.Counter(row["cell_id"] for row in rows) == collections.Counter(expected.keys())
    for row in rows:
        same = ("num_tokens", "num_rounds", "accepted_by_position", "num_decodes", "identical_to_baseline")
        assert {key: row[key] for key in same} == {key: expected[row["cell_id"]][key] for key in same}


def rows_of(path: Path):
    return [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]
