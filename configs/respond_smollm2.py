"""Responses of SmolLM2-135M-Instruct to training prompts: text to distil a draft or heads on.

COMMAND  python -m experiments.respond --config=configs/respond_smollm2.py \\
             --config.prompts=TRAIN_PROMPTS.jsonl --workdir=runs/responses
COST     25 minutes on two cores for 352,000 response tokens, 40 for another 212,000 to longer prompts; killed
         at any moment, the same command continues (600,786 and 248,282 were written in the end)
"""

from __future__ import annotations

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "target": "smollm2-135m-instruct",  # a name of experiments.fetch, a folder or another source
            "prompts": "",  # a JSONL file
            "categories": (),  # of its prompts; empty takes all
            "code_prompts": 1024,  # added: functions of the standard library to be written
            "passage_prompts": 0,  # added: summaries, translations and questions of passages the file quotes
            "max_prompt_tokens": 128,  # longer prompts are left out: reading costs what writing costs
            "temperatures": (0.0, 0.7, 1.0),
            "max_new_tokens": 160,
            "batch_size": 32,
            "num_tokens": 350_000,  # response tokens after which to stop
            "seed": 0,
        }
    )
