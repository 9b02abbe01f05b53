"""Checkpoints of a run, its metrics log, and the refusal to mix two runs in one workdir."""

from __future__ import annotations

import json
from typing import Any

from etils import epath
import jax
from orbax.checkpoint.experimental.v1 import training as ocp_training

from specjax.types import pytree

MOST_TOLD = 12  # differences between two runs, in one message


@pytree
class TrainState:
    """All a resumed run needs; the data of a step follows from its number."""

    params: Any
    opt_state: Any  # holds the schedule's own counter
    step: jax.Array  # [] int32: updates done
    seconds: jax.Array  # [] float32: time spent training, all sessions together


def open_checkpoints(workdir: epath.PathLike, every: int) -> ocp_training.Checkpointer:
    """Orbax checkpoints under ``workdir``/checkpoints, saved every ``every`` steps, the newest two kept."""
    return ocp_training.Checkpointer(
        epath.Path(workdir) / "checkpoints",
        save_decision_policy=ocp_training.save_decision_policies.FixedIntervalPolicy(every),
        preservation_policy=ocp_training.preservation_policies.LatestN(2),
    )


def restore_latest(checkpoints: ocp_training.Checkpointer, like: TrainState) -> TrainState:
    """The newest checkpoint, or ``like`` itself when there is none.

    ``like`` gives types, shapes and shardings: without them orbax hands
    optimizer states back as plain lists and asks for the devices of the past.
    """
    if checkpoints.latest is None:
        return like
    shape_of = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return checkpoints.load(checkpoints.latest.step, jax.tree.map(shape_of, like))


def claim_workdir(workdir: epath.PathLike, settings: dict[str, Any]) -> None:
    """Writes ``settings`` to config.json, or checks that the workdir already holds the very same.

    ValueError lists the settings that differ with both values.
    """
    path = epath.Path(workdir) / "config.json"
    settings = json.loads(json.dumps(settings))
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(settings, indent=2) + "\n")
        except OSError as error:
            raise ValueError(f"workdir {workdir}: cannot be written ({error.strerror or error})") from None
        return
    try:
        old, new = _flatten(json.loads(path.read_text())), _flatten(settings)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"workdir {workdir}: its config.json is not JSON ({error})") from None
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if changed:
        told = [f"{key}: {old.get(key)} in the workdir, {new.get(key)} now" for key in changed[:MOST_TOLD]]
        more = f"; and {len(changed) - MOST_TOLD} more" * (len(changed) > MOST_TOLD)
        raise ValueError(
            f"workdir {workdir} belongs to another run ({'; '.join(told)}{more}); "
            "resume that one unchanged or take another --workdir"
        )


def write_whole(path: epath.Path, text: str) -> None:
    """``text`` under the name of ``path``, or, killed meanwhile, what was there before."""
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(text)
    unfinished.replace(path)


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict | list):
        return {prefix: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {
        key: leaf
        for name, child in items
        for key, leaf in _flatten(child, f"{prefix}.{name}" if prefix else str(name)).items()
    }


class MetricsLog:
    """metrics.jsonl: one line a step. Opening it at a step drops what a lost session wrote after."""

    def __init__(self, workdir: epath.PathLike, step: int):
        self.path = epath.Path(workdir) / "metrics.jsonl"
        kept = [line for line in self._whole_lines() if json.loads(line)["step"] <= step]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, "".join(kept))
        self._file = self.path.open("a")

    def _whole_lines(self) -> list[str]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
