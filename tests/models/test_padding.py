"""Vocabularies padded to different sizes: nothing is drafted or emitted that no token stands for."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance.rejection import Rejection
from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import generate
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.model import ModelDrafter
from specjax.models.language_model import from_config
from specjax.request import make_request
from specjax.testing.models import tiny_transformer

TARGET_IDS, DRAFT_IDS = 100, 96  # of the two tokenizers; the models have 128 and 104 rows
GAMMA, NEW = 3, 24
PROMPTS = jnp.asarray([[5, 17, 99], [1, 2, 3]], jnp.int32)
REQUEST = make_request(prompt_length=[3, 3], max_new_tokens=NEW, seed=[0, 1], temperature=[0.0, 1.0])


def padded(vocab_size, num_ids, seed):
    """A model whose padding is what it likes best: rows of the head fifty times as long."""
    model, params = tiny_transformer(vocab_size=vocab_size, seed=seed)
    stretch = jnp.where(jnp.arange(vocab_size) < num_ids, 1.0, 50.0)
    params["lm_head"] = params["lm_head"] * stretch[:, None]
    return dataclasses.replace(model, num_ids=num_ids), params


@pytest.fixture(scope="module")
def target():
    return padded(128, TARGET_IDS, seed=0)


def tokens_of(model, params, draft, draft_params):
    drafter = ModelDrafter(model=draft, vocab_size=model.vocab_size, num_ids=DRAFT_IDS)
    program = Program(
        target=model,
        drafter=drafter,
        rule=Rejection(),
        gammas=(GAMMA,),
        max_gamma=GAMMA,
        max_len=buffer_length(3, NEW, GAMMA),
    )
    return np.asarray(generate(program, (params, draft_params), PROMPTS, REQUEST).tokens)[:, : 3 + NEW]


def test_padding_is_neither_drafted_nor_emitted(target):
    model, params = target
    tokens = tokens_of(model, params, *padded(104, DRAFT_IDS, seed=1))
    assert tokens.max() < TARGET_IDS
    config = dataclasses.replace(model.config, vocab_size=TARGET_IDS)
    cut = {name: params[name][:TARGET_IDS] for name in ("embed_tokens", "lm_head")}
    plain = autoregressive(from_config(config), params | cut, PROMPTS, REQUEST, rule=Rejection())
    np.testing.assert_array_equal(tokens[0], np.asarray(plain.tokens)[0, : 3 + NEW])  # the greedy row


def test_logits_of_padding(target):
    model, params = target
    masked, bare = (
        each.apply(params, PROMPTS[0], model.init_cache(8)).logits
        for each in (model, dataclasses.replace(model, num_ids=None))
    )
    assert np.all(np.asarray(masked[:, TARGET_IDS:]) == -np.inf)
    np.testing.assert_array_equal(masked[:, :TARGET_IDS], bare[:, :TARGET_IDS])
    assert np.all(np.isfinite(bare)) and int(bare[0].argmax()) >= TARGET_IDS  # what it would emit unmasked
