"""One tiny sweep, run once, and what must hold of its workdir; then what a second launch does to it."""

import collections
import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from experiments import compilation, environment, group, memory, sweep
from experiments.cells import all_cells, cell_id
from experiments.plan import prepare
from experiments.settings import SweepSettings
from experiments.workdir import Workdir
from specjax.analysis.metrics import summarize
from specjax.analysis.records import Costs, PromptRecord

FIELDS = """
    cell_id pair drafter acceptance lossless gamma temperature top_k top_p min_p lenience seed batch_size
    max_new_tokens num_prompts prompts_hash category num_tokens num_rounds tested_by_position
    accepted_by_position acceptance_by_position acceptance_by_position_ci alpha_accept alpha_accept_ci
    alpha_overlap alpha_overlap_ci alpha_tau alpha_tau_ci tau tau_ci tau_expected tau_expected_ci
    draft_cost_ratio draft_cost_ratio_ci proposal_cost_ratio proposal_cost_ratio_ci verify_cost_ratio
    verify_cost_ratio_ci tokens_per_second tokens_per_second_ci baseline_tokens_per_second
    baseline_tokens_per_second_ci speedup speedup_ci speedup_leviathan speedup_leviathan_ci
    speedup_cost_model speedup_cost_model_ci compile_seconds config_hash weights_hash git_sha versions
    device dtype mesh status error
"""


def launch(settings, path, which="0/1", report=False):
    """(exit status, compilations)."""
    plan = prepare(settings)
    workdir = Workdir(path)
    config_hash = workdir.open(settings, plan.resolved())
    with compilation.watch() as compiled, pytest.MonkeyPatch.context() as patch:
        # Records are taken up again only under the same commit: hold it still.
        patch.setattr(environment, "git_sha", lambda: "test")
        if not report:  # figures take longer than all these cells
            patch.setattr(sweep, "write_report", lambda *arguments: None)
        return sweep.run(plan, workdir, config_hash, which), compiled


def rows_of(path):
    return [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]


def loops(compiled):
    """How often the decode loop and the prefill were compiled."""
    return {name: compiled.programs[name] for name in ("jit(_decode)", "jit(_prefill)")}


@pytest.fixture(scope="module")
def settings(pair, prompts_file):
    target, draft = pair
    return SweepSettings(
        targets=(target,),
        drafters=("none", draft, "prompt_lookup"),
        gammas=(1, 3),
        temperatures=(0.0, 1.0),
        prompts=prompts_file,
        num_prompts=2,
        max_new_tokens=8,
        cost_repeats=2,
    )


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """(path, exit status, compilations) of the sweep."""
    path = tmp_path_factory.mktemp("sweep") / "run"
    return path, *launch(settings, path, report=True)


def test_every_cell_is_a_line_with_all_fields(finished, settings):
    path, status, _ = finished
    rows = rows_of(path)
    assert status == 0
    assert collections.Counter(row["cell_id"] for row in rows) == collections.Counter(
        cell_id(cell, settings) for cell in all_cells(settings)
    )
    for row in rows:
        assert not [field for field in FIELDS.split() if field not in row]
        assert row["status"] == "ok"


def test_the_report_and_traces_are_there(finished):
    path, _, _ = finished
    assert (path / "report.md").exists()
    assert (path / "report.html").exists()
    assert {file.stem for file in (path / "traces").iterdir()} == {row["cell_id"] for row in rows_of(path)}


def test_rows_agree_with_the_records_beside_them(finished):
    path, _, _ = finished
    for row in rows_of(path):
        lines = (path / "cells" / f"{row['cell_id']}.records.jsonl").read_text().splitlines()[1:]
        records = [PromptRecord.from_dict(json.loads(line)["record"]) for line in lines]
        assert [record.prompt for record in records] == [0, 1]
        again = summarize(records, Costs.from_dict(row["costs"]))
        assert again["tau"] == row["tau"]
        assert again["speedup"] == pytest.approx(row["speedup"])
        assert row["num_tokens"] == sum(record.num_tokens for record in records) <= 16


def test_greedy_cells_give_the_tokens_of_plain_decoding(finished):
    path, _, _ = finished
    for row in rows_of(path):
        expected = 2 if row["temperature"] == 0 or row["drafter"] == "none" else None
        assert row["identical_to_baseline"] == expected


def test_one_decode_loop_per_program_and_none_per_temperature(finished, settings):
    _, _, compiled = finished
    # The baseline, and two gammas of two drafters; prompts share a prompt-length bucket, gammas a prefill.
    assert loops(compiled) == {"jit(_decode)": 1 + 2 * 2, "jit(_prefill)": 1 + 2}


def test_a_second_launch_skips_everything(finished, settings):
    path, _, _ = finished
    before = {file.name: file.read_bytes() for file in (path / "cells").iterdir()}
    status, compiled = launch(settings, path)
    assert status == 0
    assert loops(compiled) == {"jit(_decode)": 0, "jit(_prefill)": 0}
    assert {file.name: file.read_bytes() for file in (path / "cells").iterdir()} == before


def test_nothing_is_compiled_for_other_sampling_seeds_stops_or_prompts(
    finished, settings, tmp_path, monkeypatch
):
    prompts = tmp_path / "other.jsonl"
    prompts.write_text('{"prompt": "for item in items:"}\n{"prompt": "while queue: visit(node)"}\n')
    other = dataclasses.replace(
        settings, temperatures=(0.3,), top_k=5, top_p=0.8, min_p=0.01, seed=9, stop_at_eos=False
    )
    longest = max(map(len, prepare(settings).token_ids[settings.targets[0]]))
    plan = prepare(dataclasses.replace(other, prompts=str(prompts)))
    # Buffers are sized by the longest prompt: keep it, so that only contents differ.
    ids = plan.token_ids[settings.targets[0]]
    ids[0] = (ids[0] * longest)[:longest]
    workdir = Workdir(tmp_path / "run")
    config_hash = workdir.open(other, plan.resolved())
    monkeypatch.setattr(sweep, "write_report", lambda *arguments: None)
    with compilation.watch() as compiled:
        assert sweep.run(plan, workdir, config_hash) == 0
    assert loops(compiled) == {"jit(_decode)": 0, "jit(_prefill)": 0}


def test_a_temperature_extends_the_workdir_and_an_interrupted_cell_continues(finished, settings):
    path, _, _ = finished
    before = {row["cell_id"]: row for row in rows_of(path)}
    # As a kill leaves it: no cell file, one of two records, the second torn.
    point = {"drafter": "small", "gamma": 3, "temperature": 1.0}
    victim = next(key for key, row in before.items() if point.items() <= row.items())
    records = path / "cells" / f"{victim}.records.jsonl"
    header, first, second = records.read_text().splitlines(keepends=True)
    records.write_text(header + first + second[:-20])
    (path / "cells" / f"{victim}.json").unlink()

    wider = dataclasses.replace(settings, temperatures=(0.5,), gammas=(3,), drafters=(settings.drafters[1],))
    both = dataclasses.replace(wider, temperatures=(0.5, 1.0))
    status, _ = launch(both, path)
    rows = {row["cell_id"]: row for row in rows_of(path)}
    assert status == 0
    assert rows.keys() == before.keys() | {cell_id(cell, wider) for cell in all_cells(wider)}
    assert records.read_text().startswith(header + first)
    assert rows[victim]["status"] == "ok"
    assert rows[victim]["num_tokens"] == before[victim]["num_tokens"]
    assert json.loads((path / "config.json").read_text())["settings"]["temperatures"] == [0.0, 1.0, 0.5]


def test_a_failing_cell_is_recorded_the_sweep_goes_on_and_a_retry_heals_it(settings, tmp_path, monkeypatch):
    small = dataclasses.replace(settings, drafters=("none", settings.drafters[1]), temperatures=(0.0,))
    measured = group.runner.decode_timed

    def broken(program, *rest):
        if program.gammas == (1,):
            raise RuntimeError("out of memory\nwith details")
        return measured(program, *rest)

    monkeypatch.setattr(group.runner, "decode_timed", broken)
    status, _ = launch(small, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert status == 1
    assert {row["gamma"]: (row["status"], row["error"]) for row in rows} == {
        0: ("ok", ""),
        1: ("failed", "RuntimeError: out of memory"),
        3: ("ok", ""),
    }
    monkeypatch.undo()
    assert launch(small, tmp_path / "run")[0] == 0
    assert {row["status"] for row in rows_of(tmp_path / "run")} == {"ok"}


def test_shares_of_a_sweep_make_the_whole(finished, settings, tmp_path):
    small = dataclasses.replace(settings, drafters=("none", settings.drafters[1]), temperatures=(0.0,))
    for i in range(2):
        assert launch(small, tmp_path / "run", f"{i}/2")[0] == 0
    expected = {cell_id(cell, small) for cell in all_cells(small)}
    rows = rows_of(tmp_path / "run")
    assert {row["cell_id"] for row in rows} == expected
    # Greedy tokens do not depend on how the work was split.
    whole = {row["cell_id"]: row["num_rounds"] for row in rows_of(finished[0])}
    assert all(row["num_rounds"] == whole[row["cell_id"]] for row in rows)


@pytest.mark.skipif(not memory.MAPS.exists(), reason="the system has no /proc to ask")
def test_a_long_sweep_drops_programs_before_memory_or_maps_run_out(monkeypatch):
    """XLA ends a process that has no map left, as a sweep of 134 cells once did."""
    compiled = jax.jit(lambda x: x + 1)
    compiled(jnp.zeros(3))
    memory.give_back(memory.anonymous())
    assert compiled._cache_size() == 1
    monkeypatch.setattr(memory, "ALWAYS_KEPT", 2**50)
    memory.give_back(memory.anonymous() - 2 * memory.MOST_GROWTH)
    assert compiled._cache_size() == 1
    monkeypatch.setattr(memory, "ALWAYS_KEPT", 0)
    memory.give_back(memory.anonymous() - 2 * memory.MOST_GROWTH)
    assert compiled._cache_size() == 0
    compiled(jnp.zeros(3))
    monkeypatch.setattr(memory, "share_of_maps", lambda: 0.5)
    memory.give_back(memory.anonymous())
    assert compiled._cache_size() == 0


@pytest.mark.skipif(not memory.MAPS.exists(), reason="the system has no /proc to ask")
def test_what_the_system_says():
    assert memory.anonymous() > 10**7
    assert 0 < memory.share_of_maps() < 0.4
