import jax
import jax.numpy as jnp
import numpy as np

from specjax.training.losses import cross_entropy, distillation

LOGITS = jnp.array([[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]])
TEACHER = jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 3.0]])


def test_cross_entropy_is_the_mean_negative_log_likelihood():
    probs = np.asarray(jax.nn.softmax(LOGITS))
    expected = -np.mean(np.log([probs[0, 2], probs[1, 0]]))
    np.testing.assert_allclose(cross_entropy(LOGITS, jnp.array([2, 0])), expected, rtol=1e-6)


def test_distillation_is_the_forward_divergence():
    p, q = np.asarray(jax.nn.softmax(TEACHER)), np.asarray(jax.nn.softmax(LOGITS))
    np.testing.assert_allclose(distillation(LOGITS, TEACHER), (p * np.log(p / q)).sum(-1).mean(), rtol=1e-5)
    assert distillation(LOGITS, TEACHER) != distillation(TEACHER, LOGITS)


def test_pinsker_bounds_the_rejections():
    p, q = jax.nn.softmax(TEACHER), jax.nn.softmax(LOGITS)
    rejected = 1 - jnp.minimum(p, q).sum(-1).mean()
    assert 0 < rejected <= jnp.sqrt(distillation(LOGITS, TEACHER) / 2)


def test_distillation_has_no_gradient_at_the_teacher():
    gradient = jax.grad(distillation)(TEACHER, TEACHER)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
