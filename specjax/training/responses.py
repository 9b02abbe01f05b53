"""Responses the target itself writes, as training text, with the features their laws came from.

A draft is judged on the target's own text, so that is what it should see
(DistillSpec, Zhou et al. 2023, arXiv 2310.08461, section 4). The target's last
hidden states are kept as it decodes: through its head they give back every
law without another pass. A batch whose file exists is never sampled again, so
a killed run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import json
import math

from etils import epath
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from specjax.acceptance.rejection import Rejection
from specjax.decoding.generate import generate
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.recorder import Recorder
from specjax.models.language_model import TransformerLM
from specjax.request import make_request
from specjax.types import Params

LINE = ("id", "temperature", "prompt_tokens", "response_tokens")  # keys of a response on disk


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """A prompt as the target reads it, chat template included."""

    id: str
    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How responses are sampled. Everything here decides the text."""

    temperatures: tuple[float, ...]  # rows take turns
    max_new_tokens: int
    batch_size: int
    prompt_multiple: int = 64  # prompts are padded to multiples, so few shapes are compiled
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size", "prompt_multiple"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is below 1, the smallest valid value")
        numbers = [t for t in self.temperatures if isinstance(t, int | float) and 0 <= t < math.inf]
        if not numbers or len(numbers) < len(self.temperatures):
            raise ValueError(f"temperatures {self.temperatures} must be numbers of at least 0, one or more")


def make_batches(prompts: Sequence[PromptTokens], sampling: Sampling) -> list[list[PromptTokens]]:
    """Prompts of like length together, the batches in random order; a last short batch is left out.

    >>> prompts = [PromptTokens(id=str(n), tokens=(0,) * n) for n in (9, 1, 2, 8)]
    >>> sampling = Sampling(temperatures=(1.0,), max_new_tokens=4, batch_size=2)
    >>> sorted([prompt.id for prompt in batch] for batch in make_batches(prompts, sampling))
    [['1', '2'], ['8', '9']]
    """
    by_length = sorted(prompts, key=lambda prompt: (len(prompt.tokens), prompt.id))
    size = sampling.batch_size
    batches = [by_length[start : start + size] for start in range(0, len(by_length) - size + 1, size)]
    order = np.random.default_rng(sampling.seed).permutation(len(batches))
    return [batches[index] for index in order]


def respond(
    model: TransformerLM,
    params: Params,
    batches: Sequence[Sequence[PromptTokens]],
    sampling: Sampling,
    stop_tokens: Sequence[int],
    folder: epath.Path,
) -> Iterator[int]:
    """Samples the batches that have no file yet; yields the response tokens of every batch in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches):
        path = folder / f"responses-{number:05d}.jsonl"
        if not path.exists():
            lines, features = _sample(model, params, batch, sampling, stop_tokens, number)
            safetensors.numpy.save_file({"features": features}, features_path(path))
            unfinished = folder / f"{path.name}.part"
            unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines))
            unfinished.rename(path)  # the last thing: its existence says that the batch is whole
        yield sum(len(line["response_tokens"]) for line in read_lines(path))


def read_lines(path: epath.Path) -> list[dict]:
    """The responses of a file; ValueError names it and the line that is none."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {error}") from None
        absent = [key for key in LINE if key not in line] if isinstance(line, dict) else LINE
        if absent:
            raise ValueError(f"{path}, line {number} is no response: it lacks {', '.join(absent)}")
        for key in ("prompt_tokens", "response_tokens"):
            if not isinstance(line[key], list) or not all(type(t) is int and t >= 0 for t in line[key]):
                raise ValueError(f"{path}, line {number}: {key} must be a list of token ids")
        lines.append(line)
    return lines


def features_path(path: epath.Path) -> epath.Path:
    """Beside a file of responses: "features" [N, D] bfloat16, the response tokens of its lines in order."""
    return path.parent / path.name.replace("responses-", "features-").replace(".jsonl", ".safetensors")


def _sample(
    model: TransformerLM,
    params: Params,
    batch: Sequence[PromptTokens],
    sampling: Sampling,
    stop_tokens: Sequence[int],
    number: int,
) -> tuple[list[dict], np.ndarray]:
    lengths = np.array([len(prompt.tokens) for prompt in batch])
    width = -(-int(lengths.max()) // sampling.prompt_multiple) * sampling.prompt_multiple
    prompts = np.zeros((len(batch), width), np.int32)
    for row, prompt in zip(prompts, batch):
        row[: len(prompt.tokens)] = prompt.tokens
    rows = number * len(batch) + np.arange(len(batch))
    temperatures = np.asarray(sampling.temperatures, np.float32)[rows % len(sampling.temperatures)]
    request = make_request(
        prompt_length=lengths,
        max_new_tokens=sampling.max_new_tokens,
        seed=(sampling.seed * 1_000_003 + rows) % 2**32,
        temperature=temperatures,
        stop_tokens=stop_tokens,
    )
    program = Program(
        target=dataclasses.replace(model, taps=("final",)),
        drafter=Recorder(width=model.config.hidden_size),
        rule=Rejection(),
        max_len=buffer_length(width, sampling.max_new_tokens, 0),
    )
    state = generate(program, (params, ()), jnp.asarray(prompts), request)
    tokens, ends, features = map(np.asarray, (state.tokens, state.length, state.draft_state))
    lines = [
        {
            "id": prompt.id,
            "temperature": float(temperature),
            "prompt_tokens": list(prompt.tokens),
            "response_tokens": row[length:end].tolist(),
        }
        for prompt, temperature, row, length, end in zip(batch, temperatures, tokens, lengths, ends)
    ]
    spans = [row[length:end] for row, length, end in zip(features, lengths, ends)]
    return lines, np.concatenate(spans)
