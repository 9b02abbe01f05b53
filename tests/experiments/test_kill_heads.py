"""SIGKILL at random moments of a training of heads: always a checkpoint to go on from, and the same end."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time

from etils import epath
import numpy as np
import pytest
import safetensors.numpy
from tiny_pair import TEXTS

from configs import train_medusa_smollm2
from experiments import train_heads_run
from specjax.models import huggingface

KILLS = int(os.environ.get("SPECJAX_KILLS", "6"))
STEPS, CHECKPOINT_EVERY = 24, 2


def launch(settings, path, cache, kill_at, delay, operations, resumed_at):
    """One launch in a process of its own; dies ``delay`` seconds after its ``kill_at``-th file operation."""
    from experiments import compilation
    from specjax.training import loop

    def die():
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, arguments):
        if event in ("open", "os.rename", "os.mkdir") and str(arguments[0]).startswith(path):
            operations.value += 1
            if operations.value == kill_at:
                threading.Thread(target=die).start()

    restore = loop.restore_latest

    def watched(checkpoints, like):
        state = restore(checkpoints, like)
        resumed_at.value = int(state.step)
        return state

    loop.restore_latest = watched
    compilation.keep_on_disk(cache)
    sys.addaudithook(hook)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        import rich.console

        train_heads_run.run(settings, epath.Path(path), rich.console.Console(file=nowhere))


@pytest.fixture(scope="module")
def responses(pair, tokenizer, tmp_path_factory):
    """Two files of texts as the target's responses, with features that are only noise."""
    folder = tmp_path_factory.mktemp("responses")
    rng = np.random.default_rng(0)
    (folder / "config.json").write_text(json.dumps({"weights_sha256": huggingface.weights_hash(pair[0])}))
    for number in range(2):
        tokens = [tokenizer.encode(text).ids for text in TEXTS]
        lines = [
            {"id": str(i), "temperature": 0.0, "prompt_tokens": ids[:4], "response_tokens": ids[4:40]}
            for i, ids in enumerate(tokens)
        ]
        (folder / f"responses-{number:05d}.jsonl").write_text("".join(json.dumps(e) + "\n" for e in lines))
        count = sum(len(line["response_tokens"]) for line in lines)
        features = rng.normal(size=(count, 16)).astype("bfloat16")
        safetensors.numpy.save_file({"features": features}, folder / f"features-{number:05d}.safetensors")
    return str(folder)


@pytest.fixture
def start(pair, responses, tmp_path, monkeypatch):
    """start(path, kill_at, delay) -> (exit code, file operations, step it went on from or -1)."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.train_heads_run"])
    settings = {
        **train_medusa_smollm2.get_config().to_dict(),
        "target": pair[0],
        "responses": (responses,),
        "held_out_files": 1,
        "num_heads": 2,
        "num_ids": 60,
        "predicted_nodes": (),
        "decoded_nodes": (),
        "decode_prompts": 0,
        "steps": STEPS,
        "batch_size": 1,
        "context": 4,
        "warmup_steps": 1,
        "checkpoint_every": CHECKPOINT_EVERY,
        "evaluate_every": 8,
    }

    def start(path, kill_at=0, delay=0.0):
        operations, resumed_at = context.Value("i", 0), context.Value("i", -1)
        cache = str(tmp_path / "cache")
        child = context.Process(
            target=launch, args=(settings, str(path), cache, kill_at, delay, operations, resumed_at)
        )
        child.start()
        child.join()
        return child.exitcode, operations.value, resumed_at.value

    return start


def newest_checkpoint(path):
    """The step a resumed run must go on from; unfinished checkpoints do not bear a number alone."""
    names = [folder.name for folder in (path / "checkpoints").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def result(path):
    """(weights, log) of a finished run."""
    return (path / "export" / "model.safetensors").read_bytes(), (path / "metrics.jsonl").read_text()


def test_training_killed_again_and_again_ends_bit_for_bit_as_if_it_had_not_been(start, tmp_path):
    rng = random.Random(0)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, operations, _ = start(whole)
    assert code == 0
    assert len(result(whole)[1].splitlines()) == STEPS

    kills = newest = 0
    while kills < KILLS:
        # Often before the next checkpoint is whole, sometimes several later.
        code, _, resumed_at = start(killed, rng.randint(1, operations // 3), rng.uniform(0, 0.05))
        assert code in (-signal.SIGKILL, 0)
        assert resumed_at in (newest, -1)  # -1: killed before it had looked, or already at the end
        assert newest_checkpoint(killed) >= newest
        newest = newest_checkpoint(killed)
        kills += code == -signal.SIGKILL
        print(f"kill {kills}: from {resumed_at}, newest {newest}")
        if code == 0:  # the end came first: once more from the beginning
            assert result(killed) == result(whole)
            shutil.rmtree(killed)
            newest = 0

    code, _, resumed_at = start(killed)
    assert code == 0 and resumed_at in (newest, -1)
    assert result(killed) == result(whole)
