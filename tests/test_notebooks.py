"""Both notebooks run from the first cell to the last, on a tiny pair and a few tokens."""

import json
from pathlib import Path

import nbclient
import nbformat
import pytest

from specjax.data.tokenizers import train_tokenizer
from specjax.models import huggingface
from specjax.models.decoder import DecoderConfig
from specjax.models.language_model import from_config, init_params

REPOSITORY = Path(__file__).parent.parent
TEXTS = [
    "def area(width, height):\n    return width * height\n",
    "for item in items:\n    total += item.price\n",
    "while queue:\n    node = queue.pop()\n    visit(node)\n",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What the cell tagged "parameters" sets, for seconds instead of minutes."""
    root = tmp_path_factory.mktemp("notebooks")
    tokenizer = train_tokenizer(TEXTS, 280)
    for seed, name in enumerate(("target", "draft")):
        config = DecoderConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=128,
        )
        params = init_params(config, seed)
        huggingface.save(root / name, from_config(config), params, tokenizer, dtype="float32")
    prompts = root / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return {"TARGET": str(root / "target"), "DRAFT": str(root / "draft"), "PROMPTS": str(prompts)}


def run(name: str, parameters: dict) -> str:
    """All that the notebook printed; its install cells are left out."""
    notebook = nbformat.read(REPOSITORY / "experiments" / "colab" / name, as_version=4)
    tags = lambda cell: cell.metadata.get("tags", [])
    notebook.cells = [cell for cell in notebook.cells if "skip-execution" not in tags(cell)]
    (chosen,) = [cell for cell in notebook.cells if "parameters" in tags(cell)]
    names = {line.split("=")[0].strip() for line in chosen.source.splitlines()}
    assert {name for line in names for name in line.split(", ")} == parameters.keys()
    chosen.source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    quiet = "import jax; jax.config.update('jax_disable_most_optimizations', True)"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(quiet))
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(REPOSITORY)}}
    ).execute()
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


def test_quickstart(small, tmp_path):
    printed = run(
        "quickstart.ipynb",
        {
            "TARGET": small["TARGET"],
            "DRAFT": small["DRAFT"],
            "PROMPT": TEXTS[0],
            "NEW_TOKENS": 12,
            "GAMMA": 2,
            "SWEEP": {
                "gammas": (2,),
                "temperatures": (0.0,),
                "prompts": small["PROMPTS"],
                "num_prompts": 2,
                "max_new_tokens": 8,
                "cost_repeats": 2,
            },
            "WORKDIR": str(tmp_path / "run"),
        },
    )
    assert "12 tokens, identical" in printed
    assert "prompt_lookup gamma  2 T 0.0: tau " in printed


def test_pair_study(small, tmp_path):
    printed = run(
        "pair_study.ipynb",
        small
        | {
            "GAMMAS": (1, 2),
            "TEMPERATURES": (1.0,),
            "NUM_PROMPTS": 2,
            "NEW_TOKENS": 8,
            "DTYPE": "float32",
            "WORKDIR": str(tmp_path / "run"),
        },
    )
    assert "speedup_cost_model" in printed
    assert "T 1.0: alpha 0." in printed
