"""Acceptance rules: one rule, one file, pure functions of noise, proposal and p."""

from specjax.acceptance.block import Block
from specjax.acceptance.coupled import Coupled
from specjax.acceptance.rejection import Rejection
from specjax.acceptance.tree_one_hot import OneHotWalk
from specjax.acceptance.tree_recursive import RecursiveRejection
from specjax.acceptance.tree_specinfer import SpecInfer
from specjax.acceptance.tree_traversal import Traversal
from specjax.acceptance.typical import Typical

__all__ = [
    "Block",
    "Coupled",
    "OneHotWalk",
    "RecursiveRejection",
    "Rejection",
    "SpecInfer",
    "Traversal",
    "Typical",
]
