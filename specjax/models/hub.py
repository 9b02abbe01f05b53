"""Checkpoints of the Hugging Face hub, through its own client: its cache, its tokens, its mirrors."""

from __future__ import annotations

import re

from etils import epath
import huggingface_hub
from huggingface_hub import errors

from specjax.models.checkpoint import Identity
from specjax.models.folder import Folder

SCHEME = "hf://"
_SOURCE = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")

# What a decoder needs; weights in other formats stay where they are.
WANTED = ["*.json", "*.safetensors", "*.jinja"]
UNWANTED = ["*/*"]  # other precisions and formats live in sub-folders


def open_repository(source: str) -> Folder:
    """``hf://org/name`` or ``hf://org/name@revision``: a branch, a tag or a commit.

    Files that the client's cache has are not fetched again. The identity names
    the commit that was found, whatever the revision was. Raises ValueError for
    a malformed or unknown name, an unknown revision, a gated repository without
    access, and where neither hub nor cache has the files.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise ValueError(f"{source!r} is not of the form hf://org/name or hf://org/name@revision")
    name, revision = match["name"], match["revision"]
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED
        )
    except errors.GatedRepoError as error:
        raise ValueError(
            f"{source} is gated: ask for access on its page, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{SCHEME}{name} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"{SCHEME}{name}: no such repository, or a private one that HF_TOKEN gives no access to"
        ) from error
    except errors.HFValidationError as error:
        raise ValueError(f"{source}: {error}") from error
    except OSError as error:
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"{source}: the hub cannot be reached, and its cache lacks the files ({why})"
        ) from error
    snapshot = epath.Path(folder)  # the cache names it after the commit
    return Folder(snapshot, Identity(source=f"{SCHEME}{name}", revision=snapshot.name))
