"""The other implementation: greedy decoding by ``transformers``, the way its users call it.

Needs the ``peers`` extra. Float32, batch 1, key/value cache on, and no stop
token, so that every decode has the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import time
from typing import Any

from etils import epath
import numpy as np
import safetensors.torch
import torch
import transformers

from specjax.models import subset


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerDecode:
    """One greedy decode."""

    tokens: np.ndarray  # [N] int32: the output without its prompt
    seconds: float  # of the whole call, prefill included
    scored: tuple[int, ...]  # tokens fed to the target in each of its steps


def load(folder: epath.PathLike) -> Any:
    """The causal LM of a folder, in float32 on the CPU, without stop tokens."""
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    vocabulary = epath.Path(folder) / subset.FILE
    if vocabulary.exists():
        _widen(model, safetensors.torch.load(vocabulary.read_bytes()))
    model.generation_config.update(eos_token_id=None, pad_token_id=None)
    return model


def _widen(model: Any, vocabulary: dict[str, torch.Tensor]) -> None:
    """Has a model of K ids read and write all V of its target's (:mod:`specjax.models.subset`)."""
    read, write = vocabulary["read"].long(), vocabulary["write"].long()
    rare = tuple(vocabulary[name].float() for name in subset.RARE if name in vocabulary)

    class Embedding(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            known, frequent = read[ids], len(self.inner.weight)
            found = self.inner(known.clamp(max=frequent - 1))
            if not rare:
                return found
            rows, basis = rare
            return torch.where(
                (known >= frequent)[..., None], rows[(known - frequent).clamp(min=0)] @ basis, found
            )

    class Head(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            known = [self.inner(x)]
            if rare:
                rows, basis = rare
                known.append(x @ basis.T @ rows.T)
            outside = torch.full((*x.shape[:-1], 1), float("-inf"))
            return torch.cat([*known, outside], dim=-1)[..., write]

    model.model.embed_tokens, model.lm_head = Embedding(model.model.embed_tokens), Head(model.lm_head)
    model.config.vocab_size = len(read)


def logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    """[T, V] float32 of one pass over ``ids`` [T]."""
    with torch.inference_mode():
        return model(torch.tensor([list(ids)])).logits[0].numpy()


def generate(
    target: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    assistant: Any = None,
    prompt_lookup: bool = False,
    gamma: int = 0,
) -> PeerDecode:
    """Plain greedy decoding, or with ``gamma`` tokens a round from ``assistant`` or by prompt lookup.

    The assistant drafts exactly gamma (constant schedule, no confidence
    threshold) until the end of the output is nearer than that.
    """
    drafting = {}
    if assistant is not None:
        # These reach the assistant through its own generation config alone.
        assistant.generation_config.update(
            num_assistant_tokens=gamma,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        drafting = {"assistant_model": assistant}
    elif prompt_lookup:
        drafting = {"prompt_lookup_num_tokens": gamma, "max_matching_ngram_size": 3}
    ids = torch.tensor([list(prompt)])
    with _scored_tokens(target) as scored:
        start = time.perf_counter()
        output = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            **drafting,
        )
        seconds = time.perf_counter() - start
    tokens = output[0, len(prompt) :].numpy().astype(np.int32)
    return PeerDecode(tokens=tokens, seconds=seconds, scored=tuple(scored))


def save_random(
    folder: epath.PathLike, *, seed: int, model_type: str = "llama", dtype: str = "float32", **settings: Any
) -> None:
    """A random checkpoint written by ``transformers`` itself; ``settings`` are of the family's config class.

    Every tensor is random, norms and biases too: one that is ignored or swapped shows in the logits.
    """
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:  # around 1 or 0, as the family's formula has it
                middle = weight[0].item()
                weight.uniform_(middle - 0.5, middle + 0.5)
    model.to(getattr(torch, dtype)).save_pretrained(str(folder))


@contextlib.contextmanager
def _scored_tokens(model: Any) -> Iterator[list[int]]:
    """Collects how many tokens each forward pass is fed."""
    scored: list[int] = []
    note = lambda module, args, kwargs: scored.append(kwargs["input_ids"].shape[1])
    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield scored
    finally:
        handle.remove()
