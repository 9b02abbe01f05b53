"""Medusa's heads for SmolLM2-135M-Instruct."""

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
            "steps": 1000,
            "batch_size": 8,
            "context": 64,  # positions a window
            "learning_rate": 1e-3,
            "warmup_steps": 50,
            "final_fraction": 0.05,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
            "seed": 0,
            "checkpoint_every": 50,
            "evaluate_every": 250,
            "evaluation_batches": 1,
        }
    )
