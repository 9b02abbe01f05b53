"""Sweeps targets x drafters x rules x gammas x temperatures and reports what it measured.

    python -m experiments.sweep --config=configs/quickstart.py --workdir=runs/quickstart

Killed or failed, the same command goes on where it stopped; more
``--config.gammas=...`` or temperatures extend a workdir. Exit status: 0, 1 if
cells failed, 2 for a config that cannot run, 130 when interrupted.
"""

from __future__ import annotations

import sys
from typing import Any

from absl import app, flags
import jax

from experiments import compilation, environment, launch, memory
from experiments.cells import all_cells, cell_id, groups, share
from experiments.group import GroupRun, Launch, num_units
from experiments.plan import Plan, prepare
from experiments.progress import SweepProgress
from experiments.workdir import Row, Workdir
from specjax.analysis.cells import by_drafter, by_temperature
from specjax.analysis.report import write_report
from specjax.analysis.trace import DecodeTrace

CONFIG = launch.define_config()
WORKDIR = flags.DEFINE_string("workdir", None, "Where results go; a workdir of the same sweep is continued.")
CELLS = flags.DEFINE_string("cells", "0/1", "i/n: the i-th of n shares, i from 0, for a Slurm array or pods.")
CACHE = flags.DEFINE_string(
    "compilation_cache", compilation.DEFAULT_CACHE, "Keeps compiled programs between runs; '' turns it off."
)


def main(argv: list[str]) -> int:
    """Flags to objects; the work is in ``run``."""
    if argv[1:]:
        launch.fail(f"unexpected arguments {' '.join(argv[1:])}; every option starts with --")
    try:
        settings = launch.read_settings(CONFIG)
        share(all_cells(settings), CELLS.value)
        plan = prepare(settings)
        workdir = Workdir(WORKDIR.value)
        config_hash = workdir.open(settings, plan.resolved())
        compilation.keep_on_disk(CACHE.value)
    except ValueError as error:
        launch.fail(str(error))
    try:
        return run(plan, workdir, config_hash, CELLS.value)
    except KeyboardInterrupt:
        print(f"interrupted; the same command continues in {WORKDIR.value}", file=sys.stderr)
        return 130


def run(plan: Plan, workdir: Workdir, config_hash: str, which: str = "0/1") -> int:
    """Runs the cells that are missing, group by group, then writes the report. Returns the exit status."""
    mine = share(all_cells(plan.settings), which)
    todo = [cell for cell in mine if not workdir.is_finished(cell_id(cell, plan.settings))]
    about = environment.describe()
    with compilation.watch() as compiled, SweepProgress(len(todo), num_units(todo, plan)) as progress:
        progress.say(f"{len(mine)} cells, {len(mine) - len(todo)} finished before; {about['device']}")
        context = Launch(
            plan=plan, workdir=workdir, progress=progress, config_hash=config_hash, environment=about
        )
        behind, at_start = 0, memory.anonymous()
        for cells in groups(todo, plan.settings.gammas_at_once):
            GroupRun(context, cells).run()
            memory.give_back(at_start)
            behind += num_units(cells, plan)
            progress.reached(behind)
    rows = workdir.merge()
    print(compiled.summary())
    write_report(workdir.path, rows, traces_to_show(rows, workdir), _flat(about))
    print(f"report: {workdir.path / 'report.html'}")
    mine_ids = {cell_id(cell, plan.settings) for cell in mine}
    failed = [row for row in rows if row["status"] != "ok" and row["cell_id"] in mine_ids]
    for row in failed:
        point = f"{row['pair']} {row['acceptance']} gamma={row['gamma']} T={row['temperature']:g}"
        print(f"failed: {point}: {row['error']}", file=sys.stderr)
    return 1 if failed else 0


def traces_to_show(rows: list[Row], workdir: Workdir) -> list[DecodeTrace]:
    """One decode for each drafter and temperature: of the gamma that was fastest there."""
    shown = []
    for lines in by_drafter(rows).values():
        for same in by_temperature(lines).values():
            fastest = max(same, key=lambda row: row["speedup"] or 0.0)
            shown.append(workdir.trace(fastest["cell_id"]))
    return [each for each in shown if each is not None]


def _flat(about: dict[str, Any]) -> dict[str, str]:
    """The environment as a table of the report."""
    versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
    return {"device": about["device"], "versions": versions, "commit": about["git_sha"] or "not a repository"}


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    jax.config.config_with_absl()
    app.run(main, flags_parser=launch.parse_flags)
