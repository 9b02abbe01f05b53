"""Medusa's heads for SmolLM2-135M-Instruct: four of two residual blocks, 2.7M parameters, 5.3 MB.

COMMAND  python -m experiments.train_heads --config=configs/train_medusa_smollm2.py \\
             --config.responses=runs/responses,runs/responses2 --config.held_out_files=3 --workdir=runs/medusa
COST     35 minutes on two cores that other work shared: 3,500 steps of 1,024 positions, 4.3 passes over
         829,818 response tokens
RESULT   held-out greedy responses, heads 1 / 2 / 3 / 4 right with one guess .401 / .244 / .172 / .157, with
         ten .742 / .589 / .480 / .460; tau on 8 held-out prompts, decoded (predicted), chain 1.484 (1.513),
         tree of 32 nodes 2.018 (2.083); a run of 2,000 steps ended at 1.429 (1.490) and 1.924 (2.061), one of
         1,000 steps of 512 over half of the text (on other held-out files) at 1.368 (1.385) and 1.910 (1.895)
"""

from __future__ import annotations

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "kind": "medusa",
            "target": "smollm2-135m-instruct",
            "taps": ("final",),  # the hidden states the heads read
            "responses": (),  # workdirs of experiments.respond
            "held_out_files": 3,  # of each, for evaluation alone
            "held_out_temperatures": (0.0,),  # the responses of these are what figures are of
            "features": "cached",  # beside the responses, or "computed" by the target for every batch
            "num_heads": 4,
            "num_ids": 6656,  # that heads score, the most frequent; 0: all
            "blocks": 2,  # residual blocks a head
            "own_projection": False,
            "head_decay": 0.8,  # head i's loss counts head_decay^i
            "sampled_heads": False,
            "distillation": 0.5,  # of the loss: KL(p || q) from the target's law; the rest is cross entropy
            "predicted_nodes": (16, 32, 64),  # sizes of trees whose tau is predicted
            "decoded_nodes": (32,),  # of these, those that are decoded with
            "decode_prompts": 8,  # held-out prompts to decode at each evaluation; 0: none
            "decode_tokens": 64,
            "mesh_data": 1,  # devices to split batches over
            "export": "",  # where the folder goes; empty: WORKDIR/export
            "steps": 3500,
            "batch_size": 16,
            "context": 64,  # positions a window
            "learning_rate": 1.5e-3,
            "warmup_steps": 100,
            "final_fraction": 0.05,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
            "seed": 0,
            "checkpoint_every": 50,
            "evaluate_every": 1750,
            "evaluation_batches": 1,
        }
    )
