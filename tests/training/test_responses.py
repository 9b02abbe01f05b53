"""Responses keep the features their laws came from, and a draft learns those laws at the right positions."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.config import DecoderConfig
from specjax.models.language_model import from_config, init_params
from specjax.training.recipe import Recipe, Stage
from specjax.training.responses import PromptTokens, Sampling, make_batches, respond
from specjax.training.responses_distillation import (
    FeatureDistillation,
    ResponsesTask,
    cut_from_target,
    load_rows,
)
from specjax.training.text import forward

CONFIG = DecoderConfig(
    vocab_size=10,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=64,
)
MODEL, PARAMS = from_config(CONFIG), init_params(CONFIG, 0)
PROMPTS = [PromptTokens(id=str(n), tokens=tuple(range(1, 2 + n))) for n in range(4)]
SAMPLING = Sampling(temperatures=(0.0, 1.0), max_new_tokens=6, batch_size=2, prompt_multiple=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from etils import epath

    folder = epath.Path(tmp_path_factory.mktemp("responses"))
    counts = list(respond(MODEL, PARAMS, make_batches(PROMPTS, SAMPLING), SAMPLING, (), folder))
    assert counts == [12, 12]
    return folder


def files(folder):
    return sorted(folder.glob("responses-*.jsonl"))


def test_a_batch_on_disk_is_never_sampled_again(folder):
    before = [path.read_bytes() for path in files(folder)]
    (folder / "responses-00001.jsonl").unlink()
    broken = {"embed_tokens": None}  # would fail if batch 0 were decoded
    steps = respond(MODEL, broken, make_batches(PROMPTS, SAMPLING), SAMPLING, (), folder)
    assert next(steps) == 12
    list(respond(MODEL, PARAMS, make_batches(PROMPTS, SAMPLING), SAMPLING, (), folder))
    assert [path.read_bytes() for path in files(folder)] == before


def test_features_give_back_the_laws_of_a_teacher_forced_pass(folder):
    rows = load_rows(files(folder), context=16, read=np.arange(CONFIG.vocab_size))
    logits = forward(MODEL, PARAMS, jnp.asarray(rows.tokens))
    from_features = rows.features.astype(np.float32) @ np.asarray(PARAMS["embed_tokens"]).T
    assert rows.is_response.sum() == 24
    # bfloat16 features: three digits.
    np.testing.assert_allclose(from_features[rows.is_response], logits[rows.is_response], atol=2e-2)
    shifted = np.roll(rows.is_response, 1, axis=1)  # control: off by one is seen
    assert np.abs(from_features[rows.is_response] - logits[shifted]).max() > 0.05


def test_every_greedy_response_follows_from_its_features(folder):
    for path in files(folder):
        rows = load_rows([path], context=16, read=np.arange(CONFIG.vocab_size))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["temperature"] for line in lines] == [0.0, 1.0]
        laws = rows.features[0].astype(np.float32) @ np.asarray(PARAMS["embed_tokens"]).T
        top = np.sort(laws[rows.is_response[0]], axis=1)
        clear = top[:, -1] - top[:, -2] > 2e-2
        best = laws[rows.is_response[0]].argmax(1)
        np.testing.assert_array_equal(best[clear], np.array(lines[0]["response_tokens"])[clear])


def test_only_response_positions_count(folder):
    rows = load_rows(files(folder), context=16, read=np.arange(CONFIG.vocab_size))
    objective = FeatureDistillation(MODEL)
    head, student = PARAMS["embed_tokens"], init_params(CONFIG, 1)
    batch = rows.take(np.arange(4))
    loss = objective(student, head, batch)
    elsewhere = np.where(rows.is_response[..., None], rows.features, np.ones_like(rows.features))
    assert objective(student, head, {**batch, "features": elsewhere}) == loss
    assert float(loss) > 10 * float(
        objective(PARAMS, head, batch)
    )  # the teacher itself is at bfloat16's noise


def test_a_long_prompt_loses_its_beginning(folder):
    rows = load_rows(files(folder), context=5, read=np.arange(CONFIG.vocab_size))
    assert rows.tokens.shape == (4, 5)
    assert rows.is_response.all()  # six response tokens, cut to five


def test_a_task_starts_from_the_target_and_is_a_function_of_the_step(folder):
    ids = np.array([0, 2, 3, 5])
    config, start = cut_from_target(MODEL, PARAMS, ids, (1,))
    assert (config.vocab_size, config.num_hidden_layers) == (4, 1)
    read = np.zeros(CONFIG.vocab_size, np.int32)
    rows = load_rows(files(folder), context=16, read=read)
    recipe = Recipe(
        model=config, stages=(Stage(steps=4, batch_size=2, context=16),), learning_rate=0.01, warmup_steps=1
    )
    head = jnp.asarray(PARAMS["embed_tokens"])[ids]
    task = ResponsesTask(recipe=recipe, start=start, head=head, training=rows, held_out=rows)
    for step in range(4):
        np.testing.assert_array_equal(task.batch(step)["tokens"], task.batch(step)["tokens"])
    seen = np.concatenate([task.batch(step)["features"] for step in (0, 1)])
    assert {row.tobytes() for row in seen} == {row.tobytes() for row in rows.features}
    figures = task.evaluate(task.init())
    assert 0 < figures["held_out_overlap"] < 1 and figures["held_out_kl"] > 0
    assert dataclasses.is_dataclass(task.objective) and jax.tree.leaves(task.constants)
