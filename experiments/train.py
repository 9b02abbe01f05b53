"""Trains one model of the embedded pair and exports it in Hugging Face's folder format.

    python -m experiments.train --config=configs/train_target.py --workdir=runs/target

A second call with the same workdir resumes from the newest checkpoint.
"""

from __future__ import annotations

from absl import app, flags, logging
import jax
from ml_collections import config_flags
import rich.console

from experiments import launch
from experiments.train_config import resolve
from experiments.train_run import run_training

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/train_*.py.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Holds config.json, metrics.jsonl, checkpoints, the export.")


def main(argv: list[str]) -> None:
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    logging.set_verbosity(logging.WARNING)  # orbax tells every detail of every save
    try:
        run = resolve(launch.read_config(CONFIG))
        run_training(run, launch.make_workdir(WORKDIR.value), rich.console.Console())
    except ValueError as error:
        launch.fail(str(error))


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_any_flags)
