"""A tiny target, heads for it, and a stream made by hand."""

import jax.numpy as jnp
import numpy as np

from specjax.models.heads.heads import from_config, vocabulary_projection
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.language_model import from_config as model_from_config
from specjax.models.language_model import init_params
from specjax.testing.models import tiny_config
from specjax.training.heads import Frozen, medusa_weights
from specjax.training.heads_stream import CachedFeatures, make_stream
from specjax.trees.label_ranks import NONE

V, D, H = 10, 8, 3
CONFIG = tiny_config(V)
TARGET, PARAMS = model_from_config(CONFIG, ("final",)), init_params(CONFIG, 0)
PARAMS["embed_tokens"] *= 20  # laws far from uniform
IDS = np.array([0, 2, 3, 5, 6, 8, 9], np.int32)
COLUMN = np.full(V, NONE, np.int32)
COLUMN[IDS] = np.arange(len(IDS))
FROZEN = Frozen(table=vocabulary_projection(TARGET, PARAMS)[IDS], column=jnp.asarray(COLUMN))
HEADS = from_config(MedusaConfig(num_heads=H, width=D, num_ids=len(IDS)))
WEIGHTS = medusa_weights(H)


def batch_of(stream, starts, width):
    features, labels = stream.window(np.asarray(starts), width, H)
    return {"features": features, "labels": labels, "head": np.int32(0)}


def hand_made(*lengths):
    """A stream whose token at place n is n % V and whose feature is all n."""
    ends = np.cumsum(lengths)
    tokens = np.arange(ends[-1], dtype=np.int32) % V
    owner = np.searchsorted(ends, np.arange(ends[-1]), side="right")
    features = np.repeat(np.arange(ends[-1], dtype=np.float32)[:, None], D, axis=1)
    responses = [type("R", (), {"tokens": tokens[owner == n]})() for n in range(len(lengths))]
    return make_stream(responses, CachedFeatures(features=features))
