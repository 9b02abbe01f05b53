"""The embedded smaller draft: 0.24M parameters in one layer, a third of the larger one; the same recipe.

COMMAND  python -m experiments.train --config=configs/train_draft_small.py --workdir=runs/draft-small
COST     (to be filled in)
RESULT   (to be filled in)
"""

from ml_collections import ConfigDict

from configs import train_draft


def get_config() -> ConfigDict:
    config = train_draft.get_config()
    config.model.update(hidden_size=52, intermediate_size=128, num_hidden_layers=1, head_dim=26)
    config.update(stages=((550, 16, 256),), learning_rate=6e-3)
    return config
