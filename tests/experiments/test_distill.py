"""From a target to a draft of its own: responses, distillation, a sweep with the result."""

import io
import json
import re
import shutil

from etils import epath
import pytest
import rich.console

from experiments import catalogue, distill_run, respond_run
from experiments.plan import prepare
from experiments.settings import SweepSettings
from specjax.training.responses_distillation import ResponsesTask

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def console():
    return rich.console.Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def chat_target(pair, tmp_path_factory):
    """The tiny target with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "big"
    shutil.copytree(pair[0], folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def respond_settings(target, prompts):
    return {
        "target": target,
        "prompts": prompts,
        "categories": (),
        "code_prompts": 0,
        "passage_prompts": 0,
        "max_prompt_tokens": 60,
        "temperatures": (0.0, 1.0),
        "max_new_tokens": 8,
        "batch_size": 2,
        "num_tokens": 10**6,
        "seed": 0,
    }


@pytest.fixture(scope="module")
def responses(chat_target, prompts_file, tmp_path_factory):
    workdir = epath.Path(tmp_path_factory.mktemp("responses"))
    respond_run.run(respond_settings(chat_target, prompts_file), workdir, console())
    assert len(list(workdir.glob("responses-*.jsonl"))) > 1
    return workdir


def distill_settings(target, responses):
    return {
        "target": target,
        "responses": str(responses),
        "held_out_files": 1,
        "vocab_size": 200,
        "layers": (0,),
        "start": "",
        "rare_ids": 0,
        "rare_rank": 4,
        "greedy": 0.0,
        "export": "",
        "steps": 3,
        "batch_size": 2,
        "context": 16,
        "learning_rate": 1e-3,
        "warmup_steps": 1,
        "checkpoint_every": 2,
        "evaluate_every": 2,
        "evaluation_batches": 1,
    }


def test_a_draft_from_responses_drafts_in_a_sweep(chat_target, responses, prompts_file, tmp_path):
    workdir = epath.Path(tmp_path / "draft")
    distill_run.run(distill_settings(chat_target, responses), workdir, console())
    log = (workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [1, 2, 3]
    export = str(workdir / "export")
    settings = SweepSettings(
        targets=(chat_target,), drafters=("none", export, "layer_skip"), prompts=prompts_file, num_prompts=1
    )
    plan = prepare(settings)
    target, draft = plan.targets[chat_target], plan.draft_models[export]
    assert draft.model.vocab_size == target.model.vocab_size > draft.model.inner.vocab_size == 200
    drafter = catalogue.make_drafter("layer_skip", target, plan.draft_models).drafter
    assert drafter.model.config.num_hidden_layers <= target.model.config.num_hidden_layers


def test_an_earlier_draft_learns_rare_ids(chat_target, responses, prompts_file, tmp_path):
    settings = distill_settings(chat_target, responses)
    folders = [epath.Path(tmp_path / name) for name in ("earlier", "later", "last")]
    distill_run.run(settings, folders[0], console())
    rare = {**settings, "start": str(folders[0] / "export"), "rare_ids": 40, "greedy": 0.5}
    distill_run.run(rare, folders[1], console())
    distill_run.run({**rare, "start": str(folders[1] / "export")}, folders[2], console())
    for folder in folders[1:]:
        export = str(folder / "export")
        plan = prepare(
            SweepSettings(
                targets=(chat_target,), drafters=("none", export), prompts=prompts_file, num_prompts=1
            )
        )
        params = plan.draft_models[export].params
        assert params["rare_rows"].shape == (40, 4)
        assert len(set(params["write"].tolist())) == 240 + 1  # and those outside


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rare_ids": 10**6}, r"config\.rare_ids: 1000000 of rank 4 must be at most"),
        ({"rare_ids": 4, "rare_rank": 0}, r"of rank 0 must be .* of a rank in 1\.\."),
        ({"vocab_size": 1}, r"config\.vocab_size: 1 must lie in"),
        ({"start": "nowhere"}, r"config\.start: .*nowhere"),
        ({"batch_size": 999}, r"config\.responses: \d+ training responses do not fill a batch of 999 rows"),
        ({"layers": (1, 0, 1)}, r"config\.layers: \(1, 0, 1\) names layer 1 twice; nearest is \(1, 0\)$"),
        ({"layers": (0, 99)}, r"config\.layers: layers \(0, 99\) must be some of 0\.\."),
        ({"layers": ()}, r"config\.layers: layers \(\) must be some of 0\.\."),
    ],
)
def test_a_draft_that_cannot_be_is_refused(chat_target, responses, tmp_path, monkeypatch, change, told):
    monkeypatch.setattr(ResponsesTask, "evaluate", forbidden)
    with pytest.raises(ValueError, match=told):
        distill_run.run(
            {**distill_settings(chat_target, responses), **change}, epath.Path(tmp_path), console()
        )
    assert not list(tmp_path.iterdir())  # so that the same workdir may be given again


def forbidden(*_):
    raise AssertionError("a run that is refused must not compile")


def test_more_evaluation_than_is_held_out_is_refused(chat_target, responses, tmp_path, monkeypatch):
    settings, workdir = distill_settings(chat_target, responses), epath.Path(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(ResponsesTask, "evaluate", forbidden)
        with pytest.raises(
            ValueError, match=r"config\.evaluation_batches: 99, but .* nearest is \d+"
        ) as told:
            distill_run.run({**settings, "evaluation_batches": 99}, workdir, console())
    nearest = int(re.search(r"nearest is (\d+)", str(told.value))[1])
    with pytest.raises(ValueError, match=r"config\.evaluation_batches"):
        distill_run.run({**settings, "evaluation_batches": nearest + 1}, workdir, console())
    distill_run.run({**settings, "evaluation_batches": nearest, "steps": 2}, workdir, console())


def test_responses_need_a_chat_template(pair, prompts_file, tmp_path):
    with pytest.raises(ValueError, match="states no chat template"):
        respond_run.run(respond_settings(pair[0], prompts_file), epath.Path(tmp_path), console())


def test_distillation_needs_responses(chat_target, tmp_path):
    with pytest.raises(ValueError, match=r"config\.responses: 0 files responses-\*\.jsonl"):
        distill_run.run(distill_settings(chat_target, tmp_path), epath.Path(tmp_path), console())
