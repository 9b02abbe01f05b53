"""From the ConfigDict of configs/train_*.py to a typed training run."""

from __future__ import annotations

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from specjax.models.decoder import DecoderConfig
from specjax.training.recipe import Recipe, Stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A recipe and the folders around it."""

    recipe: Recipe
    teacher: str  # a Hugging Face folder, or empty
    export: str  # a folder to write, or empty for WORKDIR/export

    def to_json(self) -> dict[str, Any]:
        """What decides the result; where it is exported does not."""
        return {"teacher": self.teacher, **dataclasses.asdict(self.recipe)}


def resolve(config: ConfigDict) -> Run:
    """Checks every value of a config; ValueError says which is wrong."""
    settings = config.to_dict()
    teacher, export = settings.pop("teacher"), settings.pop("export")
    settings["model"] = DecoderConfig(**settings["model"])
    settings["stages"] = tuple(_stage(number, stage) for number, stage in enumerate(settings["stages"]))
    return Run(recipe=Recipe(**settings), teacher=teacher, export=export)


def _stage(number: int, sizes: Any) -> Stage:
    if len(sizes) != 3 or not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"stages[{number}] must be three integers (steps, batch size, context), got {sizes!r}")
    return Stage(**dict(zip(("steps", "batch_size", "context"), sizes)))
