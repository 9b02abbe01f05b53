"""Everything a user can get wrong about models and prompts is refused before anything is compiled."""

import json

import jax
import numpy as np
import pytest
from tiny_pair import TEXTS, save_model, tiny_config

from experiments import catalogue, compilation
from experiments.plan import STDLIB, prepare
from experiments.settings import SweepSettings
from specjax.data.tokenizers import train_tokenizer
from specjax.models import huggingface
from specjax.models.language_model import from_config, init_params


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Loading weights may convert dtypes; no program of a sweep may be built."""
    with compilation.watch() as seen:
        yield
    assert not {name for name in seen.programs if "prefill" in name or "decode" in name or "steps" in name}


def refusal(fields):
    with pytest.raises(ValueError) as caught:
        prepare(SweepSettings(**fields))
    message = str(caught.value)
    assert len(message.splitlines()) <= 2
    return message


def test_a_good_plan(tiny):
    plan = prepare(SweepSettings(**tiny))
    (target,) = tiny["targets"]
    assert [len(ids) > 0 for ids in plan.token_ids[target]] == [True, True]
    models = (target, tiny["drafters"][1])
    assert set(plan.resolved()) == {"prompts_hash", *(f"weights of {name}" for name in models)}


@pytest.mark.parametrize(
    "key, value, told",
    [
        ("targets", ("targt",), "unknown 'targt'; nearest is 'target', or a folder"),
        ("targets", ("./nowhere",), "no folder nowhere"),
        ("targets", ("nowhere.gguf",), "no file nowhere.gguf"),
        ("drafters", ("drft",), "unknown 'drft'; nearest is 'draft'"),
        ("drafters", ("promptlookup",), "nearest is 'prompt_lookup'"),
        ("rules", ("rejecton",), "unknown 'rejecton'; nearest is 'rejection'"),
        ("rules", ("none",), "unknown 'none'; known are rejection, block, coupled"),
        ("prompts", "nowhere.jsonl", "prompts: no file nowhere.jsonl"),
        ("num_prompts", 99, "holds 4; add --config.num_prompts=4"),
        ("mesh", (64, 1), "needs 64 devices"),
        ("gammas", (1, 10**9), "config.gammas: 1000000000 does not fit the target"),
        ("max_new_tokens", 10**12, "config.max_new_tokens: 1000000000000 does not fit the target"),
    ],
)
def test_names_files_and_devices(tiny, key, value, told):
    assert told in refusal(tiny | {key: value})


def test_more_prompts_than_the_standard_library_gives(tiny):
    told = refusal(tiny | {"prompts": STDLIB, "prompt_groups": (), "num_prompts": 10**6})
    assert "config.num_prompts 1000000: the held-out modules give" in told


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_prompt_longer_than_a_context(tiny, tmp_path, tokenizer, role):
    num_tokens = max(len(tokenizer.encode(text).ids) for text in TEXTS[:2])
    context = num_tokens - 3
    short = save_model(tmp_path / "short", tokenizer, context=context)
    fields = {"target": {"targets": (str(short),)}, "draft": {"drafters": (str(short),)}}[role]
    message = refusal(tiny | fields)
    excess = 3 + (role == "target")  # the target must also hold one new token
    assert f"has {num_tokens} tokens, {excess} too many for the {role} short" in message


def test_an_empty_prompt(tiny, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "x"}) + "\n" + json.dumps({"prompt": ""}) + "\n")
    assert "line 2: the prompt is empty" in refusal(tiny | {"prompts": str(path)})


def test_tokenizers_that_differ_in_one_id(tiny, tmp_path, tokenizer):
    other = train_tokenizer([text.replace("queue", "stack") for text in TEXTS], tokenizer.get_vocab_size())
    draft = save_model(tmp_path / "other", other)
    message = refusal(tiny | {"drafters": (str(draft),)})
    assert "big and other: target and draft tokenizers differ: id " in message


def test_a_folder_without_weights(tiny, tmp_path, tokenizer):
    folder = save_model(tmp_path / "empty", tokenizer)
    (folder / "model.safetensors").unlink()
    message = refusal(tiny | {"drafters": (str(folder),)})
    assert f"model {str(folder)!r}" in message
    assert "model.safetensors" in message


def test_a_folder_whose_tensors_do_not_fit(tiny, tmp_path, tokenizer):
    folder = save_model(tmp_path / "wide", tokenizer)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    assert "misshapen: model.layers.0.mlp.down_proj.weight" in refusal(tiny | {"targets": (str(folder),)})


@pytest.mark.parametrize("ids", ["x", [0, 10**6]])
def test_stop_tokens_that_are_no_ids(tiny, tmp_path, tokenizer, ids):
    folder = save_model(tmp_path / "odd", tokenizer)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    assert f"generation_config.json: eos_token_id {ids!r} must be ids" in refusal(
        tiny | {"targets": (str(folder),)}
    )


def test_a_tokenizer_file_that_is_none(tiny, tmp_path, tokenizer):
    folder = save_model(tmp_path / "odd", tokenizer)
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is not a tokenizer" in refusal(tiny | {"targets": (str(folder),)})


def test_vocabularies_padded_to_different_sizes(tiny, tmp_path, tokenizer):
    """The masks reach from the tokenizer, which both share, to the end of either model's rows."""
    paths = []
    for name, rows in (("target", 304), ("draft", 288)):
        config = tiny_config(rows, hidden_size=8, num_layers=1)
        shapes = jax.eval_shape(lambda config=config: init_params(config, 0))
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        huggingface.save(tmp_path / name, from_config(config), zeros, tokenizer)
        paths.append(str(tmp_path / name))
    plan = prepare(SweepSettings(**tiny | {"targets": paths[:1], "drafters": paths[1:]}))
    target, draft = plan.targets[paths[0]], plan.draft_models[paths[1]]
    assert (target.model.vocab_size, target.model.num_ids) == (304, 280)
    assert (draft.model.vocab_size, draft.model.num_ids) == (288, 280)
    drafter = catalogue.make_drafter(paths[1], target, plan.draft_models).drafter
    assert (drafter.vocab_size, drafter.num_ids) == (304, 280)


def test_groups_take_turns(tiny, tmp_path):
    path = tmp_path / "prompts.jsonl"
    kinds = ["qa", "qa", "math", "qa", "code"]
    lines = [{"prompt": f"x = {i}", "id": str(i), "category": kind} for i, kind in enumerate(kinds)]
    path.write_text("\n".join(map(json.dumps, lines)))
    tiny |= {"prompts": str(path), "prompt_groups": ("math", "qa"), "num_prompts": 3}
    assert [prompt.id for prompt in prepare(SweepSettings(**tiny)).prompts] == ["2", "0", "1"]
    assert "holds 4; add --config.num_prompts=4" in refusal(tiny | {"num_prompts": 5})
    empty = refusal(tiny | {"prompt_groups": ("math", "rag")})
    assert empty == "prompts: the group 'rag' is empty; there are code, math, qa"


def test_a_chat_needs_a_template(tiny):
    assert "config.chat: big states no chat template; nearest is" in refusal(tiny | {"chat": True})
