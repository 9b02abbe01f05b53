"""The long form, for figures: every drafter and rule, 1,000 tokens and more in each cell.

COMMAND  python -m experiments.sweep --config=configs/benchmark.py --workdir=runs/benchmark
COST     16 minutes on 2 CPU cores; killed at any moment, the same command continues
RESULT   best cells at T = 0 times plain decoding: cascade 1.97, 1.90 and 1.80 (coupled, block, rejection;
         gamma 7), draft 1.76 (block, gamma 7), prompt lookup 1.59 (gamma 3); measured over the cost model .9
         to 1.1 in 118 of 124 cells, .876 to 1.124 in all; that run then crashed (findings in WORKSPACE.md,
         since mended) and its last ten cells were not run again
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base


def get_config(variant: str = "") -> config_dict.ConfigDict:
    config = base.sweep()
    config.drafters = (
        "none",
        "draft",
        "draft-small",
        "prompt_lookup",
        "prompt_lookup+draft",
        "bigram",
        "unigram",
    )
    config.rules = ("rejection", "block", "coupled")
    config.gammas = (1, 3, 7, 11)
    config.temperatures = (0.0, 1.0)
    config.num_prompts = 16
    config.max_new_tokens = 128
    config.cost_repeats = 9
    if base.variant(variant, "smoke"):
        config.drafters = ("none", "draft", "bigram")
        config.rules = ("rejection", "block")
        config.gammas = (3,)
        config.temperatures = (1.0,)
        config.num_prompts = 2
        config.max_new_tokens = 16
        config.cost_repeats = 2
    return config
