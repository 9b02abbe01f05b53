import dataclasses
import json

import jax
import numpy as np
import pytest

from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params
from specjax.training.loop import train
from specjax.training.recipe import Recipe, Stage
from specjax.training.text import Teacher, Text, TextTask, evaluate, forward
from specjax.training.windows import evaluation_batches

MODEL = DecoderConfig(
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=16,
)
RECIPE = Recipe(
    model=MODEL,
    stages=(Stage(steps=10, batch_size=2, context=8), Stage(steps=6, batch_size=1, context=16)),
    learning_rate=0.02,
    warmup_steps=3,
    checkpoint_every=4,
    evaluate_every=5,
    evaluation_batches=2,
)
STREAM = np.random.default_rng(0).permutation(np.arange(400, dtype=np.int32) % 8)
TEXT = Text(training=STREAM[:300], held_out=STREAM[300:])
TASK = TextTask(recipe=RECIPE, text=TEXT)


class Interrupted(Exception):
    pass


def interrupt_after(step):
    def report(progress):
        if progress.step == step:
            raise Interrupted

    return report


def log_of(workdir):
    return (workdir / "metrics.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    return train(RECIPE, TASK, workdir=workdir), log_of(workdir), workdir


def test_log_has_every_step_with_the_schedule_and_held_out_figures(uninterrupted):
    records = [json.loads(line) for line in uninterrupted[1]]
    assert [record["step"] for record in records] == list(range(1, 17))
    assert [record["step"] for record in records if "held_out_loss" in record] == [5, 10, 15, 16]
    rates = [record["learning_rate"] for record in records]
    assert rates[0] == 0 and rates.index(max(rates)) == 3 and rates[3] == pytest.approx(0.02)
    assert rates[-1] < 0.2 * rates[3]


# Before any checkpoint, at one, between two, at the border of the stages, at the last step but one.
@pytest.mark.parametrize("steps", [(2,), (4,), (7,), (10, 13), (15,)])
def test_an_interrupted_run_resumes_to_the_same_log_and_weights(uninterrupted, tmp_path, steps):
    state, log, _ = uninterrupted
    for step in steps:
        with pytest.raises(Interrupted):
            train(RECIPE, TASK, workdir=tmp_path, report=interrupt_after(step))
    resumed = train(RECIPE, TASK, workdir=tmp_path)
    assert log_of(tmp_path) == log
    assert jax.tree.structure(resumed) == jax.tree.structure(state)
    same = lambda new, old: np.testing.assert_array_equal(new, old)
    jax.tree.map(same, (resumed.params, resumed.opt_state), (state.params, state.opt_state))


def test_a_torn_last_line_is_forgiven(uninterrupted, tmp_path):
    with pytest.raises(Interrupted):
        train(RECIPE, TASK, workdir=tmp_path, report=interrupt_after(6))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text()[:-9])
    train(RECIPE, TASK, workdir=tmp_path)
    assert log_of(tmp_path) == uninterrupted[1]


def test_a_finished_run_does_nothing(uninterrupted):
    state, log, workdir = uninterrupted
    reports = []
    again = train(RECIPE, TASK, workdir=workdir, report=reports.append)
    assert not reports and log_of(workdir) == log and int(again.step) == RECIPE.steps
    jax.tree.map(np.testing.assert_array_equal, again.params, state.params)


def test_a_draft_approaches_its_teacher(tmp_path):
    params = init_params(MODEL, 7)
    params["embed_tokens"] *= 30  # far from uniform
    teacher = Teacher(from_config(MODEL), params)
    stages = (Stage(steps=60, batch_size=4, context=8),)
    recipe = dataclasses.replace(RECIPE, stages=stages, evaluate_every=30, checkpoint_every=60)
    rows = np.tile(np.arange(9, dtype=np.int32) % 8, (4, 1))
    task = TextTask(recipe=recipe, text=dataclasses.replace(TEXT, rows=rows), teacher=teacher)
    train(recipe, task, workdir=tmp_path)
    records = [json.loads(line) for line in log_of(tmp_path)]
    assert records[-1]["loss"] < 0.6 * records[0]["loss"]
    assert {"held_out_kl", "held_out_overlap", "held_out_agreement"} <= records[-1].keys()
    assert records[-1]["held_out_kl"] < records[0]["loss"]


def test_a_teacher_agrees_with_itself():
    model, params = from_config(MODEL), init_params(MODEL, 0)
    batches = evaluation_batches(TEXT.held_out, context=8, batch_size=2, num_batches=2)
    figures = evaluate(model, params, batches, Teacher(model, params))
    assert figures["held_out_agreement"] == 1
    assert figures["held_out_overlap"] == pytest.approx(1, abs=1e-6)
    assert figures["held_out_kl"] == pytest.approx(0, abs=1e-6)


def test_the_training_forward_is_the_decoding_step():
    model, params = from_config(MODEL), init_params(MODEL, 0)
    tokens = STREAM[:16].reshape(2, 8)
    apply = jax.jit(model.apply)
    for row, logits in zip(
        tokens, jax.jit(lambda params, tokens: forward(model, params, tokens))(params, tokens)
    ):
        cache = model.init_cache(12)
        for position, token in enumerate(row):
            output = apply(params, token[None], cache)
            cache = output.cache
            np.testing.assert_allclose(output.logits[0], logits[position], atol=1e-5)
