"""Trained heads on disk, and the refusal to put them on another target.

config.json        what they are, and the target they were trained for
model.safetensors  bfloat16 weights; "ids", int32; rank accuracies, float32
README.md          figures
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.flax

from specjax.models.folder import read_json
from specjax.models.heads.blockwise import BlockwiseConfig
from specjax.models.heads.heads import (
    HeadParams,
    Heads,
    HeadsConfig,
    from_config,
    head_params,
    init_network,
)
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import TransformerLM
from specjax.types import Params

KINDS: dict[str, type[MedusaConfig] | type[BlockwiseConfig]] = {
    "medusa": MedusaConfig,
    "blockwise": BlockwiseConfig,
}
CONFIG, WEIGHTS = "config.json", "model.safetensors"
ACCURACIES = ("rank_accuracies", "conditional_rank_accuracies")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedFor:
    """The one target that heads fit."""

    weights_sha256: str
    vocab_size: int
    taps: tuple[int | str, ...]
    identity: str = ""  # for readers


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedHeads:
    """Heads ready to draft: ``Medusa(heads=loaded.heads)`` with draft params ``loaded.params``."""

    heads: Heads
    params: HeadParams
    rank_accuracies: np.ndarray  # [H, 10] float32, of held-out responses: what a tree's shape is grown from
    conditional_rank_accuracies: np.ndarray  # [H, 10]: given that all earlier labels were among ten as well


def check_taps(taps: Sequence[int | str], num_layers: int) -> None:
    """ValueError for a feature layer that the target does not have, or one named twice."""
    for tap in taps:
        if tap != "final" and not (isinstance(tap, int) and 0 <= tap <= num_layers):
            raise ValueError(
                f"feature layer {tap!r}: the target has 0 (embeddings)..{num_layers}, and 'final'"
            )
    if len(set(taps)) < len(taps):
        twice = next(tap for tap in taps if list(taps).count(tap) > 1)
        raise ValueError(f"feature layer {twice!r} is named twice in {tuple(taps)}")


def is_heads(folder: epath.PathLike) -> bool:
    """Whether ``folder`` holds heads rather than a model; one that cannot be read does not."""
    try:
        return read_json(epath.Path(folder) / CONFIG).get("kind") in KINDS
    except ValueError:
        return False


def read_target(folder: epath.PathLike) -> TrainedFor:
    """The target that the heads of ``folder`` were trained for; ValueError where that is not stated."""
    stored = _read_config(epath.Path(folder)).get("target")
    known = {field.name for field in dataclasses.fields(TrainedFor)}
    if not isinstance(stored, dict) or not known - {"identity"} <= stored.keys() <= known:
        raise ValueError(f"{epath.Path(folder) / CONFIG}: target must state {', '.join(sorted(known))}")
    if not isinstance(stored["taps"], list):
        raise ValueError(f"{epath.Path(folder) / CONFIG}: target.taps must be a list, got {stored['taps']!r}")
    return TrainedFor(**{**stored, "taps": tuple(stored["taps"])})


def save(
    folder: epath.PathLike,
    config: HeadsConfig,
    network: Params,
    ids: np.ndarray,
    target: TrainedFor,
    accuracies: Sequence[np.ndarray],
    readme: str = "",
) -> None:
    """Writes heads; ``accuracies`` are the two tables of :class:`LoadedHeads`, [H, 10] each."""
    folder = epath.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind = next(kind for kind, known in KINDS.items() if type(config) is known)
    settings = {"kind": kind, **dataclasses.asdict(config), "target": dataclasses.asdict(target)}
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
    tensors = {name: jnp.asarray(leaf, jnp.bfloat16) for name, leaf in _by_name(network).items()}
    tensors["ids"] = jnp.asarray(ids, jnp.int32)
    tensors |= {
        name: jnp.asarray(table, jnp.float32) for name, table in zip(ACCURACIES, accuracies, strict=True)
    }
    (folder / WEIGHTS).write_bytes(safetensors.flax.save(tensors))
    (folder / "README.md").write_text(readme)


def load(
    folder: epath.PathLike, target: TransformerLM, target_params: Params, weights_sha256: str
) -> LoadedHeads:
    """The heads of ``folder`` for ``target``, whose weights hash to ``weights_sha256``.

    Weights are cast to the target's dtype. On a mesh, place ``params`` with
    :func:`specjax.sharding.replicate`.

    Raises ValueError, before anything is computed, with all that differs from
    the target they were trained for: weights, vocabulary, width, taps.
    """
    folder = epath.Path(folder)
    stored = _read_config(folder)
    trained = read_target(folder)
    kind = KINDS[stored["kind"]]
    fields = {field.name for field in dataclasses.fields(kind)}
    try:
        config = kind(**{name: value for name, value in stored.items() if name in fields})
    except TypeError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from None
    config = dataclasses.replace(config, dtype=target.config.dtype)
    _check_target(folder, trained, config, target, weights_sha256)
    tensors = _read_tensors(folder / WEIGHTS)
    expected = _by_name(
        jax.eval_shape(lambda: init_network(config, 0, jnp.zeros((config.num_ids, config.width))))
    )
    _check_tensors(folder, expected, config, tensors)
    if (highest := int(tensors["ids"].max())) >= trained.vocab_size or int(tensors["ids"].min()) < 0:
        raise ValueError(f"{folder}: ids reach {highest}, the target's are 0..{trained.vocab_size - 1}")
    heads = from_config(config)
    network = _nested({name: jnp.asarray(tensors[name], config.dtype) for name in expected})
    unconditional, conditional = (tensors[name] for name in ACCURACIES)
    return LoadedHeads(
        heads=heads,
        params=head_params(heads, network, tensors["ids"], target, target_params),
        rank_accuracies=unconditional,
        conditional_rank_accuracies=conditional,
    )


def _check_target(
    folder: epath.Path, trained: TrainedFor, config: HeadsConfig, target: TransformerLM, weights_sha256: str
) -> None:
    check_taps(trained.taps, target.config.num_hidden_layers)
    pairs = {
        "weights_sha256": (trained.weights_sha256, weights_sha256),
        "vocab_size": (trained.vocab_size, target.vocab_size),
        "hidden_size": (config.width, target.config.hidden_size),
        "taps": (tuple(trained.taps), tuple(target.taps)),
    }
    told = [f"{name} {old} there, {new} here" for name, (old, new) in pairs.items() if old != new]
    if told:
        raise ValueError(
            f"{folder} holds heads of another target, {trained.identity or 'of no name'}: {'; '.join(told)}"
        )


def _check_tensors(
    folder: epath.Path, expected: dict[str, Any], config: HeadsConfig, tensors: dict[str, np.ndarray]
) -> None:
    shapes = {name: leaf.shape for name, leaf in expected.items()} | {"ids": (config.num_ids,)}
    shapes |= {name: tensors[name].shape for name in ACCURACIES if name in tensors}
    names = sorted({*shapes, *ACCURACIES} ^ tensors.keys())
    names += [name for name in shapes if name in tensors and tensors[name].shape != shapes[name]]
    if names:
        raise ValueError(f"{folder / WEIGHTS}: tensors do not match {CONFIG}: {', '.join(names)}")


def _read_config(folder: epath.Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.exists():
        raise ValueError(f"{folder}: no {CONFIG}, so these are no heads")
    stored = read_json(path)
    if stored.get("kind") not in KINDS:
        raise ValueError(f"{path}: kind {stored.get('kind')!r}; heads are {' or '.join(KINDS)}")
    return stored


def _read_tensors(path: epath.Path) -> dict[str, np.ndarray]:
    if not path.exists():
        raise ValueError(f"{path.parent}: no {path.name} beside {CONFIG}")
    try:
        views = dict(safetensors.deserialize(path.read_bytes()))
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None
    kinds = {"BF16": jnp.bfloat16, "F32": np.float32, "I32": np.int32}
    if unknown := [name for name, view in views.items() if view["dtype"] not in kinds]:
        raise ValueError(
            f"{path}: {unknown[0]} is {views[unknown[0]]['dtype']}, not one of {', '.join(kinds)}"
        )
    return {
        name: np.frombuffer(view["data"], kinds[view["dtype"]]).reshape(view["shape"])
        for name, view in views.items()
    }


def _by_name(network: Params) -> dict[str, Any]:
    """Leaves by their path: "deeper.0.kernel"."""
    flat, _ = jax.tree_util.tree_flatten_with_path(network)
    return {".".join(str(key.key) for key in path): leaf for path, leaf in flat}


def _nested(tensors: dict[str, jax.Array]) -> Params:
    nested: dict[Any, Any] = {}
    for name, leaf in tensors.items():
        *above, last = (int(part) if part.isdigit() else part for part in name.split("."))
        place = nested
        for part in above:
            place = place.setdefault(part, {})
        place[last] = leaf
    return nested
