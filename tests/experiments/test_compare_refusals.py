"""What a comparison with ``transformers`` refuses, in the words of its flags, before torch is imported."""

import json
from pathlib import Path
import subprocess
import sys

import pytest
from tiny_pair import TEXTS, save_model

from experiments import compare_setup
from experiments.models import PAIR
from specjax.data.tokenizers import train_tokenizer

USUAL = {
    "target": "target",
    "draft": "draft",
    "gammas": (3, 7),
    "smoke": False,
    "prompts": "stdlib",
    "num_prompts": 2,
    "prompt_groups": (),
    "chat": False,
    "max_new_tokens": 8,
}


def message_of(act, *arguments, **flags):
    with pytest.raises(ValueError) as caught:
        act(*arguments, **flags)
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and "config." not in message
    return message


@pytest.mark.parametrize("smoke", [False, True])
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"gammas": ()}, "--gammas: empty; it takes whole numbers from 1"),
        ({"gammas": (3, 0)}, "--gammas: 0 is below 1, the fewest tokens transformers drafts"),
        ({"gammas": (-1,)}, "--gammas: -1 is below 1"),
        ({"gammas": (3, 3.5)}, "--gammas: 3.5 is not a whole number; nearest are 3 and 4"),
        ({"gammas": ("many",)}, "--gammas: 'many' is not a whole number"),
        ({"num_prompts": 0}, "--num_prompts: 0 is below 1"),
        ({"max_new_tokens": 0}, "--max_new_tokens: 0 is below 1"),
        ({"prompts": ""}, "--prompts: '' is not a name"),
        ({"prompt_groups": (3,)}, "--prompt_groups: 3 is not a name"),
        ({"target": "targt"}, "--target: unknown 'targt'; nearest is 'target', or a folder"),
        ({"target": ""}, "--target: '' is not a name"),
        ({"target": "hf://org/name"}, "--target: 'hf://org/name' is no folder, which both sides can open"),
        ({"draft": "drft"}, "--draft: unknown 'drft'; nearest is 'draft', or a folder"),
        ({"draft": "runs/x.gguf"}, "--draft: 'runs/x.gguf' is no folder, which both sides can open"),
        ({"draft": "none"}, "--draft: 'none' is no draft model by itself; known are draft, draft-small"),
        ({"draft": "prompt_lookup"}, "--draft: 'prompt_lookup' is no draft model by itself"),
        (
            {"draft": "prompt_lookup+draft"},
            "'prompt_lookup+draft' is no draft model by itself; nearest is 'draft'",
        ),
        ({"draft": "draft-small:2x2"}, "is no draft model by itself; nearest is 'draft-small', or a folder"),
        ({"draft": "medusa-smollm2"}, "is no draft model by itself; nearest is 'draft-smollm2'"),
    ],
)
def test_flags_that_cannot_run(flags, told, smoke):
    assert told in message_of(compare_setup.make_settings, **USUAL | {"smoke": smoke} | flags)


def test_smoke_makes_a_comparison_smaller_and_never_larger():
    smoke = compare_setup.make_settings(**USUAL | {"smoke": True, "num_prompts": 99, "max_new_tokens": 99})
    assert (smoke.gammas, smoke.num_prompts, smoke.max_new_tokens) == ((3,), 2, 16)
    smaller = compare_setup.make_settings(**USUAL | {"smoke": True, "num_prompts": 1, "max_new_tokens": 5})
    assert (smaller.num_prompts, smaller.max_new_tokens) == (1, 5)


@pytest.fixture
def tiny_flags(pair, prompts_file):
    return USUAL | {"target": pair[0], "draft": pair[1], "gammas": (2,), "prompts": prompts_file}


def prepared(flags):
    return compare_setup.prepare(compare_setup.make_settings(**flags))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"num_prompts": 999}, f"holds {len(TEXTS)}; add --num_prompts={len(TEXTS)}"),
        ({"prompts": "asistant"}, "prompts: no file asistant; nearest is 'assistant'"),
        ({"prompt_groups": ("maths",)}, "prompts: the group 'maths' is empty; there are (none)"),
        ({"chat": True}, "--chat: big states no chat template; nearest is --chat=False"),
        ({"gammas": (500,)}, "--gammas: 500 does not fit the target big"),
        ({"max_new_tokens": 500}, "--max_new_tokens: 500 does not fit the target big"),
        ({"max_new_tokens": 120}, "exceed the context of big, 128; the most are"),
        ({"draft": "./nowhere/small"}, "no folder nowhere/small; nowhere is no folder, or empty"),
    ],
)
def test_what_does_not_fit_the_models_or_prompts(tiny_flags, flags, told):
    assert told in message_of(prepared, tiny_flags | flags)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"text": "x"}', '{"prompt": ""}'])
def test_a_prompts_file_that_is_malformed(tiny_flags, text, tmp_path):
    (path := tmp_path / "odd.jsonl").write_text(text and text + "\n")
    message = message_of(prepared, tiny_flags | {"prompts": str(path)})
    assert str(path) in message and ("line 1" in message or "holds no prompt" in message)


def test_a_draft_of_another_tokenizer(tiny_flags, tmp_path):
    other = save_model(tmp_path / "other", train_tokenizer(["zyx wvu " * 50], 270), hidden_size=8)
    assert message_of(prepared, tiny_flags | {"draft": str(other)}).startswith("big and other: ")


def test_a_workdir_holds_one_comparison(tiny_flags, tmp_path):
    workdir = str(tmp_path / "compare")
    plan = prepared(tiny_flags)
    assert compare_setup.claim(workdir, plan) == compare_setup.claim(workdir, plan) == Path(workdir)
    message = message_of(compare_setup.claim, workdir, prepared(tiny_flags | {"num_prompts": 1}))
    assert "settings.num_prompts: 2 in the workdir, 1 now" in message and "take another --workdir" in message
    (sweep := tmp_path / "sweep").mkdir()
    (sweep / "config.json").write_text(json.dumps({"settings": {"gammas": [2]}, "resolved": {}}))
    assert "belongs to another run" in message_of(compare_setup.claim, str(sweep), plan)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in message_of(compare_setup.claim, str(tmp_path / "file" / "x"), plan)
    assert "--workdir is empty" in message_of(compare_setup.claim, "", plan)


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(compare_setup, "PEERS", ("json", "no_such_package"))
    assert message_of(compare_setup.check_installed).startswith(
        "no_such_package is not installed; pip install"
    )


def test_the_command_refuses_before_torch_is_imported(tmp_path):
    """In a process of its own, where importing torch is an error that would be told instead."""
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"sys.argv[1:] = ['--workdir={tmp_path}/run', '--target={PAIR['target']}', '--draft=drft']\n"
        "runpy.run_module('experiments.compare_transformers', run_name='__main__')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    told = "error: --draft: unknown 'drft'; nearest is 'draft', or a folder\n"
    assert (ended.returncode, ended.stderr) == (2, told)
    assert not (tmp_path / "run").exists()
