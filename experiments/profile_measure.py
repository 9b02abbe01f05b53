"""Measures steps, bandwidth and the parts of rounds; a repeat times all loops of a part in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from experiments import cost_loops, profile_loops
from experiments.costs import LoopTimer
from experiments.profile_setup import Pair
from specjax.analysis.intervals import bootstrap
from specjax.decoding.generate import decode_donated
from specjax.decoding.program import Program

Report = Callable[[str], None]  # told what the next unit of work is
Float = NDArray[np.float64]
Seconds = Mapping[Any, Sequence[float]]  # one value a repeat

PARTS = ("draft", "score", "accept", "commit")


def measure_steps(pair: Pair, tell: Report) -> dict[str, Any]:
    """v(T), and the one-token step beside one pass over what it reads."""
    settings, model = pair.settings, pair.target.model
    program = pair.program(settings.rules[0], settings.gammas[0])
    state = pair.prefilled(program)
    loops: dict[Any, Any] = {
        size: functools.partial(
            cost_loops.model_steps, model, pair.target.params, state.tokens[:, :size], state.target_cache
        )
        for size in settings.step_sizes
    }
    weights, caches = bytes_read(pair), sum(leaf.nbytes for leaf in jax.tree.leaves(state.target_cache))
    loops["sum"] = functools.partial(_sums, jnp.ones((1024, settings.megabytes * 2**20 // 4096), jnp.float32))
    dtype = jnp.dtype(settings.dtype)
    width = math.isqrt(weights // dtype.itemsize)
    loops["product"] = functools.partial(_products, jnp.full((width, width), 1 / width, dtype))
    seconds = _repeated(LoopTimer(loops), settings.repeats, "steps", tell)
    each = _arrays(seconds)
    sizes = {"sum": settings.megabytes * 2**20, "product": width * width * dtype.itemsize}
    return {
        "weight_bytes": weights,
        "cache_bytes": caches,
        "step_ms": {T: estimate(1e3 * each[T]) for T in settings.step_sizes},
        "v": {T: estimate(each[T] / each[1]) for T in settings.step_sizes},
        "gigabytes_per_second": {way: estimate(sizes[way] / each[way] / 1e9) for way in sizes},
        # The time of a one-token step over that of one pass over the weights.
        "step_over_pass": {way: estimate(each[1] / (each[way] * weights / sizes[way])) for way in sizes},
        "seconds": {str(key): list(values) for key, values in seconds.items()},
    }


def measure_rounds(pair: Pair, rule: str, gamma: int, tell: Report) -> dict[str, Any]:
    """Parts of a round of one rule and gamma, and what of a real round they leave unexplained.

    A proposal is timed with the step that scores it, which is taken off (see
    :mod:`experiments.costs`); a commit is what a whole round takes beyond one
    that stops at its verdict. The real rounds are those of a decode.
    """
    program = pair.program(rule, gamma)
    params, request, state = pair.params, pair.request(), pair.prefilled(program)
    noise, proposal = jax.block_until_ready(
        profile_loops.first_proposal(program, gamma, params, request, state)
    )
    upto = functools.partial(profile_loops.rounds_upto, program, gamma)
    loops = {
        "score": functools.partial(
            cost_loops.model_steps,
            program.target,
            params[0],
            state.tokens[:, : gamma + 1],
            state.target_cache,
        ),
        "draft and score": functools.partial(upto, False, params, request, noise, state),
        "before commit": functools.partial(upto, True, params, request, noise, state),
        "in place": functools.partial(profile_loops.whole_rounds, program, gamma, params, request, state),
        "accept": functools.partial(profile_loops.judgements, program, gamma, request, proposal, state),
        "noise": functools.partial(profile_loops.noises, program, gamma, request, state),
    }
    decode = functools.partial(_decode, pair, program)
    decode()
    decoded: list[tuple[float, int]] = []
    what = f"rounds, {rule}, gamma {gamma}"
    seconds = dict(
        _repeated(LoopTimer(loops), pair.settings.repeats, what, tell, lambda: decoded.append(decode()))
    )
    seconds["real"] = [taken / rounds for taken, rounds in decoded]
    each = _arrays(seconds)
    times = {
        "draft": each["draft and score"] - each["score"],
        "score": each["score"],
        "accept": each["accept"],
        "commit": each["in place"] - each["before commit"],
        "noise": each["noise"],  # a part of accept
        "in place": each["in place"],
        "real": each["real"],
    }
    return {
        "rule": rule,
        "gamma": gamma,
        "rounds": decoded[0][1],
        "ms": {name: estimate(1e3 * time) for name, time in times.items()},
        "share": {name: estimate(time / each["real"]) for name, time in times.items()},
        "unexplained": estimate(1 - sum(times[part] for part in PARTS) / each["real"]),
        # By the models' own steps alone, as a sweep's cost model sees a round.
        "beside_model_steps": estimate(1 - each["draft and score"] / each["real"]),
        "seconds": {name: list(values) for name, values in seconds.items()},
    }


def bytes_read(pair: Pair) -> int:
    """Weights that one target step reads: an embedding that is not the head as well is a lookup."""
    params = pair.target.params
    read = {key: value for key, value in params.items() if key != "embed_tokens" or "lm_head" not in params}
    return sum(leaf.nbytes for leaf in jax.tree.leaves(read))


def estimate(values: Float) -> list[float | None]:
    """[median of ``values`` [R], one a repeat, and its 95 % interval by bootstrap]."""
    (interval,) = bootstrap(lambda index: np.median(values[index], axis=-1)[None], (len(values),))
    limits = (interval.low, interval.high) if interval else (None, None)
    return [float(np.median(values)), *limits]


def _arrays(seconds: Seconds) -> dict[Any, Float]:
    return {key: np.asarray(values) for key, values in seconds.items()}


def _repeated(
    timer: LoopTimer, repeats: int, what: str, tell: Report, also: Callable[[], Any] = lambda: None
) -> Seconds:
    for repeat in range(repeats):
        tell(f"{what}, repeat {repeat + 1} of {repeats}")
        timer.repeat()
        also()
    return timer.seconds


def _decode(pair: Pair, program: Program) -> tuple[float, int]:
    """(seconds, rounds) of one real decode; its prefill is not timed."""
    request, state = pair.request(), pair.prefilled(program)
    start = time.perf_counter()
    state = jax.block_until_ready(decode_donated(program, pair.params, request, state))
    return time.perf_counter() - start, int(state.statistics.rounds[0])


def _sums(rows: jax.Array, num_steps: int) -> jax.Array:
    """Reads every entry once a step. Not in a device loop, where XLA's CPU backend gives a sum one thread."""
    total = rows[0, 0]
    for _ in range(int(num_steps)):
        total = jax.block_until_ready(_sum(rows))
    return total


_sum = jax.jit(jnp.sum)


@jax.jit
def _products(matrix: jax.Array, num_steps: jax.Array) -> jax.Array:
    """A vector times the matrix, again and again: the kind of product that a one-token step consists of."""
    times = lambda _, vector: vector @ matrix
    return jax.lax.fori_loop(0, num_steps, times, jnp.ones((1, matrix.shape[0]), matrix.dtype))


def num_units(pair: Pair) -> int:
    """Calls of ``tell`` by all that is measured here."""
    cells = list(itertools.product(pair.settings.rules, pair.settings.gammas))
    return pair.settings.repeats * (1 + len(cells))
