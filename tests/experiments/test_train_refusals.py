"""What trainings, responses and profiles refuse before they compute anything, with the key that is wrong."""

import io
import json
import math
import shutil
import types

from etils import epath
from ml_collections import ConfigDict
import pytest
import rich.console
from test_distill import respond_settings
from tiny_pair import tiny_config

from configs import profile_smollm2, train_medusa_smollm2
from experiments import distill_run, launch, respond_run, train_heads_checks
from experiments.profile_setup import ProfileSettings, set_up
from experiments.response_files import split_files
from experiments.settings import check_folder
from specjax.models.language_model import from_config
from specjax.models.sources import open_checkpoint
from specjax.training.checkpoints import claim_workdir
from specjax.training.heads_stream import Response
from specjax.training.responses import features_path, read_lines
from specjax.training.responses_distillation import read_features
from specjax.training.self_generated import SelfGenerated

HEADS = train_medusa_smollm2.get_config().to_dict()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"head_decay": math.nan}, r"config\.head_decay: must be above 0 and finite, got nan"),
        ({"held_out_temperatures": ("warm",)}, r"config\.held_out_temperatures: 'warm' is not a number"),
        ({"held_out_temperatures": (math.nan,)}, r"config\.held_out_temperatures: nan is not a number"),
        ({"predicted_nodes": ("a",)}, r"config\.predicted_nodes: 'a' nodes"),
        ({"predicted_nodes": (10**6,)}, r"config\.predicted_nodes: 1000000 nodes, more than the 11111 that"),
    ],
)
def test_settings_of_heads(changes, told):
    train_heads_checks.check(HEADS)
    with pytest.raises(ValueError, match=told):
        train_heads_checks.check(HEADS | changes)


def test_heads_need_labels_and_decodes_need_room():
    target = from_config(tiny_config(280, hidden_size=8, num_layers=1, context=32))
    responses = [Response(prompt=(1,) * 20, tokens=(2,) * length, temperature=0.0) for length in (3, 5)]
    fits = HEADS | {"num_heads": 4, "decode_tokens": 12}
    train_heads_checks.check_fits(fits, target, responses, responses)
    with pytest.raises(ValueError, match=r"config\.num_heads: 5 heads, .* 5 tokens, .*the most are 4"):
        train_heads_checks.check_fits(fits | {"num_heads": 5}, target, responses, responses)
    with pytest.raises(ValueError, match="longest of the responses held out has 3 tokens"):
        train_heads_checks.check_fits(fits, target, responses, responses[:1])
    with pytest.raises(ValueError, match=r"config\.decode_tokens: 13 .*context of 32; the most are 12"):
        train_heads_checks.check_fits(fits | {"decode_tokens": 13}, target, responses, responses)
    train_heads_checks.check_fits(fits | {"decode_tokens": 13, "decode_prompts": 0}, target, *[responses] * 2)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_tokens": 0}, r"config\.num_tokens: 0 is below 1"),
        ({"max_prompt_tokens": 0}, r"config\.max_prompt_tokens: 0 is below 1"),
        ({"code_prompts": -1}, r"config\.code_prompts: -1 is below 0"),
        ({"passage_prompts": -5}, r"config\.passage_prompts: -5 is below 0"),
        ({"seed": -1}, r"config\.seed: -1 is below 0"),
        ({"prompts": "asistant"}, "no file asistant; nearest is 'assistant'"),
    ],
)
def test_settings_of_responses(changes, told, prompts_file, tmp_path):
    console = rich.console.Console(file=io.StringIO())
    with pytest.raises(ValueError, match=told):
        respond_run.run(respond_settings("nowhere", prompts_file) | changes, epath.Path(tmp_path), console)


def test_responses_longer_than_the_context(pair, prompts_file, tmp_path):
    folder = shutil.copytree(pair[0], tmp_path / "big")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    settings = respond_settings(str(folder), prompts_file) | {"max_new_tokens": 120}
    with pytest.raises(ValueError, match=r"config\.max_new_tokens: 120 .* context of 128; the most are"):
        respond_run.run(settings, epath.Path(tmp_path / "run"), rich.console.Console(file=io.StringIO()))
    assert not (tmp_path / "run").exists()


def test_responses_named_twice(pair, tmp_path):
    checkpoint = open_checkpoint(pair[0])
    for number in range(2):
        (tmp_path / f"responses-{number}.jsonl").write_text("")
    (tmp_path / "config.json").write_text(json.dumps({"weights_sha256": checkpoint.weights_hash()}))
    assert [len(files) for files in split_files([str(tmp_path)], 1, checkpoint)] == [1, 1]
    with pytest.raises(ValueError, match=r"config\.held_out_files: must be at least 1, got 0"):
        split_files([str(tmp_path)], 0, checkpoint)
    with pytest.raises(ValueError, match=r"config\.responses: .* is named twice"):
        split_files([str(tmp_path), f"{tmp_path}/"], 1, checkpoint)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"drafter": "drft"}, r"config\.drafter: unknown 'drft'; nearest is 'draft'"),
        ({"target": "targt"}, r"config\.target: unknown 'targt'; nearest is 'target'"),
        ({"temperature": -1.0}, r"config\.temperature: -1\.0 must be a number at least 0"),
        ({"buffer": 2000}, r"config\.buffer: 2000 exceeds the context of target, 1024"),
    ],
)
def test_a_profile_names_its_own_keys(changes, told):
    smoke = profile_smollm2.get_config("smoke").to_dict()
    with pytest.raises(ValueError, match=told):
        set_up(ProfileSettings.from_config(smoke | changes))


def test_a_gamma_named_twice_is_profiled_once():
    smoke = profile_smollm2.get_config("smoke").to_dict()
    assert ProfileSettings.from_config(smoke | {"gammas": (3, 3, 1)}).gammas == (3, 1)


def test_a_workdir_is_there_and_writable(tmp_path):
    assert launch.make_workdir(str(tmp_path / "a" / "b")).is_dir()
    assert not list((tmp_path / "a" / "b").iterdir())
    (tmp_path / "file").write_text("")
    for path, told in (("", "--workdir is empty"), (str(tmp_path / "file" / "x"), "cannot be written")):
        with pytest.raises(ValueError, match=told):
            launch.make_workdir(path)


def test_where_an_export_goes_is_checked_first(tmp_path):
    (tmp_path / "file").write_text("")
    for path in ("", str(tmp_path), str(tmp_path / "new" / "folder")):
        check_folder("config.export", path)
    with pytest.raises(ValueError, match=r"config\.export: .*/x cannot be a folder: .*file is a file"):
        check_folder("config.export", str(tmp_path / "file" / "x"))


def test_another_runs_workdir_is_told_in_one_line(tmp_path):
    claim_workdir(tmp_path, {str(number): 0 for number in range(20)})
    with pytest.raises(ValueError) as caught:
        claim_workdir(tmp_path, {str(number): 1 for number in range(20)})
    assert "0: 0 in the workdir, 1 now; " in str(caught.value) and "; and 8 more" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"workdir .*: its config\.json is not JSON"):
        claim_workdir(tmp_path, {})


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"target": "x", "vocab_size": 3}, None),
        ({"target": "x", "vocab_size": 3, "extra": 1}, None),
        ({"targt": "x"}, r"config\.targt: no such key; nearest is 'target'"),
        ({"target": "x"}, r"--config: the config lacks vocab_size"),
    ],
)
def test_a_config_of_another_main(keys, told):
    """``extra`` belongs to one of two kinds, so it may be there and may be absent."""
    holder = types.SimpleNamespace(value=ConfigDict(keys))
    common = {"target": "", "vocab_size": 1}
    examples = [ConfigDict(common), ConfigDict({**common, "extra": 2})]
    if told is None:
        assert launch.read_keys(holder, *examples) == keys
        return
    with pytest.raises(ValueError, match=told):
        launch.read_keys(holder, *examples)


def test_sweep_keys_in_the_words_of_another_main():
    error = ValueError("--config.drafters and config.draftersx, config.gammas")
    told = launch.in_words_of({"config.drafters": "--draft", "config.gammas": "--gammas"}, error)
    assert told == "--draft and config.draftersx, --gammas"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch_size": 0}, r"self_generated\.batch_size must be at least 1, got 0"),
        ({"prompt_length": 0}, r"self_generated\.prompt_length must be at least 1, got 0"),
        ({"temperatures": (0.0, math.nan)}, r"self_generated\.temperatures \(0\.0, nan\) must be numbers"),
        ({"temperatures": ()}, r"self_generated\.temperatures \(\) must be numbers"),
    ],
)
def test_text_of_a_teachers_own(changes, told):
    SelfGenerated(rows=64)
    with pytest.raises(ValueError, match=told):
        SelfGenerated(**{"rows": 64} | changes)


@pytest.mark.parametrize("tokens", ["abc", [1, -7], [1.5], None])
def test_tokens_of_a_response_are_ids(tokens, tmp_path):
    path = epath.Path(tmp_path / "responses-00000.jsonl")
    good = {"id": "0", "temperature": 0.0, "prompt_tokens": [1], "response_tokens": [2]}
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"response_tokens": tokens}) + "\n")
    with pytest.raises(ValueError, match=r"line 2: response_tokens must be a list of token ids"):
        read_lines(path)


def test_features_cut_short_and_ids_of_another_vocabulary(tmp_path):
    path = epath.Path(tmp_path / "responses-00000.jsonl")
    features_path(path).write_bytes(b"")
    with pytest.raises(ValueError, match=r"features-00000\.safetensors is not a safetensors file"):
        read_features(features_path(path))
    line = {"id": "0", "temperature": 0.0, "prompt_tokens": [1], "response_tokens": [9]}
    path.write_text(json.dumps(line) + "\n")
    assert distill_run._counts([path], 10)[9] == 1
    with pytest.raises(ValueError, match=r"id 9, but the target's are 0\.\.8"):
        distill_run._counts([path], 9)
