"""The heads of Blockwise Parallel Decoding for SmolLM2-135M-Instruct."""

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
        steps=400,
        warmup_steps=30,
        evaluate_every=200,
    )
    config.hidden_size = 1152  # of the layer between
    return config
