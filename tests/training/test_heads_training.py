"""Heads learn in the one training loop: batches by step, resuming, what is refused."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_heads import CONFIG, FROZEN, HEADS, IDS, PARAMS, TARGET, WEIGHTS, D, H, V, batch_of, hand_made

from specjax.models.heads.blockwise import BlockwiseConfig
from specjax.models.heads.heads import from_config, init_network
from specjax.training.heads import HeadsLoss, HeadsTask
from specjax.training.heads_figures import Decoding, HeadsEvaluation
from specjax.training.loop import train
from specjax.training.recipe import Recipe, Stage
from specjax.trees.label_ranks import NONE


def task(stream, steps=6, heads=HEADS, **settings):
    recipe = Recipe(
        model=CONFIG,
        stages=(Stage(steps=steps, batch_size=2, context=4),),
        learning_rate=0.01,
        warmup_steps=1,
        checkpoint_every=2,
        evaluate_every=100,
    )
    evaluation = HeadsEvaluation(
        heads=heads,
        frozen=FROZEN,
        ids=IDS,
        held_out=stream,
        predicted_nodes=(4,),
        decoded_nodes=(4,),
        decoding=Decoding(
            target=TARGET,
            params=PARAMS,
            prompts=np.array([[1, 2, 3], [4, 5, 0]], np.int32),
            lengths=np.array([3, 2]),
            max_new_tokens=8,
        ),
    )
    loss = HeadsLoss(heads=heads, weights=(1.0,) * heads.num_heads)
    start = init_network(heads.config, 0, FROZEN.table)
    fields = {"loss": loss, "start": start, "frozen": FROZEN, "training": stream, "evaluation": evaluation}
    return HeadsTask(recipe=recipe, **fields | settings)


def test_batches_are_a_function_of_the_step_and_passes_repeat_nothing(stream):
    whole = task(stream, steps=100)
    per_pass = whole._batches_per_pass
    assert per_pass >= 2
    for step in (0, per_pass):
        first, again = whole.batch(step), whole.batch(step)
        jax.tree.map(np.testing.assert_array_equal, first, again)
        rows = [row.tobytes() for at in range(per_pass) for row in whole.batch(step + at)["features"]]
        assert len(set(rows)) == len(rows)


def test_an_interrupted_run_is_the_uninterrupted_one(stream, tmp_path):
    whole = task(stream)
    state = train(whole.recipe, whole, workdir=tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(progress):
        if progress.step == 5:  # after the checkpoint of step 4
            raise Killed

    with pytest.raises(Killed):
        train(whole.recipe, whole, workdir=tmp_path / "cut", report=kill)
    resumed = train(whole.recipe, whole, workdir=tmp_path / "cut")
    jax.tree.map(np.testing.assert_array_equal, state.params, resumed.params)
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]
    last = json.loads(logs[0].splitlines()[-1])
    assert last["held_out_real_tau_chain"] >= 1 and last["held_out_real_tau_tree4"] >= 1
    assert last["held_out_predicted_tau_tree4"] >= last["held_out_predicted_tau_chain"] - 1 >= 0
    assert last["head1_top1"] == last["held_out_top1_head1"]


def test_what_cannot_be_trained_is_refused(stream):
    with pytest.raises(ValueError, match="batch_size 2 windows of context 4 need more than the 9"):
        task(hand_made(9))
    with pytest.raises(ValueError, match="no training label"):
        task(hand_made(*(1,) * 40))
    nothing = dataclasses.replace(FROZEN, column=jnp.full(V, NONE))
    with pytest.raises(ValueError, match="no training label"):
        task(stream, frozen=nothing)
    with pytest.raises(ValueError, match="3 heads need one each"):
        HeadsLoss(heads=HEADS, weights=(1.0,))
    with pytest.raises(ValueError, match=r"distillation must lie in \[0, 1\], got 2"):
        HeadsLoss(heads=HEADS, weights=WEIGHTS, distillation=2)


def test_blockwise_trains_by_the_same_loop(stream, tmp_path):
    heads = from_config(BlockwiseConfig(num_heads=H, width=D, num_ids=len(IDS), hidden_size=6))
    run = task(stream, steps=30, heads=heads, evaluation=lambda params: {})
    whole = batch_of(stream, [0], len(stream))
    before = run.objective(run.init(), FROZEN, whole)
    state = train(run.recipe, run, workdir=tmp_path)
    assert run.objective(state.params, FROZEN, whole) < 0.9 * before
