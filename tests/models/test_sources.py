"""Folders and the hub: corrupt files, sharded ones, where tensors are read and how much memory that takes."""

import dataclasses
import functools
import json
import os
import struct
import subprocess
import sys

from etils import epath
import huggingface_hub
from huggingface_hub import errors
import jax
import numpy as np
import pytest

from specjax.data.chat import ChatTemplate
from specjax.data.tokenizers import train_tokenizer
from specjax.models import families, huggingface, safetensors_file, sources
from specjax.models.checkpoint import Identity, StoredTensor
from specjax.models.config import DecoderConfig
from specjax.models.convert import convert
from specjax.models.folder import PROVENANCE, Folder
from specjax.models.language_model import from_config, init_params

CONFIG = DecoderConfig(
    vocab_size=280,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=64,
)
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path):
    shapes, random = jax.eval_shape(lambda: init_params(CONFIG, 0)), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes)
    tokenizer = train_tokenizer(["def f(x):\n    return x\n"], vocab_size=280)
    huggingface.save(tmp_path / "tiny", from_config(CONFIG), params, tokenizer, dtype="float32")
    return tmp_path / "tiny"


def refusal(source):
    with pytest.raises(ValueError) as caught:
        huggingface.load(source)
    return str(caught.value)


def rewrite(folder, header=None, data=None):
    """The weights with another header (a function of the old one) or other data."""
    content = (folder / WEIGHTS).read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    text = content[8 : 8 + size]
    if header is not None:
        text = header(json.loads(text))
        text = text if isinstance(text, bytes) else json.dumps(text).encode()
    data = content[8 + size :] if data is None else data(content[8 + size :])
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(name, **changes):
    return lambda header: header | {name: header[name] | changes}


LAST = "model.norm.weight"


@pytest.mark.parametrize(
    ("header", "data", "told"),
    [
        (None, lambda data: data[:-8], f"is cut short: {LAST} ends at byte"),
        (None, lambda data: data + b"more", "4 bytes follow its tensors"),
        (lambda header: b"{not json", None, "its header is not JSON"),
        (lambda header: b"[1]", None, "its header is a list"),
        (lambda header: header | {LAST: 3}, None, f"the entry of {LAST} is 3"),
        (entry(LAST, shape=[-8]), None, f"the entry of {LAST} is"),
        (entry(LAST, shape=[9]), None, f"{LAST} (9,) takes 36 bytes"),
        (entry(LAST, data_offsets=[0, 32]), None, "takes"),
        (entry(LAST, dtype="F8_E4M3"), None, f"{LAST} is F8_E4M3, not one of BF16"),
        (
            lambda header: {name: value for name, value in header.items() if name != LAST},
            None,
            "32 bytes follow its tensors",
        ),
    ],
)
def test_corrupt_safetensors(folder, header, data, told):
    rewrite(folder, header, data)
    assert told in refusal(folder)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "its header cannot have 0 bytes"),
        (b"abc", "its header cannot have 0 bytes"),
        (struct.pack("<Q", 2**60), "its header cannot have"),
        (struct.pack("<Q", 500) + b"{}", "is cut short: its header ends at byte 508, the file at 10"),
    ],
)
def test_files_without_a_header(folder, content, told):
    (folder / WEIGHTS).write_bytes(content)
    assert told in refusal(folder)


def test_one_tensor_in_two_files(folder):
    (folder / "more.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": WEIGHTS, "b": "more.safetensors"}})
    )
    assert "stored in another file as well" in refusal(folder)


def test_opening_reads_no_tensor(folder, monkeypatch):
    read = []
    view = safetensors_file._view
    monkeypatch.setattr(safetensors_file, "_view", lambda *span: read.append(span) or view(*span))
    checkpoint = sources.open_checkpoint(folder)
    assert len(checkpoint.tensors) == 11 and not read
    assert isinstance(checkpoint.tensors[LAST].read(), np.ndarray) and len(read) == 1


def test_names_that_are_sources(folder):
    assert all(map(sources.is_source, ["hf://org/name", "./x", "m.gguf", str(folder)]))
    assert not any(map(sources.is_source, ["target", "smollm2-135m-instruct"]))
    assert "is a file; a model is a folder" in refusal(folder / "config.json")


def test_conversion_round_trip(folder, tmp_path):
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    identity = Identity(source="somewhere", revision="1", quantization="Q4_1", sha256="ab")
    out = tmp_path / "out"
    names = convert(Folder(folder), out, "float32", identity)
    next(names)
    assert not out.exists()  # until the last tensor is there
    assert len(list(names)) == 10
    made = Folder(out)
    assert made.identity == identity and made.stop_tokens() == (0, 7)
    assert made.chat_template() == ChatTemplate(
        text="{{ messages[0].content }}", bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    assert made.tokenizer().to_str() == Folder(folder).tokenizer().to_str()
    assert made.weights_hash() == Folder(folder).weights_hash()  # the reference implementation's bytes
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(out)[1], huggingface.load(folder)[1])


def test_provenance_must_be_readable(folder):
    assert Folder(folder).identity == Identity(source="tiny")
    (folder / PROVENANCE).write_text(json.dumps({"source": "x", "sha256": 3}))
    with pytest.raises(ValueError, match="must name its source"):
        _ = Folder(folder).identity


def test_templates_of_a_tokenizer_config(folder):
    path = folder / "tokenizer_config.json"
    stated = json.loads(path.read_text()) | {"bos_token": {"content": "<s>"}, "eos_token": None}
    for template, text in (
        (None, None),
        ("a", "a"),
        ([{"name": "tool_use", "template": "b"}, {"name": "default", "template": "c"}], "c"),
    ):
        path.write_text(json.dumps(stated | {"chat_template": template}))
        found = Folder(folder).chat_template()
        assert found == (text and ChatTemplate(text=text, bos_token="<s>", eos_token=""))
    path.write_text(json.dumps(stated | {"chat_template": [{"name": "rag", "template": "b"}]}))
    with pytest.raises(ValueError, match="no 'default' among"):
        Folder(folder).chat_template()


class Hub:
    """Stands in for the client: gives a folder, or fails like the real one."""

    def __init__(self, monkeypatch, result):
        self.calls, self.result = [], result
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self)

    def __call__(self, name, **options):
        self.calls.append((name, options["revision"]))
        if isinstance(self.result, Exception):
            raise self.result
        return str(self.result)


def http_error(kind):
    """An error of the client without the response it would carry."""
    error = kind.__new__(kind)
    Exception.__init__(error, "404 Client Error")
    return error


def test_the_hub_pins_the_commit_it_found(folder, monkeypatch):
    snapshot = folder.rename(folder.parent / ("ab12" * 10))
    hub = Hub(monkeypatch, snapshot)
    checkpoint = sources.open_checkpoint("hf://org/na.me@v1.0/x")
    assert hub.calls == [("org/na.me", "v1.0/x")]
    assert checkpoint.identity == Identity(source="hf://org/na.me", revision="ab12" * 10)
    assert huggingface.load("hf://org/na.me")[0].config == CONFIG
    assert hub.calls[-1] == ("org/na.me", None)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (http_error(errors.RepositoryNotFoundError), "hf://org/name: no such repository, or a private one"),
        (http_error(errors.GatedRepoError), "hf://org/name@v9 is gated: ask for access"),
        (http_error(errors.RevisionNotFoundError), "hf://org/name has no revision 'v9'"),
        (
            errors.LocalEntryNotFoundError("ConnectError: no route"),
            "the hub cannot be reached, and its cache",
        ),
        (ConnectionError("no route"), "the hub cannot be reached, and its cache lacks the files (no route)"),
    ],
)
def test_what_the_hub_refuses(monkeypatch, error, told):
    Hub(monkeypatch, error)
    assert told in refusal("hf://org/name@v9")


@pytest.mark.parametrize("source", ["hf://name", "hf://a/b/c", "hf://org/name@", "hf:///name"])
def test_malformed_names_ask_nobody(monkeypatch, source):
    hub = Hub(monkeypatch, AssertionError("asked"))
    assert "is not of the form hf://org/name" in refusal(source)
    assert not hub.calls


# The most anonymous memory during load(), sampled by a thread; pages of the mapped file do not count.
PEAK = """
import re, sys, threading
from specjax.models import huggingface

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

huggingface.load(sys.argv[1], "bfloat16")  # and dropped: whatever is set up once
before, peak, ended = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not ended.wait(0.001):
        peak = max(peak, anonymous())

thread = threading.Thread(target=watch); thread.start()
model, params = huggingface.load(sys.argv[1], "bfloat16")
ended.set(); thread.join()
print(max(peak, anonymous()) - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_import_takes_little_more_memory_than_the_weights(tmp_path):
    """67 MB of bfloat16; read as a whole and then cast, they would be there twice."""
    config = dataclasses.replace(
        CONFIG, hidden_size=1024, intermediate_size=4096, num_hidden_layers=2, num_attention_heads=256
    )
    shapes = jax.eval_shape(lambda: families.stored(config, init_params(config, 0)))
    ones = {
        name: StoredTensor(shape=leaf.shape, read=functools.partial(np.ones, leaf.shape, np.float32))
        for name, leaf in shapes.items()
    }
    list(safetensors_file.write_file(epath.Path(tmp_path / WEIGHTS), ones, "bfloat16"))
    (tmp_path / "config.json").write_text(json.dumps(families.config_to_json(config, "bfloat16", None)))
    command = [sys.executable, "-c", PEAK, str(tmp_path)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back at once
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    size = (tmp_path / WEIGHTS).stat().st_size
    assert 0.9 * size < int(done.stdout) <= 1.3 * size
