import io
import json

import numpy as np
import pytest
import rich.console

from configs import quickstart, train_target
from experiments import train_config, train_run
from specjax.data.corpora import Corpus, Module
from specjax.data.tokenizers import check_same_ids, load_tokenizer
from specjax.models import huggingface
from specjax.training.windows import token_stream

TEXT = "def scale(values, factor):\n    return [factor * value for value in values]\n\n\n" * 30


def tiny_config(**changes):
    config = train_target.get_config()
    config.model.update(
        vocab_size=280,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
    )
    config.update(stages=((2, 2, 24), (1, 1, 32)), warmup_steps=1, evaluation_batches=1, evaluate_every=2)
    config.update(changes)
    return config


def run(config, workdir):
    output = io.StringIO()
    train_run.run_training(
        train_config.resolve(config), workdir, rich.console.Console(file=output, width=1000)
    )
    return output.getvalue()


@pytest.fixture(scope="module", autouse=True)
def small_library():
    corpora = [
        Corpus(modules=(Module(name=f"{name}.py", text=TEXT + f"{name} = 1\n"),)) for name in ("a", "b")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "standard_library", lambda: tuple(corpora))
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "target"
    return workdir, run(tiny_config(), workdir)


def test_a_run_reports_and_exports(target):
    workdir, told = target
    assert "step 2/3: loss" in told and "tokens/s" in told and "min left" in told
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["tokens"] == 2 * 2 * 24 + 32 and summary["held_out_loss"] < 5.64  # log 280
    model, _ = huggingface.load(workdir / "export")
    assert model.vocab_size == load_tokenizer(workdir / "export").get_vocab_size() == 280


def test_a_finished_run_says_so_and_another_recipe_is_refused(target):
    workdir, _ = target
    before = (workdir / "metrics.jsonl").read_bytes()
    assert "is finished, nothing to do" in run(tiny_config(), workdir)
    assert (workdir / "metrics.jsonl").read_bytes() == before
    with pytest.raises(ValueError, match=r"learning_rate: 0\.0015 in the workdir, 0\.5 now"):
        run(tiny_config(learning_rate=0.5), workdir)


def test_a_draft_learns_from_the_exported_target_and_its_text(target, tmp_path):
    teacher = target[0] / "export"
    config = tiny_config(teacher=str(teacher), stages=((2, 2, 24),), export=str(tmp_path / "draft"))
    config.self_generated.update(rows=6, batch_size=3, prompt_length=5)
    told = run(config, tmp_path / "run")
    assert "sampling 6 rows" in told and "held out agreement" in told
    check_same_ids(load_tokenizer(teacher), load_tokenizer(tmp_path / "draft"))
    rows = np.load(tmp_path / "run" / "self_generated.npy")
    assert rows.shape == (6, 25) and rows.min() >= 0 and rows.max() < 280
    stream = token_stream(train_run.standard_library()[0], load_tokenizer(teacher))
    pieces = {tuple(stream[start : start + 5]) for start in range(len(stream))}
    assert {tuple(row[:5]) for row in rows} <= pieces
    assert len({tuple(row) for row in rows}) == 6
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert settings["teacher_sha256"] == huggingface.weights_hash(teacher)
    card = (tmp_path / "draft" / "README.md").read_text()
    assert "distilled from" in card and f"teacher sha256: {settings['teacher_sha256']}" in card


def test_a_draft_of_another_vocabulary_is_refused(target, tmp_path):
    config = tiny_config(teacher=str(target[0] / "export"))
    config.model.vocab_size = 281
    with pytest.raises(ValueError, match="vocab_size 281 is not the teacher's 280"):
        run(config, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": ((2, 2),)}, r"stages\[0\] must be integers \(steps, batch_size, context\), got \(2, 2\)"),
        ({"stages": ((2, 2, 8.5),)}, r"stages\[0\] must be integers"),
        ({"self_generated": {"rows": 3, "batch_size": 3}}, "self_generated.rows needs a teacher"),
    ],
)
def test_wrong_configs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        train_config.resolve(tiny_config(**changes))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("lerning_rate",), 1.0, "config.lerning_rate: no such key; nearest is 'learning_rate'"),
        (("model", "hiden_size"), 8, "config.model.hiden_size: no such key; nearest is 'hidden_size'"),
        (("model", "hidden_size"), 0, "config.model.hidden_size: 0 is below 1"),
    ],
)
def test_wrong_keys_and_sizes_are_refused(path, value, message):
    config = tiny_config()
    with config.unlocked():
        (config if len(path) == 1 else config[path[0]])[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        train_config.resolve(config)


def test_the_config_of_a_sweep_is_refused():
    with pytest.raises(ValueError, match="config: no model; is this a file of configs/train"):
        train_config.resolve(quickstart.get_config())


def test_an_unwritable_workdir_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written \(Not a directory\)"):
        run(tiny_config(), tmp_path / "file" / "run")
