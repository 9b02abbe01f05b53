"""The long form, for figures: every drafter and rule, 1,000 tokens and more in each cell.

COMMAND  python -m experiments.sweep --config=configs/benchmark.py --workdir=runs/benchmark
COST     19 minutes on 2 CPU cores; killed at any moment, the same command continues
RESULT   best cells at T = 0 times plain decoding: cascade 1.80, 1.74 and 1.77 (rejection, block, coupled;
         gamma 7, 7, 11), draft 1.52 (gamma 7), prompt lookup 1.54 (gamma 3); measured over cost model .95 in
         the median, .9 to 1.1 in 125 of 132 cells, .875 to .900 in five, 1.14 and 1.35 in two that ran beside
         other work; all 1,408 greedy and coupled decodes as plain
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
