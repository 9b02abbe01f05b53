"""SmolLM2-135M-Instruct as the wheel has it, against what ``transformers`` computed (``make_golden.py``)."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import fetched, models
from experiments.plan import PROMPT_SETS
from specjax.acceptance.rejection import Rejection
from specjax.data.prompts import read_jsonl
from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import generate
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.request import make_request

NAME = "smollm2-135m-instruct-q4_1"
EVERY = 96  # of the logits one in so many is kept
NEAR_TIE = 1e-4


@pytest.fixture(scope="module")
def golden():
    return np.load(Path(__file__).parent / "smollm2.npz")


@pytest.fixture(scope="module")
def target(golden):
    try:
        fetched.locate(NAME)
    except ValueError as error:
        pytest.skip(str(error))
    loaded = models.load_target(NAME, "float32")
    assert str(golden["weights_hash"]).startswith(loaded.weights_hash), "another conversion of the checkpoint"
    return loaded


@pytest.fixture(scope="module")
def prompts(golden):
    return np.split(golden["prompts"], np.cumsum(golden["lengths"])[:-1])


def padded(prompts):
    rows = np.zeros((len(prompts), 192), np.int32)
    for row, ids in zip(rows, prompts):
        row[: len(ids)] = ids
    return jnp.asarray(rows)


def test_chat_prompts_have_the_ids_transformers_was_given(target, prompts):
    texts = [each.text for each in read_jsonl(str(PROMPT_SETS["assistant"]))]
    for text, ids in zip(texts, prompts):
        rendered = target.chat_template.render([{"role": "user", "content": text}])
        assert target.tokenizer.encode(rendered, add_special_tokens=False).ids == ids.tolist()


def test_logits(target, prompts, golden):
    last = jax.jit(
        lambda params, row, length: target.model.apply(
            params, row, target.model.init_cache(row.shape[0])
        ).logits[length - 1, ::EVERY]
    )
    for row, ids, expected in zip(padded(prompts), prompts, golden["logits"]):
        np.testing.assert_allclose(last(target.params, row, len(ids)), expected, atol=1e-3)


def test_greedy_answers_plain_and_speculative(target, prompts, golden):
    """Both are the golden ones; a row that parts from them does so at a near-tie, once."""
    lengths, outputs = golden["lengths"], golden["outputs"]
    request = make_request(prompt_length=lengths, max_new_tokens=outputs.shape[1], seed=0)
    max_len = buffer_length(192, outputs.shape[1], 3)
    plain = autoregressive(
        target.model, target.params, padded(prompts), request, rule=Rejection(), max_len=max_len
    )
    program = Program(
        target=target.model,
        drafter=PromptLookup(),
        rule=Rejection(),
        gammas=(0, 3),
        max_len=max_len,
        max_gamma=3,
    )
    speculative = generate(program, (target.params, ()), padded(prompts), request)
    for state in (plain, speculative):
        for row, (length, output) in enumerate(zip(lengths, outputs)):
            mine = np.asarray(state.tokens[row, length : length + len(output)])
            if (mine != output).any():
                first = int((mine != output).argmax())
                ids = jnp.asarray(np.concatenate([prompts[row], output[:first]]))
                logits = target.model.apply(target.params, ids, target.model.init_cache(len(ids))).logits[-1]
                gap = abs(float(logits[mine[first]] - logits[output[first]]))
                assert gap < NEAR_TIE, f"row {row}, token {first}: gap {gap}"
    assert int(speculative.statistics.accepted.sum()) > 0
