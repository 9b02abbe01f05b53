"""Where results come from: device, versions, commit. Written into every line."""

from __future__ import annotations

from importlib import metadata
import os
from pathlib import Path
import platform
import subprocess
from typing import Any

import jax

_PACKAGES = ("specjax", "jax", "jaxlib", "flax", "numpy")


def describe() -> dict[str, Any]:
    """``device``, ``versions`` and ``git_sha`` of this process; plain JSON."""
    versions = {"python": platform.python_version()}
    versions |= {package: metadata.version(package) for package in _PACKAGES}
    return {"device": device_name(), "versions": versions, "git_sha": git_sha()}


def device_name() -> str:
    """For instance ``8 x TPU v5e`` or ``cpu, 2 cores, x86_64``."""
    devices = jax.devices()
    if devices[0].platform == "cpu":
        forced = f"{len(devices)} devices on " if len(devices) > 1 else ""
        return f"{forced}cpu, {os.cpu_count()} cores, {platform.machine()}"
    return f"{len(devices)} x {devices[0].device_kind}"


def git_sha() -> str:
    """The commit of the source tree, with ``-dirty`` for uncommitted changes; "" outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
