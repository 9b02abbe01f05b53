"""The static description of one compiled decode program."""

from __future__ import annotations

import dataclasses

from specjax.models.language_model import LanguageModel
from specjax.trees.contracts import TreeDrafter, TreeRule
from specjax.types import Drafter, Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """Who drafts for whom, by which rule, how far ahead, in which buffers; jit-static.

    One compilation of the decode loop belongs to one Program and batch size.
    Without a drafter every round emits one token: plain decoding. A drafter of
    trees goes with a rule over trees, and its gamma is the nodes it drafts.

    Raises:
      ValueError: a gamma is negative, repeated, out of order or above ``max_gamma``;
        a chain's rule for trees or the reverse; another gamma than the tree's nodes.
    """

    target: LanguageModel
    rule: Rule | TreeRule
    max_len: int  # S: prompt, output and max_gamma + 2 slack
    drafter: Drafter | TreeDrafter | None = None
    gammas: tuple[int, ...] = (0,)  # buckets, ascending; the batch runs the smallest that covers its wants
    max_gamma: int = 0  # M: the largest gamma of a sweep, so that its programs share their buffers
    logprobs: bool = False  # whether the trace holds the log-probabilities of what is emitted

    def __post_init__(self) -> None:
        if not self.gammas or list(self.gammas) != sorted(set(self.gammas)) or self.gammas[0] < 0:
            raise ValueError(f"gammas must be ascending, distinct and >= 0, got {self.gammas}")
        if self.gammas[-1] > self.max_gamma:
            raise ValueError(f"gamma {self.gammas[-1]} exceeds max_gamma {self.max_gamma}")
        if self.drafter is None and self.gammas != (0,):
            raise ValueError(f"without a drafter the only gamma is 0, got {self.gammas}")
        if isinstance(self.drafter, TreeDrafter) != isinstance(self.rule, TreeRule):
            drafts = "trees" if isinstance(self.drafter, TreeDrafter) else "chains"
            judges = "trees" if isinstance(self.rule, TreeRule) else "chains"
            raise ValueError(
                f"{type(self.drafter).__name__} drafts {drafts}, {type(self.rule).__name__} judges {judges}"
            )
        if isinstance(self.drafter, TreeDrafter):
            nodes = self.drafter.num_nodes
            if self.gammas != (nodes - 1,):
                raise ValueError(
                    f"a tree of {nodes} nodes drafts {nodes - 1}: gammas must be ({nodes - 1},), "
                    f"got {self.gammas}"
                )

    @property
    def is_tree(self) -> bool:
        return isinstance(self.rule, TreeRule)

    def of_chains(self) -> tuple[Rule, Drafter | None]:
        """(rule, drafter) of a program that is not of trees."""
        assert not isinstance(self.rule, TreeRule) and not isinstance(self.drafter, TreeDrafter)
        return self.rule, self.drafter

    def of_trees(self) -> tuple[TreeRule, TreeDrafter]:
        """(rule, drafter) of a program of trees."""
        assert isinstance(self.rule, TreeRule) and isinstance(self.drafter, TreeDrafter)
        return self.rule, self.drafter

    @property
    def capacity(self) -> int:
        """The most tokens a row may hold: the target's context, or the buffer less its slack."""
        return min(self.target.context, self.max_len - self.max_gamma - 2)


def buffer_length(prompt_length: int, max_new_tokens: int, max_gamma: int) -> int:
    """S for a prompt of ``prompt_length`` and ``max_new_tokens`` of output.

    A round writes gamma + 1 rows and a drafter may read 2 past the end, and
    ``dynamic_update_slice`` clamps silently: hence max_gamma + 2 slack.

    >>> buffer_length(100, 28, 7)
    137
    """
    return prompt_length + max_new_tokens + max_gamma + 2
