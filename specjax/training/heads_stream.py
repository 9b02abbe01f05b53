"""Responses as one stream of (hidden state, labels): what heads are trained and judged on.

The feature of response token t is the hidden state its law came from, so head
i at it has the label response[t + 1 + i]. Responses lie one after another and
every window is told where they end: no label crosses into another response.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Protocol

from etils import epath
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from specjax.models.language_model import TransformerLM
from specjax.training.responses import features_path, read_lines
from specjax.training.responses_distillation import read_features
from specjax.trees.label_ranks import NONE
from specjax.types import Array, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Response:
    """One answer of the target."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    temperature: float


class Features(Protocol):
    """Hidden states of response tokens, by their place in the stream."""

    def rows(self, places: np.ndarray) -> np.ndarray:
        """[..., D] bfloat16 of ``places`` [...] int."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachedFeatures:
    """Those that were kept when the responses were written."""

    features: np.ndarray  # [N, D] bfloat16

    def rows(self, places: np.ndarray) -> np.ndarray:
        return self.features[places]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ComputedFeatures:
    """Those the target gives when it reads the responses again, computed for each batch anew."""

    target: TransformerLM  # with one tap
    params: Params
    responses: Sequence[Response]

    def rows(self, places: np.ndarray) -> np.ndarray:
        ends = np.cumsum([len(response.tokens) for response in self.responses])
        owner = np.searchsorted(ends, places, side="right")
        out = np.zeros((*places.shape, self.target.config.hidden_size), ml_dtypes.bfloat16)
        for number in np.unique(owner):
            response, mine = self.responses[number], owner == number
            start = ends[number] - len(response.tokens)
            out[mine] = self._of(response)[places[mine] - start]
        return out

    def _of(self, response: Response) -> np.ndarray:
        """[number of response tokens, D]; the last one is predicted, not read."""
        read = [*response.prompt, *response.tokens[:-1]]
        padded = np.zeros(-(-len(read) // 64) * 64, np.int32)
        padded[: len(read)] = read
        features = _hidden_states(self.target, self.params, padded)
        return np.asarray(features)[len(response.prompt) - 1 : len(read)]


def _hidden_states_of(target: TransformerLM, params: Params, tokens: Array) -> Array:
    (features,) = target.apply(params, tokens, target.init_cache(tokens.shape[0])).features
    return features.astype(jnp.bfloat16)


_hidden_states = jax.jit(_hidden_states_of, static_argnums=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponseStream:
    """All response tokens of some files, one after another."""

    tokens: np.ndarray  # [N] int32, ids of the target
    response: np.ndarray  # [N] int32: which response each is of
    features: Features

    def __len__(self) -> int:
        return len(self.tokens)

    def window(self, starts: np.ndarray, width: int, num_heads: int) -> tuple[np.ndarray, np.ndarray]:
        """(features [B, width + num_heads, D], labels [B, width, num_heads]) from ``starts`` [B] on.

        Position w of a window reads its first ``width`` features; those after
        are what the laws of its labels came from. A label past the end of its
        response is NONE; places past the end of the stream have no labels.
        """
        places = starts[:, None] + np.arange(width + num_heads + 1)
        last = len(self.tokens) - 1
        owner = np.where(places <= last, self.response[np.minimum(places, last)], NONE)
        ids = self.tokens[np.minimum(places, last)]
        at = np.arange(width)[:, None] + 1 + np.arange(num_heads)  # [width, num_heads]: place of each label
        same = (owner[:, at] == owner[:, :width, None]) & (owner[:, at] != NONE)
        labels = np.where(same, ids[:, at], NONE).astype(np.int32)
        return self.features.rows(np.minimum(places[:, : width + num_heads], last)), labels


def read_responses(
    files: Sequence[epath.Path], vocab_size: int, temperatures: Sequence[float] = ()
) -> tuple[list[Response], np.ndarray]:
    """(responses, features [N, D] bfloat16) of ``files``, at ``temperatures`` alone if any are named.

    ValueError for an id beyond ``vocab_size`` (another tokenizer's) and for
    files without one feature for each token.
    """
    responses: list[Response] = []
    features: list[np.ndarray] = []
    for path in files:
        lines = read_lines(path)
        rows = read_features(features_path(path))
        counts = [len(line["response_tokens"]) for line in lines]
        if sum(counts) != len(rows):
            raise ValueError(f"{path}: {sum(counts)} response tokens, but {len(rows)} features beside it")
        for line, end in zip(lines, np.cumsum(counts)):
            prompt, tokens = tuple(line["prompt_tokens"]), tuple(line["response_tokens"])
            if (highest := max((*prompt, *tokens), default=0)) >= vocab_size:
                raise ValueError(
                    f"{path}: id {highest}, but the target's are 0..{vocab_size - 1}; "
                    "these are responses of another tokenizer"
                )
            near = [abs(line["temperature"] - temperature) < 1e-4 for temperature in temperatures]
            if tokens and (any(near) or not temperatures):
                responses.append(Response(prompt=prompt, tokens=tokens, temperature=line["temperature"]))
                features.append(rows[end - len(tokens) : end])
    if not responses:
        raise ValueError(f"no response at temperatures {tuple(temperatures)} in {len(files)} files")
    return responses, np.concatenate(features)


def make_stream(responses: Sequence[Response], features: Features) -> ResponseStream:
    """The stream of ``responses``, whose features lie in their order."""
    counts = [len(response.tokens) for response in responses]
    return ResponseStream(
        tokens=np.concatenate([np.asarray(response.tokens, np.int32) for response in responses]),
        response=np.repeat(np.arange(len(responses), dtype=np.int32), counts),
        features=features,
    )
