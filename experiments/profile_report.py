"""A profile as text and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.profile_measure import PARTS
from experiments.profile_start import PHASES
from specjax.analysis import plot_style as ps

Profile = Mapping[str, Any]

WAYS = {
    "sum": "a sum over an array far larger than any cache, its rows shared by the threads: reading alone",
    "product": "a vector times a matrix of the weights' size: reading in the way a one-token step does",
}


def markdown(profile: Profile) -> str:
    """The whole profile; every interval is 95 %, by bootstrap over repeats."""
    about = profile["about"]
    settings = about["settings"]
    lines = [
        "# Profile",
        "",
        f"{about['pair']}, {settings['dtype']}, batch 1, buffers of {settings['buffer']} slots, temperature "
        f"{settings['temperature']:g}; {about['device']}. Medians of {settings['repeats']} repeats, each "
        "of which times all loops in turn; [95 % interval].",
    ]
    for part, section in SECTIONS.items():
        if part in profile:
            lines += ["", *section(profile)]
    return "\n".join(lines) + "\n"


def _steps(profile: Profile) -> list[str]:
    steps, settings = profile["steps"], profile["about"]["settings"]
    rows = [
        [size, _estimate(steps["step_ms"][size], 2), _estimate(steps["v"][size], 2)] for size in steps["v"]
    ]
    bandwidth = [
        [way, _estimate(steps["gigabytes_per_second"][way], 1), _estimate(steps["step_over_pass"][way], 2)]
        for way in WAYS
    ]
    read = (
        f"{steps['weight_bytes'] / 1e6:.0f} MB of weights (and {steps['cache_bytes'] / 1e6:.0f} MB of cache)"
    )
    return [
        "## A step of T tokens",
        "",
        *_table(["T", "ms", "v(T)"], rows),
        "",
        f"A one-token step reads {read}. Beside one pass over the weights at the bandwidth of",
        "",
        f"- sum: {WAYS['sum']} ({settings['megabytes']} MB);",
        f"- product: {WAYS['product']}.",
        "",
        *_table(["bandwidth by", "GB/s", "step / pass"], bandwidth),
    ]


def _rounds(profile: Profile) -> list[str]:
    head = ["rule", "gamma", "round, ms", *PARTS, "noise", "unexplained", "beside model steps"]
    rows = [
        [
            each["rule"],
            each["gamma"],
            _estimate(each["ms"]["real"], 2),
            *(_percent(each["share"][part]) for part in (*PARTS, "noise")),
            _percent(each["unexplained"]),
            _percent(each["beside_model_steps"]),
        ]
        for each in profile["rounds"]
    ]
    return [
        "## A round",
        "",
        "Shares of a round of a real decode. Noise is a part of accept; unexplained is what draft, score,",
        "accept and commit leave; beside model steps is all but draft and score.",
        "",
        *_table(head, rows),
    ]


def _start(profile: Profile) -> list[str]:
    starts = profile["start"]
    rows = [
        [
            cache,
            *(f"{found[phase]:.2f}" for phase in (*PHASES, "total")),
            f"{found['peak_bytes'] / 1e6:.0f}",
            f"{found['anonymous_bytes'] / 1e6:.0f}",
            found["compiled"],
        ]
        for cache, found in starts.items()
    ]
    head = ["compilation cache", *PHASES, "total", "peak MB", "anonymous MB", "programs"]
    return [
        "## From process start to the first token",
        "",
        "Seconds. Compile is tracing, and compiling or reading what was compiled; decode is prefill and one",
        "round. Peak is the most resident memory, mapped files included; anonymous is what is held at the",
        "end without them.",
        "",
        *_table(head, rows),
    ]


SECTIONS = {"steps": _steps, "rounds": _rounds, "start": _start}


def figure(profile: Profile) -> Figure:
    """v(T), shares of rounds, and the seconds before the first token."""
    drawn, axes = ps.panels(3, columns=3)
    if "steps" in profile:
        _draw_steps(axes[0], profile["steps"])
    if "rounds" in profile:
        _draw_rounds(axes[1], profile["rounds"])
    if "start" in profile:
        _draw_starts(axes[2], profile["start"])
    return drawn


def _draw_steps(axis: Axes, steps: Mapping[str, Any]) -> None:
    sizes = [int(size) for size in steps["v"]]
    values = [value for value, *_ in steps["v"].values()]
    limits = [None if low is None else [low, high] for _, low, high in steps["v"].values()]
    axis.errorbar(sizes, values, yerr=ps.all_errors(values, limits), color=ps.TARGET_COLOR, marker="o")
    axis.set_ylim(0)
    ps.style(axis, title="A step of T tokens", x="T", y="v(T)")


def _draw_rounds(axis: Axes, rounds: Sequence[Mapping[str, Any]]) -> None:
    names = [f"{each['rule']}, {each['gamma']}" for each in rounds]
    left = [0.0] * len(rounds)
    for part, color in zip((*PARTS, "unexplained"), ps.CATEGORICAL):
        widths = [
            100 * (each["unexplained"] if part == "unexplained" else each["share"][part])[0]
            for each in rounds
        ]
        axis.barh(names, widths, left=left, color=color, label=part)
        left = [a + b for a, b in zip(left, widths)]
    axis.invert_yaxis()
    ps.style(axis, title="A round", x="% of a round, by rule and gamma")
    ps.legend(axis, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))


def _draw_starts(axis: Axes, starts: Mapping[str, Any]) -> None:
    left = [0.0] * len(starts)
    for phase, color in zip(PHASES, ps.CATEGORICAL):
        widths = [found[phase] for found in starts.values()]
        axis.barh(list(starts), widths, left=left, color=color, label=phase)
        left = [a + b for a, b in zip(left, widths)]
    axis.invert_yaxis()
    ps.style(axis, title="To the first token", x="seconds, by compilation cache")
    ps.legend(axis, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in row) + " |" for row in cells]


def _estimate(value: Sequence[float | None], digits: int) -> str:
    point, low, high = value
    return f"{point:.{digits}f}" + ("" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]")


def _percent(value: Sequence[float | None]) -> str:
    return _estimate([None if each is None else 100 * each for each in value], 1) + " %"
