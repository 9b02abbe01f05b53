"""Packed windows of a token stream: a pure function of (seed, step), so resuming needs the step alone."""

from __future__ import annotations

import dataclasses

import grain
import numpy as np
from tokenizers import Tokenizer

from specjax.data.corpora import Corpus
from specjax.data.tokenizers import END_OF_TEXT


def token_stream(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """All modules one after another, [N] int32, each preceded by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encodings = tokenizer.encode_batch([module.text for module in corpus.modules])
    return np.concatenate([np.asarray([end, *encoding.ids], np.int32) for encoding in encodings])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows:
    """Every length-``width`` piece of ``stream`` [N] from ``offset`` on, without overlap of labels.

    Neighbours share one token: the last label of one is the first input of the next.
    """

    stream: np.ndarray
    width: int
    offset: int = 0

    def __len__(self) -> int:
        return max(0, (len(self.stream) - self.offset - 1) // (self.width - 1))

    def __getitem__(self, index: int) -> np.ndarray:
        start = self.offset + index * (self.width - 1)
        return self.stream[start : start + self.width]


def training_batches(
    stream: np.ndarray,
    *,
    context: int,
    batch_size: int,
    num_steps: int,
    seed: int,
    rows: np.ndarray | None = None,
) -> grain.MapDataset:
    """``dataset[step]`` -> [batch_size, context + 1] int32, for steps 0 to num_steps - 1.

    Each pass over the stream starts at an offset of its own and is shuffled
    anew, together with ``rows`` [R, context + 1]; windows of one pass never
    repeat.
    """
    if rows is not None and rows.shape[1] != context + 1:
        raise ValueError(f"rows have {rows.shape[1]} tokens; a context of {context} needs {context + 1}")
    offsets = np.random.default_rng(seed)
    passes: list[Windows] = []
    num_windows = 0
    while num_windows < num_steps * batch_size:
        windows = Windows(stream=stream, width=context + 1, offset=int(offsets.integers(context)))
        if not len(windows):
            raise ValueError(f"no window of {context + 1} tokens in a stream of {len(stream)}")
        sources = [windows] if rows is None else [windows, rows]
        one_pass = grain.MapDataset.concatenate([grain.MapDataset.source(source) for source in sources])
        passes.append(one_pass.shuffle(seed=seed + len(passes)))
        num_windows += len(one_pass)
    return grain.MapDataset.concatenate(passes).batch(batch_size, drop_remainder=True)


def evaluation_batches(stream: np.ndarray, *, context: int, batch_size: int, num_batches: int) -> np.ndarray:
    """Windows spread evenly over ``stream``, [num_batches, batch_size, context + 1], always the same."""
    windows = Windows(stream=stream, width=context + 1)
    count = num_batches * batch_size
    if len(windows) < count:
        raise ValueError(f"{count} windows of {context + 1} tokens asked, {len(windows)} in the stream")
    picks = np.linspace(0, len(windows) - 1, count).round().astype(int)
    return np.stack([windows[int(index)] for index in picks]).reshape(num_batches, batch_size, context + 1)
