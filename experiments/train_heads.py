"""Trains heads (Medusa's, Blockwise's) for a target on the responses the target wrote (experiments.respond).

    python -m experiments.train_heads --config=configs/train_medusa_smollm2.py \\
        --config.responses=runs/responses --workdir=runs/medusa

A second call with the same workdir resumes from the newest checkpoint.
"""

from __future__ import annotations

from absl import app, flags, logging
import jax
from ml_collections import config_flags
import rich.console

from configs import train_blockwise_smollm2, train_medusa_smollm2
from experiments import launch
from experiments.train_heads_run import run

config_flags.register_flag_parser_for_type(tuple, launch.CommaTuple())
CONFIG = config_flags.DEFINE_config_file("config", None, "configs/train_medusa_smollm2.py", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Holds config.json, metrics.jsonl, checkpoints, the export.")

KINDS = (train_medusa_smollm2, train_blockwise_smollm2)


def main(argv: list[str]) -> None:
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    logging.set_verbosity(logging.WARNING)  # orbax tells every detail of every save
    try:
        settings = launch.read_keys(CONFIG, *(kind.get_config() for kind in KINDS))
        run(settings, launch.make_workdir(WORKDIR.value), rich.console.Console())
    except ValueError as error:
        launch.fail(str(error))


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_any_flags)
