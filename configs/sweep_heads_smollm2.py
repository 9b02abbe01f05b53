"""SmolLM2-135M-Instruct: Medusa's and Blockwise's heads and the distilled draft, as chains, as static and as
optimal trees of as many nodes, lossless and by Medusa's typical acceptance.

COMMAND  python -m experiments.fetch smollm2-135m-instruct
         python -m experiments.sweep --config=configs/sweep_heads_smollm2.py \\
             --config.prompts=SPEC_BENCH.jsonl --workdir=runs/heads_smollm2
COST     two hours or more on 2 CPU cores; killed at any moment, the same command continues
RESULT   (Medusa alone, T = 0, 12 prompts) tau of the chain / static / optimal tree of 5 nodes: GSM8K 1.71 /
         1.83 / 1.83, HumanEval 1.46 / 1.66 / 1.66, Spec-Bench 1.27 / 1.43 / 1.43; static / optimal of 16
         nodes: 2.17 / 2.11, 1.87 / 1.86, 1.64 / 1.63; of 32: 2.31 / 2.29, 1.97 / 1.98, 1.69 / 1.72;
         chain of Blockwise's heads on Spec-Bench 1.31; bookkeeping 2 to 8 % of a round in single cells
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base
from configs.smollm2 import GROUPS

HEADS = ("medusa-smollm2", "medusa-smollm2:static", "medusa-smollm2:optimal", "blockwise-smollm2")
DRAFTS = ("draft-smollm2", "draft-smollm2:2x2x1", "draft-smollm2:optimal")
# The first is for chains, the others for trees: lossless with likeliest and with drawn children, and lossy.
RULES = ("rejection", "one_hot_walk", "recursive_rejection", "typical")


def get_config(variant: str = "") -> config_dict.ConfigDict:
    config = base.sweep()
    config.targets = ("smollm2-135m-instruct",)
    config.drafters = ("none", *HEADS, *DRAFTS)
    config.rules = RULES
    config.gammas = (3, 7, 15)  # 4, 8 and 16 tokens scored; 2x2x1 has 10 drafted nodes of its own
    config.temperatures = (0.0, 0.7, 1.0)
    config.prompts = "assistant"  # written for this repository; SPEC_BENCH.jsonl for figures
    config.prompt_groups = GROUPS
    config.chat = True
    config.num_prompts = 12
    config.max_new_tokens = 64
    config.cost_repeats = 4
    if base.variant(variant, "smoke"):
        config.drafters = ("none", "medusa-smollm2", "medusa-smollm2:static")
        config.rules = ("rejection", "one_hot_walk")
        config.gammas = (7,)
        config.temperatures = (0.0,)
        config.num_prompts = 6
        config.max_new_tokens = 16
        config.cost_repeats = 2
    return config
