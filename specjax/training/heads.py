"""Heads learn to guess what their frozen target writes, from its hidden states."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from specjax.models.heads.heads import Heads
from specjax.sharding import DATA, replicate
from specjax.training.heads_stream import ResponseStream
from specjax.training.recipe import Recipe
from specjax.trees.label_ranks import NONE
from specjax.types import Array, Params, pytree

Batch = dict[str, Any]  # of arrays


@pytree
class Frozen:
    """What the objective reads and nobody trains."""

    table: Array  # [K, D]: the target's vocabulary projection at the ids the heads score
    column: Array  # [V] int32: where each id stands among them, NONE for the others


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsLoss:
    """Objective: sum_i w_i L_i over the heads, L_i a mean over the labels that exist and are scored.

    Medusa-1 weighs head i with 0.8^i (Cai et al. 2024, 2401.10774, section
    2.2.1); Blockwise takes the mean, or, of one head drawn for each step, that
    head's loss (``sampled``; Stern et al. 2018, 1811.03115, section 6), which
    is the mean in expectation.

    L_i is the cross entropy of the label, mixed by ``distillation`` in [0, 1]
    with KL(p || q) from the target's law p of that label at temperature 1,
    over the scored ids. The window's later features give p.

    A batch is {"features" [B, W + H, D], "labels" [B, W, H] int32 ids or NONE,
    "head" [] int32, the one that is drawn}. Without any label the loss is 0
    and so are its gradients.
    """

    heads: Heads
    weights: tuple[float, ...]
    distillation: float = 0.0
    sampled: bool = False

    def __post_init__(self) -> None:
        if len(self.weights) != self.heads.num_heads or min(self.weights) < 0:
            raise ValueError(
                f"weights {self.weights}: {self.heads.num_heads} heads need one each, none below 0"
            )
        if not 0 <= self.distillation <= 1:
            raise ValueError(f"distillation must lie in [0, 1], got {self.distillation}")

    def __call__(self, params: Params, frozen: Frozen, batch: dict[str, Array]) -> Array:
        width = batch["labels"].shape[1]
        features = batch["features"].astype(jnp.float32)
        states = self.heads.states(params, features[:, :width])  # [B, W, H, D]
        columns = columns_of(frozen, batch["labels"])
        teacher = None
        if self.distillation:
            # Row w + i is the law that label i of position w was drawn from.
            teacher = jax.nn.log_softmax(features[:, 1:] @ frozen.table.T)

        def loss(head: Array | int) -> Array:
            table = self.heads.projection(params, frozen.table, head)
            log_q = jax.nn.log_softmax(jnp.take(states, head, axis=2) @ table.T)
            law = None if teacher is None else jax.lax.dynamic_slice_in_dim(teacher, head, width, axis=1)
            return self._head_loss(log_q, jnp.take(columns, head, axis=2), law)

        if self.sampled:
            weights = jnp.asarray(self.weights)
            return len(self.weights) * weights[batch["head"]] * loss(batch["head"])
        return jnp.asarray(sum(weight * loss(head) for head, weight in enumerate(self.weights)))

    def _head_loss(self, log_q: Array, columns: Array, teacher: Array | None) -> Array:
        """Mean over the scored labels of one head; log_q and teacher [B, W, K], columns [B, W]."""
        scored = (columns != NONE).astype(jnp.float32)
        of_label = jnp.take_along_axis(log_q, jnp.maximum(columns, 0)[..., None], axis=-1)[..., 0]
        losses = -of_label
        if teacher is not None:
            divergence = (jnp.exp(teacher) * (teacher - log_q)).sum(-1)
            losses = (1 - self.distillation) * losses + self.distillation * divergence
        return (losses * scored).sum() / jnp.maximum(scored.sum(), 1)


def columns_of(frozen: Frozen, labels: Array) -> Array:
    """Labels as places among the scored ids; NONE where there is none."""
    return jnp.where(labels == NONE, NONE, frozen.column[jnp.maximum(labels, 0)])


def medusa_weights(num_heads: int, decay: float = 0.8) -> tuple[float, ...]:
    """lambda_i = decay^i.

    >>> [round(weight, 3) for weight in medusa_weights(3)]
    [1.0, 0.8, 0.64]
    """
    return tuple(decay**head for head in range(num_heads))


def mean_weights(num_heads: int) -> tuple[float, ...]:
    """Every head the same.

    >>> mean_weights(4)
    (0.25, 0.25, 0.25, 0.25)
    """
    return (1 / num_heads,) * num_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsTask:
    """Task: the network of ``loss.heads``, from ``start``, learns ``training``.

    ``recipe.stages[0]`` says the windows: ``context`` positions each. On a
    ``mesh`` the batch is split over "data" and the rest is on every device.

    Raises ValueError where no label of the training responses is scored, or a
    pass holds no whole batch.
    """

    recipe: Recipe
    loss: HeadsLoss
    start: Params
    frozen: Frozen
    training: ResponseStream
    evaluation: Callable[[Params], dict[str, float]]  # held-out figures by name
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        stage = self.recipe.stages[0]
        if self._batches_per_pass < 1:
            raise ValueError(
                f"batch_size {stage.batch_size} windows of context {stage.context} need more than the "
                f"{len(self.training)} response tokens there are"
            )
        if self.mesh is not None and stage.batch_size % self.mesh.shape[DATA]:
            raise ValueError(
                f"batch_size {stage.batch_size} does not divide over {self.mesh.shape[DATA]} devices"
            )
        column, stream = np.asarray(self.frozen.column), self.training
        follows = stream.response[1:] == stream.response[:-1]
        if not (follows & (column[stream.tokens[1:]] != NONE)).any():
            raise ValueError("no training label: every response is of one token, or of ids no head scores")

    @property
    def objective(self) -> HeadsLoss:
        return self.loss

    @property
    def constants(self) -> Frozen:
        return self.frozen if self.mesh is None else replicate(self.frozen, self.mesh)

    def init(self) -> Params:
        start = jax.tree.map(jnp.array, self.start)  # a copy: training donates its state
        return start if self.mesh is None else replicate(start, self.mesh)

    def batch(self, step: int) -> Batch:
        """Windows of passes that each begin at an offset of their own and are shuffled anew."""
        stage = self.recipe.stages[0]
        number, at = divmod(step, self._batches_per_pass)
        random = np.random.default_rng((self.recipe.seed, number))
        offset = int(random.integers(stage.context))
        windows = random.permutation((len(self.training) - offset) // stage.context)
        chosen = windows[at * stage.batch_size : (at + 1) * stage.batch_size]
        num_heads = self.loss.heads.num_heads
        features, labels = self.training.window(offset + stage.context * chosen, stage.context, num_heads)
        batch = {"features": features, "labels": labels}
        if self.mesh is not None:
            batch = jax.device_put(batch, NamedSharding(self.mesh, PartitionSpec(DATA)))
        head = np.random.default_rng((self.recipe.seed, 1, step)).integers(num_heads)
        return batch | {"head": np.int32(head)}

    def evaluate(self, params: Params) -> dict[str, float]:
        return self.evaluation(params)

    @property
    def _batches_per_pass(self) -> int:
        """With the shortest pass, whose offset is the longest."""
        stage = self.recipe.stages[0]
        return (len(self.training) - stage.context + 1) // stage.context // stage.batch_size
