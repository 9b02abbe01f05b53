"""The device check end to end, on a tiny pair, in a process that lacks every optional package."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import runpy, sys

class Absent:
    # What this project brings on top.
    names = {"matplotlib", "jinja2", "grain", "hypothesis", "gguf", "huggingface_hub"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
runpy.run_module("experiments.device_check", run_name="__main__", alter_sys=True)
"""


def device_check(*arguments):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    command = [sys.executable, "-c", SCRIPT, "--smoke", "--compilation_cache=", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def finished(pair, prompts_file, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("device_check")
    models = (f"--target={pair[0]}", f"--draft={pair[1]}", f"--prompts={prompts_file}")
    done = device_check(*models, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr[-4000:]
    return workdir, done.stdout, json.loads((workdir / "device_check.json").read_text())


def test_speculative_decoding_agrees_with_plain_decoding(finished):
    _, printed, result = finished
    parity = result["parity"]
    assert parity["ok"]
    assert parity["num_tokens"] == 2 * 2 * 12  # temperatures x prompts x new tokens
    assert f"parity: {parity['num_tokens']} tokens" in printed


def test_every_figure_is_there(finished):
    _, printed, result = finished
    for key in ("target_step_ms", "draft_step_ms", "c", "d(3)", "v(4)", "device_GB_per_s", "bandwidth_share"):
        assert result["steps"][key] > 0, key
        assert key in printed
    assert [(row["gamma"], row["temperature"]) for row in result["sweep"]] == [(3, 0.0), (3, 1.0)]
    for row in result["sweep"]:
        assert row["num_tokens"] == 2 * 12
        assert row["tokens_per_second"] > 0
        assert row["speedup_cost_model"] > 0
    assert result["versions"]["jax"]


def test_a_profile_is_kept(finished):
    workdir, _, _ = finished
    assert list((workdir / "profile").rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    "argument, told",
    [("--target=no/such/folder", "no/such/folder"), ("--mesh=a,1", "mesh: 'a'"), ("--draft=none", "--draft")],
)
def test_what_cannot_run_is_one_line(tmp_path, argument, told):
    done = device_check(argument, f"--workdir={tmp_path}")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
