"""From the ConfigDict of configs/train_*.py to a typed training run."""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
from typing import Any

from ml_collections import ConfigDict

from experiments.settings import check_folder, nearest
from specjax.models.decoder import DecoderConfig
from specjax.training.recipe import Recipe, Stage
from specjax.training.self_generated import SelfGenerated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A recipe and what surrounds it."""

    recipe: Recipe
    teacher: str  # a Hugging Face folder to distil from, or empty
    self_generated: SelfGenerated | None  # text of the teacher's own among the training windows
    export: str  # a folder to write, or empty for WORKDIR/export

    def __post_init__(self) -> None:
        if self.self_generated and not self.teacher:
            raise ValueError("self_generated.rows needs a teacher to write them")

    def to_json(self) -> dict[str, Any]:
        """What decides the result; where folders lie does not."""
        generated = dataclasses.asdict(self.self_generated) if self.self_generated else None
        return {**dataclasses.asdict(self.recipe), "self_generated": generated}


def resolve(config: ConfigDict) -> Run:
    """Checks every value of a config; ValueError says which is wrong."""
    settings = config.to_dict()
    outside = ("teacher", "self_generated", "export")
    _check_keys("config", settings, [*_fields(Recipe), *outside], required=("model", "stages", *outside))
    _check_keys("config.model", settings["model"], _fields(DecoderConfig))
    for name, size in settings["model"].items():
        if type(size) is int and size < 1:
            raise ValueError(f"config.model.{name}: {size} is below 1, the smallest valid value")
    teacher, export = settings.pop("teacher"), settings.pop("export")
    check_folder("config.export", export)
    generated = settings.pop("self_generated")
    settings["model"] = DecoderConfig(**settings["model"])
    settings["stages"] = tuple(_stage(number, stage) for number, stage in enumerate(settings["stages"]))
    return Run(
        recipe=Recipe(**settings),
        teacher=teacher,
        self_generated=SelfGenerated(**generated) if generated["rows"] else None,
        export=export,
    )


def _fields(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _check_keys(where: str, keys: Iterable[str], known: list[str], required: Iterable[str] = ()) -> None:
    for key in required:
        if key not in keys:
            raise ValueError(f"{where}: no {key}; is this a file of configs/train_*.py?")
    for key in keys:
        if key not in known:
            raise ValueError(f"{where}.{key}: no such key; {nearest(key, known)}")


def _stage(number: int, sizes: Any) -> Stage:
    names = ("steps", "batch_size", "context")
    if len(sizes) != len(names) or not all(type(size) is int for size in sizes):
        raise ValueError(f"stages[{number}] must be integers ({', '.join(names)}), got {sizes!r}")
    return Stage(**dict(zip(names, sizes)))
