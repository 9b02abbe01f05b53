"""What a sweep is: one typed, validated, hashable object.

``SweepSettings`` holds the defaults that every file in ``configs/`` starts
from (``configs/base.py``), and is the only place where a config is checked.
Every complaint is a ``ValueError`` that names the key, the value and the
nearest valid one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import difflib
import hashlib
import json
import math
import numbers
from typing import Any

from etils import epath

AXES = ("targets", "drafters", "rules", "gammas", "temperatures")
UNSHARED = (*AXES, "gammas_at_once")  # what a cell is does not hang on these
PROCESSORS = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "banned_tokens",
    "min_new_tokens",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Axes (tuples, multiplied out) and the settings all cells share."""

    # Axes
    # Names of experiments.catalogue or experiments.fetched, or sources: a folder, hf://org/name[@revision], a
    # .gguf file.
    targets: tuple[str, ...] = ("target",)
    drafters: tuple[str, ...] = ("none", "draft")
    rules: tuple[str, ...] = ("rejection",)  # names of experiments.catalogue.RULES
    gammas: tuple[int, ...] = (3,)  # draft tokens per round
    temperatures: tuple[float, ...] = (0.0,)  # below 1e-5 greedy
    # Sampling, the same for target and drafter
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0  # 1 keeps all
    min_p: float = 0.0  # 0 keeps all
    # Logit processors, see specjax/processors.py; at these defaults none is compiled in
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # pairs (token id, added to its score)
    banned_tokens: tuple[int, ...] = ()
    min_new_tokens: int = 0  # no stop before
    lenience: float = 1.0  # of the rejection rule; below 1 is lossy
    seed: int = 0
    # Prompts
    prompts: str = "stdlib"  # held-out modules of the standard library, "assistant", or a JSONL file
    prompt_groups: tuple[str, ...] = ()  # categories that take turns; none takes all, in the file's order
    num_prompts: int = 12  # the first so many
    chat: bool = False  # each prompt is a user's message in the target's chat template
    max_new_tokens: int = 64
    stop_at_eos: bool = True  # at the target folder's eos_token_id
    # Execution
    batch_size: int = 1
    repeats: int = 1  # decodes of each prompt, with seeds of their own
    cost_repeats: int = 9  # repeats of each device loop that measures c, d and v
    gammas_at_once: int = (
        0  # that are compiled together and share baseline decodes; 0: all; fewer take less memory
    )
    dtype: str = "float32"  # of weights, activations and caches
    mesh: tuple[int, ...] = (1, 1)  # devices on the axes ("data", "model")

    def __post_init__(self) -> None:
        for key, value in _normalised(self).items():
            object.__setattr__(self, key, value)


def from_config(config: Mapping[str, Any]) -> SweepSettings:
    """The settings in a ConfigDict or dict; an unknown key is an error that offers the nearest name.

    >>> from_config({"gammas": (3, 7), "temperatures": (0, 0.0, 1)}).temperatures
    (0.0, 1.0)
    >>> from_config({"gama": (3,)})
    Traceback (most recent call last):
        ...
    ValueError: config.gama: no such key; nearest is 'gammas'
    """
    known = [field.name for field in dataclasses.fields(SweepSettings)]
    for key in config:
        if key not in known:
            raise ValueError(f"config.{key}: no such key; {nearest(key, known)}")
    return SweepSettings(**dict(config))


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest known name, or all of them.

    >>> nearest("rejecton", ["rejection", "block"])
    "nearest is 'rejection'"
    """
    known = list(known)
    # Drop separators first: max-new-tokens and maxNewTokens should find max_new_tokens.
    folded = {each.replace("_", "").lower(): each for each in known}
    close = difflib.get_close_matches(name.replace("_", "").replace("-", "").lower(), folded, n=1, cutoff=0.5)
    return f"nearest is {folded[close[0]]!r}" if close else f"known are {', '.join(known)}"


def nearest_file(path: epath.Path, names: Sequence[str] = ()) -> str:
    """The end of an error message about a ``path`` that is not there: what lies beside it, or a name."""
    try:
        beside = {each.name: str(each) for each in path.parent.iterdir()}
    except OSError:
        beside = {}
    if close := difflib.get_close_matches(path.name, [*names, *beside], n=1):
        return f"nearest is {beside.get(close[0], close[0])!r}"
    if names:
        return f"known names are {', '.join(names)}"
    return f"nothing in {path.parent} is like it" if beside else f"{path.parent} is no folder, or empty"


def check_folder(key: str, path: str) -> None:
    """ValueError if no folder can be made at ``path``, to be written hours later; "" stands for none."""
    first = epath.Path(path)
    while path and not first.exists() and first != first.parent:
        first = first.parent
    if path and not first.is_dir():
        raise ValueError(f"{key}: {path} cannot be a folder: {first} is a file")


def fingerprint(value: Any) -> str:
    """A short stable hash of anything JSON can hold; key order does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shared(settings: SweepSettings) -> dict[str, Any]:
    """The settings that every cell of a workdir has in common: all but the axes, and what bounds memory."""
    return {key: value for key, value in dataclasses.asdict(settings).items() if key not in UNSHARED}


def _normalised(s: SweepSettings) -> dict[str, Any]:
    """Every field, checked and in its one canonical form."""
    counts = ("num_prompts", "max_new_tokens", "repeats", "cost_repeats")
    values: dict[str, Any] = {
        "gammas": _each("gammas", s.gammas, lambda key, g: _whole(key, g, minimum=0)),
        "temperatures": _each("temperatures", s.temperatures, _temperature),
        "top_k": _whole("top_k", s.top_k, minimum=0, maximum=2**31 - 1),
        "top_p": _real("top_p", s.top_p, lambda p: 0 < p <= 1, "in (0, 1]; 1 keeps all"),
        "min_p": _real("min_p", s.min_p, lambda p: 0 <= p < 1, "in [0, 1); 0 keeps all"),
        "repetition_penalty": _real(
            "repetition_penalty", s.repetition_penalty, lambda x: x > 0, "above 0; 1 is none"
        ),
        "presence_penalty": _real(
            "presence_penalty", s.presence_penalty, lambda _: True, "that is finite; 0 is none"
        ),
        "frequency_penalty": _real(
            "frequency_penalty", s.frequency_penalty, lambda _: True, "that is finite; 0 is none"
        ),
        "logit_bias": tuple(_bias(pair) for pair in _tuple("logit_bias", s.logit_bias)),
        "banned_tokens": tuple(_token("banned_tokens", t) for t in _tuple("banned_tokens", s.banned_tokens)),
        "min_new_tokens": _whole(
            "min_new_tokens",
            s.min_new_tokens,
            minimum=0,
            maximum=_whole("max_new_tokens", s.max_new_tokens, minimum=1),
        ),
        "lenience": _real("lenience", s.lenience, lambda x: 0 < x <= 1, "in (0, 1]; 1 is lossless"),
        "seed": _whole("seed", s.seed, minimum=0),
        "stop_at_eos": _switch("stop_at_eos", s.stop_at_eos),
        "chat": _switch("chat", s.chat),
        "prompt_groups": tuple(_name("prompt_groups", g) for g in _tuple("prompt_groups", s.prompt_groups)),
        "mesh": tuple(_whole("mesh", n, minimum=1) for n in _tuple("mesh", s.mesh)),
        "dtype": one_of("dtype", s.dtype, ("float32", "bfloat16", "float16")),
        "prompts": _name("prompts", s.prompts),
    }
    values |= {key: _whole(key, getattr(s, key), minimum=1) for key in counts}
    values |= {key: _each(key, getattr(s, key), _name) for key in ("targets", "drafters", "rules")}
    values["batch_size"] = _whole("batch_size", s.batch_size, minimum=1)
    values["gammas_at_once"] = _whole("gammas_at_once", s.gammas_at_once, minimum=0)
    if values["batch_size"] > values["num_prompts"]:
        raise ValueError(
            f"config.batch_size: {s.batch_size} is above config.num_prompts, and rows without a prompt "
            f"decode nothing; nearest is {s.num_prompts}"
        )
    if len(values["mesh"]) != 2:
        raise ValueError(f"config.mesh: {s.mesh} has {len(values['mesh'])} axes; it takes two, data,model")
    return values


def one_of(key: str, value: str, known: Iterable[str]) -> str:
    """``value`` if it is known, else an error with the nearest name."""
    known = list(known)
    if value not in known:
        raise ValueError(f"config.{key}: unknown {value!r}; {nearest(str(value), known)}")
    return value


def _tuple(key: str, value: Any) -> tuple:
    if not isinstance(value, tuple | list):
        raise ValueError(f"config.{key}: {value!r} is not a list; write --config.{key}=A,B or ({value!r},)")
    return tuple(value)


def _each(key: str, value: Any, check: Any) -> tuple:
    """Each element checked, duplicates dropped (0 and 0.0 are one cell), order kept."""
    elements = tuple(dict.fromkeys(check(key, element) for element in _tuple(key, value)))
    if not elements:
        raise ValueError(f"config.{key}: empty; a sweep needs at least one value on each axis")
    return elements


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"config.{key}: {value!r} is not a name")
    return value


def _switch(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"config.{key}: {value!r} must be True or False")
    return value


def _whole(key: str, value: Any, *, minimum: int, maximum: float = math.inf) -> int:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value != int(value):
        hint = f"; nearest are {math.floor(value)} and {math.ceil(value)}" if _finite(value) else ""
        raise ValueError(f"config.{key}: {value!r} is not a whole number{hint}")
    if value < minimum:
        raise ValueError(f"config.{key}: {value!r} is below {minimum}, the smallest valid value")
    if value > maximum:
        raise ValueError(f"config.{key}: {value!r} is above {maximum}, the largest valid value")
    return int(value)


def _finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _real(key: str, value: Any, valid: Any, words: str) -> float:
    if not _finite(value) or not valid(value):
        raise ValueError(f"config.{key}: {value!r} must be a number {words}")
    return float(value) + 0.0  # -0.0 is 0.0


def _token(key: str, value: Any) -> int:
    return _whole(key, value, minimum=0, maximum=2**31 - 1)


def _bias(pair: Any) -> tuple[int, float]:
    if len(_tuple("logit_bias", pair)) != 2:
        raise ValueError(f"config.logit_bias: {pair!r} is not a pair of a token id and what its score gains")
    return _token("logit_bias", pair[0]), _real(
        "logit_bias", pair[1], lambda _: True, "that is finite; banned_tokens bans"
    )


def _temperature(key: str, value: Any) -> float:
    return _real(key, value, lambda t: t >= 0, "at least 0; 0 is greedy")
