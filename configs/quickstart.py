"""The embedded pair on code it has never seen: two drafts and prompt lookup against plain decoding.

COMMAND  python -m experiments.sweep --config=configs/quickstart.py --workdir=runs/quickstart
COST     4 to 5 minutes on 2 CPU cores, compilation included
RESULT   best cells at T = 0 times plain decoding: the cascade at gamma 7, 1.5 (to 1.8 in others); draft at
         gamma 7, 1.5; prompt lookup at gamma 3, 1.4; at T = 1 draft at gamma 3, 1.2, the cascade 1.2
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base


def get_config(variant: str = "") -> config_dict.ConfigDict:
    config = base.sweep()
    config.drafters = ("none", "draft", "draft-small", "prompt_lookup", "prompt_lookup+draft")
    config.gammas = (1, 3, 7, 11)
    config.temperatures = (0.0, 0.6, 1.0)
    config.num_prompts = 12
    config.max_new_tokens = 64
    if base.variant(variant, "smoke"):
        config.drafters = ("none", "draft", "prompt_lookup")
        config.gammas = (3,)
        config.temperatures = (0.0, 1.0)
        config.num_prompts = 3
        config.max_new_tokens = 24
        config.cost_repeats = 3
    return config
