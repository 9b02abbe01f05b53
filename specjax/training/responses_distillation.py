"""A draft learns its target's law on responses the target wrote, from the features kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools

from etils import epath
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors

from specjax.models.config import DecoderConfig
from specjax.models.language_model import TransformerLM, from_config
from specjax.models.layer_skip import keep_layers
from specjax.training.recipe import Recipe
from specjax.training.responses import features_path, read_lines
from specjax.training.text import forward
from specjax.types import Array, Params

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponseRows:
    """Responses cut to windows of at most T tokens, each with the end of its prompt.

    Position t reads ``tokens[t]``; where ``is_response`` holds, ``features[t]``
    is the target's feature after it, whose head gives the law of the next token.
    """

    tokens: np.ndarray  # [N, T] int32, ids of the draft's own vocabulary
    features: np.ndarray  # [N, T, D] bfloat16
    is_response: np.ndarray  # [N, T] bool

    def take(self, rows: np.ndarray) -> Batch:
        fields = {"tokens": self.tokens, "features": self.features, "is_response": self.is_response}
        return {name: array[rows] for name, array in fields.items()}


def load_rows(files: Sequence[epath.Path], context: int, read: np.ndarray) -> ResponseRows:
    """All rows of response ``files``; ``read`` [V] maps ids to the draft's own."""
    columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for path in files:
        lines = read_lines(path)
        features = read_features(features_path(path))
        start = 0
        for line in lines:
            count = len(line["response_tokens"])
            columns.append(_row(line, features[start : start + count], context, read))
            start += count
        if start != len(features):
            raise ValueError(f"{path}: {start} response tokens, but {len(features)} features beside it")
    tokens, features, is_response = map(np.stack, zip(*columns, strict=True))
    return ResponseRows(tokens=tokens, features=features, is_response=is_response)


def read_features(path: epath.Path) -> np.ndarray:
    if not path.exists():
        raise ValueError(f"no file {path}: features lie beside their responses, write them again")
    ((_, view),) = safetensors.deserialize(path.read_bytes())
    return np.frombuffer(view["data"], ml_dtypes.bfloat16).reshape(view["shape"])


def _row(line: dict, features: np.ndarray, context: int, read: np.ndarray) -> tuple:
    prompt, response = line["prompt_tokens"], line["response_tokens"][:context]
    # The last response token is not read: nothing is known of what would follow it.
    inputs = np.asarray([*prompt, *response[:-1]], np.int32)[-context:]
    first = len(inputs) - len(response)  # the last prompt token, whose feature gave the first of the response
    tokens = np.zeros(context, np.int32)
    tokens[: len(inputs)] = read[inputs]
    kept = np.zeros((context, features.shape[1]), features.dtype)
    kept[first : len(inputs)] = features[: len(response)]
    is_response = np.zeros(context, bool)
    is_response[first : len(inputs)] = True
    return tokens, kept, is_response


@dataclasses.dataclass(frozen=True)
class FeatureDistillation:
    """Objective: mean KL(p || q) over response positions, p and q over the draft's K ids.

    ``constants`` is the target's head cut to those ids, [K, D].
    """

    model: TransformerLM

    def __call__(self, params: Params, head: Array, batch: dict[str, Array]) -> Array:
        log_p, log_q, weights = self.laws(params, head, batch)
        return ((jnp.exp(log_p) * (log_p - log_q)).sum(-1) * weights).sum() / weights.sum()

    def laws(self, params: Params, head: Array, batch: dict[str, Array]) -> tuple[Array, Array, Array]:
        """(log p, log q) [B, T, K] and weights [B, T] that are 1 on response positions."""
        log_q = jax.nn.log_softmax(forward(self.model, params, batch["tokens"]))
        log_p = jax.nn.log_softmax(batch["features"].astype(jnp.float32) @ head.T)
        return log_p, log_q, batch["is_response"].astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponsesTask:
    """Task: ``recipe.model``, from ``start``, learns the target's law on ``training`` rows."""

    recipe: Recipe
    start: Params
    head: Array
    training: ResponseRows
    held_out: ResponseRows

    @property
    def objective(self) -> FeatureDistillation:
        return FeatureDistillation(from_config(self.recipe.model))

    @property
    def constants(self) -> Array:
        return self.head

    def init(self) -> Params:
        return jax.tree.map(jnp.array, self.start)  # a copy: training donates its state

    def batch(self, step: int) -> Batch:
        """Rows of passes that are each shuffled anew."""
        size, count = self.recipe.stages[0].batch_size, len(self.training.tokens)
        per_pass = count // size
        order = np.random.default_rng((self.recipe.seed, step // per_pass)).permutation(count)
        start = step % per_pass * size
        return self.training.take(order[start : start + size])

    def evaluate(self, params: Params) -> dict[str, float]:
        """KL, overlap sum min(p, q) and equal most likely tokens, means over held-out response tokens."""
        size = self.recipe.stages[0].batch_size
        count = min(len(self.held_out.tokens) // size, self.recipe.evaluation_batches)
        batches = [self.held_out.take(np.arange(i * size, (i + 1) * size)) for i in range(count)]
        sums = [_figures(self.objective, params, self.head, batch) for batch in batches]
        total = {name: sum(float(s[name]) for s in sums) for name in sums[0]}
        tokens = total.pop("tokens")
        return {f"held_out_{name}": value / tokens for name, value in total.items()}


@functools.partial(jax.jit, static_argnums=0)
def _figures(
    objective: FeatureDistillation, params: Params, head: Array, batch: dict[str, Array]
) -> dict[str, Array]:
    log_p, log_q, weights = objective.laws(params, head, batch)
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    by_name = {
        "kl": (p * (log_p - log_q)).sum(-1),
        "overlap": jnp.minimum(p, q).sum(-1),
        "agreement": log_p.argmax(-1) == log_q.argmax(-1),
        "tokens": jnp.ones_like(weights),
    }
    return {name: (values * weights).sum() for name, values in by_name.items()}


def cut_from_target(
    target: TransformerLM, params: Params, ids: np.ndarray, layers: Sequence[int]
) -> tuple[DecoderConfig, Params]:
    """A smaller model to start from: some layers of the target, and its embeddings of ``ids``.

    As DistilBERT begins (Sanh et al. 2019, arXiv 1910.01108, section 2).
    """
    fewer, kept = keep_layers(target, params, layers)
    config = dataclasses.replace(fewer.config, vocab_size=len(ids))
    return config, {**kept, "embed_tokens": kept["embed_tokens"][ids]}
