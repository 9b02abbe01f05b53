"""Candidate trees: their arrays, what flows between drafter, rule and round, and how a shape is chosen."""
