"""Drafters: one drafter, one file; what they have in common is ``types.Drafter``."""
