import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from specjax.models.decoder import DecoderConfig
from specjax.training.recipe import Recipe, Stage
from specjax.training.self_generated import SelfGenerated

MODEL = DecoderConfig(
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=16,
)
RECIPE = Recipe(
    model=MODEL,
    stages=(Stage(steps=4, batch_size=2, context=8), Stage(steps=2, batch_size=1, context=16)),
    learning_rate=0.1,
    warmup_steps=2,
)


def test_counts():
    assert (RECIPE.steps, RECIPE.tokens) == (6, 96)
    assert [RECIPE.tokens_until(step) for step in (0, 1, 4, 5, 6)] == [0, 16, 64, 80, 96]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": ()}, "stages is empty"),
        (
            {"stages": (Stage(steps=4, batch_size=0, context=8),)},
            r"stages\[0\].batch_size must be positive, got 0",
        ),
        ({"stages": (Stage(steps=4, batch_size=1, context=17),)}, r"stages\[0\].context 17 exceeds .* 16"),
        ({"warmup_steps": 6}, r"warmup_steps 6 must lie in 0..5"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"clip_norm": 0.0}, "clip_norm must be positive, got 0.0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, got -0.1"),
        ({"learning_rate": math.nan}, "learning_rate must be positive, got nan"),
        ({"clip_norm": math.inf}, "clip_norm must be positive, got inf"),
        ({"weight_decay": math.nan}, "weight_decay must be at least 0, got nan"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"final_fraction": 2.0}, r"final_fraction must lie in \[0, 1\], got 2.0"),
    ],
)
def test_impossible_recipes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RECIPE, **changes)


def test_rows_must_fill_batches():
    with pytest.raises(ValueError, match="rows 65 must be a positive multiple of batch_size 64"):
        SelfGenerated(rows=65)


def test_norms_are_not_decayed():
    params = {"norm": jnp.ones(3), "matrix": jnp.ones((3, 3))}
    optimizer = dataclasses.replace(RECIPE, warmup_steps=0).optimizer()
    gradients = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    assert jnp.all(updates["norm"] == 0) and jnp.all(updates["matrix"] < 0)
