"""The heads of Blockwise Parallel Decoding for SmolLM2-135M-Instruct: k = 5, 3.3M parameters, 6.7 MB.

COMMAND  python -m experiments.train_heads --config=configs/train_blockwise_smollm2.py \\
             --config.responses=runs/responses,runs/responses2 \\
             --config.held_out_files=3 --workdir=runs/blockwise
COST     39 minutes on two cores that other work shared: 3,000 steps of 1,024 positions, 3.7 passes over
         829,818 response tokens
RESULT   held-out greedy responses, heads 1 / 2 / 3 / 4 right with one guess .402 / .251 / .165 / .144, with
         ten .746 / .601 / .496 / .471; tau of the chain on 8 held-out prompts 1.450 (predicted from the ranks
         1.505), after half of the steps 1.469 (1.454); a run of half a pass ended at 1.361 (1.325)
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import train_medusa_smollm2


def get_config() -> ConfigDict:
    config = train_medusa_smollm2.get_config()
    config.update(
        kind="blockwise",
        num_heads=4,  # k - 1: the first of k = 5 is the target's own
        sampled_heads=False,  # True: one head's loss a step, as in the paper
        decoded_nodes=(),
        steps=3000,
        warmup_steps=100,
        evaluate_every=1500,
    )
    config.hidden_size = 1152  # of the layer between
    return config
