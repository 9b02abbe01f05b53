"""Responses of the tiny target, the stream of their pairs, and heads that differ."""

from etils import epath
import jax
import pytest
from tiny_heads import HEADS, PARAMS, TARGET, V

from specjax.models.heads.heads import init_network
from specjax.training.heads_stream import CachedFeatures, make_stream, read_responses
from specjax.training.responses import PromptTokens, Sampling, make_batches, respond

SAMPLING = Sampling(temperatures=(0.0, 1.0), max_new_tokens=8, batch_size=2, prompt_multiple=4)
PROMPTS = [PromptTokens(id=str(n), tokens=tuple(range(1, 2 + n))) for n in range(6)]


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    folder = epath.Path(tmp_path_factory.mktemp("responses"))
    list(respond(TARGET, PARAMS, make_batches(PROMPTS, SAMPLING), SAMPLING, (7,), folder))
    return sorted(folder.glob("responses-*.jsonl"))


@pytest.fixture(scope="session")
def stream(files):
    responses, features = read_responses(files, V)
    return make_stream(responses, CachedFeatures(features=features))


@pytest.fixture(scope="session")
def network():
    """Far from its start, so that heads differ."""
    leaves, tree = jax.tree.flatten(init_network(HEADS.config, 0))
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return jax.tree.unflatten(tree, [jax.random.normal(k, x.shape) * 0.3 for k, x in zip(keys, leaves)])
