"""What this GPU, TPU or CPU does with the embedded pair, in under five minutes.

    python -m experiments.device_check --workdir=runs/device_check

Parity (speculative decoding gives plain decoding's tokens, greedy and with
coupled noise), c, d(gamma), v(T) and the share of the memory bandwidth that a
target step reaches, a small sweep, and a profile. Needs only what jax, flax,
orbax, safetensors, tokenizers, absl and ml_collections bring. Exit status 1
if a row diverges by more than rounding explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import time
from typing import Any

from absl import app, flags
from etils import epath
import jax
import jax.numpy as jnp

from experiments import catalogue, compilation, costs, environment, launch, runner
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

WORKDIR = flags.DEFINE_string("workdir", "runs/device_check", "Where device_check.json and profile/ go.")
TARGET = flags.DEFINE_string("target", "target", "A name of experiments.models, or a folder.")
DRAFT = flags.DEFINE_string("draft", "draft", "A draft model, by name or folder.")
PROMPTS = flags.DEFINE_string("prompts", "stdlib", "As --config.prompts of a sweep.")
MESH = flags.DEFINE_list("mesh", ["1", "1"], 'Devices on the axes "data" and "model".')
SMOKE = flags.DEFINE_bool("smoke", False, "The same steps on a few tokens; its times mean nothing.")
CACHE = flags.DEFINE_string(
    "compilation_cache", compilation.DEFAULT_CACHE, "Keeps compiled programs between runs; '' turns it off."
)

TEMPERATURES = (0.0, 1.0)  # greedy, and sampled with coupled noise
CLOSE_CALL = 1e-4  # two best scores nearer than this may change places with the rounding
MEASURED = ("alpha_accept", "tau", "tokens_per_second", "speedup", "speedup_cost_model")


def main(argv: list[str]) -> int:
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    start, on_cpu = time.perf_counter(), jax.default_backend() == "cpu"
    try:
        compilation.keep_on_disk(CACHE.value)
        checked = settings_for("float32", SMOKE.value)
        (workdir := epath.Path(WORKDIR.value)).mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        launch.fail(str(error))
    # In bfloat16 as one would use it; a smoke run shares the programs of the parity check instead.
    swept = dataclasses.replace(
        checked,
        dtype="float32" if on_cpu else "bfloat16",
        rules=checked.rules if SMOKE.value else ("rejection",),
        batch_size=checked.batch_size if SMOKE.value else 1,
    )
    try:
        checked_setup, swept_setup = set_up(checked), set_up(swept)
    except ValueError as error:
        launch.fail(str(error))
    print(json.dumps(about := {**environment.describe(), "memory": memory()}))
    precision = contextlib.nullcontext() if on_cpu else jax.default_matmul_precision("highest")
    with precision:
        agreement = check_parity(checked_setup)
    say_parity(agreement)
    measured = measure_costs(swept_setup)
    speeds = step_speeds(swept_setup, measured, gigabytes_per_second(2**26 if on_cpu else 2**28))
    print_table([speeds], tuple(speeds))
    rows = sweep(swept_setup, measured)
    print_table(rows, ("gamma", "temperature", *MEASURED))
    profile(swept_setup, workdir / "profile")

    result = {
        **about,
        "seconds": time.perf_counter() - start,
        "peak_memory": memory(),
        "dtype": swept.dtype,
        "parity": agreement,
        "steps": speeds,
        "costs": measured.to_dict(),
        "sweep": rows,
        "profile": str(workdir / "profile"),
    }
    (workdir / "device_check.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['seconds']:.0f} s; written to {workdir / 'device_check.json'}")
    return 0 if agreement["ok"] else 1


def settings_for(dtype: str, smoke: bool) -> SweepSettings:
    """A sweep small enough for any device: the pair, three gammas, greedy and sampled."""
    if DRAFT.value == NONE:
        raise ValueError("--draft=none: the check compares a draft with plain decoding; give a model")
    return SweepSettings(
        targets=(TARGET.value,),
        drafters=(NONE, DRAFT.value),
        rules=("coupled",),
        gammas=(3,) if smoke else (1, 3, 7),
        temperatures=TEMPERATURES,
        prompts=PROMPTS.value,
        num_prompts=2 if smoke else 8,
        batch_size=2 if smoke else 8,
        max_new_tokens=12 if smoke else 64,
        cost_repeats=2 if smoke else 9,
        stop_at_eos=False,  # every row decodes as many tokens
        dtype=dtype,
        mesh=launch.CommaTuple().parse(",".join(MESH.value)),
    )


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
            line = summarize(kept, measured, batch_size=setup.settings.batch_size)
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


if __name__ == "__main__":
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_any_flags)
