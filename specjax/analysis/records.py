"""What a run leaves behind for analysis: one record a decoded prompt, and the costs of model steps."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specjax.types import Statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptRecord:
    """One decode of one prompt. Plain numbers, so it is a JSON object as it stands.

    Seconds are the row's share of its batch: wall time of the batch over its
    real rows, so that sums over records are wall time and padding adds nothing.
    """

    # Which decode
    prompt: int  # index in the prompt set
    batch: int = -1  # rows decoded together share it; -1: the prompt's own index (batch size 1)
    repeat: int = 0
    category: str = ""
    # What it did: ``types.Statistics`` of the row
    num_tokens: int  # emitted
    rounds: int
    buckets: tuple[int, ...]  # the gammas of the program, ascending
    rounds_by_bucket: tuple[int, ...]  # [number of buckets]
    rounds_by_drafted: tuple[int, ...]  # [M+1]
    tested: tuple[int, ...]  # [M]
    accepted: tuple[int, ...]  # [M]
    overlap: tuple[float, ...]  # [M]
    accepted_nodes: tuple[int, ...] = ()  # [M+1]; () in records of chains alone
    cut: int = 0
    catch_up_steps: int = 0  # that its draft model took for tokens another drafter drafted
    # What it cost
    seconds: float  # decoding alone: no prefill, no compilation
    prefill_seconds: float = 0.0
    baseline_seconds: float  # plain decoding of the same prompt, same process
    baseline_tokens: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if str(field.type).startswith("tuple"):  # JSON has lists
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))
        if self.batch < 0:
            object.__setattr__(self, "batch", self.prompt)
        if len(self.buckets) != len(self.rounds_by_bucket):
            raise ValueError(f"{len(self.buckets)} buckets, but rounds_by_bucket {self.rounds_by_bucket}")
        if any(a > t for a, t in zip(self.accepted, self.tested)):
            raise ValueError(f"prompt {self.prompt}: accepted {self.accepted} exceeds tested {self.tested}")

    @classmethod
    def from_statistics(
        cls, statistics: Statistics, *, buckets: tuple[int, ...], **fields: Any
    ) -> PromptRecord:
        """From the ``Statistics`` of ONE row (leaves without a batch dimension) and the other fields."""
        counters = {name: np.asarray(value).tolist() for name, value in vars(statistics).items()}
        return cls(buckets=buckets, **counters, **fields)

    def to_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PromptRecord:
        return cls(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of model steps at the run's batch size and buffer length, one value a repeat.

    Repeats are interleaved: index r of every entry saw the same machine, so
    ratios are taken within a repeat and then their median over repeats.
    """

    target_seconds: Mapping[int, tuple[float, ...]]  # T -> a T-token target step; T = 1 is the unit
    proposal_seconds: Mapping[int, tuple[float, ...]] = dataclasses.field(
        default_factory=dict
    )  # g -> proposal
    draft_step_seconds: tuple[float, ...] = ()  # one draft step; () for a drafter that has none
    catch_up_seconds: tuple[float, ...] = ()  # one step of a draft model that catches up; () if none does
    # Of trees, by g: a whole round, and what it takes beyond proposal, step and warping: mask, walk, gather
    whole_round_seconds: Mapping[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    bookkeeping_seconds: Mapping[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # JSON turns integer keys into strings.
        by_size = ("target_seconds", "proposal_seconds", "whole_round_seconds", "bookkeeping_seconds")
        for field in by_size:
            object.__setattr__(self, field, {int(k): tuple(v) for k, v in getattr(self, field).items()})
        steps = ("draft_step_seconds", "catch_up_seconds")
        for field in steps:
            object.__setattr__(self, field, tuple(getattr(self, field)))
        if not self.target_seconds.get(1):
            raise ValueError("target_seconds needs T = 1, the unit of every cost ratio")
        lengths = {len(v) for v in (*self.target_seconds.values(), *self.proposal_seconds.values())}
        lengths |= {len(times) for field in steps if (times := getattr(self, field))}
        if len(lengths) != 1:
            raise ValueError(f"every cost needs the same number of repeats, got {sorted(lengths)}")

    @property
    def num_repeats(self) -> int:
        return len(self.target_seconds[1])

    def to_dict(self) -> dict[str, Any]:
        as_json = lambda times: (
            list(times) if isinstance(times, tuple) else {str(k): list(v) for k, v in times.items()}
        )
        return {name: as_json(times) for name, times in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Costs:
        return cls(**values)

    def verify_ratio(self, num_tokens: int) -> NDArray[np.float64]:
        """v(T) of each repeat, [R].

        Raises:
          ValueError: a T-token target step was not measured.
        """
        if num_tokens not in self.target_seconds:
            measured = sorted(self.target_seconds)
            raise ValueError(f"v({num_tokens}) was not measured; target steps were timed for T = {measured}")
        return np.asarray(self.target_seconds[num_tokens]) / np.asarray(self.target_seconds[1])

    def proposal_ratio(self, gamma: int) -> NDArray[np.float64]:
        """d(g) of each repeat, [R]; linear between the measured g, and 0 at 0 unless measured."""
        unit = np.asarray(self.target_seconds[1])
        curve = {0: np.zeros(len(unit))} | {g: np.asarray(s) / unit for g, s in self.proposal_seconds.items()}
        if gamma > max(curve):
            raise ValueError(f"d({gamma}) was not measured; proposals were timed for g = {sorted(curve)}")
        gammas = sorted(curve)
        return np.array([np.interp(gamma, gammas, [curve[g][r] for g in gammas]) for r in range(len(unit))])

    def catch_up_ratio(self) -> NDArray[np.float64]:
        """A step of a draft model that catches up, of each repeat, [R]; 0 where none does."""
        return np.asarray(self.catch_up_seconds or np.zeros(self.num_repeats)) / np.asarray(
            self.target_seconds[1]
        )

    def bookkeeping_share(self, gamma: int) -> NDArray[np.float64]:
        """Share of a round over a tree of ``gamma`` drafted nodes, of each repeat, [R]; NaN for chains."""
        if gamma not in self.whole_round_seconds:
            return np.full(self.num_repeats, np.nan)
        return np.asarray(self.bookkeeping_seconds[gamma]) / np.asarray(self.whole_round_seconds[gamma])

    def draft_ratio(self, gamma: int) -> NDArray[np.float64]:
        """c of each repeat, [R]: a draft step, or d(gamma) / gamma for a drafter without steps."""
        if self.draft_step_seconds:
            return np.asarray(self.draft_step_seconds) / np.asarray(self.target_seconds[1])
        if gamma == 0:
            return np.full(self.num_repeats, np.nan)
        return self.proposal_ratio(gamma) / gamma
