"""Has a target write responses to prompts: text to distil a draft or train heads on.

    python -m experiments.respond --config=configs/respond_smollm2.py --config.prompts=FILE.jsonl \\
        --workdir=runs/responses

Killed at any moment, the same command goes on with the first batch that is not
on disk.
"""

from __future__ import annotations

from absl import app, flags
import jax
from ml_collections import config_flags
import rich.console
import rich.progress

from configs import respond_smollm2
from experiments import launch
from experiments.respond_run import run

config_flags.register_flag_parser_for_type(tuple, launch.CommaTuple())
CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/respond_*.py.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Holds config.json and responses-NNNNN.jsonl, a file a batch.")


def main(argv: list[str]) -> None:
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    try:
        settings = launch.read_keys(CONFIG, respond_smollm2.get_config())
        run(settings, launch.make_workdir(WORKDIR.value), rich.console.Console())
    except ValueError as error:
        launch.fail(str(error))


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_any_flags)
