"""What training minimises, for one sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.types import Array


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Mean negative log likelihood of ``labels`` [T] under ``logits`` [T, V], nats a token.

    >>> float(cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3]))).__round__(4)  # log 4
    1.3863
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(log_probs, labels[:, None], axis=-1).mean()


def distillation(logits: Array, teacher_logits: Array) -> Array:
    """Mean KL(p || q) of the student's law q from the teacher's p at temperature 1, nats a token.

    Both [T, V]. Pinsker's inequality bounds what a drafter loses: the expected
    rejection 1 - sum min(p, q) is at most sqrt(KL / 2) (DistillSpec, Zhou et
    al. 2023, arXiv 2310.08461, section 3).

    >>> logits = jnp.array([[0.0, 1.0, 2.0]])
    >>> float(distillation(logits, logits))
    0.0
    """
    log_q = jax.nn.log_softmax(logits.astype(jnp.float32))
    log_p = jax.nn.log_softmax(teacher_logits.astype(jnp.float32))
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1).mean()
