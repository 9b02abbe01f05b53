"""Parity of the embedded pair in float32: every drafter x gamma, greedy and coupled at temperature 1.

6,144 tokens of each. A row that differs from plain decoding is counted once,
at its first token, and must show a margin under 1e-4: rounding differs
between a step of one token and a step of gamma + 1. SPECJAX_PAIR names
another folder that holds target/, draft/ and draft-small/.
"""

import os
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.acceptance import Coupled, Rejection
from specjax.data.corpora import held_out_prompts
from specjax.data.tokenizers import load_tokenizer
from specjax.decoding import Program, buffer_length, generate
from specjax.drafters import ngram
from specjax.drafters.model import ModelDrafter
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.models import huggingface
from specjax.request import make_request
from specjax.testing.parity import divergences, margin

FOLDER = pathlib.Path(os.environ.get("SPECJAX_PAIR", pathlib.Path(specjax.__file__).parent / "assets"))
GAMMAS, NUM_PROMPTS, PROMPT, NEW = (1, 3, 7, 11), 12, 40, 32
DRAFTERS = ("draft", "draft-small", "bigram", "prompt lookup")
NARROW = 1e-4


@pytest.fixture(scope="module")
def pair():
    return Pair()


class Pair:
    """The models, prompts of held-out code, and each prompt twice: greedy and at temperature 1."""

    def __init__(self):
        self.target, self.target_params = huggingface.load(FOLDER / "target")
        tokenizer = load_tokenizer(FOLDER / "target")
        texts = held_out_prompts(NUM_PROMPTS)
        ids = [tokenizer.encode(text).ids for text in texts]
        # Different lengths, so that rows of a batch stand at different positions.
        lengths = [min(len(row), PROMPT - i) for i, row in enumerate(ids)]
        prompts = np.zeros((NUM_PROMPTS, PROMPT), np.int32)
        for row, (tokens, length) in enumerate(zip(ids, lengths)):
            prompts[row, :length] = tokens[:length]
        self.prompts = jnp.asarray(np.tile(prompts, (2, 1)))
        self.request = make_request(
            prompt_length=np.tile(lengths, 2),
            max_new_tokens=NEW,
            seed=np.arange(2 * NUM_PROMPTS),
            temperature=np.repeat([0.0, 1.0], NUM_PROMPTS),
        )
        corpus = np.concatenate([np.array(row) for row in ids])
        self._bigram = ngram.fit_bigram(corpus, self.target.vocab_size)
        self.plain = self.decode(None, (), 0, Coupled())

    def drafter(self, name):
        if name == "bigram":
            return ngram.NgramDrafter(), self._bigram
        if name == "prompt lookup":
            return PromptLookup(), ()
        model, params = huggingface.load(FOLDER / name)
        return ModelDrafter(model=model), params

    def decode(self, drafter, draft_params, gamma, rule):
        program = Program(
            target=self.target,
            drafter=drafter,
            rule=rule,
            gammas=(gamma,),
            max_gamma=max(GAMMAS),
            max_len=buffer_length(PROMPT, NEW, max(GAMMAS)),
        )
        return generate(program, (self.target_params, draft_params), self.prompts, self.request)

    def check(self, state, rows):
        """No row of ``rows`` differs from plain decoding by more than rounding can explain."""
        for found in divergences(self.plain, state):
            if found.row in rows:
                gap = margin(self.target, self.target_params, self.request, self.plain, found)
                print(f"{found}, margin {gap:.2e}")
                assert gap < NARROW, found


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_equals_plain_decoding(pair, name, gamma):
    state = pair.decode(*pair.drafter(name), gamma, Coupled())
    pair.check(state, range(2 * NUM_PROMPTS))
    assert int(np.sum(state.statistics.tested)) > 0


def test_greedy_rows_under_rejection(pair):
    """The same text by another rule: at temperature 0 a rule decides nothing."""
    pair.check(pair.decode(*pair.drafter("draft"), 7, Rejection()), range(NUM_PROMPTS))


def test_enough_tokens_are_compared():
    cells = len(DRAFTERS) * len(GAMMAS)
    assert cells * NUM_PROMPTS * NEW >= 5000
