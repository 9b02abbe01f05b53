"""Names of a config to objects: targets, drafters, rules. Where a name is a source, the model in it."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

from jax.sharding import Mesh
import numpy as np

from experiments import drafter_names, fetched
from experiments.drafter_names import CASCADE_MODEL_GAMMA, HEADS, NONE, DrafterName
from experiments.models import DRAFT_MODELS, TARGETS, LoadedModel, check_name, label_of, load
from experiments.rules import RULES
from experiments.settings import SweepSettings, fingerprint
from specjax import sharding
from specjax.data.corpora import standard_library
from specjax.data.tokenizers import num_shared_ids
from specjax.drafters.blockwise import Blockwise
from specjax.drafters.cascade import Cascade
from specjax.drafters.medusa import Medusa, MedusaTree
from specjax.drafters.model import ModelDrafter
from specjax.drafters.ngram import NgramDrafter, fit_bigram, fit_unigram
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.drafters.tree_model import TreeModelDrafter
from specjax.models import huggingface
from specjax.models.heads.folder import load as load_heads
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import LanguageModel, TransformerLM
from specjax.models.layer_skip import keep_layers, outer_layers
from specjax.sampling import GREEDY_BELOW
from specjax.sharding import AxisRules
from specjax.trees.contracts import TreeDrafter
from specjax.trees.topology import Choices
from specjax.types import Drafter, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedDrafter:
    """A drafter with its params; no drafter at all is plain decoding."""

    name: str
    label: str
    drafter: Drafter | TreeDrafter | None
    params: Params
    weights_hash: str = ""
    # A smaller gamma at which some rounds run: 0 of a drafter that may have nothing to draft.
    short_gamma: int | None = None
    # The same params drafting a tree of some shape, for requests of some temperature; None where they cannot.
    grow: Callable[[Choices, float], TreeDrafter] | None = None
    shape: Choices = ()  # of the tree; () for a chain
    rank_accuracies: np.ndarray | None = None  # [H, K] of heads

    def buckets(self, gamma: int) -> tuple[int, ...]:
        """The gamma buckets of a cell's program."""
        return (gamma,) if self.short_gamma is None else tuple(sorted({self.short_gamma, gamma}))

    def shaped(self, choices: Choices, temperature: float) -> LoadedDrafter:
        """Drafts trees of that shape."""
        if self.grow is None:
            raise ValueError(f"config.drafters: {self.name} drafts no trees")
        return dataclasses.replace(self, drafter=self.grow(choices, temperature), shape=choices)


def check_names(settings: SweepSettings) -> None:
    """ValueError for a target, drafter or rule that nobody knows, or a drafter that no rule fits."""
    for name in settings.targets:
        check_name("targets", name, [*TARGETS, *fetched.NAMES])
    for name in settings.rules:
        check_name("rules", name, [name for name in RULES if name != NONE], sources=False)
    for name in settings.drafters:
        parsed = DrafterName.parse(name)
        base, models = parsed.base, [*DRAFT_MODELS, *fetched.NAMES]
        known = models if parsed.is_cascade else [*models, *OTHER_DRAFTERS, *HEADS]
        check_name("drafters", parsed.model, known)
        if base != name and (base in NO_TREES or parsed.is_cascade):
            raise ValueError(
                f"config.drafters: {name!r}: {base} drafts chains alone; nearest are {base!r} "
                f"and 'draft:{DrafterName.parse(name).shape}'"
            )
        drafter_names.check(name, settings)


def load_draft_models(settings: SweepSettings, mesh: Mesh | None = None) -> dict[str, LoadedModel]:
    """Every draft model of a sweep, by its name without a shape; whole on every device of ``mesh``."""
    whole = AxisRules(heads=None, kv_heads=None, mlp=None)
    bases = dict.fromkeys(DrafterName.parse(name).model for name in settings.drafters)
    names = [name for name in bases if name not in OTHER_DRAFTERS and not DrafterName(name).heads]
    return {name: load(name, DRAFT_MODELS, settings.dtype, mesh, whole) for name in names}


def make_drafter(name: str, target: LoadedModel, draft_models: dict[str, LoadedModel]) -> LoadedDrafter:
    """What a name without a shape stands for beside ``target``: a drafter of chains, which may grow trees."""
    if name in OTHER_DRAFTERS:
        return OTHER_DRAFTERS[name](target)
    if DrafterName(name).heads:
        return _heads(name, target)
    if DrafterName(name).is_cascade:
        return _cascade(make_drafter(DrafterName(name).model, target, draft_models), name)
    draft = draft_models[name]
    sizes = {
        "vocab_size": target.model.vocab_size,
        "num_ids": num_shared_ids(target.tokenizer, draft.tokenizer),
    }
    return LoadedDrafter(
        name=name,
        label=draft.label,
        drafter=ModelDrafter(model=draft.model, **sizes),
        params=draft.params,
        weights_hash=draft.weights_hash,
        grow=_tree_model(draft.model, **sizes),
    )


def _cascade(beside: LoadedDrafter, name: str) -> LoadedDrafter:
    """Prompt lookup, and the draft model ``beside`` it where nothing repeats itself."""
    assert isinstance(beside.drafter, ModelDrafter)
    # Most copied rounds are caught up on in one step, which costs little more than a one-token step.
    model = dataclasses.replace(beside.drafter, catch_up=8)
    # An n-gram of three: of shorter ones the copies are accepted less often than the model's drafts.
    copier = PromptLookup(min_ngram=3)
    return dataclasses.replace(
        beside,
        name=name,
        label=name,
        drafter=Cascade(copier=copier, model=model, model_gamma=CASCADE_MODEL_GAMMA),
        short_gamma=CASCADE_MODEL_GAMMA,
        grow=None,
    )


def _tree_model(model: LanguageModel, **sizes: int | None) -> Callable[[Choices, float], TreeDrafter]:
    """Trees of a draft model. Greedy requests leave its q one child a node, so there it is not warped."""

    def grow(choices: Choices, temperature: float) -> TreeDrafter:
        own = 1.0 if temperature < GREEDY_BELOW else None
        return TreeModelDrafter(model=model, choices=choices, temperature=own, **sizes)

    return grow


def _heads(name: str, target: LoadedModel) -> LoadedDrafter:
    """Heads on the last hidden state of ``target``, which must show it: see :func:`with_features`."""
    folder = DrafterName(name).heads
    if not isinstance(target.model, TransformerLM) or folder is None:
        raise ValueError(f"config.drafters: {name} reads features, of which {target.label} gives none")
    try:
        loaded = load_heads(folder, target.model, target.params, target.weights_sha256)
    except ValueError as error:
        raise ValueError(f"config.drafters: {error}") from None
    mesh = sharding.mesh_of(target.params)
    is_medusa = isinstance(loaded.heads.config, MedusaConfig)
    return LoadedDrafter(
        name=name,
        label=label_of(folder),
        drafter=(Medusa if is_medusa else Blockwise)(heads=loaded.heads),
        params=loaded.params if mesh is None else sharding.replicate(loaded.params, mesh),
        weights_hash=huggingface.weights_hash(folder)[:12],
        grow=lambda choices, temperature: MedusaTree(heads=loaded.heads, choices=choices),
        rank_accuracies=loaded.rank_accuracies,
    )


def _no_drafter(target: LoadedModel) -> LoadedDrafter:
    return LoadedDrafter(name=NONE, label=NONE, drafter=None, params=())


def _prompt_lookup(target: LoadedModel) -> LoadedDrafter:
    name = "prompt_lookup"
    return LoadedDrafter(name=name, label=name, drafter=PromptLookup(), params=(), short_gamma=0)


def _layer_skip(target: LoadedModel) -> LoadedDrafter:
    if not isinstance(target.model, TransformerLM):
        raise ValueError(
            f"config.drafters: layer_skip needs a target of layers; {target.label} has a subset vocabulary"
        )
    name, layers = "layer_skip", outer_layers(target.model.config.num_hidden_layers)
    model, params = keep_layers(target.model, target.params, layers)
    return LoadedDrafter(
        name=name,
        label=name,
        drafter=ModelDrafter(model=model, num_ids=model.num_ids),
        params=params,
        weights_hash=target.weights_hash,
        grow=_tree_model(model, num_ids=model.num_ids),
    )


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
    "layer_skip": _layer_skip,
    "bigram": _table("bigram", fit_bigram),
    "unigram": _table("unigram", fit_unigram),
}
NO_TREES = tuple(name for name in OTHER_DRAFTERS if name != "layer_skip")
