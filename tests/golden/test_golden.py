"""Against what ``transformers`` computed (``make_golden.py``), without transformers."""

import dataclasses
from pathlib import Path
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models

from experiments.models import PAIR
from specjax.acceptance.rejection import Rejection
from specjax.data.tokenizers import END_OF_TEXT
from specjax.decoding.autoregressive import autoregressive
from specjax.decoding.generate import generate
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.model import ModelDrafter
from specjax.models import huggingface
from specjax.request import make_request
from specjax.testing.parity import divergences, margin

HERE = Path(__file__).parent
RANDOM = {name: HERE / name for name in ("tied", "untied")}
EMBEDDED = {f"embedded-{name}": folder for name, folder in PAIR.items()}
FOLDERS = {**RANDOM, **EMBEDDED}
NEAR_TIE = 1e-4  # a gap of two logits that rounding may decide


def load(name):
    """(model, params, golden arrays) of a checkpoint."""
    golden = np.load(HERE / f"{name}.npz")
    assert golden["weights_hash"] == huggingface.weights_hash(FOLDERS[name]), "run make_golden.py again"
    return *huggingface.load(FOLDERS[name]), golden


@pytest.fixture(autouse=True)
def compile_fast(request):
    """The tiny models run for milliseconds: optimizing their programs would be most of the time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", "embedded" not in request.node.name)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module", params=FOLDERS)
def checkpoint(request):
    return load(request.param)


def check_greedy(model, params, golden, decode):
    """Every row of ``decode(prompts, request)`` is the golden output, but for near-ties, which are listed."""
    prompts, lengths, outputs = (golden[key] for key in ("prompts", "lengths", "outputs"))
    request = make_request(prompt_length=lengths, max_new_tokens=outputs.shape[1], seed=0)
    state = decode(jnp.asarray(prompts), request)
    assert state.length.tolist() == (lengths + outputs.shape[1]).tolist()
    expected = np.zeros(state.tokens.shape, np.int32)
    for row, prompt, length, output in zip(expected, prompts, lengths, outputs):
        row[: length + len(output)] = [*prompt[:length], *output]
    expected = dataclasses.replace(state, tokens=expected)
    for each in divergences(expected, state):
        gap = margin(model, params, request, expected, each)
        warnings.warn(f"{each} from transformers, top-2 gap {gap:.1e}", stacklevel=2)
        assert gap < NEAR_TIE, each


def test_logits_at_every_position(checkpoint):
    model, params, golden = checkpoint
    run = lambda ids: model.apply(params, ids, model.init_cache(ids.shape[0])).logits
    logits = jax.jit(jax.vmap(run))(golden["inputs"])
    np.testing.assert_allclose(logits[:, -golden["logits"].shape[1] :], golden["logits"], atol=1e-4, rtol=0)


def test_greedy_output(checkpoint):
    model, params, golden = checkpoint
    check_greedy(
        model,
        params,
        golden,
        lambda prompts, request: autoregressive(model, params, prompts, request, rule=Rejection()),
    )


@pytest.mark.parametrize(("target", "draft"), [("tied", "untied"), ("embedded-target", "embedded-draft")])
def test_speculative_greedy_output(target, draft):
    model, params, golden = load(target)
    draft_model, draft_params, _ = load(draft)
    program = Program(
        target=model,
        drafter=ModelDrafter(model=draft_model, vocab_size=model.vocab_size),
        rule=Rejection(),
        gammas=(3,),
        max_gamma=3,
        max_len=buffer_length(golden["prompts"].shape[1], golden["outputs"].shape[1], 3),
    )
    run = lambda prompts, request: generate(program, (params, draft_params), prompts, request)
    check_greedy(model, params, golden, run)


@pytest.mark.parametrize("name", RANDOM)
def test_saving_again_gives_the_same_tensors(name, tmp_path):
    model, params, _ = load(name)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens([END_OF_TEXT])
    huggingface.save(tmp_path, model, params, tokenizer, dtype="float32")
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path, RANDOM[name]))
    assert ours.keys() == theirs.keys()
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert huggingface.load(tmp_path)[0] == model
