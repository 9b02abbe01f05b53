"""Where the time and memory of a decode go: steps, bandwidth, the parts of a round, the start of a process.

    python -m experiments.profile --config=configs/profile_smollm2.py --workdir=runs/profile
    ... --config=configs/profile_smollm2.py:pair --workdir=runs/profile_pair

Writes profile.json (every repeat's seconds too), profile.md and profile.png. A
part that is on disk, measured with the same settings, weights, versions and
device, is not measured again. Nothing else should use the machine meanwhile.
"""

from __future__ import annotations

from absl import app, flags
import jax
from ml_collections import config_flags

from experiments import compilation, launch
from experiments.profile_report import figure, markdown
from experiments.profile_run import about, begun, measure
from experiments.profile_setup import ProfileSettings, set_up

config_flags.register_flag_parser_for_type(tuple, launch.CommaTuple())
CONFIG = config_flags.DEFINE_config_file(
    "config", None, "configs/profile_smollm2.py[:pair].", lock_config=True
)
WORKDIR = flags.DEFINE_string("workdir", None, "Where profile.json, profile.md and profile.png go.")


def main(argv: list[str]) -> None:
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    try:
        settings = ProfileSettings.from_config(launch.read_config(CONFIG).to_dict())
        pair = set_up(settings)
        workdir = launch.make_workdir(WORKDIR.value)
        profile = begun(workdir, about(pair))
        compilation.keep_on_disk(compilation.DEFAULT_CACHE)
    except ValueError as error:
        launch.fail(str(error))
    measure(pair, workdir, profile)
    with (workdir / "profile.png").open("wb") as file:
        figure(profile).savefig(file, dpi=150)
    print(markdown(profile))
    print(workdir)


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_any_flags)
