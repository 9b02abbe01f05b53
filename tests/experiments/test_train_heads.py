"""From a target's responses to heads of its own in a folder, from a config."""

import dataclasses
import io
import json
import shutil

from etils import epath
import jax
import numpy as np
import pytest
import rich.console
from test_distill import respond_settings

from configs import train_blockwise_smollm2, train_medusa_smollm2
from experiments import respond_run, train_heads_run
from specjax.models import huggingface
from specjax.models.heads import folder as heads_folder

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def console():
    return rich.console.Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def trained(pair, prompts_file, tmp_path_factory):
    """(target folder, responses folder): the tiny target with a chat template, and what it wrote."""
    target = tmp_path_factory.mktemp("chat") / "big"
    shutil.copytree(pair[0], target)
    (target / "chat_template.jinja").write_text(TEMPLATE)
    responses = epath.Path(tmp_path_factory.mktemp("responses"))
    respond_run.run(respond_settings(str(target), prompts_file), responses, console())
    return str(target), str(responses)


def settings(trained, config=train_medusa_smollm2, **changes):
    small = {
        "target": trained[0],
        "responses": (trained[1],),
        "held_out_files": 1,
        "held_out_temperatures": (),
        "num_heads": 2,
        "num_ids": 60,
        "predicted_nodes": (4,),
        "decoded_nodes": (),
        "decode_prompts": 1,
        "decode_tokens": 4,
        "steps": 2,
        "batch_size": 1,
        "context": 4,
        "warmup_steps": 1,
        "checkpoint_every": 1,
    }
    return {**config.get_config().to_dict(), **small, **changes}


def test_heads_are_trained_exported_and_fit_their_target(trained, tmp_path):
    workdir = epath.Path(tmp_path / "run")
    train_heads_run.run(settings(trained), workdir, console())
    last = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2 and last["held_out_real_tau_chain"] >= 1
    export = workdir / "export"
    model, params = huggingface.load(trained[0])
    target = heads_folder.read_target(export)
    tapped = dataclasses.replace(model, taps=target.taps)
    loaded = heads_folder.load(export, tapped, params, huggingface.weights_hash(trained[0]))
    assert loaded.rank_accuracies.shape == (2, 10) and loaded.params.ids.shape == (60,)
    np.testing.assert_array_equal(loaded.params.table, params["embed_tokens"][loaded.params.ids])
    assert "| head | top 1 |" in (export / "README.md").read_text()

    train_heads_run.run(settings(trained), workdir, console())  # finished: nothing changes
    again = heads_folder.load(export, tapped, params, huggingface.weights_hash(trained[0]))
    jax.tree.map(np.testing.assert_array_equal, loaded.params, again.params)
    with pytest.raises(ValueError, match=r"head_decay: 0\.8 in the workdir, 0\.5 now"):
        train_heads_run.run(settings(trained, head_decay=0.5), workdir, console())


def test_blockwise_heads_from_their_config(trained, tmp_path):
    changes = {"hidden_size": 8, "decode_prompts": 0, "sampled_heads": True, "features": "computed"}
    export = str(tmp_path / "blockwise")
    changed = settings(trained, train_blockwise_smollm2, export=export, **changes)
    train_heads_run.run(changed, epath.Path(tmp_path / "run"), console())
    assert json.loads(epath.Path(export, "config.json").read_text())["kind"] == "blockwise"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"kind": "medusas"}, r"config\.kind: unknown 'medusas'; .*medusa"),
        ({"features": "cache"}, r"config\.features: unknown 'cache'"),
        ({"taps": ("final", "final")}, "'final' is named twice"),
        ({"taps": (99,)}, "feature layer 99"),
        ({"taps": (0,)}, r"config\.taps: \(0,\)"),
        ({"num_heads": 0}, r"config\.num_heads: must be at least 1, got 0"),
        ({"mesh_data": 0}, r"config\.mesh_data: must be at least 1, got 0"),
        ({"decode_prompts": -1}, r"config\.decode_prompts: must be at least 0, got -1"),
        ({"predicted_nodes": (4, 1)}, r"config\.predicted_nodes: 1 nodes, root included, must be at least 2"),
        ({"kind": "blockwise"}, r"'blockwise' needs config\.hidden_size; .*configs/train_blockwise_smollm2"),
        ({"num_ids": 10**6}, r"config\.num_ids: 1000000 must lie in 2\.\."),
        ({"responses": ()}, r"config\.responses: 0 files"),
        ({"held_out_files": 99}, r"config\.responses: \d+ files .* 99 are held out"),
        ({"decoded_nodes": (5,)}, r"config\.decoded_nodes: \(5,\) must be among"),
        ({"batch_size": 10**6}, "batch_size 1000000 windows"),
    ],
)
def test_bad_settings_are_refused_before_training(trained, tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        train_heads_run.run(settings(trained, **changes), epath.Path(tmp_path / "run"), console())


def test_responses_of_another_target_are_refused(trained, tmp_path):
    other = tmp_path / "responses"
    shutil.copytree(trained[1], other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "weights_sha256": "0" * 64}))
    with pytest.raises(ValueError, match=r"written by a target with weights 0+, .* has [0-9a-f]+"):
        train_heads_run.run(settings((trained[0], str(other))), epath.Path(tmp_path / "run"), console())
    (other / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.responses: .*config\.json is not JSON"):
        train_heads_run.run(settings((trained[0], str(other))), epath.Path(tmp_path / "run"), console())
