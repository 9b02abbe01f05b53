"""A draft for SmolLM2-135M-Instruct: 10.9M parameters, cut out of the target and distilled.

Two of the target's 30 layers and the embeddings of the 6,656 ids that it writes most, trained on
responses of its own (configs/respond_smollm2.py) towards the laws of the features kept beside them.

COMMAND  python -m experiments.distill --config=configs/train_draft_smollm2.py \\
             --config.responses=runs/responses --workdir=runs/draft_smollm2
COST     35 minutes on two cores (1,600 steps of 3,072 tokens; 9 passes over 336,981 response tokens)
RESULT   held-out responses, temperatures 0, .7 and 1 together, after 200 / 400 / 800 / 1,200 / 1,600 steps:
         most likely token equal .379 / .421 / .467 / .479 / .485, overlap sum min(p, q) .372 / .413 / .467 /
         .484 / .490, KL(p || q) 2.27 / 2.01 / 1.72 / 1.67 / 1.67 nats; from 1,000 steps on the training loss
         alone falls, so more responses would help and more steps would not
"""

from __future__ import annotations

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "target": "smollm2-135m-instruct",
            "responses": (),  # workdirs of experiments.respond
            "held_out_files": 3,  # of each, for evaluation alone
            "vocab_size": 6656,  # ids the draft knows
            "layers": (0, 1),  # of the target, to start from
            "export": "",  # where the folder goes; empty: WORKDIR/export
            "steps": 1800,
            "batch_size": 12,
            "context": 288,  # tokens a row; the beginning of a longer prompt is cut
            "learning_rate": 1.2e-3,
            "warmup_steps": 60,
            "final_fraction": 0.05,
            "weight_decay": 0.05,
            "clip_norm": 1.0,
            "seed": 0,
            "checkpoint_every": 100,
            "evaluate_every": 100,
            "evaluation_batches": 8,
        }
    )
