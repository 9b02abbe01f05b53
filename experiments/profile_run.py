"""A profile, part by part, each on disk once it is measured.

Apart from its main, which defines flags: several mains cannot be imported into one process.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

from etils import epath
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments import environment
from experiments.profile_measure import measure_rounds, measure_steps, num_units
from experiments.profile_report import markdown
from experiments.profile_setup import Pair
from experiments.profile_start import measure_starts

Profile = dict[str, Any]


def about(pair: Pair) -> Profile:
    """What is measured, and where."""
    return {
        **environment.describe(),
        "pair": f"{pair.target.label}, {pair.drafter.label}",
        "target": pair.target.identity,
        "weights": [pair.target.weights_hash, pair.drafter.weights_hash],
        "settings": json.loads(json.dumps(dataclasses.asdict(pair.settings))),
    }


def begun(workdir: epath.Path, described: Profile) -> Profile:
    """What an interrupted run of the same profile left; ValueError for another's."""
    path = workdir / "profile.json"
    if not path.exists():
        return {"about": described, "rounds": []}
    try:
        profile: Profile = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    stored = profile.get("about") if isinstance(profile, dict) else None
    if not isinstance(stored, dict):
        raise ValueError(f"{path} is no profile; use another --workdir")
    keys = [key for key in described if key != "git_sha" and stored.get(key) != described[key]]
    if keys:
        told = "; ".join(f"{key} is {stored.get(key)!r} there and {described[key]!r} here" for key in keys)
        raise ValueError(f"{path} is another profile: {told}. Use another --workdir")
    return profile


def measure(pair: Pair, workdir: epath.Path, profile: Profile) -> None:
    """Adds what ``profile`` lacks; each part is on disk once it is measured."""
    settings = pair.settings
    with _progress() as bar:
        task = bar.add_task("", total=2 * settings.starts + num_units(pair))

        def tell(what: str) -> None:
            bar.update(task, advance=1, description=what)

        def keep(part: str, found: Any) -> None:
            profile[part] = found
            _write(workdir / "profile.json", json.dumps(profile, indent=1) + "\n")
            _write(workdir / "profile.md", markdown(profile))

        if settings.starts and "start" not in profile:
            keep("start", measure_starts(settings, tell))
        if "steps" not in profile:
            # As JSON has them, so that a fresh profile and one read again are alike.
            keep("steps", json.loads(json.dumps(measure_steps(pair, tell))))
        measured = {(each["rule"], each["gamma"]) for each in profile["rounds"]}
        for rule, gamma in itertools.product(settings.rules, settings.gammas):
            if (rule, gamma) not in measured:
                keep("rounds", [*profile["rounds"], measure_rounds(pair, rule, gamma, tell)])
                bar.console.print(_headline(profile["rounds"][-1]), highlight=False)


def _progress() -> Progress:
    console = Console(highlight=False, soft_wrap=True)
    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, *left, console=console, transient=True, disable=not console.is_terminal)


def _headline(found: Profile) -> str:
    unexplained, low, high = (100 * value for value in found["unexplained"])
    return (
        f"{found['rule']}, gamma {found['gamma']}: a round {found['ms']['real'][0]:.2f} ms, "
        f"unexplained {unexplained:.1f} % ({low:.1f} to {high:.1f})"
    )


def _write(path: epath.Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)
