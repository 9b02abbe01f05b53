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
from specjax.models.decoder import table_logits
from specjax.models.language_model import TransformerLM, from_config
from specjax.models.layer_skip import keep_layers
from specjax.models.subset import SubsetLM
from specjax.training.recipe import Recipe
from specjax.training.responses import features_path, read_lines
from specjax.types import Array, Params

Batch = dict[str, np.ndarray]
MULTIPLE = 64  # what widths of batches, and how many places they learn from, are multiples of: few shapes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponseRows:
    """N responses with their prompts, cut to the last ``context`` tokens each.

    After ``tokens[n][t]``, for the last R positions t of a row, the target's
    feature was ``features[n][t - T + R]``, whose head gives the law of the next token.
    """

    tokens: list[np.ndarray]  # N of [T] int32, ids of the draft's own vocabulary
    features: list[np.ndarray]  # N of [R, D] bfloat16

    def take(self, rows: Sequence[int], width: int, places: int) -> Batch:
        """A batch [len(rows), width] that learns from its first ``places`` response positions.

        "positions" [places] are of the flattened batch, and "features" [places, D]
        theirs; "weights" are 0 on those that there are too few responses for.
        """
        batch = {
            "tokens": np.zeros((len(rows), width), np.int32),
            "positions": np.zeros(places, np.int32),
            "features": np.zeros((places, self.features[0].shape[1]), self.features[0].dtype),
            "weights": np.zeros(places, np.float32),
        }
        filled = 0
        for number, row in enumerate(rows):
            tokens, features = self.tokens[row], self.features[row][: places - filled]
            batch["tokens"][number, : len(tokens)] = tokens
            here = slice(filled, filled + len(features))
            first = number * width + len(tokens) - len(self.features[row])
            batch["positions"][here] = first + np.arange(len(features))
            batch["features"][here], batch["weights"][here] = features, 1
            filled += len(features)
        return batch


def load_rows(files: Sequence[epath.Path], context: int, read: np.ndarray) -> ResponseRows:
    """All rows of response ``files`` that are not empty; ``read`` [V] maps ids to the draft's own."""
    rows = ResponseRows(tokens=[], features=[])
    for path in files:
        lines = read_lines(path)
        features = read_features(features_path(path))
        start = 0
        for line in lines:
            prompt, response = line["prompt_tokens"], line["response_tokens"]
            kept = features[start : start + len(response)][:context]
            # The last response token is not read: nothing is known of what would follow it.
            inputs = np.asarray([*prompt, *response[: len(kept) - 1]], np.int32)[-context:]
            if response:
                rows.tokens.append(read[inputs])
                rows.features.append(kept)
            start += len(response)
        if start != len(features):
            raise ValueError(f"{path}: {start} response tokens, but {len(features)} features beside it")
    return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Rows of like length, and the sizes of the batch they make."""

    rows: tuple[int, ...]
    width: int
    places: int


def plan_pass(rows: ResponseRows, num_tokens: int, order: np.ndarray) -> list[BatchPlan]:
    """One pass over ``rows``, drawn in ``order`` [N]: batches of about ``num_tokens``, padding included.

    Rows of up to 64 tokens make batches of one shape, of up to 128 of the
    next, ...; what is left over of a shape fills the next one's, and a last
    short batch is left out. However a pass is ordered, it has the same shapes.
    """
    widths = np.array([-(-len(tokens) // MULTIPLE) * MULTIPLE for tokens in rows.tokens])
    lengths = np.array([len(features) for features in rows.features])
    plans, left = [], np.array([], int)
    for width in np.unique(widths).tolist():
        size = max(1, num_tokens // width)
        here = np.concatenate([left, order[widths[order] == width]])
        whole = len(here) // size * size
        left = here[whole:]
        places = int(1.1 * size * lengths[widths == width].mean() / MULTIPLE + 1) * MULTIPLE
        for batch in here[:whole].reshape(-1, size).tolist():
            plans.append(BatchPlan(rows=tuple(batch), width=width, places=places))
    return plans


def read_features(path: epath.Path) -> np.ndarray:
    if not path.exists():
        raise ValueError(f"no file {path}: features lie beside their responses, write them again")
    try:
        ((_, view),) = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None
    return np.frombuffer(view["data"], ml_dtypes.bfloat16).reshape(view["shape"])


@dataclasses.dataclass(frozen=True)
class FeatureDistillation:
    """Objective: mean KL(p || q) over response positions, p and q over the draft's K ids.

    ``constants`` is the target's head cut to those ids, [K, D]. ``greedy`` is
    the share of cross entropy with the likeliest id: what greedy drafts are judged by.
    """

    model: SubsetLM
    greedy: float = 0.0

    def __call__(self, params: Params, head: Array, batch: dict[str, Array]) -> Array:
        log_p, log_q = self.laws(params, head, batch)
        divergence = (jnp.exp(log_p) * (log_p - log_q)).sum(-1)
        surprise = -jnp.take_along_axis(log_q, log_p.argmax(-1)[:, None], axis=1)[:, 0]
        losses = (1 - self.greedy) * divergence + self.greedy * surprise
        return (losses * batch["weights"]).sum() / batch["weights"].sum()

    def laws(self, params: Params, head: Array, batch: dict[str, Array]) -> tuple[Array, Array]:
        """(log p, log q) [places, K]."""
        start = lambda tokens: self.model.init_cache(tokens.shape[0])
        row = lambda tokens: self.model.states(params, tokens, start(tokens))[0]
        states = jax.vmap(row)(batch["tokens"])
        states = states.reshape(-1, states.shape[-1])[batch["positions"]]
        log_q = jax.nn.log_softmax(self.model.scores(params, states))
        log_p = jax.nn.log_softmax(table_logits(head, batch["features"].astype(jnp.float32)))
        return log_p, log_q


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponsesTask:
    """Task: a :class:`SubsetLM` around ``recipe.model`` learns the target's law on ``training``."""

    recipe: Recipe
    vocab_size: int  # V, the target's
    start: Params
    head: Array
    training: ResponseRows
    held_out: ResponseRows
    greedy: float = 0.0

    def __post_init__(self) -> None:
        for name, rows in (("training", self.training), ("held-out", self.held_out)):
            if not rows.tokens or not self._plans(rows, 0):
                raise ValueError(
                    f"{len(rows.tokens)} {name} responses do not fill a batch of "
                    f"{self.recipe.stages[0].batch_size} rows of {self.recipe.stages[0].context} tokens"
                )
            if rows.features[0].shape[1] != self.head.shape[1]:
                raise ValueError(
                    f"features of {name} responses have {rows.features[0].shape[1]} numbers, "
                    f"the target's have {self.head.shape[1]}"
                )

    @property
    def objective(self) -> FeatureDistillation:
        model = SubsetLM(inner=from_config(self.recipe.model), vocab_size=self.vocab_size)
        return FeatureDistillation(model, self.greedy)

    @property
    def constants(self) -> Array:
        return self.head

    def init(self) -> Params:
        return jax.tree.map(jnp.array, self.start)  # a copy: training donates its state

    def batch(self, step: int) -> Batch:
        """Batches of passes that are each shuffled anew."""
        per_pass = len(self._plans(self.training, 0))
        plan = self._plans(self.training, step // per_pass)[step % per_pass]
        return self.training.take(plan.rows, plan.width, plan.places)

    def _plans(self, rows: ResponseRows, number: int) -> list[BatchPlan]:
        random = np.random.default_rng((self.recipe.seed, number))
        stage = self.recipe.stages[0]
        plans = plan_pass(rows, stage.batch_size * stage.context, random.permutation(len(rows.tokens)))
        return [plans[index] for index in random.permutation(len(plans))]

    @property
    def num_held_out_batches(self) -> int:
        """The most that ``recipe.evaluation_batches`` finds to evaluate on."""
        return len(self._plans(self.held_out, 0))

    def evaluate(self, params: Params) -> dict[str, float]:
        """KL, overlap sum min(p, q) and equal most likely tokens, means over held-out response tokens."""
        plans = self._plans(self.held_out, 0)[: self.recipe.evaluation_batches]
        batches = [self.held_out.take(plan.rows, plan.width, plan.places) for plan in plans]
        sums = [_figures(self.objective, params, self.head, batch) for batch in batches]
        total = {name: sum(float(s[name]) for s in sums) for name in sums[0]}
        tokens = total.pop("tokens")
        return {f"held_out_{name}": value / tokens for name, value in total.items()}


@functools.partial(jax.jit, static_argnums=0)
def _figures(
    objective: FeatureDistillation, params: Params, head: Array, batch: dict[str, Array]
) -> dict[str, Array]:
    log_p, log_q = objective.laws(params, head, batch)
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    by_name = {
        "kl": (p * (log_p - log_q)).sum(-1),
        "overlap": jnp.minimum(p, q).sum(-1),
        "agreement": log_p.argmax(-1) == log_q.argmax(-1),
        "tokens": jnp.ones_like(batch["weights"]),
    }
    return {name: (values * batch["weights"]).sum() for name, values in by_name.items()}


def cut_from_target(
    target: TransformerLM, params: Params, ids: np.ndarray, layers: Sequence[int]
) -> tuple[DecoderConfig, Params]:
    """A smaller model to start from: some layers of the target, and its embeddings of ``ids``.

    As DistilBERT begins (Sanh et al. 2019, arXiv 1910.01108, section 2).
    """
    fewer, kept = keep_layers(target, params, layers)
    config = dataclasses.replace(fewer.config, vocab_size=len(ids))
    return config, {**kept, "embed_tokens": kept["embed_tokens"][ids]}
