"""Names of a config to rules, and which of them judge trees."""

from __future__ import annotations

from collections.abc import Callable

from experiments.settings import SweepSettings
from specjax.acceptance.block import Block
from specjax.acceptance.coupled import Coupled
from specjax.acceptance.rejection import Rejection
from specjax.acceptance.tree_one_hot import OneHotWalk
from specjax.acceptance.tree_recursive import RecursiveRejection
from specjax.acceptance.tree_specinfer import SpecInfer
from specjax.acceptance.tree_traversal import Traversal
from specjax.acceptance.typical import Typical
from specjax.trees.contracts import TreeRule
from specjax.types import Rule

NONE = "none"

RULES: dict[str, Callable[[SweepSettings], Rule | TreeRule]] = {
    "rejection": lambda settings: Rejection(lenience=settings.lenience),
    "block": lambda settings: Block(),
    "coupled": lambda settings: Coupled(),
    "one_hot_walk": lambda settings: OneHotWalk(),
    "recursive_rejection": lambda settings: RecursiveRejection(),
    "specinfer": lambda settings: SpecInfer(),
    "traversal": lambda settings: Traversal(),
    "typical": lambda settings: Typical(),
    NONE: lambda settings: Rejection(),  # plain decoding: only its draws are used
}

# Over trees of likeliest tokens, fixed before the coins; and over trees of drawn ones, whose law they need.
FIXED_TREE_RULES = ("one_hot_walk", "typical")
DRAWN_TREE_RULES = ("recursive_rejection", "specinfer", "traversal")
TREE_RULES = (*FIXED_TREE_RULES, *DRAWN_TREE_RULES)
CHAIN_RULES = tuple(name for name in RULES if name not in (*TREE_RULES, NONE))
