"""Sweeps over trees drawn from known child acceptances, beside chains of the same drafter."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from synthetic_runs import SLOPE, TARGET_STEP, decode, results

from specjax.analysis.groups import by_group
from specjax.analysis.metrics import summarize
from specjax.analysis.records import Costs, PromptRecord
from specjax.trees.builders import fixed_branching, greedy_tree, optimal_tree
from specjax.trees.topology import Choices, from_choices

CHILDREN = np.array([0.52, 0.16, 0.08, 0.05, 0.03, 0.02])  # P_j, the same at every depth
ACCURACIES = np.array(
    [[0.48, 0.12, 0.06, 0.04, 0.03], [0.26, 0.1, 0.05, 0.04, 0.03], [0.15, 0.07, 0.05, 0.03, 0.03]]
)
GAMMAS = (3, 15, 31)
MAX_GAMMA = 31
GROUPS = {"code": 1.15, "chat": 0.8, "translation": 1.0}  # what P_j is multiplied with
BOOKKEEPING = 0.03  # of a round


def decode_tree(
    rng: np.random.Generator, choices: Choices, children: np.ndarray, *, num_tokens: int = 200, **fields
) -> PromptRecord:
    """One prompt: each round walks down, to child j with chance ``children[j]``."""
    parent, rank = from_choices(choices)
    depth = np.array([0, *sorted(map(len, choices))])
    nodes, tested = np.zeros(MAX_GAMMA + 1, int), np.zeros(MAX_GAMMA, int)
    emitted = rounds = 0
    while emitted < num_tokens:
        node = 0
        rounds += 1
        while True:
            nodes[node] += 1
            below = np.flatnonzero((parent == node) & (np.arange(len(parent)) > 0))
            if not len(below):
                break
            tested[depth[node]] += 1
            coin = rng.random() - np.concatenate([[0], np.cumsum(children[rank[below]])])
            if coin[-1] >= 0:
                break
            node = below[np.flatnonzero(coin >= 0)[-1]]
        emitted += depth[node] + 1
    accepted = np.zeros(MAX_GAMMA, int)
    np.add.at(accepted, depth[1:] - 1, nodes[1 : len(depth)])
    gamma = len(choices)
    return PromptRecord(
        num_tokens=num_tokens,
        rounds=rounds,
        buckets=(gamma,),
        rounds_by_bucket=(rounds,),
        rounds_by_drafted=tuple(rounds * (g == gamma) for g in range(MAX_GAMMA + 1)),
        tested=tuple(tested.tolist()),
        accepted=tuple(accepted.tolist()),
        accepted_nodes=tuple(nodes.tolist()),
        overlap=(0.0,) * MAX_GAMMA,
        cut=int(emitted - num_tokens),
        seconds=rounds * TARGET_STEP * (1 + SLOPE * gamma + 0.1) * float(rng.lognormal(0, 0.02)),
        baseline_seconds=num_tokens * TARGET_STEP * float(rng.lognormal(0, 0.02)),
        baseline_tokens=num_tokens,
        **fields,
    )


def costs(rng: np.random.Generator, gamma: int, *, is_tree: bool) -> Costs:
    noisy = lambda seconds: tuple((seconds * rng.lognormal(0, 0.01, 9)).tolist())
    scored = TARGET_STEP * (1 + SLOPE * gamma)
    whole = (scored + 0.1 * TARGET_STEP) / (1 - BOOKKEEPING)
    return Costs(
        target_seconds={1: noisy(TARGET_STEP), gamma + 1: noisy(scored)},
        proposal_seconds={gamma: noisy(0.1 * TARGET_STEP)},
        whole_round_seconds={gamma: noisy(whole)} if is_tree else {},
        bookkeeping_seconds={gamma: noisy(BOOKKEEPING * whole)} if is_tree else {},
    )


@functools.cache
def tree_results(*, num_prompts: int = 12) -> list[dict]:
    """Plain decoding and a draft of the other synthetic sweep; heads as chains, static and optimal trees."""
    rng = np.random.default_rng(3)
    shapes = {
        "heads": lambda gamma: tuple((0,) * d for d in range(1, gamma + 1)),
        "heads:2x2x2": lambda gamma: fixed_branching((2, 2, 2)),
        "heads:static": lambda gamma: greedy_tree(ACCURACIES, gamma + 1),
        "heads:optimal": lambda gamma: optimal_tree(CHILDREN, gamma + 1),
    }
    plain = [
        row
        for row in results(gammas=(3, 7))
        if row.get("status") == "ok" and row["drafter"] in ("none", "draft")
    ]
    lines = [row | {"by_group": {}} for row in plain if row["temperature"] in (0.0, 1.0)]
    for temperature, warmth in ((0.0, 1.0), (1.0, 0.8)):
        for name, shape in shapes.items():
            for gamma in (14,) if name == "heads:2x2x2" else GAMMAS:
                rules = ("rejection",) if name == "heads" else ("one_hot_walk", "typical")
                for rule in rules:
                    ease = warmth * (1.25 if rule == "typical" else 1.0)
                    lines.append(_line(rng, name, rule, shape(gamma), temperature, ease, num_prompts))
    return lines


def _line(rng, name, rule, choices, temperature, ease, num_prompts) -> dict:
    groups = [list(GROUPS)[i % len(GROUPS)] for i in range(num_prompts)]
    gamma, is_tree = len(choices), ":" in name
    records = []
    for i, group in enumerate(groups):
        children = np.minimum(CHILDREN * ease * GROUPS[group], 0.8)
        fields = {"prompt": i, "category": group}
        if is_tree:
            records.append(decode_tree(rng, choices, children, **fields))
        else:
            made = decode(
                rng, conditional=[float(children[0])] * gamma, max_gamma=MAX_GAMMA, num_tokens=200,
                round_seconds=TARGET_STEP * (1.1 + SLOPE * gamma), **fields,
            )  # fmt: skip
            records.append(dataclasses.replace(made, accepted_nodes=(0,) * (MAX_GAMMA + 1)))
    identity = {
        "pair": f"target+{name}", "target": "target", "drafter": name, "acceptance": rule, "is_tree": is_tree,
        "lossless": rule != "typical", "gamma": gamma, "temperature": temperature, "batch_size": 1,
        "status": "ok", "error": None, "shape": [list(node) for node in choices] if is_tree else [],
        "rank_accuracies": ACCURACIES.tolist(),
    }  # fmt: skip
    measured = costs(rng, gamma, is_tree=is_tree)
    line = identity | summarize(records, measured, is_tree=is_tree) | {"by_group": by_group(records)}
    return line | {"costs": measured.to_dict()}
