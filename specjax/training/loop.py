"""The one training loop: a target learns text, a draft learns its target's law."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import time

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax

from specjax.models.language_model import LanguageModel, from_config, init_params
from specjax.training.checkpoints import MetricsLog, TrainState, open_checkpoints, restore_latest
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """What a display may want to know after a step."""

    step: int
    metrics: dict[str, float]  # the line just logged
    tokens_per_second: float  # of this session, evaluation included
    seconds_left: float


def forward(model: LanguageModel, params: Params, tokens: Array) -> Array:
    """Teacher-forced logits [B, T, V] of ``tokens`` [B, T]: the decoding step on a fresh cache."""
    row = lambda tokens: model.apply(params, tokens, model.init_cache(tokens.shape[0])).logits
    return jax.vmap(row)(tokens)


def train(
    recipe: Recipe,
    text: Text,
    *,
    workdir: epath.PathLike,
    teacher: Teacher | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> TrainState:
    """Runs ``recipe`` to its end, from the newest checkpoint of ``workdir`` when there is one.

    Writes checkpoints and metrics.jsonl (per step: loss in nats a token,
    learning rate, gradient norm; at evaluations the held-out figures). An
    interrupted run, resumed, leaves the same log as an uninterrupted one, line
    by line. A finished run is returned as it is.
    """
    with open_checkpoints(workdir, recipe.checkpoint_every) as checkpoints:
        restored = state = restore_latest(checkpoints, _initial_state(recipe))
        start, spent, clock = int(restored.step), float(restored.seconds), time.monotonic()
        if start == recipe.steps:
            return restored
        with contextlib.closing(MetricsLog(workdir, start)) as log:
            for state, record in _steps(recipe, text, teacher, restored):
                log.write(record)
                elapsed = time.monotonic() - clock
                state = dataclasses.replace(state, seconds=jnp.float32(spent + elapsed))
                checkpoints.save(record["step"], state, force=record["step"] == recipe.steps)
                report(_progress(recipe, record, start, elapsed))
    return state


def evaluate(
    model: LanguageModel, params: Params, batches: np.ndarray, teacher: Teacher | None = None
) -> dict[str, float]:
    """Held-out figures over ``batches`` [N, B, T+1], means over tokens.

    Always the cross entropy, nats a token; with a teacher also KL(p || q), the
    overlap sum min(p, q) at temperature 1 and the share of positions where
    both have the same most likely token (temperature 0), on given text.
    """
    teacher_model, teacher_params = _split(teacher)
    figures = [_held_out(model, teacher_model, params, teacher_params, batch) for batch in batches]
    return {f"held_out_{name}": float(np.mean([f[name] for f in figures])) for name in figures[0]}


def _initial_state(recipe: Recipe) -> TrainState:
    params = init_params(recipe.model, recipe.seed)
    return TrainState(
        params=params,
        opt_state=recipe.optimizer().init(params),
        step=jnp.zeros((), jnp.int32),
        seconds=jnp.zeros((), jnp.float32),
    )


def _steps(
    recipe: Recipe, text: Text, teacher: Teacher | None, state: TrainState
) -> Iterator[tuple[TrainState, dict[str, float]]]:
    """(state after the step, its line of the log), from ``state.step`` to the end."""
    model, schedule, first = from_config(recipe.model), recipe.schedule(), recipe.stages[0]
    teacher_model, teacher_params = _split(teacher)
    held_out = evaluation_batches(
        text.held_out,
        context=first.context,
        batch_size=first.batch_size,
        num_batches=recipe.evaluation_batches,
    )
    for step, batch in _batches(recipe, text, int(state.step)):
        state, metrics = _update(recipe, teacher_model, state, teacher_params, batch)
        record = {"step": step + 1, **jax.tree.map(float, metrics), "learning_rate": float(schedule(step))}
        if (step + 1) % recipe.evaluate_every == 0 or step + 1 == recipe.steps:
            record |= evaluate(model, state.params, held_out, teacher)
        yield state, record


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2,))
def _update(
    recipe: Recipe,
    teacher_model: LanguageModel | None,
    state: TrainState,
    teacher_params: Params,
    batch: Array,  # [B, T+1]
) -> tuple[TrainState, dict[str, Array]]:
    model, inputs, labels = from_config(recipe.model), batch[:, :-1], batch[:, 1:]

    def loss_of(params: Params) -> Array:
        logits = forward(model, params, inputs)
        if teacher_model is None:
            return jax.vmap(cross_entropy)(logits, labels).mean()
        return jax.vmap(distillation)(logits, forward(teacher_model, teacher_params, inputs)).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    updates, opt_state = recipe.optimizer().update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    state = dataclasses.replace(state, params=params, opt_state=opt_state, step=state.step + 1)
    return state, {"loss": loss, "gradient_norm": optax.tree.norm(gradients)}


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


def _split(teacher: Teacher | None) -> tuple[LanguageModel | None, Params]:
    return (teacher.model, teacher.params) if teacher else (None, None)


def _batches(recipe: Recipe, text: Text, start: int) -> Iterator[tuple[int, np.ndarray]]:
    """(step, batch) from ``start`` on; each stage draws windows of its own."""
    first = 0
    for number, stage in enumerate(recipe.stages):
        if start < first + stage.steps:
            batches = training_batches(
                text.training,
                rows=text.rows,
                context=stage.context,
                batch_size=stage.batch_size,
                num_steps=stage.steps,
                seed=recipe.seed + 1000 * (number + 1),
            )
            for step in range(max(start, first), first + stage.steps):
                yield step, batches[step - first]
        first += stage.steps


def _progress(recipe: Recipe, record: dict[str, float], start: int, elapsed: float) -> Progress:
    done = recipe.tokens_until(int(record["step"]))
    rate = (done - recipe.tokens_until(start)) / elapsed
    return Progress(
        step=int(record["step"]),
        metrics=record,
        tokens_per_second=rate,
        seconds_left=(recipe.tokens - done) / rate,
    )
