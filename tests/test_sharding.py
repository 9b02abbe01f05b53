"""Placement on a mesh: its errors, on one device; and the suite of eight, in its own process."""

import os
from pathlib import Path
import subprocess
import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
import pytest

from specjax import sharding
from specjax.request import make_request

REPOSITORY = Path(__file__).parent.parent
FLAGS = (
    "--xla_force_host_platform_device_count=8 "
    # Many small programs, each run for milliseconds: compile them fast.
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def test_on_eight_devices():
    """Tokens, counts and the place of every array on meshes (8,1), (1,2), (2,2) and (4,2)."""
    environment = os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "tests/multi_device", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_axes_are_automatic_and_named():
    mesh = sharding.make_mesh()
    assert mesh.axis_names == ("data", "model")
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)


def test_a_mesh_larger_than_the_machine_says_how_to_try_it():
    size = jax.device_count() + 1
    with pytest.raises(ValueError, match=f"device_count={size}"):
        sharding.make_mesh(data=size)
    with pytest.raises(
        ValueError, match=rf"needs {size} devices, {size - 1} {jax.default_backend()} present"
    ):
        sharding.make_mesh(model=size)


@pytest.mark.parametrize("sizes", [(0, 1), (1, -2)])
def test_a_mesh_has_at_least_one_device_an_axis(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        sharding.make_mesh(*sizes)


@pytest.mark.parametrize(
    ("axes", "rules", "message"),
    [
        (("mlp",), sharding.AxisRules(), r"'weight'.*1 logical axes .* shape \(4, 2\)"),
        (("mlp", "width"), sharding.AxisRules(), "no logical axis 'width'; known are heads"),
        (
            ("mlp", "embed"),
            sharding.AxisRules(embed="model"),
            r"'weight'.*twice over one axis of mesh \(data=1",
        ),
        (
            ("mlp", "embed"),
            sharding.AxisRules(mlp="tensor"),
            r"mlp goes over the axis 'tensor'.*does not have",
        ),
    ],
)
def test_a_layout_that_cannot_be_is_refused(axes, rules, message):
    with pytest.raises(ValueError, match=message):
        sharding.place_params({"weight": jnp.zeros((4, 2))}, {"weight": axes}, rules, sharding.make_mesh())


def test_the_mesh_is_found_in_the_params():
    mesh = sharding.make_mesh()
    plain = ({"weight": jnp.zeros(3)}, ())
    assert sharding.mesh_of(plain) is None
    assert sharding.mesh_of((plain[0], sharding.replicate(plain[0], mesh))) == mesh
    traced = []
    jax.jit(lambda params: traced.append(sharding.mesh_of(params)))(sharding.replicate(plain, mesh))
    assert traced == [None]


def test_without_a_mesh_a_batch_stays_as_it_is():
    prompts = jnp.ones((3, 2), jnp.int32)
    request = make_request(prompt_length=[1, 2, 2], max_new_tokens=4, seed=0)
    placed = sharding.place_batch(prompts, request, None)
    assert placed[0] is prompts
    assert placed[1] is request
    sharding.check_divides(3, None)


def test_a_batch_needs_the_data_axis():
    other = jax.make_mesh((1,), ("rows",), (AxisType.Auto,))
    request = make_request(prompt_length=[1], max_new_tokens=4, seed=0)
    with pytest.raises(ValueError, match=r"'data', which mesh \(rows=1\) does not have"):
        sharding.place_batch(jnp.ones((1, 1), jnp.int32), request, other)
