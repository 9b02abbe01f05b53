"""A draft for SmolLM2-135M-Instruct: 10.9M parameters, cut out of the target and distilled.

Two of the target's 30 layers and the embeddings of the 6,656 ids that it writes most, trained on
responses of its own (configs/respond_smollm2.py) towards the laws of the features kept beside them.

COMMAND  python -m experiments.distill --config=configs/train_draft_smollm2.py \\
             --config.responses=runs/responses,runs/responses2 --workdir=runs/draft_smollm2
         (responses2: experiments.respond with --config.categories=adversarial_qa,cosmos_qa,instruction
         --config.code_prompts=0 --config.passage_prompts=2270 --config.max_prompt_tokens=320 --config.seed=1)
COST     53 minutes on two cores that much else shared (1,800 steps of 3,456 tokens; about four passes over
         547,502 response tokens)
RESULT   held-out responses of both kinds, all temperatures, after 200 / 600 / 1,000 / 1,400 / 1,800 steps:
         most likely token equal .315 / .370 / .404 / .427 / .435, overlap sum min(p, q) .313 / .374 / .409
         / .431 / .439, KL(p || q) 2.61 / 2.15 / 1.94 / 1.84 / 1.82 nats. Greedy alpha_accept at gamma 3 on
         GSM8K / HumanEval / Spec-Bench .52 / .40 / .33; a draft trained on the first folder alone had .54 /
         .41 / .26
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
            "start": "",  # or the folder of an earlier draft of as many ids
            "rare_ids": 0,  # that the draft knows besides, by rows of low rank
            "rare_rank": 48,
            "greedy": 0.0,  # of the loss: cross entropy with the likeliest token; the rest is KL(p || q)
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
