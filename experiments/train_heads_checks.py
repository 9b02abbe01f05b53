"""What a training of heads refuses: values that cannot be, and ones that do not fit target and responses."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from experiments.settings import check_folder, nearest
from specjax.models.heads.folder import KINDS
from specjax.models.language_model import TransformerLM
from specjax.training.heads_stream import Response

NAMES = {"kind": tuple(KINDS), "features": ("cached", "computed")}
OWN_KEYS = {"medusa": ("blocks", "own_projection", "head_decay"), "blockwise": ("hidden_size",)}  # of a kind
SMALLEST = {"num_heads": 1, "held_out_files": 1, "decode_prompts": 0, "decode_tokens": 1, "mesh_data": 1}
RANKS = 10  # guesses of a head that accuracies are measured for


def check(settings: dict[str, Any]) -> None:
    """ValueError for what can be refused before anything is opened."""
    for key, names in NAMES.items():
        if settings[key] not in names:
            raise ValueError(f"config.{key}: unknown {settings[key]!r}; {nearest(settings[key], names)}")
    kind = settings["kind"]
    for key in OWN_KEYS[kind]:
        if key not in settings:
            raise ValueError(
                f"config.kind: {kind!r} needs config.{key}; start from configs/train_{kind}_smollm2.py"
            )
    for key, least in SMALLEST.items():
        if settings[key] < least:
            raise ValueError(f"config.{key}: must be at least {least}, got {settings[key]}")
    if kind == "medusa" and not 0 < settings["head_decay"] < math.inf:
        raise ValueError(f"config.head_decay: must be above 0 and finite, got {settings['head_decay']}")
    for temperature in settings["held_out_temperatures"]:
        if not isinstance(temperature, int | float) or not 0 <= temperature < math.inf:
            raise ValueError(f"config.held_out_temperatures: {temperature!r} is not a number of at least 0")
    _check_nodes(settings)
    check_folder("config.export", settings["export"])


def _check_nodes(settings: dict[str, Any]) -> None:
    most = 1 + sum(RANKS**depth for depth in range(1, min(settings["num_heads"], 9) + 1))
    for nodes in settings["predicted_nodes"]:
        if type(nodes) is not int or nodes < 2:
            raise ValueError(f"config.predicted_nodes: {nodes!r} nodes, root included, must be at least 2")
        if nodes > most:
            raise ValueError(
                f"config.predicted_nodes: {nodes} nodes, more than the {most} that {RANKS} guesses of "
                f"{settings['num_heads']} heads make"
            )
    if not set(settings["decoded_nodes"]) <= set(settings["predicted_nodes"]):
        raise ValueError(
            f"config.decoded_nodes: {settings['decoded_nodes']} must be among predicted_nodes "
            f"{settings['predicted_nodes']}"
        )


def check_fits(
    settings: dict[str, Any],
    target: TransformerLM,
    training: Sequence[Response],
    held_out: Sequence[Response],
) -> None:
    """ValueError for heads without a label, and for decodes that the target has no room for."""
    for what, responses in (("responses", training), ("responses held out", held_out)):
        longest = max(len(response.tokens) for response in responses)
        if settings["num_heads"] >= longest:
            raise ValueError(
                f"config.num_heads: {settings['num_heads']} heads, but the longest of the {what} has "
                f"{longest} tokens, so the last has no label; the most are {longest - 1}"
            )
    room = target.context - max(len(response.prompt) for response in held_out)
    if settings["decode_prompts"] and settings["decode_tokens"] > room:
        raise ValueError(
            f"config.decode_tokens: {settings['decode_tokens']} after the longest prompt held out exceed the "
            f"target's context of {target.context}; the most are {room}"
        )
