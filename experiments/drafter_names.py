"""How a config names a drafter of trees, and which rules fit which drafter.

    draft                   a chain, drafted by the model or the heads of that name
    draft:2x2x1             a tree of fixed branching: 2 children, 2 of each, 1 of each; 10 nodes
    medusa-smollm2:static   grown by the rank accuracies that came with the heads (Medusa)
    draft:optimal           the best for child acceptances measured on this target (Sequoia)
    prompt_lookup+draft     copies of up to gamma tokens where there are any, else 3 tokens of the model

gamma counts the drafted nodes, N - 1, so a chain and a tree of one gamma have
the same number of tokens scored. A fixed branching has a gamma of its own; the
other shapes are made for each gamma of the sweep.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
import re

from etils import epath

from experiments.rules import CHAIN_RULES, DRAWN_TREE_RULES, NONE, TREE_RULES
from experiments.settings import SweepSettings, nearest
import specjax
from specjax.models.heads.folder import is_heads

STATIC, OPTIMAL = "static", "optimal"
CASCADE = "prompt_lookup+"
CASCADE_MODEL_GAMMA = 3  # what the model of a cascade drafts; copies are longer
_ASSETS = epath.Path(Path(specjax.__file__).parent / "assets")
HEADS = {name: _ASSETS / name for name in ("medusa-smollm2", "blockwise-smollm2")}


@dataclasses.dataclass(frozen=True)
class DrafterName:
    """A name of the config in its parts.

    >>> DrafterName.parse("draft:2x2"), DrafterName.parse("hf://org/name")
    (DrafterName(base='draft', shape='2x2'), DrafterName(base='hf://org/name', shape=''))
    """

    base: str
    shape: str = ""  # "" for a chain

    @classmethod
    def parse(cls, name: str) -> DrafterName:
        base, colon, shape = name.rpartition(":")
        return cls(name) if not colon or shape.startswith("//") else cls(base, shape)

    @property
    def model(self) -> str:
        """What drafts beside prompt lookup in a cascade; else the base itself.

        >>> DrafterName("prompt_lookup+draft").model, DrafterName("draft").model
        ('draft', 'draft')
        """
        return self.base.removeprefix(CASCADE)

    @property
    def is_cascade(self) -> bool:
        return self.base.startswith(CASCADE)

    @property
    def heads(self) -> epath.Path | None:
        """The folder of the heads that draft; None for other drafters."""
        if self.base in HEADS:
            return HEADS[self.base]
        return epath.Path(self.base) if "://" not in self.base and is_heads(self.base) else None

    @property
    def branching(self) -> tuple[int, ...]:
        """Of a fixed shape; () for the others.

        >>> DrafterName("draft", "4x2").branching, DrafterName("draft", "optimal").branching
        ((4, 2), ())
        """
        is_fixed = re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", self.shape)
        return tuple(map(int, self.shape.split("x"))) if is_fixed else ()

    @property
    def num_drafted(self) -> int:
        """gamma of a fixed shape: its nodes without the root.

        >>> DrafterName("draft", "2x2x1").num_drafted
        10
        """
        return sum(itertools.accumulate(self.branching, lambda a, b: a * b))

    def gammas(self, settings: SweepSettings) -> tuple[int, ...]:
        """The gammas of its cells."""
        if self.branching:
            return (self.num_drafted,)
        if self.is_cascade:
            return tuple(gamma for gamma in settings.gammas if gamma > CASCADE_MODEL_GAMMA)
        return tuple(gamma for gamma in settings.gammas if gamma > 0 or not self.shape)

    def fits(self, rule: str) -> bool:
        """Chains to rules over chains, trees to rules over trees; heads draw no children.

        >>> [DrafterName("draft", "2x2").fits(rule) for rule in ("rejection", "specinfer")]
        [False, True]
        """
        if not self.shape:
            return rule in CHAIN_RULES
        return rule in TREE_RULES and not (rule in DRAWN_TREE_RULES and self.heads)


def check(name: str, settings: SweepSettings) -> None:
    """ValueError for a shape nobody knows, larger than any gamma, or a drafter without a rule that fits."""
    if name == NONE:
        return
    drafter = DrafterName.parse(name)
    if name.endswith(":"):
        raise ValueError(f"config.drafters: {name!r} names no shape; nearest is {drafter.base!r}")
    if drafter.is_cascade and not drafter.gammas(settings):
        raise ValueError(
            f"config.gammas: {name!r} copies more than the {CASCADE_MODEL_GAMMA} tokens its model drafts; "
            f"no gamma is as large; nearest is {CASCADE_MODEL_GAMMA + 1}"
        )
    _check_shape(drafter, settings)
    if not any(drafter.fits(rule) for rule in settings.rules):
        fitting = [rule for rule in (*CHAIN_RULES, *TREE_RULES) if drafter.fits(rule)]
        drafts = "trees" if drafter.shape else "chains"
        raise ValueError(
            f"config.rules: {name!r} drafts {drafts}, which no rule of {', '.join(settings.rules)} judges; "
            f"add {fitting[0]!r}, the nearest of {', '.join(fitting)}"
        )


def _check_shape(drafter: DrafterName, settings: SweepSettings) -> None:
    name, budget = f"{drafter.base}:{drafter.shape}", max(settings.gammas)
    if drafter.shape == STATIC and not drafter.heads:
        raise ValueError(
            f"config.drafters: {name!r} has no rank accuracies to grow a tree from; "
            f"nearest is '{drafter.base}:{OPTIMAL}', which measures"
        )
    if drafter.shape and drafter.shape not in (STATIC, OPTIMAL) and not drafter.branching:
        raise ValueError(
            f"config.drafters: {name!r}: unknown shape {drafter.shape!r}; "
            f"{nearest(drafter.shape, (STATIC, OPTIMAL))}, or a branching such as 2x2x1"
        )
    if drafter.shape and budget == 0:
        raise ValueError(f"config.gammas: {name!r} drafts trees of gamma nodes, and no gamma is above 0")
    if drafter.num_drafted > budget:
        raise ValueError(
            f"config.drafters: {name!r} drafts {drafter.num_drafted:,} nodes, more than the budget of "
            f"{budget}, the largest of config.gammas; nearest is {_largest_within(drafter, budget)!r}, or "
            f"add {drafter.num_drafted} to config.gammas"
        )


def _largest_within(drafter: DrafterName, budget: int) -> str:
    """The same shape with fewer levels, and at last fewer children of the root."""
    levels = list(drafter.branching)
    while len(levels) > 1 and sum(math.prod(levels[:d]) for d in range(1, len(levels) + 1)) > budget:
        levels.pop()
    return f"{drafter.base}:{'x'.join(map(str, levels if levels[0] <= budget else [budget]))}"
