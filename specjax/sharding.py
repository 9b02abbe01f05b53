"""Where arrays live on a ("data", "model") mesh: rows over data, heads and hidden units over model.

    mesh = make_mesh(data=4, model=2)
    params = place_params(params, logical_axes(model), AxisRules(), mesh, head_dim=model.config.head_dim)
    state = generate(program, (params, replicate(draft_params, mesh)), prompts, request)

``generate`` finds the mesh in the params and puts the batch on it. Placement
changes rounding at most, never a row's random numbers: a lossless rule stays
lossless on every mesh.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from specjax.types import Array, DecodeState, Params, Request

DATA, MODEL = "data", "model"

logger = logging.getLogger(__name__)


def make_mesh(data: int = 1, model: int = 1) -> Mesh:
    """A mesh of the first data * model devices, axes ("data", "model"), both automatic.

    The axis types are written out: ``jax.make_mesh`` has changed its default
    to Explicit, under which a product over a sharded axis is an error.

    Raises:
      ValueError: a size below 1, or more devices asked than present.
    """
    if data < 1 or model < 1:
        raise ValueError(f"mesh (data={data}, model={model}): both sizes must be at least 1")
    devices = jax.devices()
    if data * model > len(devices):
        raise ValueError(
            f"mesh (data={data}, model={model}) needs {data * model} devices, {len(devices)} "
            f"{devices[0].platform} present; to try it on a CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={data * model}"
        )
    axis_types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((data, model), (DATA, MODEL), axis_types, devices=devices[: data * model])


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxisRules:
    """Logical axis of an array -> axis of the mesh that splits it; None keeps it whole.

    Another layout is another mapping: the model's code names logical axes only.
    The vocabulary stays whole by default: split, each step of the bisections
    and sums that sampling makes over it would wait for the other devices.

    >>> AxisRules().spec(("mlp", "embed"))
    P('model', None)
    >>> AxisRules(mlp=None, embed="data").spec(("mlp", "embed"))
    P(None, 'data')
    """

    heads: str | None = MODEL
    kv_heads: str | None = MODEL
    mlp: str | None = MODEL
    vocab: str | None = None
    embed: str | None = None
    norm: str | None = None

    def spec(self, axes: tuple[str, ...]) -> PartitionSpec:
        """The partition of an array whose dimensions have these logical names."""
        for name in axes:
            if name not in self.__dataclass_fields__:
                raise ValueError(
                    f"no logical axis {name!r}; known are {', '.join(self.__dataclass_fields__)}"
                )
        return PartitionSpec(*(getattr(self, name) for name in axes))


def place_params(params: Params, axes: Any, rules: AxisRules, mesh: Mesh, head_dim: int = 1) -> Params:
    """The weights of a model on ``mesh``, each split as ``rules`` say: see :func:`shardings`."""
    return jax.device_put(params, shardings(params, axes, rules, mesh, head_dim))


def shardings(params: Params, axes: Any, rules: AxisRules, mesh: Mesh, head_dim: int = 1) -> Any:
    """Where each weight of a model belongs on ``mesh``.

    Args:
      params: nested dict of arrays, or of anything else with a shape.
      axes: the same structure with a tuple of logical names for each array,
        from :func:`specjax.models.language_model.logical_axes`.
      rules: logical axis -> mesh axis.
      mesh: from :func:`make_mesh`.
      head_dim: rows of a weight that make one head, which is never split.

    Returns:
      A ``NamedSharding`` for every leaf. A size that does not divide over
      "model" stays whole; a warning is logged, one per logical axis.

    Raises:
      ValueError: a mesh axis that does not exist or is used twice by one
        array, or a size that does not divide over another axis than "model".
    """
    whole: collections.Counter[tuple[str, int]] = collections.Counter()

    def place(path: tuple[Any, ...], leaf: Any, names: tuple[str, ...]) -> NamedSharding:
        where = jax.tree_util.keystr(path)
        if len(names) != len(leaf.shape):
            raise ValueError(f"{where}: {len(names)} logical axes {names} for an array of shape {leaf.shape}")
        spec = list(rules.spec(names))
        for dim, (name, axis) in enumerate(zip(names, spec, strict=True)):
            units = leaf.shape[dim] // (head_dim if name in ("heads", "kv_heads") else 1)
            if axis is None or _divides(units, axis, mesh, f"{where}: {name}"):
                continue
            whole[name, units] += 1
            spec[dim] = None
        used = [axis for axis in spec if axis is not None]
        if len(used) != len(set(used)):
            raise ValueError(f"{where}: rules split {names} twice over one axis of {_describe(mesh)}")
        return NamedSharding(mesh, PartitionSpec(*spec))

    placed = jax.tree_util.tree_map_with_path(place, params, axes)
    for (name, units), count in whole.items():
        message = "%s of size %d does not divide over %r of %s: replicated in %d arrays"
        logger.warning(message, name, units, MODEL, _describe(mesh), count)
    return placed


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Every array of ``tree`` whole on every device; how a draft lives unless it has rules of its own."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def mesh_of(params: Params) -> Mesh | None:
    """The mesh that ``params`` were placed on, None if they are on one device or traced."""
    for leaf in jax.tree.leaves(params):
        if isinstance(leaf, jax.core.Tracer):
            return None
        if isinstance(getattr(leaf, "sharding", None), NamedSharding):
            return leaf.sharding.mesh
    return None


def place_batch(prompts: Array, request: Request, mesh: Mesh | None) -> tuple[Array, Request]:
    """The rows of a batch split over "data": without this, host arrays are silently replicated.

    ``prompts`` [B, P] and ``request`` [B, ...] are padded to a multiple of the
    axis with rows of one token that ask for nothing: finished before the
    first round. :func:`drop_padding` removes them from the result. Without a
    mesh both come back as they are.

    Raises:
      ValueError: the mesh has no axis "data".
    """
    if mesh is None:
        return prompts, request
    if DATA not in mesh.shape:
        raise ValueError(f"a batch is split over the axis {DATA!r}, which {_describe(mesh)} does not have")
    batch = prompts.shape[0]
    missing = -batch % mesh.shape[DATA]
    if missing:
        prompts = jnp.pad(jnp.asarray(prompts), ((0, missing), (0, 0)))
        row = jnp.arange(batch + missing)
        request = jax.tree.map(lambda x: x[row % batch], request)
        request = dataclasses.replace(
            request,
            prompt_length=jnp.where(row < batch, request.prompt_length, 1),
            max_new_tokens=jnp.where(row < batch, request.max_new_tokens, 0),
        )
    return jax.device_put((prompts, request), NamedSharding(mesh, PartitionSpec(DATA)))


def split_rows(state: DecodeState, mesh: Mesh | None) -> DecodeState:
    """Every array of a prefilled ``state`` [B, ...] split over "data".

    Most are already, by propagation from the batch; counters that start as
    constants come out replicated. A split over "model" is kept.
    """
    if mesh is None:
        return state

    def place(leaf: Array) -> Array:
        spec = tuple(leaf.sharding.spec) if isinstance(leaf.sharding, NamedSharding) else ()
        if spec[:1] == (DATA,):
            return leaf
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(DATA, *spec[1:])))

    return jax.tree.map(place, state)


def check_divides(batch: int, mesh: Mesh | None) -> None:
    """ValueError unless ``batch`` rows split evenly over "data"."""
    if mesh is not None and batch % mesh.shape.get(DATA, 1):
        raise ValueError(
            f"a batch of {batch} does not divide over the axis {DATA!r} of {_describe(mesh)}: "
            "place_batch() pads it with finished rows"
        )


def drop_padding(state: DecodeState, batch: int) -> DecodeState:
    """The first ``batch`` rows of a final state."""
    if state.length.shape[0] == batch:
        return state
    return jax.tree.map(lambda x: x[:batch], state)


def _divides(size: int, axis: str, mesh: Mesh, what: str) -> bool:
    """Whether ``size`` divides over ``axis``; an error where a remainder has no stated meaning."""
    if axis not in mesh.shape:
        raise ValueError(f"{what} goes over the axis {axis!r}, which {_describe(mesh)} does not have")
    if size % mesh.shape[axis] == 0:
        return True
    if axis != MODEL:
        raise ValueError(f"{what} of size {size} does not divide over the axis {axis!r} of {_describe(mesh)}")
    return False


def _describe(mesh: Mesh) -> str:
    """Mesh sizes for a message: mesh (data=4, model=2)."""
    return "mesh (" + ", ".join(f"{name}={size}" for name, size in mesh.shape.items()) + ")"
