"""What a device check measures: parity, costs, bandwidth, a small sweep, a profile.

Apart from its main, which defines flags: several mains cannot be imported into one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp

from experiments import catalogue, costs, runner
from experiments.cells import NONE
from experiments.models import LoadedModel
from experiments.plan import prepare
from experiments.runner import Batch, Timed
from experiments.settings import SweepSettings
from specjax.analysis.metrics import summarize
from specjax.analysis.records import Costs
from specjax.decoding.generate import prefill
from specjax.decoding.program import Program
from specjax.sharding import mesh_of, place_batch
from specjax.testing.parity import divergences, margin
from specjax.types import Params, Request

CLOSE_CALL = 1e-4  # two best scores nearer than this may change places with the rounding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """One pair ready to decode: programs by gamma, 0 being plain decoding."""

    settings: SweepSettings
    target: LoadedModel
    programs: Mapping[int, Program]
    params: Mapping[int, tuple[Params, Params]]
    batches: Sequence[Batch]

    def request(self, batch: Batch, temperature: float) -> Request:
        return runner.request_for(batch, self.settings, temperature, ())

    def decode(self, gamma: int, batch: Batch, temperature: float) -> Timed:
        request = self.request(batch, temperature)
        return runner.decode_timed(self.programs[gamma], self.params[gamma], batch, request)


def set_up(settings: SweepSettings) -> Setup:
    """Models, prompts and programs of ``settings``; ValueError for what cannot run."""
    plan = prepare(settings)
    target = plan.targets[settings.targets[0]]
    alone = catalogue.make_drafter(NONE, target, {})
    draft = catalogue.make_drafter(settings.drafters[1], target, plan.draft_models)
    prompts = plan.token_ids[target.name]
    make = functools.partial(
        runner.make_program,
        rule=catalogue.RULES[settings.rules[0]](settings),
        max_len=runner.max_len(prompts, settings),
        max_gamma=max(settings.gammas),
    )
    programs = {0: make(target, alone, gamma=0)}
    programs |= {gamma: make(target, draft, gamma=gamma) for gamma in settings.gammas}
    return Setup(
        settings=settings,
        target=target,
        programs=programs,
        params={gamma: (target.params, draft.params if gamma else ()) for gamma in programs},
        batches=runner.make_batches(prompts, settings.batch_size),
    )


def check_parity(setup: Setup) -> dict[str, Any]:
    """Tokens of every gamma against plain decoding's, same seeds, one row a prompt."""
    num_tokens, found = 0, []
    for temperature in setup.settings.temperatures:
        for batch in setup.batches:
            plain = setup.decode(0, batch, temperature).state
            for gamma in setup.settings.gammas:
                state = setup.decode(gamma, batch, temperature).state
                for each in divergences(plain, state):
                    gap = margin(
                        setup.target.model,
                        setup.target.params,
                        setup.request(batch, temperature),
                        plain,
                        each,
                    )
                    where = {"gamma": gamma, "temperature": temperature, **dataclasses.asdict(each)}
                    found.append({**where, "margin": gap, "ok": gap < CLOSE_CALL})
                num_tokens += int((state.length - batch.lengths).sum())
    ok = all(each["ok"] for each in found)
    return {"ok": ok, "num_tokens": num_tokens, "divergences": found}


def measure_costs(setup: Setup) -> Costs:
    """c, d(gamma) and v(T) of the sweep's own batch size and buffers."""
    gamma = setup.settings.gammas[-1]
    program, params, batch = setup.programs[gamma], setup.params[gamma], setup.batches[0]
    tokens, request = place_batch(jnp.asarray(batch.tokens), setup.request(batch, 1.0), mesh_of(params))
    state = prefill(program, params, tokens, request)
    return costs.measure(program, params, request, state, setup.settings.gammas, setup.settings.cost_repeats)


def gigabytes_per_second(size: int) -> float:
    """Memory bandwidth of one device, measured: passes over ``size`` bytes, each read and written."""
    passes = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: x + 1, x))
    loop = functools.partial(passes, jnp.zeros(size // 4, jnp.float32))
    timer = costs.LoopTimer({"pass": loop})
    for _ in range(3):
        timer.repeat()
    return 2 * size / min(timer.seconds["pass"]) / 1e9


def step_speeds(setup: Setup, measured: Costs, bandwidth: float) -> dict[str, float]:
    """Milliseconds of steps, cost ratios, and how much of the bandwidth a one-token step reaches.

    A step reads every weight and every cache slot of its batch once. Above 1
    the weights fit into a cache nearer than the memory that was measured.
    """
    median = lambda values: float(jnp.median(jnp.asarray(values)))
    target_step = median(measured.target_seconds[1])
    gamma = setup.settings.gammas[-1]
    speeds = {
        "batch_size": setup.settings.batch_size,
        "target_step_ms": 1e3 * target_step,
        "draft_step_ms": 1e3 * median(measured.draft_step_seconds),
        "c": median(measured.draft_ratio(gamma)),
    }
    speeds |= {f"d({g})": median(measured.proposal_ratio(g)) for g in setup.settings.gammas}
    speeds |= {f"v({g + 1})": median(measured.verify_ratio(g + 1)) for g in setup.settings.gammas}
    reached = bytes_of_a_step(setup) / target_step / 1e9
    return speeds | {
        "step_GB_per_s": reached,
        "device_GB_per_s": bandwidth,
        "bandwidth_share": reached / bandwidth,
    }


def bytes_of_a_step(setup: Setup) -> int:
    """Weights and caches that one target step reads on one device."""
    shard = lambda leaf: leaf.addressable_shards[0].data.nbytes
    params = setup.target.params
    # An untied embedding is a lookup of a few rows; a tied one is the LM head too.
    read = {key: value for key, value in params.items() if key != "embed_tokens" or "lm_head" not in params}
    program = setup.programs[0]
    cache = jax.eval_shape(functools.partial(program.target.init_cache, program.max_len))
    rows = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    devices = setup.settings.mesh[0] * setup.settings.mesh[1]
    return sum(map(shard, jax.tree.leaves(read))) + setup.settings.batch_size * rows // devices


def sweep(setup: Setup, measured: Costs) -> list[dict[str, Any]]:
    """One row a gamma and temperature: fields of a sweep's ``results.jsonl``."""
    for gamma, program in setup.programs.items():
        for batch in {batch.tokens.shape[1]: batch for batch in setup.batches}.values():
            runner.warm_up(program, setup.params[gamma], batch, setup.request(batch, 1.0))
    rows = []
    categories = [""] * setup.settings.num_prompts
    for temperature in setup.settings.temperatures:
        records: dict[int, list[Any]] = {gamma: [] for gamma in setup.settings.gammas}
        for batch in setup.batches:
            plain = setup.decode(0, batch, temperature)
            for gamma, kept in records.items():
                timed, buckets = setup.decode(gamma, batch, temperature), setup.programs[gamma].gammas
                kept += runner.row_records(timed, plain, batch, 0, buckets=buckets, categories=categories)
        for gamma, kept in records.items():
            line = summarize(kept, measured)
            rows.append({"gamma": gamma, "temperature": temperature, **line})
    return rows


def profile(setup: Setup, folder: epath.Path) -> None:
    """A trace of one decode for ``xprof`` or Perfetto; on a CPU it shows little."""
    folder.mkdir(parents=True, exist_ok=True)
    with jax.profiler.trace(str(folder)):
        setup.decode(setup.settings.gammas[-1], setup.batches[0], 1.0)


def memory() -> dict[str, int] | None:
    """Bytes limit and peak of the first device, where its runtime tells."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return {key: stats[key] for key in ("bytes_limit", "peak_bytes_in_use") if key in stats} or None


def say_parity(agreement: Mapping[str, Any]) -> None:
    found = agreement["divergences"]
    print(f"parity: {agreement['num_tokens']} tokens, {len(found)} rows part from plain decoding")
    for each in found:
        print("  " + ", ".join(f"{key}={value}" for key, value in each.items()))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Right-aligned columns of plain text."""
    shown = [[_number(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *shown, strict=True)]
    for line in (list(columns), *shown):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
