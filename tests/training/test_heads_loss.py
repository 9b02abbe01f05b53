"""The loss of heads is the papers', on the labels that are scored and on no other."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_heads import COLUMN, FROZEN, HEADS, WEIGHTS, H, batch_of, hand_made

from specjax.training.heads import HeadsLoss, mean_weights
from specjax.trees.label_ranks import NONE


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
