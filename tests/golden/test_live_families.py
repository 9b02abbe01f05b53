"""Live, against ``transformers``: every family's folders of either side compute the same in the other."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peers

from family_checkpoints import CHECKPOINTS, INPUT_LENGTH, LLAMA3, YARN  # noqa: E402

from experiments import transformers_peer as peer  # noqa: E402
from specjax.data.tokenizers import train_tokenizer  # noqa: E402
from specjax.models import families, huggingface  # noqa: E402
from specjax.models.language_model import from_config, init_params  # noqa: E402

INPUTS = np.random.default_rng(7).integers(32, size=INPUT_LENGTH)
# Settings as transformers 4 wrote them; None removes one.
OLD_SPELLINGS = {
    "llama-llama3": {"rope_parameters": None, "rope_theta": 1e3, "rope_scaling": LLAMA3},
    "llama-linear": {
        "rope_parameters": None,
        "rope_theta": 1e3,
        "rope_scaling": {"type": "linear", "factor": 4},
    },
    "llama-yarn": {
        "rope_parameters": None,
        "rope_theta": 1e3,
        "rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4, "beta_fast": 4.0, "beta_slow": 2.0},
    },
    "mistral": {"rope_parameters": None, "rope_theta": 5e2},
    "qwen2-window": {"layer_types": None},
    "gemma2": {"layer_types": None, "rope_parameters": None, "rope_theta": 5e2},
    "gemma3": {
        "layer_types": None,
        "_sliding_window_pattern": None,
        "sliding_window_pattern": 2,
        "rope_parameters": None,
        "rope_theta": 3e3,
        "rope_local_base_freq": 40.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads of torch wait in a spin, which starves whatever else runs on a small machine."""
    before, fast = torch.get_num_threads(), jax.config.read("jax_disable_most_optimizations")
    torch.set_num_threads(1)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", fast)
    torch.set_num_threads(before)


def check(folder, model, params):
    run = jax.jit(lambda ids: model.apply(params, ids, model.init_cache(INPUT_LENGTH)).logits)
    theirs = peer.logits(peer.load(folder), INPUTS)
    np.testing.assert_allclose(run(INPUTS), theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_their_folder_here(name, tmp_path):
    peer.save_random(tmp_path, seed=100, **CHECKPOINTS[name])
    check(tmp_path, *huggingface.load(tmp_path))


@pytest.mark.parametrize("name", OLD_SPELLINGS)
def test_old_spellings(name, tmp_path):
    peer.save_random(tmp_path, seed=101, **CHECKPOINTS[name])
    settings = json.loads((tmp_path / "config.json").read_text()) | OLD_SPELLINGS[name]
    settings = {key: value for key, value in settings.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    check(tmp_path, *huggingface.load(tmp_path))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_our_folder_there(name, tmp_path):
    tokenizer = train_tokenizer(["def area(width, height):\n    return width * height\n"], vocab_size=280)
    family = transformers.AutoConfig.for_model(**CHECKPOINTS[name] | {"vocab_size": 280})
    config = families.config_from_json(family.to_dict())
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(size=leaf.shape) * 0.3, leaf.dtype),
        jax.eval_shape(lambda: init_params(config, 0)),
    )
    model = from_config(config)
    huggingface.save(tmp_path, model, params, tokenizer, dtype="float32")
    _, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values()), loading
    check(tmp_path, model, params)
