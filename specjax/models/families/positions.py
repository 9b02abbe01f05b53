"""Settings about positions that families share: RoPE in both spellings, and which layers have a window.

transformers 5 writes ``rope_parameters``, version 4 ``rope_theta`` beside
``rope_scaling``; both are read, and both are written.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax.models.config import DecoderConfig
from specjax.models.families.family import Settings
from specjax.models.rope import Linear, Llama3, Scaling, Yarn, yarn_magnitude

ROPE = {"rope_theta": None, "rope_scaling": None, "rope_parameters": None}
SCALINGS: dict[str, type[Linear] | type[Llama3] | type[Yarn]] = {
    "linear": Linear,
    "llama3": Llama3,
    "yarn": Yarn,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def read_rope(settings: Settings, default_theta: float = 10_000.0) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling`` of a :class:`DecoderConfig`."""
    new, old = stated_object(settings, "rope_parameters"), stated_object(settings, "rope_scaling")
    thetas = {
        where: theta
        for where, theta in (
            ("rope_parameters.rope_theta", new.get("rope_theta")),
            ("rope_scaling.rope_theta", old.get("rope_theta")),
            ("rope_theta", settings["rope_theta"]),
        )
        if theta is not None
    }
    if len(set(thetas.values())) > 1:
        raise ValueError(
            "config.json: " + " contradicts ".join(f"{name} {value}" for name, value in thetas.items())
        )
    scalings = {
        name: read_scaling(name, stated, settings["max_position_embeddings"])
        for name, stated in (("rope_parameters", new), ("rope_scaling", old))
        if stated
    }
    if len(set(scalings.values())) > 1:
        raise ValueError(f"config.json: rope_parameters {new} contradicts rope_scaling {old}")
    theta = next(iter(thetas.values()), default_theta)
    if not isinstance(theta, int | float) or theta <= 1:
        raise ValueError(f"config.json: rope_theta {theta!r} must be a number above 1")
    return {"rope_theta": float(theta), "rope_scaling": next(iter(scalings.values()), None)}


def stated_object(settings: Settings, name: str) -> Settings:
    """The object under a name, empty if absent or null."""
    stated = settings.get(name) or {}
    if not isinstance(stated, dict):
        raise ValueError(f"config.json: {name} {stated!r} must be an object")
    return stated


def read_scaling(where: str, stated: Settings, context: int) -> Scaling | None:
    """The scaling that one object states; ValueError for a type or setting not supported."""
    stated = {name: value for name, value in stated.items() if value is not None}
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind != "default" and kind not in SCALINGS:
        raise ValueError(f"{where} of type {kind!r} is not supported, only default, {', '.join(SCALINGS)}")
    if stated.get("partial_rotary_factor", 1) != 1:
        raise ValueError(f"{where}.partial_rotary_factor is not supported, only 1")
    elsewhere = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
    fields = {name: value for name, value in stated.items() if name not in elsewhere}
    if kind in ("llama3", "yarn"):
        fields.setdefault("original_max_position_embeddings", context)
    if kind == "yarn":
        _resolve_attention_factor(fields)
    _check_fields(f"{where} of type {kind!r}", fields, SCALINGS.get(kind))
    return SCALINGS[kind](**fields) if kind != "default" else None


def _check_fields(where: str, stated: Settings, scaling: type | None) -> None:
    """ValueError unless ``stated`` are the fields of that dataclass, all positive."""
    fields = dataclasses.fields(scaling) if scaling else ()
    if strange := sorted(stated.keys() - {field.name for field in fields}):
        raise ValueError(f"{where} has no {', '.join(strange)}")
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    if missing := sorted(needed - stated.keys()):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    for name, value in stated.items():
        if name != "truncate" and (type(value) not in (int, float) or value <= 0):
            raise ValueError(f"{where}: {name} {value!r} must be a positive number")


def _resolve_attention_factor(stated: Settings) -> None:
    """DeepSeek's two scales instead of YaRN's own factor, as ``transformers`` combines them."""
    scale, all_dim = stated.pop("mscale", None), stated.pop("mscale_all_dim", None)
    if scale and all_dim and "factor" in stated:
        ratio = yarn_magnitude(stated["factor"], scale) / yarn_magnitude(stated["factor"], all_dim)
        stated.setdefault("attention_factor", ratio)


def write_scaling(scaling: Scaling | None) -> Settings:
    """The settings of a scaling, its type first."""
    if scaling is None:
        return {"rope_type": "default"}
    kind = next(name for name, cls in SCALINGS.items() if isinstance(scaling, cls))
    fields = {name: value for name, value in dataclasses.asdict(scaling).items() if value is not None}
    return {"rope_type": kind, **fields}


def write_rope(config: DecoderConfig) -> Settings:
    """Both spellings, for transformers 4 and 5."""
    scaling = write_scaling(config.rope_scaling)
    return {
        "rope_theta": config.rope_theta,
        **({"rope_scaling": scaling} if config.rope_scaling is not None else {}),
        "rope_parameters": {**scaling, "rope_theta": config.rope_theta},
    }


def read_windows(settings: Settings, sliding: list[bool], window: int | None) -> tuple[int | None, ...]:
    """A window for each layer, by ``layer_types`` if stated, else where ``sliding`` says so."""
    layers, types = settings["num_hidden_layers"], settings.get("layer_types")
    if types is not None:
        if len(types) != layers or not set(types) <= {FULL, SLIDING}:
            raise ValueError(
                f"config.json: layer_types {types} must name {FULL} or {SLIDING} for each of {layers} layers"
            )
        sliding = [kind == SLIDING for kind in types]
    if not any(sliding):
        return ()
    if type(window) is not int or window < 1:
        raise ValueError(f"config.json: sliding_window {window!r} must be a whole number, at least 1")
    return tuple(window if slides else None for slides in sliding)


def write_windows(config: DecoderConfig) -> Settings:
    """``layer_types`` and the window; several sizes of windows have no spelling."""
    return {
        "layer_types": [FULL if window is None else SLIDING for window in config.windows],
        "sliding_window": next(filter(None, config.windows), None),
    }
