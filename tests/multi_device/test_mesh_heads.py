"""Heads trained on a mesh: batches split over "data", the losses those of one device."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.config import DecoderConfig
from specjax.models.heads.heads import from_config, init_network
from specjax.models.heads.medusa import MedusaConfig
from specjax.sharding import DATA, make_mesh, mesh_of
from specjax.training.heads import Frozen, HeadsLoss, HeadsTask, medusa_weights
from specjax.training.heads_stream import CachedFeatures, ResponseStream
from specjax.training.loop import train
from specjax.training.recipe import Recipe, Stage

V, D, H, N = 10, 8, 2, 300
MODEL = DecoderConfig(
    vocab_size=V, hidden_size=D, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=4, max_position_embeddings=64,
)  # fmt: skip


def task(mesh):
    random = np.random.default_rng(0)
    heads = from_config(MedusaConfig(num_heads=H, width=D, num_ids=V))
    frozen = Frozen(
        table=jnp.asarray(random.normal(size=(V, D)), jnp.float32), column=jnp.arange(V, dtype=jnp.int32)
    )
    features = CachedFeatures(features=random.normal(size=(N, D)).astype(jnp.bfloat16))
    stream = ResponseStream(
        tokens=random.integers(V, size=N).astype(np.int32),
        response=np.repeat(np.arange(N // 30, dtype=np.int32), 30),
        features=features,
    )
    stage = Stage(steps=4, batch_size=8, context=4)
    return HeadsTask(
        recipe=Recipe(model=MODEL, stages=(stage,), learning_rate=0.01, warmup_steps=1, checkpoint_every=1),
        loss=HeadsLoss(heads=heads, weights=medusa_weights(H), distillation=0.5),
        start=init_network(heads.config, 0),
        frozen=frozen,
        training=stream,
        evaluation=lambda params: {},
        mesh=mesh,
    )


def losses(workdir):
    return [json.loads(line)["loss"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_a_mesh_gives_the_losses_of_one_device_and_resumes(tmp_path):
    alone, split = task(None), task(make_mesh(data=4))
    train(alone.recipe, alone, workdir=tmp_path / "alone")
    assert split.batch(0)["features"].sharding.spec[0] == DATA

    class Killed(Exception):
        pass

    def kill(progress):
        if progress.step == 2:
            raise Killed

    with pytest.raises(Killed):
        train(split.recipe, split, workdir=tmp_path / "split", report=kill)
    state = train(split.recipe, split, workdir=tmp_path / "split")
    assert mesh_of(state.params) is not None
    np.testing.assert_allclose(losses(tmp_path / "alone"), losses(tmp_path / "split"), rtol=1e-4)
