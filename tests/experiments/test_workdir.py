"""What is on disk survives kills, extensions and neighbours; what does not fit is refused."""

import json

import pytest

from experiments.settings import SweepSettings
from experiments.workdir import Workdir

PROVENANCE = {"device": "cpu", "max_len": 64}
RESOLVED = {"prompts_hash": "abc", "weights of target": "w1"}


def row(name, status="ok"):
    point = {"target": "t", "drafter": "d", "acceptance": "rejection", "temperature": 0.0, "gamma": 1}
    return {"cell_id": name, "status": status, **point}


@pytest.fixture
def workdir(tmp_path):
    made = Workdir(tmp_path / "run")
    made.open(SweepSettings(), RESOLVED)
    return made


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_finished_cells_are_skipped_and_failed_ones_are_not(workdir):
    workdir.write_cell("a", row("a"))
    workdir.write_cell("b", row("b", status="failed"))
    assert workdir.is_finished("a")
    assert not workdir.is_finished("b")
    assert not workdir.is_finished("c")
    workdir.write_cell("b", row("b"))
    assert [each["cell_id"] for each in lines(workdir.path / "results.jsonl")] == ["a", "b"]
    assert workdir.is_finished("b")


def test_a_torn_last_record_is_forgiven(workdir):
    assert workdir.read_records("a", PROVENANCE) == []
    workdir.append_records("a", [{"n": 1}, {"n": 2}])
    path = workdir.cells / "a.records.jsonl"
    whole = path.read_text()
    workdir.append_records("a", [{"n": 3}])
    for end in range(len(whole), len(path.read_text())):
        torn = path.read_text()[:end]
        path.write_text(torn)
        assert workdir.read_records("a", PROVENANCE) == [{"n": 1}, {"n": 2}]
        workdir.append_records("a", [{"n": 3}])
    assert workdir.read_records("a", PROVENANCE) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_records_of_another_device_or_version_are_dropped(workdir):
    workdir.read_records("a", PROVENANCE)
    workdir.append_records("a", [{"n": 1}])
    assert workdir.read_records("a", PROVENANCE | {"device": "tpu"}) == []


def test_leftovers_of_a_kill_between_write_and_rename_are_no_cells(workdir):
    (workdir.cells / ".a.json.4711").write_text('{"cell_id": "a", "sta')
    workdir.write_cell("b", row("b"))
    assert [each["cell_id"] for each in workdir.merge()] == ["b"]


def test_new_axis_values_extend_a_workdir(workdir):
    wider = SweepSettings(gammas=(7,), temperatures=(1.0,), drafters=("none", "draft", "prompt_lookup"))
    workdir.open(wider, RESOLVED | {"weights of other": "w2"})
    config = json.loads((workdir.path / "config.json").read_text())
    assert config["settings"]["gammas"] == [3, 7]
    assert config["settings"]["temperatures"] == [0.0, 1.0]
    assert config["resolved"]["weights of other"] == "w2"


@pytest.mark.parametrize(
    "settings, resolved, told",
    [
        ({"max_new_tokens": 99}, {}, "max_new_tokens is 64 there and 99 here"),
        ({"seed": 1, "top_k": 5}, {}, "seed is 0 there and 1 here; top_k is 0 there and 5 here"),
        ({}, {"prompts_hash": "xyz"}, "prompts_hash is 'abc' there and 'xyz' here"),
        ({}, {"weights of target": "w9"}, "weights of target is 'w1' there and 'w9' here"),
    ],
)
def test_the_workdir_of_another_sweep_is_refused_with_both_values(workdir, settings, resolved, told):
    before = (workdir.path / "config.json").read_text()
    with pytest.raises(ValueError) as refusal:
        workdir.open(SweepSettings(**settings), RESOLVED | resolved)
    assert told in str(refusal.value)
    assert (workdir.path / "config.json").read_text() == before


def test_an_unwritable_workdir_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written \(Not a directory\)"):
        Workdir(tmp_path / "file" / "run").open(SweepSettings(), RESOLVED)


@pytest.mark.parametrize(
    "content, told",
    [
        ("{", "its config.json is not JSON"),
        ("[]", "no sweep wrote its config.json"),
        ('{"learning_rate": 1}', "no sweep wrote its config.json"),
        ('{"settings": {}, "resolved": {}}', "no sweep wrote its config.json"),
    ],
)
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path, content, told):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=told):
        Workdir(tmp_path).open(SweepSettings(), RESOLVED)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("config.json", content)]


def test_a_config_that_is_a_folder_is_refused(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match=r"cannot read its config.json \(.*Is a directory"):
        Workdir(tmp_path).open(SweepSettings(), RESOLVED)


def test_an_empty_path_is_not_the_current_folder():
    with pytest.raises(ValueError, match="--workdir is empty"):
        Workdir("")
