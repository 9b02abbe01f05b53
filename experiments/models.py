"""Models of a sweep in memory: embedded ones, fetched ones, or any source, by the names of a config."""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
from pathlib import Path

from etils import epath
from jax.sharding import Mesh
from tokenizers import Tokenizer

from experiments import fetched
from experiments.settings import nearest, nearest_file
import specjax
from specjax.data.chat import ChatTemplate
from specjax.data.tokenizers import check_same_ids, num_ids
from specjax.models import huggingface
from specjax.models.checkpoint import Checkpoint
from specjax.models.language_model import TransformerLM
from specjax.models.sources import is_source, open_checkpoint
from specjax.models.subset import SubsetLM, with_vocabulary
from specjax.sharding import AxisRules
from specjax.types import Params

_ASSETS = epath.Path(Path(specjax.__file__).parent / "assets")

TARGETS = {"target": _ASSETS / "target"}
PAIR = {name: _ASSETS / name for name in ("target", "draft", "draft-small")}  # trained here, on one corpus
DRAFT_MODELS = {name: _ASSETS / name for name in ("draft", "draft-small", "draft-smollm2")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A checkpoint in memory."""

    name: str  # as in the config
    label: str  # as in results
    model: TransformerLM | SubsetLM
    params: Params
    tokenizer: Tokenizer
    stop_tokens: tuple[int, ...]
    weights_sha256: str
    identity: str  # where it is from, in which quantization
    chat_template: ChatTemplate | None

    @property
    def weights_hash(self) -> str:
        """As results show it."""
        return self.weights_sha256[:12]


def load_target(name: str, dtype: str, mesh: Mesh | None = None) -> LoadedModel:
    """A target by name or source, on ``mesh`` split as ``AxisRules`` say."""
    return load(name, TARGETS, dtype, mesh, AxisRules())


def with_features(target: LoadedModel) -> LoadedModel:
    """The same model showing the hidden state that heads read."""
    if not isinstance(target.model, TransformerLM):
        return target
    return dataclasses.replace(target, model=dataclasses.replace(target.model, taps=("final",)))


def check_pair(target: LoadedModel, draft: LoadedModel) -> None:
    """ValueError unless both tokenizers give every id the same meaning."""
    try:
        check_same_ids(target.tokenizer, draft.tokenizer)
    except ValueError as error:
        raise ValueError(f"{target.label} and {draft.label}: {error}") from None


def source_of(name: str, known: dict[str, epath.Path]) -> epath.PathLike:
    """Where a model of a config lies: an embedded one, a fetched one, or the source itself."""
    return known.get(name) or (fetched.locate(name) if name in fetched.NAMES else name)


def check_name(key: str, name: str, known: Iterable[str], sources: bool = True) -> None:
    """ValueError, with the key of the config and the nearest name, for one that nobody knows."""
    if name in known or (sources and name and is_source(name)):
        return
    others = ", or a folder, hf://org/name or a .gguf file" * sources
    raise ValueError(f"config.{key}: unknown {name!r}; {nearest(name, known)}{others}")


def check_target(name: str) -> None:
    """ValueError unless ``config.target`` is a name or has the form of a source."""
    check_name("target", name, [*TARGETS, *fetched.NAMES])


def open_target(name: str) -> Checkpoint:
    """What ``config.target`` names, opened and not read. ValueError where there is no such model."""
    check_target(name)
    try:
        return open_checkpoint(_existing(source_of(name, TARGETS)))
    except ValueError as error:
        raise ValueError(f"config.target: {error}") from None


def _existing(source: epath.PathLike) -> epath.PathLike:
    path = epath.Path(source)
    if not str(source).startswith("hf://") and not path.exists():
        kind = "file" if path.suffix == ".gguf" else "folder"
        raise ValueError(f"no {kind} {path}; {nearest_file(path)}")
    return source


def load(
    name: str, known: dict[str, epath.Path], dtype: str, mesh: Mesh | None, rules: AxisRules
) -> LoadedModel:
    source = source_of(name, known)
    try:
        checkpoint = open_checkpoint(_existing(source))
        inner, params = huggingface.load_checkpoint(checkpoint, dtype, mesh=mesh, rules=rules)
        model, params = with_vocabulary(checkpoint, inner, params)
        tokenizer = checkpoint.tokenizer()
        if isinstance(model, TransformerLM) and num_ids(tokenizer) < model.vocab_size:
            model = dataclasses.replace(model, num_ids=num_ids(tokenizer))
        return LoadedModel(
            name=name,
            label=label_of(source),
            model=model,
            params=params,
            tokenizer=tokenizer,
            stop_tokens=checkpoint.stop_tokens(),
            weights_sha256=checkpoint.weights_hash(),
            identity=str(checkpoint.identity),
            chat_template=checkpoint.chat_template(),
        )
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}") from None


def label_of(source: epath.PathLike) -> str:
    """The last part of a source.

    >>> [label_of(source) for source in ("hf://org/name@main", "models/tiny.Q4_1.gguf", "runs/x/export/")]
    ['name', 'tiny.Q4_1', 'export']
    """
    text = str(source)
    if text.startswith("hf://"):
        return text.removeprefix("hf://").partition("@")[0].rpartition("/")[2]
    return epath.Path(text).name.removesuffix(".gguf")
