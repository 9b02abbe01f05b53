"""What heads learned: accuracies beside published ones, the tau they predict and the tau that was decoded.

    python -m experiments.heads_report --workdir=runs/medusa

Reads ``metrics.jsonl`` of a run of ``experiments.train_heads``, finished or
not, and writes ``heads.md`` and ``heads.png`` beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import app, flags
from etils import epath

from experiments import launch
from experiments.heads_report_run import write

WORKDIR = flags.DEFINE_string("workdir", None, "Of the training run.")


def main(argv: Sequence[str]) -> None:
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    try:
        print(write(epath.Path(WORKDIR.value)))
    except ValueError as error:
        launch.fail(str(error))


if __name__ == "__main__":
    flags.mark_flag_as_required("workdir")
    app.run(main, flags_parser=launch.parse_flags)
