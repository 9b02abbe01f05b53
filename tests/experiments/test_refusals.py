"""Bad input of a launch, beyond names and sizes: files that are damaged, ids and nodes that are not there."""

import json
from pathlib import Path
import shutil

from absl import flags
import numpy as np
import pytest

from experiments import launch, plan
from experiments.drafter_names import DrafterName
from experiments.settings import SweepSettings
from experiments.shape_choice import grown
from specjax.models import huggingface
from specjax.models.heads import folder as heads_folder
from specjax.models.heads.heads import init_network
from specjax.models.heads.medusa import MedusaConfig


def copy_of(folder, path):
    return Path(shutil.copytree(folder, path))


def refusal(fields):
    with pytest.raises(ValueError) as caught:
        plan.prepare(SweepSettings(**fields))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def get_config(:\n", "line 1: SyntaxError: invalid syntax"),
        ("def get_config():\n    return 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("import nothing_there\n", "line 1: ModuleNotFoundError: No module named 'nothing_there'"),
        ("def get_config():\n    return None\n", "returned a NoneType, not a ConfigDict"),
        ("def get_config():\n    return {'gammas': (3,)}\n", "returned a dict, not a ConfigDict"),
    ],
)
def test_a_config_file_that_cannot_run_is_told_by_its_line(text, told, capsys, tmp_path):
    (path := tmp_path / "own.py").write_text(text)
    values, argv = flags.FlagValues(), ["sweep", f"--config={path}"]
    holder = launch.define_config(flag_values=values, argv=argv)
    try:
        launch.parse_flags(argv, values)
        with pytest.raises(ValueError, match=told):
            launch.read_settings(holder)
    except SystemExit as end:
        assert end.code == 2
        message = capsys.readouterr().err
        assert f"--config: {path} {told}" in message and len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("stps=3", "config.stps: no such key; nearest is 'steps'"),
        ("zzzq=3", "config.zzzq: no such key"),
    ],
)
def test_an_override_that_another_config_does_not_have(override, told, capsys, request, monkeypatch):
    monkeypatch.chdir(request.config.rootpath)
    values, argv = flags.FlagValues(), ["distill", "--config=configs/train_draft_smollm2.py"]
    argv.append(f"--config.{override}")
    launch.define_config(flag_values=values, argv=argv)
    with pytest.raises(SystemExit):
        launch.parse_any_flags(argv, values)
    assert capsys.readouterr().err == f"error: {told}\n"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", b"[]", "config.json holds a list, not an object"),
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", b"\xff", "config.json cannot be read"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja cannot be read"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 3}}', "no weight_map that names a file"),
    ],
)
@pytest.mark.parametrize("key", ["targets", "drafters"])
def test_damaged_files_of_a_model_folder(tiny, pair, tmp_path, key, name, content, told):
    folder = copy_of(pair[0], tmp_path / "damaged")
    (folder / name).write_bytes(content)
    message = refusal(tiny | {key: (str(folder),)})
    assert f"model {str(folder)!r}" in message and told in message


def test_a_tied_head_is_stated_by_a_truth_value(tiny, pair, tmp_path):
    folder = copy_of(pair[0], tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": "no"}))
    assert "tie_word_embeddings 'no' must be true or false" in refusal(tiny | {"targets": (str(folder),)})


def test_the_nearest_file_is_offered(tiny, pair, prompts_file):
    assert f"nearest is {pair[0]!r}" in refusal(tiny | {"targets": (pair[0].replace("big", "bigg"),)})
    near = prompts_file.replace("prompts.jsonl", "prompt.jsonl")
    assert f"no file {near}; nearest is {prompts_file!r}" in refusal(tiny | {"prompts": near})
    assert refusal(tiny | {"prompts": "asistant"}) == "prompts: no file asistant; nearest is 'assistant'"
    assert "nowhere is no folder, or empty" in refusal(tiny | {"targets": ("./nowhere/big",)})


@pytest.mark.parametrize("key, value", [("banned_tokens", (3, 280)), ("logit_bias", ((280, 1.0), (3, -1.0)))])
def test_ids_to_ban_or_bias_are_the_targets(tiny, key, value):
    assert f"config.{key}: token 280 is not one of big's, which are 0..279" in refusal(tiny | {key: value})


def test_a_cascade_without_a_model(tiny):
    fields = tiny | {"drafters": ("prompt_lookup+",), "gammas": (7,)}
    assert "config.drafters: unknown ''" in refusal(fields)


def test_a_batch_larger_than_the_prompts(tiny):
    with pytest.raises(ValueError, match=r"config\.batch_size: 3 is above config\.num_prompts.*nearest is 2"):
        SweepSettings(**tiny | {"batch_size": 3})
    assert SweepSettings(**tiny | {"batch_size": 2}).batch_size == 2


def test_a_colon_without_a_shape(tiny):
    draft = tiny["drafters"][1]
    assert f"{draft + ':'!r} names no shape; nearest is {draft!r}" in refusal(
        tiny | {"drafters": (f"{draft}:",)}
    )


def test_the_prompt_that_a_chat_template_refuses_is_named(tiny, pair, tmp_path):
    folder = copy_of(pair[0], tmp_path / "strict")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system prompt') }}")
    message = refusal(tiny | {"targets": (str(folder),), "chat": True})
    assert message == "prompt 0: chat template: no system prompt (of strict)"


@pytest.fixture
def heads(pair, tmp_path):
    """A folder of two random heads of the tiny target: 10 guesses each, so 110 nodes."""
    model, params = huggingface.load(pair[0])
    config = MedusaConfig(num_heads=2, width=16, num_ids=20, blocks=1, own_projection=False)
    target = heads_folder.TrainedFor(
        weights_sha256=huggingface.weights_hash(pair[0]), vocab_size=model.vocab_size, taps=("final",)
    )
    table = np.full((2, 10), 0.05, np.float32)
    network = init_network(config, 0, params["embed_tokens"][:20])
    path = tmp_path / "heads"
    heads_folder.save(path, config, network, np.arange(20, dtype=np.int32), target, [table, table])
    return path


@pytest.mark.parametrize("shape", ["static", "optimal"])
def test_more_nodes_than_heads_can_guess(tiny, heads, shape):
    fields = tiny | {"drafters": (f"{heads}:{shape}",), "rules": ("one_hot_walk",)}
    message = refusal(fields | {"gammas": (8, 111)})
    assert message == (
        f"config.gammas: {heads}:{shape} has 110 nodes to draft, not 111; nearest gamma is 110"
    )
    assert plan.prepare(SweepSettings(**fields | {"gammas": (8, 110)})).targets
    accuracies = np.full((2, 10), 0.05)
    assert len(grown(DrafterName(str(heads), shape), 110, accuracies)) == 110


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda stored: stored.pop("target"), "target must state"),
        (lambda stored: stored["target"].update(depth=1), "target must state"),
        (lambda stored: stored["target"].update(taps="final"), "taps must be a list"),
        (lambda stored: stored.pop("num_heads"), "num_heads"),
        (lambda stored: stored.update(num_heads="two"), "config.json: "),
    ],
)
def test_heads_whose_config_lacks_something(tiny, heads, change, told):
    stored = json.loads((heads / "config.json").read_text())
    change(stored)
    (heads / "config.json").write_text(json.dumps(stored))
    message = refusal(tiny | {"drafters": (str(heads),)})
    assert str(heads) in message and told in message
