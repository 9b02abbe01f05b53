"""Greedy parity over 5,000 tokens and more: trees write what plain decoding writes. Every kind of tree under
every lossless rule that judges it, in batches.

COMMAND  python -m experiments.sweep --config=configs/parity_trees.py --workdir=runs/parity_trees
         python -m experiments.sweep --config=configs/parity_trees.py:smollm2 \\
             --config.prompts=GSM8K.jsonl --workdir=runs/parity_trees_smollm2
COST     about a minute of CPU time a cell for the embedded pair (8 trees), some five for SmolLM2 (10 trees)
RESULT   embedded pair: 5,376 tokens compared in each of the 8 cells, 56 decodes; SmolLM2 (GSM8K): 5,721
         tokens in each of the 8 cells of the draft's trees, 80 decodes; none parts from plain decoding. Its
         two cells of heads were not run here: configs/sweep_heads_smollm2.py compared 6,828 tokens each of
         static and of optimal trees of heads (three prompt sets, three sizes), none of which parted
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

RULES = ("one_hot_walk", "recursive_rejection", "specinfer", "traversal")
HEADS = ("medusa-smollm2:static", "medusa-smollm2:optimal")


def get_config(variant: str = "") -> config_dict.ConfigDict:
    config = base.sweep()
    config.drafters = ("none", "draft:3x2x1", "draft:optimal")
    config.rules = RULES
    config.gammas = (15,)
    config.temperatures = (0.0,)
    config.num_prompts = 56
    config.max_new_tokens = 96
    config.batch_size = 8
    config.cost_repeats = 1  # speed is not the question
    chosen = base.variant(variant, "smoke", "smollm2")
    if chosen == "smollm2":
        config.targets = ("smollm2-135m-instruct",)
        config.drafters = ("none", "draft-smollm2:2x1x1x1", "draft-smollm2:optimal", *HEADS)
        config.gammas = (8,)
        config.chat = True
        config.num_prompts = 80
        config.max_new_tokens = 72
    elif chosen == "smoke":
        config.num_prompts = 4
        config.max_new_tokens = 16
        config.batch_size = 2
    return config
