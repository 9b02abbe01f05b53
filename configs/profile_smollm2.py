"""Where the time of a decode goes: SmolLM2-135M-Instruct on this machine, or the embedded pair.

COMMAND  python -m experiments.profile --config=configs/profile_smollm2.py --workdir=runs/profile
         ... --config=configs/profile_smollm2.py:pair --workdir=runs/profile_pair
         ... --config.target=FOLDER --config.drafter=FOLDER for any other
COST     some ten minutes on 2 CPU cores, which nothing else should use; a second of memory traffic a repeat
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import base


def get_config(variant: str = "") -> ConfigDict:
    config = ConfigDict(
        {
            "target": "smollm2-135m-instruct",  # as in a sweep: a name or a source
            "drafter": "draft-smollm2",  # a draft model, or another drafter of a sweep
            "rules": ("rejection", "block", "coupled"),
            "gammas": (3, 7),  # rounds are taken apart at each
            "step_sizes": (1, 2, 4, 8, 12, 16),  # T of v(T)
            "temperature": 1.0,
            "prompts": "assistant",
            "chat": True,
            "buffer": 512,  # S of the caches
            "max_new_tokens": 64,  # of the decodes that rounds are compared with
            "repeats": 15,
            "starts": 3,  # processes started with an empty compilation cache, and as many with a full one
            "megabytes": 1024,  # summed to measure the bandwidth
            "dtype": "float32",
        }
    )
    if base.variant(variant, "pair", "smoke") == "pair":
        config.update(target="target", drafter="draft", prompts="stdlib", chat=False, buffer=224)
    if variant == "smoke":
        config.update(target="target", drafter="draft", prompts="stdlib", chat=False, buffer=160)
        config.update(rules=("coupled",), gammas=(3,), step_sizes=(1, 4), max_new_tokens=8)
        config.update(repeats=2, starts=1, megabytes=16)
    return config
