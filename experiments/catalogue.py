"""Names of a config to objects: targets, drafters, rules. Where a name is a folder, the model in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import dataclasses
from pathlib import Path

from etils import epath
import numpy as np
from tokenizers import Tokenizer

from experiments.cells import NONE
from experiments.settings import SweepSettings, fingerprint, nearest
import specjax
from specjax.acceptance.block import Block
from specjax.acceptance.coupled import Coupled
from specjax.acceptance.rejection import Rejection
from specjax.data.corpora import standard_library
from specjax.data.tokenizers import check_same_ids, load_tokenizer
from specjax.drafters.model import ModelDrafter
from specjax.drafters.ngram import NgramDrafter, fit_bigram, fit_unigram
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.models import huggingface
from specjax.models.language_model import TransformerLM
from specjax.types import Drafter, Params, Rule

_ASSETS = epath.Path(Path(specjax.__file__).parent / "assets")

TARGETS = {"target": _ASSETS / "target"}
DRAFT_MODELS = {"draft": _ASSETS / "draft", "draft-small": _ASSETS / "draft-small"}

RULES: dict[str, Callable[[SweepSettings], Rule]] = {
    "rejection": lambda settings: Rejection(lenience=settings.lenience),
    "block": lambda settings: Block(),
    "coupled": lambda settings: Coupled(),
    NONE: lambda settings: Rejection(),  # plain decoding: only its draws are used
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model folder in memory."""

    name: str  # as in the config
    label: str  # as in results
    model: TransformerLM
    params: Params
    tokenizer: Tokenizer
    stop_tokens: tuple[int, ...]
    weights_hash: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedDrafter:
    """A drafter with its params; no drafter at all is plain decoding."""

    name: str
    label: str
    drafter: Drafter | None
    params: Params
    weights_hash: str = ""
    always_drafts: bool = True  # False: rounds may draft nothing, so it runs in buckets (0, gamma)

    def buckets(self, gamma: int) -> tuple[int, ...]:
        """The gamma buckets of a cell's program."""
        return (gamma,) if self.always_drafts else tuple(sorted({0, gamma}))


def check_names(settings: SweepSettings) -> None:
    """ValueError for a target, drafter or rule that nobody knows; offers the nearest."""
    for name in settings.targets:
        _check_name("targets", name, TARGETS)
    for name in settings.drafters:
        _check_name("drafters", name, [*DRAFT_MODELS, *OTHER_DRAFTERS])
    for name in settings.rules:
        _check_name("rules", name, [name for name in RULES if name != NONE], folders=False)


def _check_name(key: str, name: str, known: Iterable[str], folders: bool = True) -> None:
    if name in known or (folders and ("/" in name or epath.Path(name).is_dir())):
        return
    raise ValueError(f"config.{key}: unknown {name!r}; {nearest(name, known)}" + ", or a folder" * folders)


def load_target(name: str, dtype: str) -> LoadedModel:
    """A target by name or folder."""
    return _load(name, TARGETS.get(name) or epath.Path(name), dtype)


def load_draft_models(settings: SweepSettings) -> dict[str, LoadedModel]:
    """Every draft model of a sweep, by the name it has in the config."""
    folders = {name: DRAFT_MODELS.get(name) or epath.Path(name) for name in settings.drafters}
    models = {name: folder for name, folder in folders.items() if name not in OTHER_DRAFTERS}
    return {name: _load(name, folder, settings.dtype) for name, folder in models.items()}


def make_drafter(name: str, target: LoadedModel, draft_models: dict[str, LoadedModel]) -> LoadedDrafter:
    """The drafter a name stands for, beside ``target``."""
    if name in OTHER_DRAFTERS:
        return OTHER_DRAFTERS[name](target)
    draft = draft_models[name]
    drafter = ModelDrafter(model=draft.model, vocab_size=target.model.vocab_size)
    label, weights = draft.label, draft.weights_hash
    return LoadedDrafter(name=name, label=label, drafter=drafter, params=draft.params, weights_hash=weights)


def check_pair(target: LoadedModel, draft: LoadedModel) -> None:
    """ValueError unless both tokenizers give every id the same meaning."""
    try:
        check_same_ids(target.tokenizer, draft.tokenizer)
    except ValueError as error:
        raise ValueError(f"{target.label} and {draft.label}: {error}") from None


def _load(name: str, folder: epath.Path, dtype: str) -> LoadedModel:
    if not folder.is_dir():
        raise ValueError(f"model {name!r}: no folder {folder}")
    try:
        model, params = huggingface.load(folder, dtype)
        tokenizer = load_tokenizer(folder)
        weights = huggingface.weights_hash(folder)[:12]
        stop_tokens = _stop_tokens(folder, model.vocab_size)
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}") from None
    return LoadedModel(
        name=name,
        label=folder.name,
        model=model,
        params=params,
        tokenizer=tokenizer,
        stop_tokens=stop_tokens,
        weights_hash=weights,
    )


def _stop_tokens(folder: epath.Path, vocab_size: int) -> tuple[int, ...]:
    """``eos_token_id`` of generation_config.json, else of config.json; one id, several or none."""
    for file in ("generation_config.json", "config.json"):
        path = folder / file
        ids = huggingface.read_json(path).get("eos_token_id") if path.exists() else None
        if ids is not None:
            stops = tuple(ids) if isinstance(ids, list) else (ids,)
            if any(type(stop) is not int or not 0 <= stop < vocab_size for stop in stops):
                raise ValueError(f"{path}: eos_token_id {ids!r} must be ids in 0..{vocab_size - 1}")
            return stops
    return ()


def _no_drafter(target: LoadedModel) -> LoadedDrafter:
    return LoadedDrafter(name=NONE, label=NONE, drafter=None, params=())


def _prompt_lookup(target: LoadedModel) -> LoadedDrafter:
    name = "prompt_lookup"
    return LoadedDrafter(name=name, label=name, drafter=PromptLookup(), params=(), always_drafts=False)


def _table(name: str, fit: Callable[[np.ndarray, int], Params]) -> Callable[[LoadedModel], LoadedDrafter]:
    """An n-gram table over the training modules of the standard library, in the target's own tokens."""

    def make(target: LoadedModel) -> LoadedDrafter:
        training, _ = standard_library()
        encodings = target.tokenizer.encode_batch([module.text for module in training.modules])
        separator = list(target.stop_tokens[:1])
        ids = np.concatenate([np.asarray(separator + encoding.ids, np.int32) for encoding in encodings])
        table = fit(ids, target.model.vocab_size)
        weights = fingerprint([training.sha256, target.weights_hash])
        drafter = NgramDrafter()
        return LoadedDrafter(name=name, label=name, drafter=drafter, params=table, weights_hash=weights)

    return make


OTHER_DRAFTERS: dict[str, Callable[[LoadedModel], LoadedDrafter]] = {
    NONE: _no_drafter,
    "prompt_lookup": _prompt_lookup,
    "bigram": _table("bigram", fit_bigram),
    "unigram": _table("unigram", fit_unigram),
}
