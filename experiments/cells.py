"""The cells of a sweep: what they are, their order, their ids, their groups and shares.

A cell is one point of targets x drafters x rules x gammas x temperatures, of
which only those exist whose rule fits what the drafter drafts, chains or trees.
The baseline, plain decoding, is drafter "none": one cell per target and
temperature, without a rule or a gamma.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

from experiments.drafter_names import NONE, DrafterName
from experiments.settings import SweepSettings, fingerprint, shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of ``results.jsonl``."""

    target: str
    drafter: str
    rule: str
    gamma: int
    temperature: float

    @property
    def is_baseline(self) -> bool:
        return self.drafter == NONE

    @property
    def is_tree(self) -> bool:
        return bool(DrafterName.parse(self.drafter).shape)

    @property
    def group(self) -> tuple[str, str, str, float]:
        """Cells of one group share their baseline runs, prompt by prompt."""
        return (self.target, self.drafter, self.rule, self.temperature)

    def __str__(self) -> str:
        target, drafter = (name.rstrip("/").split("/")[-1] for name in (self.target, self.drafter))
        if self.is_baseline:
            return f"{target} alone T={self.temperature:g}"
        rule = "" if self.rule == "rejection" else f" {self.rule}"
        return f"{target}+{drafter}{rule} gamma={self.gamma} T={self.temperature:g}"


def cell_id(cell: Cell, settings: SweepSettings) -> str:
    """Hash of the cell's own settings: its point on the axes and what all cells share.

    Neither the other cells of a sweep nor the spelling of a number (0 or 0.0)
    changes it.
    """
    return fingerprint({**dataclasses.asdict(cell), **shared(settings)})


def all_cells(settings: SweepSettings) -> tuple[Cell, ...]:
    """Every cell once, in the order they run: those that share compiled programs stand together.

    >>> s = SweepSettings(drafters=("none", "draft"), gammas=(1, 3), temperatures=(0, 1))
    >>> [str(cell) for cell in all_cells(s)][:4]  # doctest: +NORMALIZE_WHITESPACE
    ['target alone T=0', 'target alone T=1',
     'target+draft gamma=1 T=0', 'target+draft gamma=3 T=0']
    >>> s = SweepSettings(drafters=("draft", "draft:2x1"), gammas=(4,), rules=("rejection", "specinfer"))
    >>> [str(cell) for cell in all_cells(s)]
    ['target+draft gamma=4 T=0', 'target+draft:2x1 specinfer gamma=4 T=0']
    """
    cells = []
    for target, drafter in itertools.product(settings.targets, settings.drafters):
        rules, gammas = _rules_and_gammas(drafter, settings)
        for rule, temperature, gamma in itertools.product(rules, settings.temperatures, gammas):
            point = {"target": target, "drafter": drafter, "rule": rule}
            cells.append(Cell(**point, gamma=gamma, temperature=temperature))
    return tuple(cells)


def _rules_and_gammas(drafter: str, settings: SweepSettings) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if drafter == NONE:
        return (NONE,), (0,)
    name = DrafterName.parse(drafter)
    return tuple(rule for rule in settings.rules if name.fits(rule)), name.gammas(settings)


def groups(cells: Sequence[Cell], most: int = 0) -> list[tuple[Cell, ...]]:
    """Neighbouring cells of one (target, drafter, rule, temperature), ``most`` at a time; 0: all of them."""
    members = [list(each) for _, each in itertools.groupby(cells, key=lambda cell: cell.group)]
    return [
        tuple(each[start : start + (most or len(each))])
        for each in members
        for start in range(0, len(each), most or len(each))
    ]


def share(cells: Sequence[Cell], which: str) -> tuple[Cell, ...]:
    """The i-th of n contiguous parts, ``which`` = "i/n" with i from 0, as a Slurm array counts.

    >>> [share(range(5), f"{i}/2") for i in range(2)]
    [(0, 1), (2, 3, 4)]

    Raises ValueError for anything but 0/n to (n-1)/n.
    """
    numbers: list[Any] = which.split("/")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise ValueError(f"--cells={which}: expected i/n, for instance 0/4 (the first of four shares)")
    index, count = map(int, numbers)
    if count < 1:
        raise ValueError(f"--cells={which}: the number of shares must be at least 1")
    if index >= count:
        last = count - 1
        raise ValueError(f"--cells={which}: the shares of {count} are 0/{count} to {last}/{count}")
    return tuple(cells[index * len(cells) // count : (index + 1) * len(cells) // count])
