"""Acceptance rules: one rule, one file, pure functions of noise, proposal and p."""

from specjax.acceptance.block import Block
from specjax.acceptance.coupled import Coupled
from specjax.acceptance.rejection import Rejection

__all__ = ["Block", "Coupled", "Rejection"]
