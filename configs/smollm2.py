"""SmolLM2-135M-Instruct, a real instruct model on a CPU: a distilled draft, prompt lookup, a bigram table
and the target's own layers with some left out.

COMMAND  python -m experiments.fetch smollm2-135m-instruct
         python -m experiments.sweep --config=configs/smollm2.py --config.prompts=SPEC_BENCH.jsonl \\
             --workdir=runs/smollm2
COST     an hour or more on 2 CPU cores; killed at any moment, the same command continues
RESULT   (draft, prompt lookup and their cascade, gamma 3 and 7) at T = 0 times plain decoding, best gamma
         each: Spec-Bench .93, 1.10, 1.07; GSM8K 1.37, 1.19, 1.40; HumanEval 1.01, 1.49, 1.79; at T = 1
         Spec-Bench .93, .96, .94 (with finer prefixes); measured over the cost model .93 to 1.09
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

# The six parts of Spec-Bench (Xia et al. 2024, arXiv 2401.07851); MT-bench's eight categories take turns.
GROUPS = ("translation", "summarization", "qa", "math_reasoning", "rag", "mt_bench")


def get_config(variant: str = "") -> config_dict.ConfigDict:
    config = base.sweep()
    config.targets = ("smollm2-135m-instruct",)
    config.drafters = (
        "none",
        "draft-smollm2",
        "prompt_lookup",
        "prompt_lookup+draft-smollm2",
        "bigram",
        "layer_skip",
    )
    config.gammas = (1, 3, 7, 11, 15)
    config.temperatures = (0.0, 0.7, 1.0)
    config.prompts = "assistant"  # written for this repository; SPEC_BENCH.jsonl for figures
    config.prompt_groups = GROUPS
    config.chat = True
    config.num_prompts = 12
    config.max_new_tokens = 64
    config.cost_repeats = 4
    config.gammas_at_once = 3  # their programs take some 1.3 GB
    if base.variant(variant, "smoke"):
        config.drafters = ("none", "draft-smollm2", "prompt_lookup")
        config.gammas = (3,)
        config.temperatures = (0.0,)
        config.num_prompts = 6
        config.max_new_tokens = 16
        config.cost_repeats = 2
    return config
