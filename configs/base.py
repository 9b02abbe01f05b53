"""What every sweep config starts from: the defaults of ``experiments.settings.SweepSettings``, locked."""

from __future__ import annotations

import dataclasses

from ml_collections import config_dict

from experiments.settings import SweepSettings, nearest


def sweep() -> config_dict.ConfigDict:
    """All keys with their defaults; setting one that does not exist is an error."""
    config = config_dict.ConfigDict(dataclasses.asdict(SweepSettings()))
    return config.lock()


def variant(name: str, *known: str) -> str:
    """The part after the colon of ``--config=FILE.py:variant``, checked."""
    if name not in ("", *known):
        raise ValueError(f"no variant {name!r}; {nearest(name, known)}")
    return name
