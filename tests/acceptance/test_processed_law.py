"""Logit processors: the exact law of three tokens through real rounds, against plain numpy.

One request for each processor, and one with all of them; gamma 2, so that the
three tokens take one to three rounds and every hypothetical prefix occurs.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import processors
from specjax.acceptance import Block, Rejection
from specjax.decoding import Program, prefill
from specjax.decoding.warping import active_in
from specjax.drafters.model import ModelDrafter
from specjax.drafters.ngram import NgramDrafter, fit_bigram
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.models.table import TableLM
from specjax.processors import make_processors
from specjax.request import make_request
from specjax.testing.decoding_law import decoding_law, forced_round
from specjax.types import PADDING

V, GAMMA, LENGTH, STOP = 3, 2, 3, 2
TOLERANCE = 1e-6
REJECTION = Rejection()
MODEL = TableLM(vocab_size=V)
_rng = np.random.default_rng(1)
TARGET, DRAFT = (jnp.asarray(_rng.normal(size=(V, V)) * 1.5, jnp.float32) for _ in range(2))
BIGRAM = fit_bigram(_rng.integers(0, V, size=60), V)

NEUTRAL = dict(repetition=1.0, presence=0.0, frequency=0.0, bias={}, banned=[], min_new=0)
SETTINGS = {
    "repetition": {"repetition": 1.7},
    "presence": {"presence": 1.2},
    "frequency": {"frequency": 0.9},
    "bias": {"bias": {0: 1.1, 2: -0.8}},
    "banned": {"banned": [1]},
    "min_new_tokens": {"min_new": 2},
    "all": {"repetition": 0.6, "presence": -0.7, "frequency": 1.5, "bias": {1: 0.9, 0: -0.4}, "min_new": 2},
    "none": {},
}
NAMES = tuple(SETTINGS)
ROWS = [NEUTRAL | settings for settings in SETTINGS.values()]
PROMPT, TEMPERATURE = [1, 1], 0.8
PROMPTS = jnp.asarray([PROMPT] * len(ROWS), jnp.int32)


def request_of(rows):
    column = lambda name: [row[name] for row in rows]
    return make_request(
        prompt_length=[len(PROMPT)] * len(rows),
        max_new_tokens=6,
        seed=0,
        temperature=TEMPERATURE,
        stop_tokens=[[STOP] if row["min_new"] else [PADDING] for row in rows],
        processors=make_processors(
            repetition_penalty=column("repetition"),
            presence_penalty=column("presence"),
            frequency_penalty=column("frequency"),
            logit_bias=column("bias"),
            banned_tokens=[row["banned"] or [] for row in rows],
            min_new_tokens=column("min_new"),
        ),
    )


def law_by_hand(table, emitted, settings):
    """[V] float64 after the prompt and ``emitted``, one id at a time."""
    scores = np.asarray(table, np.float64)[[*PROMPT, *emitted][-1]].copy()
    for token in range(V):
        scores[token] += settings["bias"].get(token, 0.0)
        if token in settings["banned"]:
            scores[token] = -np.inf
        if token in PROMPT or token in emitted:
            theta = settings["repetition"]
            scores[token] = scores[token] / theta if scores[token] > 0 else scores[token] * theta
        count = list(emitted).count(token)
        scores[token] -= settings["frequency"] * count + (settings["presence"] if count else 0.0)
        if token == STOP and len(emitted) < settings["min_new"]:
            scores[token] = -np.inf
    weights = np.exp((scores - scores.max()) / TEMPERATURE)
    return weights / weights.sum()


def joint_by_hand(settings):
    joint = np.zeros((V,) * LENGTH)
    for tokens in itertools.product(range(V), repeat=LENGTH):
        laws = [law_by_hand(TARGET, tokens[:i], settings)[tokens[i]] for i in range(LENGTH)]
        joint[tokens] = np.prod(laws)
    return joint


EXPECTED = np.array([joint_by_hand(settings) for settings in ROWS])
DRAFTERS = {
    "model": (ModelDrafter(model=MODEL), DRAFT),
    "bigram": (NgramDrafter(), BIGRAM),
    "prompt lookup": (PromptLookup(), ()),
}


def program(drafter, rule=REJECTION):
    return Program(target=MODEL, drafter=drafter, rule=rule, gammas=(GAMMA,), max_gamma=GAMMA, max_len=16)


def errors(names=NAMES, drafter="model", rule=REJECTION):
    """{name: largest error of the joint law} for the rows of ``names``."""
    rows = [NAMES.index(name) for name in names]
    drafter, draft_params = DRAFTERS[drafter] if isinstance(drafter, str) else drafter
    request = request_of([ROWS[row] for row in rows])
    law = decoding_law(program(drafter, rule), (TARGET, draft_params), PROMPTS[: len(rows)], request, LENGTH)
    return dict(zip(names, np.abs(law - EXPECTED[rows]).max(axis=(1, 2, 3))))


def test_the_reference_laws_differ_from_one_another():
    for first, second in itertools.combinations(range(len(ROWS)), 2):
        assert np.abs(EXPECTED[first] - EXPECTED[second]).max() > 0.02


def test_output_law_of_a_draft_model():
    """Every processor at once in one batch; rows without one keep their law."""
    assert max(errors().values()) <= TOLERANCE


@pytest.mark.parametrize(("drafter", "rule"), [("bigram", Block()), ("prompt lookup", REJECTION)])
def test_output_law_of_other_drafters(drafter, rule):
    assert max(errors(("repetition", "all"), drafter, rule).values()) <= TOLERANCE


COUNTING = ("repetition", "presence", "frequency", "min_new_tokens", "all")


def test_no_hypothetical_prefix_is_caught(monkeypatch):
    """Control: penalties and min_new_tokens counted from the start of the round only."""
    honest = processors.process
    blind = lambda *args: honest(*args[:-1], jnp.full_like(args[-1], PADDING))
    monkeypatch.setattr(processors, "process", blind)
    assert min(errors(COUNTING).values()) > 0.01


def test_rejected_drafts_in_the_counts_are_caught(monkeypatch):
    """Control: the history takes the whole block, whatever was accepted of it."""
    honest = processors.extend_history
    leaking = lambda history, emitted, num_emitted: honest(history, emitted, emitted.shape[0])
    monkeypatch.setattr(processors, "extend_history", leaking)
    found = errors(("repetition", "presence", "frequency", "all", "banned"))
    assert found.pop("banned") <= TOLERANCE  # which looks at no history
    assert min(found.values()) > 0.005


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unprocessed(ModelDrafter):
    """Control: processors on p only. Drafts from the model's law as if the request had none."""

    def propose(self, *args):
        *rest, _ = args
        warp = lambda logits, drafted: jax.nn.softmax(logits / TEMPERATURE, axis=-1)
        return super().propose(*rest, warp)


def draft_laws(drafter):
    """q [B, V * V, G, V] of every pair of drafts after the prompt, and p [..., G + 1, V]."""
    request = request_of(ROWS)
    params = (TARGET, TARGET)
    state = prefill(program(drafter), params, PROMPTS, request)
    play = functools.partial(forced_round, program(drafter), params, active_in(request))
    drafts = jnp.asarray(list(itertools.product(range(V), repeat=GAMMA)), jnp.int32)
    zero = jnp.int32(0)
    one = lambda request, state: jax.vmap(lambda each: play(request, state, each, zero, zero))(drafts)
    request = dataclasses.replace(request, key=jnp.zeros(len(ROWS)))
    _, proposal, target_probs = jax.jit(jax.vmap(one))(request, state)
    return np.asarray(drafts), np.asarray(proposal.probs), np.asarray(target_probs)


def test_p_and_q_are_processed_alike():
    """The target as its own draft: q is p at every hypothetical prefix, so everything is accepted."""
    drafts, q, p = draft_laws(ModelDrafter(model=MODEL))
    for row, settings in enumerate(ROWS):
        for index, draft in enumerate(drafts.tolist()):
            expected = [law_by_hand(TARGET, draft[:i], settings) for i in range(GAMMA + 1)]
            np.testing.assert_allclose(p[row, index], expected, atol=TOLERANCE)
            np.testing.assert_allclose(q[row, index], expected[:GAMMA], atol=TOLERANCE)


def test_processors_on_p_only_are_caught():
    """No fault of law, since q is what was drawn from; but acceptance falls below 1 for every processor."""
    _, q, p = draft_laws(Unprocessed(model=MODEL))
    overlap = np.minimum(p[:, :, :GAMMA], q).sum(-1).min(axis=(1, 2))
    assert overlap[NAMES.index("none")] > 1 - TOLERANCE
    assert np.delete(overlap, NAMES.index("none")).max() < 0.9
    assert errors(("all",), (Unprocessed(model=MODEL), DRAFT))["all"] <= TOLERANCE
