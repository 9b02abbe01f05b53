"""Runs drawn from known parameters, so that every measured number has a right answer."""

from __future__ import annotations

import functools

import numpy as np

from specjax.analysis.groups import by_group
from specjax.analysis.metrics import summarize
from specjax.analysis.records import Costs, PromptRecord

TARGET_STEP = 0.005  # seconds


def decode(
    rng: np.random.Generator,
    *,
    conditional: list[float],
    prompt: int,
    max_gamma: int,
    category: str = "",
    num_tokens: int = 64,
    round_seconds: float = 0.01,
) -> PromptRecord:
    """One prompt: rounds of gamma drafts, accepted one by one with ``conditional`` chances."""
    gamma = len(conditional)
    tested, accepted = np.zeros(max_gamma, int), np.zeros(max_gamma, int)
    emitted = rounds = 0
    while emitted < num_tokens:
        coins = rng.random(gamma) < conditional
        n = int(np.cumprod(coins).sum())
        tested[: min(n + 1, gamma)] += 1
        accepted[:n] += 1
        emitted, rounds = emitted + n + 1, rounds + 1
    padded = np.zeros(max_gamma)
    padded[:gamma] = conditional
    return PromptRecord(
        prompt=prompt,
        category=category,
        num_tokens=num_tokens,
        rounds=rounds,
        buckets=(gamma,),
        rounds_by_bucket=(rounds,),
        rounds_by_drafted=tuple(rounds * (g == gamma) for g in range(max_gamma + 1)),
        tested=tuple(tested.tolist()),
        accepted=tuple(accepted.tolist()),
        overlap=tuple((tested * padded).tolist()),
        cut=emitted - num_tokens,
        seconds=rounds * round_seconds * float(rng.lognormal(0, 0.02)),
        prefill_seconds=0.004,
        baseline_seconds=num_tokens * TARGET_STEP * float(rng.lognormal(0, 0.02)),
        baseline_tokens=num_tokens,
    )


def costs(
    rng: np.random.Generator, *, c: float, slope: float, gammas: tuple[int, ...], repeats: int = 9
) -> Costs:
    """A draft of cost c, and v(T) = 1 + slope (T - 1), both with 1 % of noise."""
    noisy = lambda seconds: tuple((seconds * rng.lognormal(0, 0.01, repeats)).tolist())
    scored = sorted({1, *(g + 1 for g in gammas)})
    return Costs(
        target_seconds={t: noisy(TARGET_STEP * (1 + slope * (t - 1))) for t in scored},
        proposal_seconds={g: noisy(TARGET_STEP * c * g) for g in gammas},
        draft_step_seconds=noisy(TARGET_STEP * c),
    )


DRAFTERS = {
    "draft": (0.82, 0.05),
    "draft-small": (0.66, 0.02),
    "prompt_lookup": (0.35, 0.001),
}  # alpha at T = 0, c
SLOPE = 0.06  # v(T) = 1 + SLOPE (T - 1)
GROUPS = {"chat": -0.1, "code": 0.08, "math <|>": 0.0}  # what a group adds to alpha


@functools.cache
def results(
    *, gammas: tuple[int, ...] = (1, 3, 7, 11), num_prompts: int = 12, groups: tuple[str, ...] = ("code",)
) -> list[dict]:
    """The lines of a sweep: plain decoding, then drafters x temperatures x gammas, and one failed cell.

    Made once for all tests: take copies of what you change.
    """
    rng = np.random.default_rng(0)
    lines = []
    prompts = [groups[i % len(groups)] for i in range(num_prompts)]
    for temperature in (0.0, 0.6, 1.0):
        lines.append(
            _line(rng, "none", temperature, 0, [], Costs(target_seconds={1: (TARGET_STEP,)}), prompts)
        )
        for drafter, (alpha, c) in DRAFTERS.items():
            for gamma in gammas:
                conditional = [(alpha - 0.08 * temperature) * 0.99**k for k in range(gamma)]
                measured = costs(rng, c=c, slope=SLOPE, gammas=(gamma,))
                lines.append(_line(rng, drafter, temperature, gamma, conditional, measured, prompts))
    broken = {"pair": "target+draft", "drafter": "draft", "gamma": 15, "temperature": 0.0}
    return [*lines, broken | {"acceptance": "rejection", "status": "failed", "error": "OutOfMemory: <15>"}]


def _line(rng, drafter, temperature, gamma, conditional, measured, prompts) -> dict:
    c = DRAFTERS[drafter][1] if drafter in DRAFTERS else 0.0
    # 4 % of a round is overhead that the cost model does not know.
    round_seconds = TARGET_STEP * (c * gamma + 1 + SLOPE * gamma) * (1.04 if gamma else 1.0)
    records = [
        decode(
            rng,
            conditional=[c + GROUPS[group] * (len(set(prompts)) > 1) for c in conditional],
            prompt=i,
            max_gamma=11,
            category=group,
            round_seconds=round_seconds,
        )
        for i, group in enumerate(prompts)
    ]
    identity = {
        "pair": f"target+{drafter}",
        "target": "target",
        "drafter": drafter,
        "acceptance": "rejection",
        "lossless": True,
        "gamma": gamma,
        "temperature": temperature,
        "batch_size": 1,
        "status": "ok",
        "error": None,
    }
    line = identity | summarize(records, measured) | {"by_group": by_group(records)}
    return line | {"costs": measured.to_dict() if measured else None}
