"""Everything a sweep needs, loaded and checked before anything is compiled."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

from etils import epath
from jax.sharding import Mesh

from experiments import catalogue, models, shape_choice
from experiments.drafter_names import OPTIMAL, DrafterName
from experiments.models import LoadedModel
from experiments.settings import SweepSettings, nearest_file
import specjax
from specjax import sharding
from specjax.data.corpora import held_out_prompts
from specjax.data.prompts import Prompt, common_category, content_hash, read_jsonl, take_turns
from specjax.models import huggingface
from specjax.trees.builders import fixed_branching

STDLIB = "stdlib"
CALIBRATION_PROMPTS = 8
# Prompts that come with the package, by name.
PROMPT_SETS = {"assistant": Path(specjax.__file__).parent / "assets" / "prompts" / "assistant.jsonl"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A checked sweep."""

    settings: SweepSettings
    targets: dict[str, LoadedModel]
    draft_models: dict[str, LoadedModel]
    prompts: tuple[Prompt, ...]
    token_ids: dict[str, list[list[int]]]  # by target name: one list of ids per prompt
    # The same of the prompts that optimal trees are measured on; none of them where no tree is
    calibration_ids: dict[str, list[list[int]]] = dataclasses.field(default_factory=dict)

    @property
    def category(self) -> str:
        return common_category(self.prompts)

    @property
    def prompts_hash(self) -> str:
        return content_hash(self.prompts)

    def resolved(self) -> dict[str, Any]:
        """What the names of the config stand for, so that a workdir cannot mix two meanings."""
        models = {**self.targets, **self.draft_models}
        weights = {f"weights of {name}": model.weights_hash for name, model in models.items()}
        for name, folder in heads_of(self.settings).items():
            weights[f"weights of {name}"] = huggingface.weights_hash(folder)[:12]
        return {"prompts_hash": self.prompts_hash, **weights}


def prepare(settings: SweepSettings, prompts: tuple[Prompt, ...] | None = None) -> Plan:
    """Loads models and prompts. Every ValueError is the user's to read; nothing has been compiled.

    ``prompts`` stand in for those of the settings.
    """
    catalogue.check_names(settings)
    prompts = load_prompts(settings) if prompts is None else prompts
    mesh = make_mesh(settings)
    targets = {name: models.load_target(name, settings.dtype, mesh) for name in settings.targets}
    if heads_of(settings):  # for all cells, so that they share programs
        targets = {name: models.with_features(target) for name, target in targets.items()}
    draft_models = catalogue.load_draft_models(settings, mesh)
    for target, draft in itertools.product(targets.values(), draft_models.values()):
        models.check_pair(target, draft)
    plan = Plan(settings=settings, targets=targets, draft_models=draft_models, prompts=(), token_ids={})
    plan = with_prompts(plan, prompts)
    for target in targets.values():
        _check_sizes(settings, target)
        _check_token_ids(settings, target)
        _check_heads(settings, target)
    if any(DrafterName.parse(name).shape == OPTIMAL for name in settings.drafters):
        plan = dataclasses.replace(plan, calibration_ids=_calibration_ids(plan))
    return plan


def heads_of(settings: SweepSettings) -> dict[str, epath.Path]:
    """The folders of the heads that draft in a sweep, by their name without a shape."""
    folders = {name.base: name.heads for name in map(DrafterName.parse, settings.drafters)}
    return {name: folder for name, folder in folders.items() if folder is not None}


def with_prompts(plan: Plan, prompts: tuple[Prompt, ...]) -> Plan:
    """``plan`` on other prompts. Raises ValueError for one that is empty or longer than a context."""
    token_ids = {}
    for name, target in plan.targets.items():
        token_ids[name] = encode(prompts, target, chat=plan.settings.chat)
        _check_lengths(prompts, token_ids[name], target, "target")
        for draft in plan.draft_models.values():
            _check_lengths(prompts, token_ids[name], draft, "draft")
    return dataclasses.replace(plan, prompts=prompts, token_ids=token_ids)


def load_prompts(settings: SweepSettings) -> tuple[Prompt, ...]:
    """The first ``num_prompts`` of the standard library's held-out modules, or of a JSONL file's groups."""
    wanted, groups = settings.num_prompts, settings.prompt_groups
    if settings.prompts == STDLIB:
        try:
            texts = held_out_prompts(wanted)
        except ValueError as error:
            raise ValueError(f"config.{error}") from None
        prompts = tuple(Prompt(id=f"stdlib/{i}", text=text, category="code") for i, text in enumerate(texts))
    else:
        prompts = read_prompts(settings.prompts)
    if groups:
        prompts = take_turns(prompts, groups)
    if len(prompts) < wanted:
        where = settings.prompts + (f" (groups {', '.join(groups)})" if groups else "")
        raise ValueError(
            f"config.num_prompts: {wanted}, but {where} holds {len(prompts)}; "
            f"add --config.num_prompts={len(prompts)}"
        )
    return prompts[:wanted]


def read_prompts(name: str) -> tuple[Prompt, ...]:
    """A set that comes with the package, or a JSONL file; ValueError, with the nearest, for neither."""
    path = epath.Path(PROMPT_SETS.get(name, name))
    if not path.exists():
        raise ValueError(f"prompts: no file {name}; {nearest_file(path, (STDLIB, *PROMPT_SETS))}")
    return read_jsonl(str(path))


def _calibration_ids(plan: Plan) -> dict[str, list[list[int]]]:
    """The ends of ``CALIBRATION_PROMPTS`` prompts, none longer than the sweep's longest.

    A chat's are the ones written for this repository, others come from the
    standard library: beyond the sweep's own, but for a sweep of either set.
    """
    settings = plan.settings
    if settings.chat:
        prompts = read_jsonl(str(PROMPT_SETS["assistant"]))[-CALIBRATION_PROMPTS:]
    else:
        own = settings.num_prompts if settings.prompts == STDLIB else 0
        texts = held_out_prompts(own + CALIBRATION_PROMPTS)[own:]
        prompts = tuple(Prompt(id=f"stdlib/{own + i}", text=text) for i, text in enumerate(texts))
    longest = {name: max(map(len, ids)) for name, ids in plan.token_ids.items()}
    return {
        name: [ids[-longest[name] :] for ids in encode(prompts, target, chat=settings.chat)]
        for name, target in plan.targets.items()
    }


def encode(prompts: tuple[Prompt, ...], model: LoadedModel, chat: bool = False) -> list[list[int]]:
    """Token ids of each prompt, in a ``chat`` as the user's only message.

    Raises ValueError for a prompt that has no tokens, and for a chat with a
    model that states no template.
    """
    if chat and model.chat_template is None:
        raise ValueError(
            f"config.chat: {model.label} states no chat template; nearest is --config.chat=False"
        )
    encoded = []
    for prompt in prompts:
        if chat:
            text = _as_message(prompt, model)
            ids = model.tokenizer.encode(text, add_special_tokens=False).ids
        else:
            ids = model.tokenizer.encode(prompt.text).ids
        encoded.append(ids)
        if not ids:
            raise ValueError(f"prompt {prompt.id} has no tokens for {model.label}")
        if max(ids) >= model.model.vocab_size:
            raise ValueError(
                f"prompt {prompt.id}: the tokenizer of {model.label} gives id {max(ids)}, "
                f"its vocabulary ends at {model.model.vocab_size - 1}"
            )
    return encoded


def _as_message(prompt: Prompt, model: LoadedModel) -> str:
    assert model.chat_template is not None
    try:
        return model.chat_template.render([{"role": "user", "content": prompt.text}])
    except ValueError as error:
        raise ValueError(f"prompt {prompt.id}: {error} (of {model.label})") from None


def make_mesh(settings: SweepSettings) -> Mesh | None:
    """The mesh of the config; None for (1, 1), where nothing needs placing."""
    if settings.mesh == (1, 1):
        return None
    try:
        return sharding.make_mesh(*settings.mesh)
    except ValueError as error:
        raise ValueError(f"config.mesh: {error}") from None


def _check_sizes(settings: SweepSettings, target: LoadedModel) -> None:
    """Buffers grow with gamma and output, and a typing error in either could exhaust the memory."""
    context = target.model.context
    for key, value in (("gammas", max(settings.gammas)), ("max_new_tokens", settings.max_new_tokens)):
        if value >= context:
            raise ValueError(
                f"config.{key}: {value} does not fit the target {target.label}: "
                f"its context of {context} has room for {context - 1} after a prompt of one token"
            )


def _check_token_ids(settings: SweepSettings, target: LoadedModel) -> None:
    """Ids that are biased or banned are the target's own."""
    biased = tuple(token for token, _ in settings.logit_bias)
    for key, tokens in (("logit_bias", biased), ("banned_tokens", settings.banned_tokens)):
        if tokens and max(tokens) >= target.model.vocab_size:
            raise ValueError(
                f"config.{key}: token {max(tokens)} is not one of {target.label}'s, "
                f"which are 0..{target.model.vocab_size - 1}"
            )


def _check_heads(settings: SweepSettings, target: LoadedModel) -> None:
    """Heads of another target, a branching deeper than they reach, or more nodes than they can guess."""
    for name in map(DrafterName.parse, settings.drafters):
        if name.heads is not None:
            drafter = catalogue.make_drafter(name.base, target, {})
            if name.branching:
                try:
                    drafter.shaped(fixed_branching(name.branching), 0.0)
                except ValueError as error:
                    raise ValueError(f"config.drafters: {name.base}:{name.shape}: {error}") from None
            elif name.shape and drafter.rank_accuracies is not None:
                for gamma in name.gammas(settings):
                    shape_choice.grown(name, gamma, drafter.rank_accuracies)


def _check_lengths(
    prompts: tuple[Prompt, ...], encoded: list[list[int]], model: LoadedModel, role: str
) -> None:
    """Room for the prompt and, in the target, at least one new token."""
    context = model.model.context - (role == "target")
    for prompt, ids in zip(prompts, encoded, strict=True):
        if len(ids) > context:
            room = "one new token" if role == "target" else "nothing else"
            raise ValueError(
                f"prompt {prompt.id} has {len(ids)} tokens, {len(ids) - context} too many for the {role} "
                f"{model.label}: its context of {model.model.context} must hold the prompt and {room}"
            )
