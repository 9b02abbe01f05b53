"""Responses keep the features their laws came from, and a draft learns those laws at the right positions."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.language_model import from_config, init_params
from specjax.models.subset import SubsetLM
from specjax.testing.models import tiny_config
from specjax.training.recipe import Recipe, Stage
from specjax.training.responses import PromptTokens, Sampling, make_batches, respond
from specjax.training.responses_distillation import (
    FeatureDistillation,
    ResponseRows,
    ResponsesTask,
    cut_from_target,
    load_rows,
    plan_pass,
)
from specjax.training.text import forward

CONFIG = tiny_config(10)
MODEL, PARAMS = from_config(CONFIG), init_params(CONFIG, 0)
DRAFT = SubsetLM(inner=MODEL, vocab_size=CONFIG.vocab_size)
ALL = np.arange(CONFIG.vocab_size)
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


def read_all(folder, context=16, read=ALL):
    return load_rows(files(folder), context=context, read=read)


def whole(rows):
    """All rows in one batch."""
    return rows.take(range(len(rows.tokens)), width=16, places=32)


def at_responses(logits, batch):
    return np.asarray(logits).reshape(-1, logits.shape[-1])[batch["positions"]][batch["weights"] > 0]


def test_features_give_back_the_laws_of_a_teacher_forced_pass(folder):
    batch = whole(read_all(folder))
    logits = at_responses(forward(MODEL, PARAMS, jnp.asarray(batch["tokens"])), batch)
    from_features = batch["features"].astype(np.float32) @ np.asarray(PARAMS["embed_tokens"]).T
    assert batch["weights"].sum() == 24
    # bfloat16 features: three digits.
    np.testing.assert_allclose(from_features[:24], logits, atol=2e-2)
    assert np.abs(from_features[:23] - logits[1:]).max() > 0.05  # control: off by one is seen


def test_every_greedy_response_follows_from_its_features(folder):
    for path in files(folder):
        rows = load_rows([path], context=16, read=ALL)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["temperature"] for line in lines] == [0.0, 1.0]
        laws = rows.features[0].astype(np.float32) @ np.asarray(PARAMS["embed_tokens"]).T
        top = np.sort(laws, axis=1)
        clear = top[:, -1] - top[:, -2] > 2e-2
        np.testing.assert_array_equal(laws.argmax(1)[clear], np.array(lines[0]["response_tokens"])[clear])


@pytest.mark.parametrize("greedy", [0.0, 0.5])
def test_only_response_positions_count(folder, greedy):
    batch = whole(read_all(folder))
    objective = FeatureDistillation(DRAFT, greedy)
    head, student = PARAMS["embed_tokens"], {"inner": init_params(CONFIG, 1)}
    loss = objective(student, head, batch)
    elsewhere = np.where(batch["weights"][:, None] > 0, batch["features"], 1).astype(batch["features"].dtype)
    assert objective(student, head, {**batch, "features": elsewhere}) == loss
    other = {**batch, "features": 100 * batch["features"]}
    assert abs(objective(student, head, other) - loss) > 1e-3  # control: those that count do


def test_the_teacher_itself_is_at_the_noise_of_bfloat16(folder):
    batch = whole(read_all(folder))
    far, near = (
        FeatureDistillation(DRAFT)({"inner": params}, PARAMS["embed_tokens"], batch)
        for params in (init_params(CONFIG, 1), PARAMS)
    )
    assert float(far) > 10 * float(near)


def test_a_long_prompt_loses_its_beginning(folder):
    rows = read_all(folder, context=5)
    assert [len(tokens) for tokens in rows.tokens] == [5] * 4
    assert [len(features) for features in rows.features] == [5] * 4  # six response tokens, cut to five


def test_places_that_a_batch_lacks_leave_the_last_responses_out(folder):
    rows = read_all(folder)
    few = rows.take(range(4), width=16, places=10)
    np.testing.assert_array_equal(few["positions"], whole(rows)["positions"][:10])
    assert few["weights"].all()


def test_a_pass_has_every_row_once_and_always_the_same_shapes():
    lengths = np.random.default_rng(0).integers(8, 200, size=40)
    rows = ResponseRows(
        tokens=[np.zeros(length, np.int32) for length in lengths],
        features=[np.zeros((length // 2, 2), np.float32) for length in lengths],
    )
    passes = [plan_pass(rows, 512, np.random.default_rng(seed).permutation(40)) for seed in (0, 1)]
    shapes = [[(len(plan.rows), plan.width, plan.places) for plan in plans] for plans in passes]
    assert shapes[0] == shapes[1] and len(set(shapes[0])) > 2
    seen = [row for plan in passes[0] for row in plan.rows]
    assert len(set(seen)) == len(seen) > 40 - 512 // 200
    assert all(lengths[row] <= plan.width for plan in passes[0] for row in plan.rows)
    assert passes[0] != passes[1]


def test_a_task_starts_from_the_target_and_is_a_function_of_the_step(folder):
    ids = np.array([0, 2, 3, 5])
    config, start = cut_from_target(MODEL, PARAMS, ids, (1,))
    assert (config.vocab_size, config.num_hidden_layers) == (4, 1)
    rows = read_all(folder, read=np.zeros(CONFIG.vocab_size, np.int32))
    recipe = Recipe(
        model=config, stages=(Stage(steps=4, batch_size=2, context=64),), learning_rate=0.01, warmup_steps=1
    )
    head = jnp.asarray(PARAMS["embed_tokens"])[ids]
    task = ResponsesTask(
        recipe=recipe, vocab_size=10, start={"inner": start}, head=head, training=rows, held_out=rows
    )
    for step in range(4):
        jax.tree.map(np.testing.assert_array_equal, task.batch(step), task.batch(step))
    seen = np.concatenate([task.batch(step)["features"] for step in (0, 1)])
    kept = {row.tobytes() for row in seen if row.any()}
    assert kept == {row.tobytes() for features in rows.features for row in features}
    figures = task.evaluate(task.init())
    assert 0 < figures["held_out_overlap"] < 1 and figures["held_out_kl"] > 0
    assert dataclasses.is_dataclass(task.objective) and jax.tree.leaves(task.constants)
