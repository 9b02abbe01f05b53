"""The embedded smaller draft: 0.18M parameters, a third of the larger one; the same recipe.

COMMAND  python -m experiments.train --config=configs/train_draft_small.py --workdir=runs/draft-small
COST     (to be filled in)
RESULT   (to be filled in)
"""

from ml_collections import ConfigDict

from configs import train_draft


def get_config() -> ConfigDict:
    config = train_draft.get_config()
    config.model.update(hidden_size=40, intermediate_size=96, head_dim=20)
    config.update(stages=((750, 16, 256),), learning_rate=6e-3)
    return config
