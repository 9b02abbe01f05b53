"""Every tree one round may propose, with its probability: what ``tree_law.py`` judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import itertools

import numpy as np

from specjax.testing.law import Law

_NO_TOKEN = -7  # what a node that was not drawn holds

# (q [V], number of children) -> the probability of each sequence of siblings; a short one ends early
ChildrenLaw = Callable[[np.ndarray, int], Mapping[tuple[int, ...], float]]


def with_replacement(q: np.ndarray, width: int) -> dict[tuple[int, ...], float]:
    """Siblings drawn independently."""
    support = np.flatnonzero(q)
    return {s: float(np.prod(q[list(s)])) for s in itertools.product(support.tolist(), repeat=width)}


def without_replacement(q: np.ndarray, width: int) -> dict[tuple[int, ...], float]:
    """Siblings drawn one after another from what is left; as many as the support allows."""
    support = np.flatnonzero(q).tolist()
    law = {}
    for siblings in itertools.permutations(support, min(width, len(support))):
        weight, left = 1.0, np.array(q, np.float64)
        for token in siblings:
            weight *= left[token] / left.sum()
            left[token] = 0.0
        law[siblings] = weight
    return law


def likeliest(q: np.ndarray, width: int) -> dict[tuple[int, ...], float]:
    """The likeliest tokens in order, without chance."""
    order = np.argsort(-q, kind="stable")[:width]
    return {tuple(order[q[order] > 0].tolist()): 1.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trees:
    """R trees of one shape, weighted, and what they are judged by."""

    parent: np.ndarray  # [N] int32
    tokens: np.ndarray  # [R, N] int32
    valid: np.ndarray  # [R, N] bool
    weights: np.ndarray  # [R] float64
    probs: np.ndarray  # [R, N, V] float32
    target_probs: np.ndarray  # [R, N, V] float32
    max_depth: int

    def path(self, row: int, node: int) -> tuple[int, ...]:
        """The tokens from below the root to ``node``."""
        nodes = []
        while node:
            nodes.append(node)
            node = int(self.parent[node])
        return tuple(int(self.tokens[row, i]) for i in reversed(nodes))


def enumerate_trees(parent: np.ndarray, p: Law, q: Law, children: ChildrenLaw, *, num_nodes: int) -> Trees:
    """Every tree of shape ``parent`` [n] whose siblings follow ``children``, padded to ``num_nodes``.

    The laws of a node are ``p`` and ``q`` after the tokens that lead to it. A
    node that was not drawn holds no token at all, and NaN for laws.
    """
    contexts: list[dict[int, tuple[int, ...]]] = [{0: ()}]  # of each tree: node -> tokens that lead to it
    weights = [1.0]
    for u in range(len(parent)):
        nodes = [c for c in range(1, len(parent)) if parent[c] == u]
        grown: list[tuple[dict[int, tuple[int, ...]], float]] = []
        for context, weight in zip(contexts, weights, strict=True):
            if not nodes or u not in context:
                grown.append((context, weight))
                continue
            for siblings, probability in children(q[len(context[u])][context[u]], len(nodes)).items():
                drawn = {c: (*context[u], token) for c, token in zip(nodes, siblings, strict=False)}
                grown.append((context | drawn, weight * probability))
        contexts, weights = [list(x) for x in zip(*grown, strict=True)]

    count, vocab_size = len(contexts), p[0].shape[-1]
    tokens = np.full((count, num_nodes), _NO_TOKEN, np.int32)
    probs, target_probs = np.full((2, count, num_nodes, vocab_size), np.nan, np.float32)
    for row, context in enumerate(contexts):
        for node, path in context.items():
            tokens[row, node] = path[-1] if path else 0
            target_probs[row, node] = p[len(path)][path]
            probs[row, node] = q[len(path)][path] if len(path) < len(q) else np.nan
    return Trees(
        parent=np.append(parent, np.zeros(num_nodes - len(parent))).astype(np.int32),
        tokens=tokens,
        valid=tokens != _NO_TOKEN,
        weights=np.array(weights),
        probs=probs,
        target_probs=target_probs,
        max_depth=len(q),
    )
