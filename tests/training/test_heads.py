"""Heads are trained on exactly the pairs (hidden state, label) there are; figures are those of the text."""

import dataclasses
import itertools
import json

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.config import DecoderConfig
from specjax.models.heads.blockwise import BlockwiseConfig
from specjax.models.heads.heads import HeadParams, from_config, init_network, vocabulary_projection
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.heads.ranks import label_ranks
from specjax.models.language_model import from_config as model_from_config
from specjax.models.language_model import init_params
from specjax.training.heads import Frozen, HeadsLoss, HeadsTask, mean_weights, medusa_weights
from specjax.training.heads_figures import Decoding, HeadsEvaluation
from specjax.training.heads_stream import (
    CachedFeatures,
    ComputedFeatures,
    make_stream,
    read_responses,
)
from specjax.training.loop import train
from specjax.training.recipe import Recipe, Stage
from specjax.training.responses import PromptTokens, Sampling, make_batches, respond
from specjax.trees.label_ranks import MISSED, NONE, predicted_tau, rank_accuracies

V, D, H = 10, 8, 3
CONFIG = DecoderConfig(
    vocab_size=V,
    hidden_size=D,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=64,
)
TARGET, PARAMS = model_from_config(CONFIG, ("final",)), init_params(CONFIG, 0)
PARAMS["embed_tokens"] *= 20  # laws far from uniform
IDS = np.array([0, 2, 3, 5, 6, 8, 9], np.int32)
COLUMN = np.full(V, NONE, np.int32)
COLUMN[IDS] = np.arange(len(IDS))
FROZEN = Frozen(table=vocabulary_projection(TARGET, PARAMS)[IDS], column=jnp.asarray(COLUMN))
HEADS = from_config(MedusaConfig(num_heads=H, width=D, num_ids=len(IDS)))
WEIGHTS = medusa_weights(H)
SAMPLING = Sampling(temperatures=(0.0, 1.0), max_new_tokens=8, batch_size=2, prompt_multiple=4)
PROMPTS = [PromptTokens(id=str(n), tokens=tuple(range(1, 2 + n))) for n in range(6)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = epath.Path(tmp_path_factory.mktemp("responses"))
    list(respond(TARGET, PARAMS, make_batches(PROMPTS, SAMPLING), SAMPLING, (7,), folder))
    return sorted(folder.glob("responses-*.jsonl"))


@pytest.fixture(scope="module")
def stream(files):
    responses, features = read_responses(files, V)
    return make_stream(responses, CachedFeatures(features=features))


@pytest.fixture(scope="module")
def network():
    """Far from its start, so that heads differ."""
    leaves, tree = jax.tree.flatten(init_network(HEADS.config, 0))
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return jax.tree.unflatten(tree, [jax.random.normal(k, x.shape) * 0.3 for k, x in zip(keys, leaves)])


def batch_of(stream, starts, width):
    features, labels = stream.window(np.asarray(starts), width, H)
    return {"features": features, "labels": labels, "head": np.int32(0)}


def hand_made(*lengths):
    """A stream whose token at place n is n % V and whose feature is all n."""
    ends = np.cumsum(lengths)
    tokens = np.arange(ends[-1], dtype=np.int32) % V
    owner = np.searchsorted(ends, np.arange(ends[-1]), side="right")
    features = np.repeat(np.arange(ends[-1], dtype=np.float32)[:, None], D, axis=1)
    responses = [type("R", (), {"tokens": tokens[owner == n]})() for n in range(len(lengths))]
    return make_stream(responses, CachedFeatures(features=features))


def test_pairs_are_exactly_those_within_a_response():
    lengths = (4, 1, 2, 5)
    stream, ends = hand_made(*lengths), np.cumsum(lengths)
    features, labels = stream.window(np.array([0, 6]), 6, H)
    found = {
        (int(features[b, w, 0]), head, int(labels[b, w, head]))
        for b, w, head in itertools.product(range(2), range(6), range(H))
        if labels[b, w, head] != NONE
    }
    expected = set()
    for length, end in zip(lengths, ends):
        for t, head in itertools.product(range(length), range(H)):
            if t + 1 + head < length:  # head i at the feature that gave token t: token t + 1 + i
                place = end - length + t
                expected.add((place, head, (place + 1 + head) % V))
    assert found == expected
    assert stream.window(np.array([11]), 6, H)[1].max() == NONE  # past the end of the stream


def test_the_gradient_is_zero_wherever_there_is_no_scored_label(network):
    stream = hand_made(4, 1, 2, 5)
    batch = batch_of(stream, [0], 12)
    features = jnp.asarray(np.random.default_rng(0).normal(size=batch["features"].shape), jnp.float32)
    loss = HeadsLoss(heads=HEADS, weights=WEIGHTS)
    grad = jax.grad(lambda x: loss(network, FROZEN, {**batch, "features": x}))(features)[0]
    scored = (batch["labels"][0] != NONE) & (COLUMN[np.maximum(batch["labels"][0], 0)] != NONE)
    assert 0 < scored.any(axis=1).sum() < 12
    np.testing.assert_array_equal(np.abs(grad[:12]).max(axis=1) > 0, scored.any(axis=1))
    np.testing.assert_array_equal(grad[12:], 0)


@pytest.mark.parametrize("distillation", [0.0, 0.7])
def test_the_loss_is_the_papers_by_hand(stream, network, distillation):
    batch = batch_of(stream, [0, 9], 8)
    loss = HeadsLoss(heads=HEADS, weights=WEIGHTS, distillation=distillation)
    features = batch["features"].astype(np.float32)
    log_law = lambda x: jax.nn.log_softmax(x @ FROZEN.table.T)
    expected = 0.0
    for head in range(H):
        terms = []
        for b, w in itertools.product(range(2), range(8)):
            label = batch["labels"][b, w, head]
            if label == NONE or COLUMN[label] == NONE:
                continue
            log_q = log_law(HEADS.states(network, features[b, w])[head])
            log_p = log_law(features[b, w + 1 + head])
            divergence = float((jnp.exp(log_p) * (log_p - log_q)).sum())
            terms.append((distillation - 1) * float(log_q[COLUMN[label]]) + distillation * divergence)
        expected += 0.8**head * np.mean(terms)
    np.testing.assert_allclose(loss(network, FROZEN, batch), expected, rtol=1e-4)


def test_the_loss_of_one_drawn_head_is_the_mean_in_expectation(stream, network):
    batch = batch_of(stream, [0, 9], 8)
    weights = mean_weights(H)
    drawn = HeadsLoss(heads=HEADS, weights=weights, distillation=0.5, sampled=True)
    whole = HeadsLoss(heads=HEADS, weights=weights, distillation=0.5)
    losses = [drawn(network, FROZEN, {**batch, "head": np.int32(head)}) for head in range(H)]
    np.testing.assert_allclose(np.mean(losses), whole(network, FROZEN, batch), rtol=1e-5)
    assert np.std(losses) > 0.01 * np.mean(losses)


def test_a_batch_without_labels_is_no_nan(stream, network):
    batch = batch_of(stream, [0], 8)
    batch["labels"] = np.full_like(batch["labels"], NONE)
    loss = HeadsLoss(heads=HEADS, weights=WEIGHTS, distillation=0.5)
    value, grads = jax.value_and_grad(loss)(network, FROZEN, batch)
    assert value == 0 and all((leaf == 0).all() for leaf in jax.tree.leaves(grads))


def test_labels_outside_of_the_scored_ids_carry_no_loss(stream, network):
    loss = HeadsLoss(heads=HEADS, weights=WEIGHTS, distillation=0.5)
    batch = batch_of(stream, [0, 9], 8)
    outside = (batch["labels"] != NONE) & (COLUMN[np.maximum(batch["labels"], 0)] == NONE)
    assert outside.any()
    without = {**batch, "labels": np.where(outside, NONE, batch["labels"])}
    assert loss(network, FROZEN, batch) == loss(network, FROZEN, without)


def test_features_computed_anew_give_the_loss_of_those_kept(files, stream, network):
    responses, features = read_responses(files, V)
    computed = make_stream(responses, ComputedFeatures(target=TARGET, params=PARAMS, responses=responses))
    starts = np.array([0, 5, 17])
    kept, anew = batch_of(stream, starts, 8), batch_of(computed, starts, 8)
    np.testing.assert_array_equal(kept["labels"], anew["labels"])
    np.testing.assert_allclose(kept["features"].astype("f"), anew["features"].astype("f"), atol=2e-2)
    loss = HeadsLoss(heads=HEADS, weights=WEIGHTS, distillation=0.5)
    np.testing.assert_allclose(loss(network, FROZEN, kept), loss(network, FROZEN, anew), rtol=1e-2)
    shifted = make_stream(responses, CachedFeatures(features=np.roll(features, 1, axis=0)))  # control
    assert abs(loss(network, FROZEN, batch_of(shifted, starts, 8)) - loss(network, FROZEN, kept)) > 0.05


def test_responses_of_another_tokenizer_and_missing_features(files, tmp_path):
    with pytest.raises(ValueError, match=r"id \d, but the target's are 0..3; .*another tokenizer"):
        read_responses(files, 4)
    with pytest.raises(ValueError, match="no response at temperatures"):
        read_responses(files, V, temperatures=(0.3,))
    greedy, _ = read_responses(files, V, temperatures=(0.0,))
    assert {response.temperature for response in greedy} == {0.0}
    lines = files[0].read_text().splitlines()
    broken = epath.Path(tmp_path / files[0].name)
    broken.write_text("".join(line + "\n" for line in lines[:-1]))
    source = files[0].parent / files[0].name.replace("responses-", "features-").replace(
        ".jsonl", ".safetensors"
    )
    (broken.parent / source.name).write_bytes(source.read_bytes())
    with pytest.raises(ValueError, match="features beside it"):
        read_responses([broken], V)
    for line, told in (
        ('{"id": "a", "te', "line 1 is not JSON"),
        ('{"id": "a"}', "lacks temperature"),
    ):
        broken.write_text(line + "\n")
        with pytest.raises(ValueError, match=told):
            read_responses([broken], V)
    (broken.parent / source.name).unlink()
    broken.write_text(lines[0] + "\n")
    with pytest.raises(ValueError, match=r"no file .*features-\d+\.safetensors"):
        read_responses([broken], V)
    assert len(json.loads(lines[0])["response_tokens"]) > 0


def test_ranks_are_those_of_a_sort(stream, network):
    features, labels = stream.window(np.array([0]), 20, H)
    params = HeadParams(network=network, table=FROZEN.table, ids=jnp.asarray(IDS))
    ranks = np.asarray(label_ranks(HEADS, params, features[0, :20].astype(np.float32), labels[0]))
    states = HEADS.states(network, features[0, :20].astype(np.float32))
    for t, head in itertools.product(range(20), range(H)):
        label = labels[0, t, head]
        order = np.argsort(-np.asarray(FROZEN.table @ states[t, head]), kind="stable").tolist()
        if label == NONE:
            assert ranks[t, head] == NONE
        elif COLUMN[label] == NONE:
            assert ranks[t, head] == MISSED
        else:
            assert ranks[t, head] == order.index(COLUMN[label])
    known = [np.mean(column[column != NONE] != MISSED) for column in ranks.T]
    np.testing.assert_allclose(rank_accuracies(ranks, top=len(IDS)).sum(axis=1), known)
    assert min(known) < 1  # a label that is not scored counts as missed


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


def test_predicted_tau_follows_rounds_through_the_text():
    ranks = np.array([[0], [1], [0], [0], [0], [NONE], [0], [0], [NONE]])
    response = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1])
    # Rounds begin at 0 (passes), 2 (passes), 4 (passes, then the end), and at 6 (passes).
    assert predicted_tau(ranks, response, [(0,)]) == 2.0
    assert predicted_tau(ranks, response, [(1,)]) == pytest.approx((1 + 2 + 1 + 1 + 1 + 1) / 6)
    assert predicted_tau(ranks, response, []) == 1.0


def test_blockwise_trains_by_the_same_loop(stream, tmp_path):
    heads = from_config(BlockwiseConfig(num_heads=H, width=D, num_ids=len(IDS), hidden_size=6))
    run = task(stream, steps=30, heads=heads, evaluation=lambda params: {})
    whole = batch_of(stream, [0], len(stream))
    before = run.objective(run.init(), FROZEN, whole)
    state = train(run.recipe, run, workdir=tmp_path)
    assert run.objective(state.params, FROZEN, whole) < 0.9 * before
