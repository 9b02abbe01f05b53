"""What ``transformers`` computes, for tests that run without it.

    pip install -e '.[peers]' && python -m tests.golden.make_golden

For two tiny random checkpoints (written here, by ``transformers``) and for the
embedded pair: the logits of fixed inputs and greedy outputs. For one tiny
checkpoint of each family: the logits alone. Run it again when the embedded
weights change.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

from experiments import fetched
from experiments import transformers_peer as peer
from experiments.models import PAIR
from experiments.plan import PROMPT_SETS
from specjax.data.prompts import read_jsonl
from specjax.data.tokenizers import load_tokenizer
from specjax.models.huggingface import weights_hash
from specjax.models.sources import open_checkpoint
from tests.golden.family_checkpoints import CHECKPOINTS as FAMILIES
from tests.golden.family_checkpoints import INPUT_LENGTH

HERE = Path(__file__).parent
NEW_TOKENS = 64
SMOLLM2, ASSISTANT = "smollm2-135m-instruct-q4_1", PROMPT_SETS["assistant"]
NUM_ANSWERS, EVERY = 6, 96  # prompts, and of the logits one in so many

SHARED = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Logits a few units apart, so that greedy decoding does not hang on rounding.
    "initializer_range": 0.3,
}
CHECKPOINTS = {
    "tied": {
        "intermediate_size": 48,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    # Heads wider than hidden_size / heads, and none of the defaults.
    "untied": {
        "intermediate_size": 40,
        "head_dim": 10,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    },
}

# Written for this repository; the embedded pair continues them.
PROMPTS = (
    'def read_lines(path):\n    """Return the lines of a text file."""\n    with open(path) as file:\n',
    "class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n",
    "import os\nimport sys\n\ndef main(argv=None):\n    if argv is None:\n",
    "def mean(values):\n    total = 0\n    for value in values:\n",
    "    def __repr__(self):\n        return ",
    "try:\n    import json\nexcept ImportError:\n",
    "def merge(left, right):\n    result = []\n    while left and right:\n        if left[0] < right[0]:\n",
    "# Split the name into words and\n# put them into a dictionary.\nwords = {}\n",
)


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    for seed, (name, settings) in enumerate(CHECKPOINTS.items()):
        peer.save_random(HERE / name, seed=seed, **SHARED, **settings)
        rng = np.random.default_rng(seed)
        inputs = rng.integers(SHARED["vocab_size"], size=(2, 48))
        prompts = [rng.integers(SHARED["vocab_size"], size=n).tolist() for n in (1, 2, 5, 9, 14, 20, 31, 32)]
        write(HERE / name, HERE / name, inputs, prompts, rows=slice(None))
    for name, folder in PAIR.items():
        if folder.is_dir():
            prompts = [load_tokenizer(folder).encode(text).ids for text in PROMPTS]
            shortest = min(map(len, prompts))
            inputs = np.array([ids[:shortest] for ids in prompts[:2]])
            write(HERE / f"embedded-{name}", folder, inputs, prompts, rows=slice(-1, None))
    for seed, (name, settings) in enumerate(FAMILIES.items()):
        folder = HERE / "families" / name
        peer.save_random(folder, seed=seed, dtype="bfloat16", **settings)
        (folder / "generation_config.json").unlink()
        inputs = np.random.default_rng(seed).integers(settings["vocab_size"], size=INPUT_LENGTH)
        logits = peer.logits(peer.load(folder), inputs)
        np.savez_compressed(folder.with_suffix(".npz"), inputs=inputs.astype(np.int32), logits=logits)

    write_smollm2()


def write_smollm2() -> None:
    """smollm2.npz: greedy answers to the prompts of the package, and some logits at the end of each."""
    folder = fetched.locate(SMOLLM2)
    model, checkpoint = peer.load(folder), open_checkpoint(folder)
    template, tokenizer = checkpoint.chat_template(), checkpoint.tokenizer()
    texts = [template.render([{"role": "user", "content": each.text}]) for each in read_jsonl(str(ASSISTANT))]
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts[:NUM_ANSWERS]]
    np.savez_compressed(
        HERE / "smollm2.npz",
        lengths=np.array([len(ids) for ids in prompts], np.int32),
        prompts=np.concatenate(prompts).astype(np.int32),
        logits=np.stack([peer.logits(model, ids)[-1, ::EVERY] for ids in prompts]),
        outputs=np.stack([peer.generate(model, ids, NEW_TOKENS).tokens for ids in prompts]),
        weights_hash=weights_hash(folder),
    )


def write(path: Path, folder: Path, inputs: np.ndarray, prompts: list[list[int]], rows: slice) -> None:
    """``path``.npz: logits of ``inputs`` [N, T] at the positions ``rows``; prompts and their outputs."""
    model = peer.load(folder)
    outputs = [peer.generate(model, prompt, NEW_TOKENS).tokens for prompt in prompts]
    padded = np.zeros((len(prompts), max(map(len, prompts))), np.int32)
    for row, prompt in zip(padded, prompts):
        row[: len(prompt)] = prompt
    np.savez_compressed(
        path.with_suffix(".npz"),
        inputs=inputs.astype(np.int32),
        logits=np.stack([peer.logits(model, ids)[rows] for ids in inputs]),
        prompts=padded,
        lengths=np.array([len(prompt) for prompt in prompts], np.int32),
        outputs=np.stack(outputs),
        weights_hash=weights_hash(folder),
    )


if __name__ == "__main__":
    main()
