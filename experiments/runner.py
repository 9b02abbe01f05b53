"""Decoding a group of cells, timed: prompt by prompt, one baseline and then each gamma.

Baseline and speculative runs alternate in one process, so that both see the
same machine; compilation happens before, prefill is timed apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments import memory
from experiments.catalogue import LoadedDrafter
from experiments.models import LoadedModel
from experiments.settings import PROCESSORS, SweepSettings
from specjax.analysis import trace
from specjax.analysis.records import PromptRecord
from specjax.analysis.trace import DecodeTrace
from specjax.decoding.generate import decode_donated, prefill
from specjax.decoding.program import Program, buffer_length
from specjax.drafters.cascade import Cascade
from specjax.processors import make_processors
from specjax.request import make_request
from specjax.sharding import mesh_of, place_batch
from specjax.testing.parity import divergences, margin
from specjax.trees.contracts import TreeRule
from specjax.types import DecodeState, Params, ProcessorParams, Request, Rule

SMALLEST_PROMPT_BUCKET = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Prompts decoded together, right-padded; rows past ``len(index)`` are padding that is done at once."""

    number: int
    index: tuple[int, ...]  # of the prompts in the prompt set
    tokens: np.ndarray  # [B, P] int32
    lengths: np.ndarray  # [B] int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """A finished decode on the host, and what it took."""

    state: DecodeState  # leaves [B, ...]; without caches
    seconds: float
    prefill_seconds: float
    catch_up_steps: np.ndarray  # [B] int32

    def tokens(self, row: int) -> np.ndarray:
        """Prompt and output of one row."""
        return np.asarray(self.state.tokens[row, : self.state.length[row]])


def max_len(prompts: Sequence[Sequence[int]], settings: SweepSettings) -> int:
    """S of every buffer of a sweep: its longest prompt, its output and slack, in steps of 32."""
    longest = max(len(ids) for ids in prompts)
    needed = buffer_length(longest, settings.max_new_tokens, max(settings.gammas))
    return -(-needed // 32) * 32


def buffer_sizes(prompts: Sequence[Sequence[int]], settings: SweepSettings) -> dict[str, int]:
    """What every program of a sweep has in common, as keywords of :func:`make_program`."""
    return {"max_len": max_len(prompts, settings), "max_gamma": max(settings.gammas)}


def make_batches(prompts: Sequence[Sequence[int]], batch_size: int) -> list[Batch]:
    """Consecutive prompts, in prompt-length buckets of 128, 256, 512, ... tokens (or the longest prompt)."""
    longest = max(len(ids) for ids in prompts)
    batches: list[Batch] = []
    for start in range(0, len(prompts), batch_size):
        index = tuple(range(start, min(start + batch_size, len(prompts))))
        width = SMALLEST_PROMPT_BUCKET
        while width < max(len(prompts[i]) for i in index):
            width *= 2
        tokens = np.zeros((batch_size, min(width, longest)), np.int32)
        lengths = np.ones(batch_size, np.int32)
        for row, i in enumerate(index):
            tokens[row, : len(prompts[i])] = prompts[i]
            lengths[row] = len(prompts[i])
        batches.append(Batch(number=len(batches), index=index, tokens=tokens, lengths=lengths))
    return batches


def request_for(
    batch: Batch,
    settings: SweepSettings,
    temperature: float,
    stop_tokens: Sequence[int],
    repeat: int = 0,
    max_new_tokens: int | None = None,
) -> Request:
    """A row's seed depends on the sweep's seed, the repeat and the prompt, never on the batch."""
    rows, padding = len(batch.index), len(batch.lengths) - len(batch.index)
    new = settings.max_new_tokens if max_new_tokens is None else max_new_tokens
    seeds = [np.random.SeedSequence([settings.seed, repeat, i]).generate_state(1)[0] for i in batch.index]
    return make_request(
        prompt_length=batch.lengths,
        max_new_tokens=np.array([new] * rows + [0] * padding),
        seed=np.array(seeds + [0] * padding, np.uint32),
        temperature=temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        processors=processors_for(settings),
        stop_tokens=list(stop_tokens) if settings.stop_at_eos else (),
    )


def processors_for(settings: SweepSettings) -> ProcessorParams | None:
    """None where every setting is its default: then nothing of them is compiled in."""
    neutral = SweepSettings()
    changed = {key: getattr(settings, key) for key in PROCESSORS}
    if all(value == getattr(neutral, key) for key, value in changed.items()):
        return None
    return make_processors(**changed | {"logit_bias": dict(settings.logit_bias)})


def make_program(
    target: LoadedModel,
    drafter: LoadedDrafter,
    rule: Rule | TreeRule,
    gamma: int,
    *,
    max_len: int,
    max_gamma: int,
) -> Program:
    """The program of one cell; buffers do not depend on its gamma."""
    return Program(
        target=target.model,
        drafter=drafter.drafter,
        rule=rule,
        gammas=drafter.buckets(gamma),
        max_gamma=max_gamma,
        max_len=max_len,
    )


def decode_timed(program: Program, params: tuple[Params, Params], batch: Batch, request: Request) -> Timed:
    """Prefill and decode, each blocked until ready."""
    tokens, request = jax.block_until_ready(place_batch(jnp.asarray(batch.tokens), request, mesh_of(params)))
    start = time.perf_counter()
    state = jax.block_until_ready(prefill(program, params, tokens, request))
    middle = time.perf_counter()
    state = jax.block_until_ready(decode_donated(program, params, request, state))
    end = time.perf_counter()
    steps = state.draft_state[1].catch_up_steps if isinstance(program.drafter, Cascade) else 0
    kept = dataclasses.replace(state, target_cache=(), draft_state=())
    return Timed(
        state=jax.device_get(kept),
        seconds=end - middle,
        prefill_seconds=middle - start,
        catch_up_steps=np.broadcast_to(steps, batch.lengths.shape),
    )


def warm_up(program: Program, params: tuple[Params, Params], batch: Batch, request: Request) -> float:
    """Compiles a program for the shapes of ``batch`` and runs it once; the seconds that took.

    ``request`` should ask for one or two tokens: what is timed is then, nearly
    all of it, tracing and compiling, or reading the compilation cache.
    """
    start = time.perf_counter()
    decode_timed(program, params, batch, request)
    seconds = time.perf_counter() - start
    memory.trim()
    return seconds


def row_records(
    timed: Timed,
    baseline: Timed,
    batch: Batch,
    repeat: int,
    *,
    buckets: tuple[int, ...],
    categories: Sequence[str],
) -> Iterator[PromptRecord]:
    """One record per real row of a batch; each carries its share of the batch's wall time."""
    rows = len(batch.index)
    new_tokens = lambda run, row: int(run.state.length[row] - batch.lengths[row])
    for row, prompt in enumerate(batch.index):
        yield PromptRecord.from_statistics(
            jax.tree.map(lambda leaf, row=row: leaf[row], timed.state.statistics),
            buckets=buckets,
            prompt=prompt,
            batch=batch.number,
            repeat=repeat,
            category=categories[prompt],
            num_tokens=new_tokens(timed, row),
            catch_up_steps=int(timed.catch_up_steps[row]),
            seconds=timed.seconds / rows,
            prefill_seconds=timed.prefill_seconds / rows,
            baseline_seconds=baseline.seconds / rows,
            baseline_tokens=new_tokens(baseline, row),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """A row beside plain decoding's of the same prompt."""

    identical: bool  # in tokens and in length
    # Of the two best tokens where they part; None where they do not, or where their draws differ anyway
    margin: float | None = None


def agreements(
    timed: Timed, baseline: Timed, batch: Batch, request: Request, target: LoadedModel, *, comparable: bool
) -> list[Agreement]:
    """One a real row. ``comparable`` says that both draw the same tokens by construction."""
    parted = {each.row: each for each in divergences(baseline.state, timed.state)}
    gap = lambda row: margin(target.model, target.params, request, baseline.state, parted[row])
    return [
        Agreement(identical=row not in parted, margin=gap(row) if comparable and row in parted else None)
        for row in range(len(batch.index))
    ]


def first_trace(timed: Timed, target: LoadedModel, title: str) -> DecodeTrace:
    """The decode of the first row, token by token."""
    text = lambda token: target.tokenizer.decode([token], skip_special_tokens=False)
    origins = jax.tree.map(lambda leaf: leaf[0], timed.state.trace)
    return trace.from_arrays(timed.state.tokens[0], timed.state.length[0], origins, text, title=title)
