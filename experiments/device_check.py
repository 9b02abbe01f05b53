"""What this GPU, TPU or CPU does with the embedded pair, in under five minutes.

    python -m experiments.device_check --workdir=runs/device_check

Parity (speculative decoding gives plain decoding's tokens, greedy and with
coupled noise), c, d(gamma), v(T) and the share of the memory bandwidth that a
target step reaches, a small sweep, and a profile. Needs only what jax, flax,
orbax, safetensors, tokenizers, absl and ml_collections bring. Exit status 1
if a row diverges by more than rounding explains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time

from absl import app, flags
import jax

from experiments import compilation, environment, launch
from experiments import device_check_run as steps
from experiments.cells import NONE
from experiments.settings import SweepSettings

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
OWN_FLAGS = {
    "config.targets": "--target",
    "config.drafters": "--draft",
    "config.prompts": "--prompts",
    "config.mesh": "--mesh",
}
MEASURED = ("alpha_accept", "tau", "tokens_per_second", "speedup", "speedup_cost_model")


def main(argv: list[str]) -> int:
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    start, on_cpu = time.perf_counter(), jax.default_backend() == "cpu"
    try:
        compilation.keep_on_disk(CACHE.value)
        checked = settings_for("float32", SMOKE.value)
        workdir = launch.make_workdir(WORKDIR.value)
    except ValueError as error:
        launch.fail(launch.in_words_of(OWN_FLAGS, error))
    # In bfloat16 as one would use it; a smoke run shares the programs of the parity check instead.
    swept = dataclasses.replace(
        checked,
        dtype="float32" if on_cpu else "bfloat16",
        rules=checked.rules if SMOKE.value else ("rejection",),
        batch_size=checked.batch_size if SMOKE.value else 1,
    )
    try:
        checked_setup, swept_setup = steps.set_up(checked), steps.set_up(swept)
    except ValueError as error:
        launch.fail(launch.in_words_of(OWN_FLAGS, error))
    print(json.dumps(about := {**environment.describe(), "memory": steps.memory()}))
    precision = contextlib.nullcontext() if on_cpu else jax.default_matmul_precision("highest")
    with precision:
        agreement = steps.check_parity(checked_setup)
    steps.say_parity(agreement)
    measured = steps.measure_costs(swept_setup)
    speeds = steps.step_speeds(swept_setup, measured, steps.gigabytes_per_second(2**26 if on_cpu else 2**28))
    steps.print_table([speeds], tuple(speeds))
    rows = steps.sweep(swept_setup, measured)
    steps.print_table(rows, ("gamma", "temperature", *MEASURED))
    steps.profile(swept_setup, workdir / "profile")

    result = {
        **about,
        "seconds": time.perf_counter() - start,
        "peak_memory": steps.memory(),
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


if __name__ == "__main__":
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_any_flags)
