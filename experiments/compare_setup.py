"""What a comparison with ``transformers`` compares, checked before anything is compiled. Needs no torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from typing import Any

from etils import epath

from experiments import catalogue, fetched, launch, plan
from experiments.cells import NONE
from experiments.drafter_names import DrafterName
from experiments.models import DRAFT_MODELS, TARGETS
from experiments.plan import Plan
from experiments.settings import SweepSettings, nearest
from specjax.models.sources import is_source
from specjax.training.checkpoints import claim_workdir

LOOKUP = "prompt_lookup"
PEERS = ("torch", "transformers")
# The keys of a sweep as the flags of this command.
OWN_FLAGS = {
    "config.targets": "--target",
    "config.drafters": "--draft",
    **{
        f"config.{key}": f"--{key}"
        for key in ("gammas", "prompt_groups", "prompts", "num_prompts", "chat", "max_new_tokens")
    },
}


def make_settings(*, target: str, draft: str, gammas: tuple, smoke: bool, **others: Any) -> SweepSettings:
    """The flags as a sweep. ValueError, in the words of the flags, for what cannot run."""
    _check_gammas(gammas)
    try:
        settings = SweepSettings(
            targets=(target,),
            drafters=(NONE, draft, LOOKUP),
            gammas=gammas,
            stop_at_eos=False,
            **others,
        )
    except ValueError as error:
        raise ValueError(launch.in_words_of(OWN_FLAGS, error)) from None
    _check_draft(draft)
    _check_folder("--target", target, (*TARGETS, *fetched.NAMES))
    _check_folder("--draft", draft, (*DRAFT_MODELS, *fetched.NAMES))
    if smoke:
        return dataclasses.replace(
            settings,
            gammas=settings.gammas[:1],
            num_prompts=min(2, settings.num_prompts),
            max_new_tokens=min(16, settings.max_new_tokens),
        )
    return settings


def check_installed() -> None:
    """ValueError without the other implementation; looked for and not imported, which takes seconds."""
    if absent := [name for name in PEERS if importlib.util.find_spec(name) is None]:
        raise ValueError(f"{absent[0]} is not installed; pip install -e '.[peers]'")


def prepare(settings: SweepSettings) -> Plan:
    """The pair and the prompts in memory. ValueError, in the words of the flags, for what does not fit."""
    try:
        prepared = plan.prepare(settings)
    except ValueError as error:
        raise ValueError(launch.in_words_of(OWN_FLAGS, error)) from None
    _check_room(prepared)
    return prepared


def claim(workdir: str | None, prepared: Plan) -> epath.Path:
    """The folder of ``workdir``, writable and of no other comparison; else ValueError."""
    folder = launch.make_workdir(workdir)
    settings = dataclasses.asdict(prepared.settings)
    claim_workdir(folder, {"settings": settings, "threads": num_threads(), **prepared.resolved()})
    return folder


def num_threads() -> int:
    """The processors this process may use: what XLA takes, so torch gets as many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_gammas(gammas: tuple) -> None:
    """A sweep takes gamma 0, a round without a draft; transformers does not."""
    if not gammas:
        raise ValueError("--gammas: empty; it takes whole numbers from 1, such as --gammas=3,7")
    for gamma in gammas:
        if isinstance(gamma, int | float) and gamma < 1:
            raise ValueError(f"--gammas: {gamma} is below 1, the fewest tokens transformers drafts")


def _check_draft(name: str) -> None:
    """``transformers`` drafts with a model of its own and with prompt lookup, which is compared anyway."""
    drafter = DrafterName.parse(name)
    if not (name in catalogue.OTHER_DRAFTERS or drafter.is_cascade or drafter.shape or drafter.heads):
        return
    inside = drafter.model  # what is a model in "prompt_lookup+draft" and "draft:2x2"
    told = f"nearest is {inside!r}" if inside in DRAFT_MODELS else nearest(name, DRAFT_MODELS)
    raise ValueError(f"--draft: {name!r} is no draft model by itself; {told}, or a folder")


def _check_folder(flag: str, name: str, known: tuple[str, ...]) -> None:
    """Both implementations open folders; the hub and GGUF files only this one as they are."""
    if name in known:
        return
    if name.startswith("hf://") or name.endswith(".gguf"):
        raise ValueError(f"{flag}: {name!r} is no folder, which both sides can open; {nearest(name, known)}")
    if not name or not is_source(name):
        raise ValueError(f"{flag}: unknown {name!r}; {nearest(name, known)}, or a folder")


def _check_room(prepared: Plan) -> None:
    """ValueError where a context ends before the output does: the two would stop at different tokens."""
    longest = max(len(ids) for encoded in prepared.token_ids.values() for ids in encoded)
    new = prepared.settings.max_new_tokens
    for model in (*prepared.targets.values(), *prepared.draft_models.values()):
        room = model.model.context - longest
        if new > room:
            told = f"the most are {room}" if room > 0 else "take shorter --prompts"
            raise ValueError(
                f"--max_new_tokens: {new} after a prompt of {longest} tokens exceed the context of "
                f"{model.label}, {model.model.context}; {told}"
            )
