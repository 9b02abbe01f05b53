"""What a profile is about: its settings, and the pair, prompt and programs they name."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from experiments import catalogue, models, runner
from experiments.catalogue import LoadedDrafter
from experiments.cells import NONE
from experiments.launch import in_words_of
from experiments.models import LoadedModel
from experiments.plan import prepare
from experiments.rules import CHAIN_RULES, RULES
from experiments.settings import SweepSettings, nearest, one_of
from specjax.decoding.generate import prefill
from specjax.decoding.program import Program, buffer_length
from specjax.types import DecodeState, Params, Request

# One value where a sweep has several.
OWN_KEYS = {f"config.{key}s": f"config.{key}" for key in ("target", "drafter", "temperature")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Keys of a profile's config; ``configs/profile_smollm2.py`` says what each is.

    Raises:
      ValueError: names the key, what it holds and what it may hold.
    """

    target: str
    drafter: str
    rules: tuple[str, ...]
    gammas: tuple[int, ...]
    step_sizes: tuple[int, ...]
    temperature: float
    prompts: str
    chat: bool
    buffer: int
    max_new_tokens: int
    repeats: int
    starts: int
    megabytes: int
    dtype: str

    def __post_init__(self) -> None:
        for key in ("rules", "gammas", "step_sizes"):
            value = getattr(self, key)
            if not isinstance(value, tuple | list) or not value:
                raise ValueError(f"config.{key} must be one value or several, got {value!r}")
            object.__setattr__(self, key, tuple(dict.fromkeys(value)))
        for rule in self.rules:
            one_of("rules", rule, CHAIN_RULES)
        smallest = {"gammas": 1, "step_sizes": 1}
        for key, least in smallest.items():
            for value in getattr(self, key):
                _whole(key, value, least)
        for key, least in {
            "buffer": 1,
            "max_new_tokens": 1,
            "repeats": 2,
            "starts": 0,
            "megabytes": 1,
        }.items():
            _whole(key, getattr(self, key), least)
        if 1 not in self.step_sizes:
            raise ValueError(f"config.step_sizes must hold 1, the unit of v(T), got {self.step_sizes}")
        if max(self.step_sizes) > self.buffer:
            raise ValueError(
                f"config.step_sizes: {max(self.step_sizes)} tokens exceed the buffer of {self.buffer}"
            )
        if self.drafter == NONE:
            raise ValueError("config.drafter is none: a round without drafts has nothing to take apart")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ProfileSettings:
        """Raises ValueError for a key that is unknown, with the nearest one, or missing."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in config:
            if key not in known:
                raise ValueError(f"config.{key}: no such key; {nearest(key, known)}")
        if absent := [key for key in known if key not in config]:
            raise ValueError(f"the config lacks {', '.join(absent)}")
        return cls(**config)

    def sweep(self) -> SweepSettings:
        """The sweep that this pair, prompt and sampling would be."""
        return SweepSettings(
            targets=(self.target,),
            drafters=(NONE, self.drafter),
            rules=self.rules,
            gammas=self.gammas,
            temperatures=(self.temperature,),
            prompts=self.prompts,
            chat=self.chat,
            num_prompts=1,
            max_new_tokens=self.max_new_tokens,
            stop_at_eos=False,
            dtype=self.dtype,
        )


def _whole(key: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"config.{key} must hold whole numbers of at least {least}, got {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Models in memory, and one prompt as a batch of one."""

    settings: ProfileSettings
    sweep: SweepSettings
    target: LoadedModel
    drafter: LoadedDrafter
    batch: runner.Batch

    @property
    def params(self) -> tuple[Params, Params]:
        return self.target.params, self.drafter.params

    def program(self, rule: str, gamma: int) -> Program:
        """Every round runs ``gamma``, whatever the drafter found."""
        return Program(
            target=self.target.model,
            drafter=self.drafter.drafter,
            rule=RULES[rule](self.sweep),
            gammas=(gamma,),
            max_gamma=max(self.settings.gammas),
            max_len=self.settings.buffer,
        )

    def request(self, max_new_tokens: int | None = None) -> Request:
        return runner.request_for(
            self.batch, self.sweep, self.settings.temperature, (), max_new_tokens=max_new_tokens
        )

    def prefilled(self, program: Program) -> DecodeState:
        state = prefill(program, self.params, jnp.asarray(self.batch.tokens), self.request())
        return jax.block_until_ready(state)


def set_up(settings: ProfileSettings) -> Pair:
    """Loads the pair and its prompt. Raises ValueError for what cannot run; nothing has been compiled."""
    models.check_target(settings.target)
    try:
        sweep = settings.sweep()
        plan = prepare(sweep)
    except ValueError as error:
        raise ValueError(in_words_of(OWN_KEYS, error)) from None
    (target,) = plan.targets.values()
    (ids,) = plan.token_ids[target.name]
    needed = buffer_length(len(ids), settings.max_new_tokens, max(settings.gammas))
    if needed > settings.buffer:
        raise ValueError(
            f"config.buffer: a prompt of {len(ids)} tokens, max_new_tokens {settings.max_new_tokens} and "
            f"gamma {max(settings.gammas)} need {needed} slots, {needed - settings.buffer} more"
        )
    if settings.buffer > target.model.context:
        raise ValueError(
            f"config.buffer: {settings.buffer} exceeds the context of {target.label}, {target.model.context}"
        )
    drafter = catalogue.make_drafter(settings.drafter, target, plan.draft_models)
    (batch,) = runner.make_batches([ids], batch_size=1)
    return Pair(settings=settings, sweep=sweep, target=target, drafter=drafter, batch=batch)
