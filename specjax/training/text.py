"""A model that learns a token stream, from the text itself or from a teacher's law on it."""

from __future__ import annotations

import dataclasses
import functools

import grain
import jax
import jax.numpy as jnp
import numpy as np

from specjax.models.language_model import LanguageModel, from_config, init_params
from specjax.training.losses import cross_entropy, distillation
from specjax.training.recipe import Recipe
from specjax.training.windows import evaluation_batches, training_batches
from specjax.types import Array, Params


@dataclasses.dataclass(frozen=True)
class Teacher:
    """The target a draft is distilled from."""

    model: LanguageModel
    params: Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """What a run reads."""

    training: np.ndarray  # [N] int32, one token stream
    held_out: np.ndarray  # [N'] int32
    rows: np.ndarray | None = None  # [R, context + 1] int32: windows that join every pass as they are


def forward(model: LanguageModel, params: Params, tokens: Array) -> Array:
    """Teacher-forced logits [B, T, V] of ``tokens`` [B, T]: the decoding step on a fresh cache."""
    row = lambda tokens: model.apply(params, tokens, model.init_cache(tokens.shape[0])).logits
    return jax.vmap(row)(tokens)


@dataclasses.dataclass(frozen=True)
class NextToken:
    """Objective: cross entropy of ``batch`` [B, T+1], or KL(p || q) from the teacher's p on it."""

    model: LanguageModel
    teacher: LanguageModel | None

    def __call__(self, params: Params, teacher_params: Params, batch: Array) -> Array:
        inputs, labels = batch[:, :-1], batch[:, 1:]
        logits = forward(self.model, params, inputs)
        if self.teacher is None:
            return jax.vmap(cross_entropy)(logits, labels).mean()
        return jax.vmap(distillation)(logits, forward(self.teacher, teacher_params, inputs)).mean()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask:
    """Task: ``recipe.model`` learns ``text``."""

    recipe: Recipe
    text: Text
    teacher: Teacher | None = None

    @property
    def objective(self) -> NextToken:
        return NextToken(from_config(self.recipe.model), self.teacher.model if self.teacher else None)

    @property
    def constants(self) -> Params:
        return self.teacher.params if self.teacher else None

    def init(self) -> Params:
        return init_params(self.recipe.model, self.recipe.seed)

    def batch(self, step: int) -> np.ndarray:
        """[B, T+1] int32; each stage draws windows of its own."""
        first = 0
        for number, stage in enumerate(self.recipe.stages):
            if step < first + stage.steps:
                return self._windows[number][step - first]
            first += stage.steps
        raise IndexError(f"step {step} lies beyond the {self.recipe.steps} steps of the recipe")

    @functools.cached_property
    def _windows(self) -> list[grain.MapDataset]:
        return [
            training_batches(
                self.text.training,
                rows=self.text.rows,
                context=stage.context,
                batch_size=stage.batch_size,
                num_steps=stage.steps,
                seed=self.recipe.seed + 1000 * (number + 1),
            )
            for number, stage in enumerate(self.recipe.stages)
        ]

    def evaluate(self, params: Params) -> dict[str, float]:
        return evaluate(from_config(self.recipe.model), params, self._held_out, self.teacher)

    @functools.cached_property
    def _held_out(self) -> np.ndarray:
        first = self.recipe.stages[0]
        return evaluation_batches(
            self.text.held_out,
            context=first.context,
            batch_size=first.batch_size,
            num_batches=self.recipe.evaluation_batches,
        )


def evaluate(
    model: LanguageModel, params: Params, batches: np.ndarray, teacher: Teacher | None = None
) -> dict[str, float]:
    """Held-out figures over ``batches`` [N, B, T+1], means over tokens.

    Always the cross entropy, nats a token; with a teacher also KL(p || q), the
    overlap sum min(p, q) at temperature 1 and the share of positions where
    both have the same most likely token (temperature 0), on given text.
    """
    teacher_model, teacher_params = (teacher.model, teacher.params) if teacher else (None, None)
    figures = [_held_out(model, teacher_model, params, teacher_params, batch) for batch in batches]
    return {f"held_out_{name}": float(np.mean([f[name] for f in figures])) for name in figures[0]}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _held_out(
    model: LanguageModel,
    teacher_model: LanguageModel | None,
    params: Params,
    teacher_params: Params,
    batch: Array,  # [B, T+1]
) -> dict[str, Array]:
    inputs, labels = batch[:, :-1], batch[:, 1:]
    logits = forward(model, params, inputs)
    figures = {"loss": jax.vmap(cross_entropy)(logits, labels).mean()}
    if teacher_model is None:
        return figures
    reference = forward(teacher_model, teacher_params, inputs)
    overlap = jnp.minimum(jax.nn.softmax(logits), jax.nn.softmax(reference)).sum(-1).mean()
    agreement = (logits.argmax(-1) == reference.argmax(-1)).mean()
    kl = jax.vmap(distillation)(logits, reference).mean()
    return figures | {"kl": kl, "overlap": overlap, "agreement": agreement}
