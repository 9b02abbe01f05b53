"""The profile: loops do a round's work and leave the row alone; the command, on a tiny pair, end to end."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import profile_smollm2
from experiments import profile_loops, profile_measure, profile_report, profile_run
from experiments.profile_setup import ProfileSettings, set_up

OPTIONS = {
    "rules": ("rejection",),
    "gammas": (2,),
    "step_sizes": (1, 3),
    "chat": False,
    "buffer": 96,
    "max_new_tokens": 6,
    "repeats": 2,
    "starts": 0,
    "megabytes": 1,
}


@pytest.fixture(scope="module", autouse=True)
def compile_fast():
    """Many small programs, each run for milliseconds."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def settings(pair, prompts_file):
    given = {"target": pair[0], "drafter": pair[1], "prompts": prompts_file} | OPTIONS
    return ProfileSettings.from_config(profile_smollm2.get_config().to_dict() | given)


@pytest.mark.parametrize(("drafter", "rule"), [("draft", "coupled"), ("prompt_lookup", "block")])
def test_loops_leave_the_row_as_it_was(settings, drafter, rule):
    """Whatever is drafted and judged: same length and tokens, caches at the same place; and each step ran."""
    chosen = settings.drafter if drafter == "draft" else drafter
    found = set_up(dataclasses.replace(settings, drafter=chosen))
    program = found.program(rule, 2)
    request, state = found.request(), found.prefilled(program)
    noise, proposal = profile_loops.first_proposal(program, 2, found.params, request, state)
    assert proposal.tokens.shape == (1, 2) and (proposal.probs is None) == (drafter != "draft")
    length = int(state.length[0])
    args = (found.params, request)
    for after in (
        profile_loops.rounds_upto(program, 2, False, *args, noise, state, 3),
        profile_loops.rounds_upto(program, 2, True, *args, noise, state, 3),
        profile_loops.whole_rounds(program, 2, *args, state, 3),
    ):
        assert int(after.length[0]) == length and int(after.target_cache.length[0]) == length - 1
        np.testing.assert_array_equal(after.tokens[0, :length], state.tokens[0, :length])
        (ours, *_), (theirs, *_) = after.target_cache.keys, state.target_cache.keys
        assert not np.array_equal(ours, theirs)  # rows past the length were written
        np.testing.assert_array_equal(ours[..., : length - 1], theirs[..., : length - 1])
    logits = profile_loops.judgements(program, 2, request, proposal, state, 0)
    assert not np.array_equal(profile_loops.judgements(program, 2, request, proposal, state, 3), logits)


def test_no_two_rounds_have_the_same_noise(settings):
    """Else a compiler could make it once: the sum over 3 rounds is not 3 times that of the first."""
    found = set_up(settings)
    program = found.program("coupled", 2)
    state, request = found.prefilled(program), found.request()
    once, thrice = (float(profile_loops.noises(program, 2, request, state, n)[0]) for n in (1, 3))
    assert once > 0 and abs(thrice - 3 * once) > 1e-3 * thrice
    expected = sum(
        float(program.rule.noise(request.key[0], round, state.length[0] + round, 2, 280)[1].sum())
        for round in jnp.arange(3)
    )
    assert thrice == pytest.approx(expected, rel=1e-4)


def test_what_the_parts_leave_is_unexplained(settings, monkeypatch):
    """Known times in place of measured ones: 1 draft, 4 score, .5 accept, .25 commit, rounds of 6.25."""
    known = {
        "score": 4.0,
        "draft and score": 5.0,
        "before commit": 5.75,
        "in place": 6.0,
        "accept": 0.5,
        "noise": 0.1,
    }

    class Timer:
        def __init__(self, loops):
            assert loops.keys() == known.keys()
            self.seconds = {name: [value, value, 1.01 * value] for name, value in known.items()}

        def repeat(self):
            pass

    monkeypatch.setattr(profile_measure, "LoopTimer", Timer)
    monkeypatch.setattr(profile_measure, "_decode", lambda pair, program: (62.5, 10))
    told = []
    found = set_up(dataclasses.replace(settings, repeats=3))
    measured = profile_measure.measure_rounds(found, "rejection", 2, told.append)
    assert [measured["ms"][part][0] for part in profile_measure.PARTS] == [1000, 4000, 500, 250]
    assert measured["unexplained"][0] == pytest.approx(0.5 / 6.25)
    assert measured["unexplained"][1] < measured["unexplained"][2]
    assert measured["beside_model_steps"][0] == pytest.approx(1.25 / 6.25)
    assert len(told) == 3 and told[0] == "rounds, rejection, gamma 2, repeat 1 of 3"


def run(*arguments):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    command = [sys.executable, "-m", "experiments.profile", "--config=configs/profile_smollm2.py:smoke"]
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def finished(pair, prompts_file, tmp_path_factory):
    """(workdir, arguments) of a profile that the command made."""
    workdir = tmp_path_factory.mktemp("profile")
    arguments = [
        f"--config.target={pair[0]}",
        f"--config.drafter={pair[1]}",
        f"--config.prompts={prompts_file}",
        "--config.buffer=128",
    ]
    done = run(*arguments, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "coupled, gamma 3: a round" in done.stdout
    return workdir, arguments


def test_every_figure_is_there(finished):
    workdir, _ = finished
    found = json.loads((workdir / "profile.json").read_text())
    assert [(each["rule"], each["gamma"]) for each in found["rounds"]] == [("coupled", 3)]
    assert found["steps"]["v"]["1"][0] == 1 and found["steps"]["v"]["4"][0] > 0
    for way in profile_report.WAYS:
        assert found["steps"]["gigabytes_per_second"][way][0] > 0
        assert found["steps"]["step_over_pass"][way][0] > 0
    for cache in ("cold", "warm"):
        start = found["start"][cache]
        phases = sum(start[phase] for phase in ("import", "load", "compile", "decode"))
        assert start["total"] == pytest.approx(phases)
        assert start["peak_bytes"] >= start["anonymous_bytes"]
    assert ", 0 read" in found["start"]["cold"]["compiled"]
    assert found["start"]["warm"]["compiled"].startswith("0 programs compiled")
    text = (workdir / "profile.md").read_text()
    assert text == profile_report.markdown(found)
    assert "## A step of T tokens" in text and "unexplained" in text and "anonymous MB" in text
    assert (workdir / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_on_disk_is_not_measured_again(finished, settings, monkeypatch):
    workdir, _ = finished
    before = json.loads((workdir / "profile.json").read_text())
    about = before["about"]
    assert profile_run.begun(workdir, about | {"git_sha": "another"}) == before
    with pytest.raises(ValueError, match=r"is another profile: device is .* Use another --workdir"):
        profile_run.begun(workdir, about | {"device": "another"})
    smoke = ProfileSettings.from_config(
        {
            **about["settings"],
            **{key: tuple(about["settings"][key]) for key in ("rules", "gammas", "step_sizes")},
        }
    )
    monkeypatch.setattr(profile_run, "measure_steps", None)  # calling it would fail
    monkeypatch.setattr(profile_run, "measure_starts", None)
    monkeypatch.setattr(profile_run, "measure_rounds", None)
    profile_run.measure(dataclasses.replace(set_up(settings), settings=smoke), workdir, before)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gammas": (0,)}, "config.gammas must hold whole numbers of at least 1, got 0"),
        ({"gammas": ()}, "config.gammas must be one value or several"),
        ({"rules": ("rejecton",)}, "rejection"),
        ({"rules": ("traversal",)}, "traversal"),
        ({"step_sizes": (2, 4)}, "must hold 1, the unit"),
        ({"step_sizes": (1, 999)}, "exceed the buffer of 96"),
        ({"repeats": 2.5}, "config.repeats must hold whole numbers"),
        ({"repeats": 1}, "at least 2, got 1"),
        ({"drafter": "none"}, "nothing to take apart"),
        ({"buffers": 3}, "config.buffers: no such key; .*buffer"),
    ],
)
def test_settings_that_cannot_be(settings, change, told):
    with pytest.raises(ValueError, match=told):
        ProfileSettings.from_config(dataclasses.asdict(settings) | change)


def test_a_buffer_too_short_says_by_how_much(settings):
    with pytest.raises(ValueError, match=r"config.buffer: a prompt of \d+ tokens, .* slots, \d+ more"):
        set_up(dataclasses.replace(settings, buffer=12))


def test_bad_options_are_one_line(tmp_path):
    done = run("--config.gammas=-1", f"--workdir={tmp_path}")
    assert done.returncode == 2 and "config.gammas" in done.stderr and "Traceback" not in done.stderr
