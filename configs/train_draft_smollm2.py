"""A draft for SmolLM2-135M-Instruct: 11.7M parameters, cut out of the target and distilled.

Two of the target's 30 layers, the embeddings of the 6,656 ids that it writes most, and rows of rank 48 for
the 15,872 next ones, trained on responses of its own (configs/respond_smollm2.py) towards the laws of the
features kept beside them. In two runs: the second starts where the first ended, and adds the rare ids.

COMMAND  python -m experiments.distill --config=configs/train_draft_smollm2.py \\
             --config.responses=runs/responses,runs/responses2 --workdir=runs/draft_smollm2
         python -m experiments.distill --config=configs/train_draft_smollm2.py:rare \\
             --config.responses=runs/responses,runs/responses2 --config.start=runs/draft_smollm2/export \\
             --workdir=runs/draft_smollm2_rare
         (responses2: experiments.respond with --config.categories=adversarial_qa,cosmos_qa,instruction
         --config.code_prompts=0 --config.passage_prompts=2270 --config.max_prompt_tokens=320 --config.seed=1)
COST     53 and 69 minutes on two cores that much else shared: 1,800 steps of 3,456 tokens (padded to 288
         each, as batches were then) over 547,502 response tokens, and 1,700 steps of 3,584 over 829,818
RESULT   the first, on held-out responses of both kinds, all temperatures, among its 6,656 ids, after 200 /
         600 / 1,000 / 1,400 / 1,800 steps: most likely token equal .315 / .370 / .404 / .427 / .435,
         overlap sum min(p, q) .313 / .374 / .409 / .431 / .439, KL(p || q) 2.61 / 2.15 / 1.94 / 1.84 / 1.82
         nats; the second, among 22,528 ids, after 200 / 600 / 1,000 / 1,400 / 1,700: .404 / .435 / .447 /
         .457 / .460, .403 / .434 / .444 / .455 / .458, 2.23 / 2.05 / 1.95 / 1.92 / 1.91. Of held-out greedy
         tokens of all ids, the first guesses .560 (first folder) and .385 (second), the second .610 and
         .420; the 6,656 ids cover .952 and .873 of them, the 22,528 .991 and .974. alpha_accept at gamma 3
         on 12 prompts of GSM8K / HumanEval / Spec-Bench at T = 0: the first .52 / .40 / .33 (pooled .41),
         the second .59 / .46 / .34 (.46); at T = 1 the second .51 / .35 / .36, alpha_overlap .50 / .34 /
         .34
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import base


def get_config(variant: str = "") -> ConfigDict:
    config = ConfigDict(
        {
            "target": "smollm2-135m-instruct",
            "responses": (),  # workdirs of experiments.respond
            "held_out_files": 3,  # of each, for evaluation alone
            "vocab_size": 6656,  # ids the draft knows
            "layers": (0, 1),  # of the target, to start from
            "start": "",  # or the folder of an earlier draft with as many ids of full rank
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
    if base.variant(variant, "rare"):
        config.update(rare_ids=15872, greedy=0.3, steps=1700, batch_size=8, context=448, learning_rate=1e-3)
        config.update(warmup_steps=40, evaluate_every=200, evaluation_batches=12)
    return config
