"""A target or a category that is not there, as each main but the sweep's is told of it."""

from etils import epath
import pytest
import rich.console
from test_distill import respond_settings

from configs import profile_smollm2, train_draft_smollm2, train_medusa_smollm2
from experiments import distill_run, respond_run, train_heads_run
from experiments.profile_setup import ProfileSettings, set_up


def respond(target, prompts_file):
    respond_run.run(respond_settings(target, prompts_file), epath.Path("nowhere"), rich.console.Console())


def train_heads(target, prompts_file):
    settings = train_medusa_smollm2.get_config().to_dict() | {"target": target}
    train_heads_run.run(settings, epath.Path("nowhere"), rich.console.Console())


def distill(target, prompts_file):
    settings = train_draft_smollm2.get_config().to_dict() | {"target": target}
    distill_run.run(settings, epath.Path("nowhere"), rich.console.Console())


def profile(target, prompts_file):
    settings = profile_smollm2.get_config().to_dict() | {"target": target, "prompts": prompts_file}
    set_up(ProfileSettings.from_config(settings))


@pytest.mark.parametrize("run", [respond, train_heads, distill, profile])
@pytest.mark.parametrize(
    ("target", "told"),
    [
        (
            "smollm-135m-instruct",
            r"config\.target: unknown 'smollm-135m-instruct'; nearest is 'smollm2-135m-instruct', or",
        ),
        ("./nowhere", r"no folder nowhere"),
        ("nowhere.gguf", r"no file nowhere\.gguf"),
    ],
)
def test_a_target_that_is_not_there(run, target, told, prompts_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=told):
        run(target, prompts_file)
    assert not epath.Path("nowhere").exists()


def test_a_category_that_no_prompt_has(pair, prompts_file, tmp_path):
    target = pair[0]
    settings = respond_settings(target, prompts_file) | {"categories": ("coding",)}
    with pytest.raises(ValueError, match="'coding'; no prompt has a category, leave categories empty"):
        respond_run.run(settings, epath.Path(tmp_path), rich.console.Console())
    with_category = tmp_path / "prompts.jsonl"
    with_category.write_text('{"prompt": "a", "category": "code"}\n{"prompt": "b"}\n')
    with pytest.raises(ValueError, match=r"config\.categories: no prompt of 'coding'; nearest is 'code'"):
        respond_run.run(
            settings | {"prompts": str(with_category)}, epath.Path(tmp_path), rich.console.Console()
        )
