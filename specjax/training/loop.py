"""The one training loop, for whatever a :class:`Task` says is learned from what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import time
from typing import Any, Protocol

from etils import epath
import jax
import jax.numpy as jnp
import optax

from specjax import sharding
from specjax.training.checkpoints import MetricsLog, TrainState, open_checkpoints, restore_latest
from specjax.training.recipe import Recipe
from specjax.types import Array, Params

# objective(params, constants, batch) -> loss []; hashable and compared by value, so jit-static.
Objective = Callable[[Params, Any, Any], Array]


class Task(Protocol):
    """What a run learns. Batches are a pure function of the step, so resuming needs the step alone."""

    @property
    def objective(self) -> Objective: ...

    @property
    def constants(self) -> Any:
        """A pytree of arrays the objective reads and nobody trains: a teacher's weights."""
        ...

    def init(self) -> Params:
        """The weights before the first step."""
        ...

    def batch(self, step: int) -> Any:
        """A pytree of arrays."""
        ...

    def evaluate(self, params: Params) -> dict[str, float]:
        """Held-out figures by name."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """What a display may want to know after a step."""

    step: int
    metrics: dict[str, float]  # the line just logged
    tokens_per_second: float  # of this session, evaluation included
    seconds_left: float


def train(
    recipe: Recipe,
    task: Task,
    *,
    workdir: epath.PathLike,
    report: Callable[[Progress], None] = lambda progress: None,
) -> TrainState:
    """Runs ``recipe`` to its end, from the newest checkpoint of ``workdir`` when there is one.

    Writes checkpoints and metrics.jsonl (per step: loss in nats a token,
    learning rate, gradient norm; at evaluations the held-out figures). An
    interrupted run, resumed, leaves the same log as an uninterrupted one, line
    by line. A finished run is returned as it is.
    """
    with open_checkpoints(workdir, recipe.checkpoint_every) as checkpoints:
        restored = state = restore_latest(checkpoints, _initial_state(recipe, task))
        start, spent, clock = int(restored.step), float(restored.seconds), time.monotonic()
        if start == recipe.steps:
            return restored
        with contextlib.closing(MetricsLog(workdir, start)) as log:
            for state, record in _steps(recipe, task, restored):
                log.write(record)
                elapsed = time.monotonic() - clock
                state = dataclasses.replace(state, seconds=jnp.float32(spent + elapsed))
                checkpoints.save(record["step"], state, force=record["step"] == recipe.steps)
                report(_progress(recipe, record, start, elapsed))
    return state


def _initial_state(recipe: Recipe, task: Task) -> TrainState:
    params = task.init()
    state = TrainState(
        params=params,
        opt_state=recipe.optimizer().init(params),
        step=jnp.zeros((), jnp.int32),
        seconds=jnp.zeros((), jnp.float32),
    )
    mesh = sharding.mesh_of(params)
    if mesh is None:
        return state
    # A checkpoint comes back where its leaves were: counters must not return to one device alone.
    on_mesh = lambda leaf: isinstance(leaf.sharding, jax.sharding.NamedSharding)
    return jax.tree.map(lambda leaf: leaf if on_mesh(leaf) else sharding.replicate(leaf, mesh), state)


def _steps(recipe: Recipe, task: Task, state: TrainState) -> Iterator[tuple[TrainState, dict[str, float]]]:
    """(state after the step, its line of the log), from ``state.step`` to the end."""
    schedule, constants = recipe.schedule(), task.constants
    for step in range(int(state.step), recipe.steps):
        state, metrics = _update(recipe, task.objective, state, constants, task.batch(step))
        record = {"step": step + 1, **jax.tree.map(float, metrics), "learning_rate": float(schedule(step))}
        if (step + 1) % recipe.evaluate_every == 0 or step + 1 == recipe.steps:
            record |= task.evaluate(state.params)
        yield state, record


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2,))
def _update(
    recipe: Recipe, objective: Objective, state: TrainState, constants: Any, batch: Any
) -> tuple[TrainState, dict[str, Array]]:
    loss, gradients = jax.value_and_grad(objective)(state.params, constants, batch)
    updates, opt_state = recipe.optimizer().update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    state = dataclasses.replace(state, params=params, opt_state=opt_state, step=state.step + 1)
    return state, {"loss": loss, "gradient_norm": optax.tree.norm(gradients)}


def _progress(recipe: Recipe, record: dict[str, float], start: int, elapsed: float) -> Progress:
    done = recipe.tokens_until(int(record["step"]))
    rate = (done - recipe.tokens_until(start)) / elapsed
    return Progress(
        step=int(record["step"]),
        metrics=record,
        tokens_per_second=rate,
        seconds_left=(recipe.tokens - done) / rate,
    )
