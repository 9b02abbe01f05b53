"""Responses of a target to prompts, from a config.

Apart from its main, which defines flags: several mains cannot be imported into one process.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from etils import epath
import rich.console
import rich.progress

from experiments.models import open_target
from experiments.plan import read_prompts
from experiments.settings import nearest
from specjax.data.code_prompts import code_prompts
from specjax.data.corpora import standard_library
from specjax.data.passage_prompts import passage_prompts
from specjax.data.prompts import Prompt
from specjax.models import huggingface
from specjax.models.checkpoint import Checkpoint
from specjax.training.checkpoints import claim_workdir
from specjax.training.responses import PromptTokens, Sampling, make_batches, respond


def run(settings: dict, workdir: epath.Path, console: rich.console.Console) -> None:
    """Samples until ``num_tokens`` response tokens are on disk or the prompts are used up."""
    _check(settings)
    prompts = _prompts(settings)
    checkpoint = open_target(settings["target"])
    names = [field.name for field in dataclasses.fields(Sampling) if field.name in settings]
    sampling = Sampling(**{name: settings[name] for name in names})
    tokens = tokenize(checkpoint, prompts)
    short = [prompt for prompt in tokens if len(prompt.tokens) <= settings["max_prompt_tokens"]]
    batches = make_batches(short, sampling)
    if not batches:
        raise ValueError(
            f"config.batch_size: {sampling.batch_size}, but only {len(short)} of {len(tokens)} prompts "
            f"have at most {settings['max_prompt_tokens']} tokens (config.max_prompt_tokens)"
        )
    model, params = huggingface.load_checkpoint(checkpoint)
    longest = max(len(prompt.tokens) for prompt in short)
    if longest + sampling.max_new_tokens > model.context:
        raise ValueError(
            f"config.max_new_tokens: {sampling.max_new_tokens} after a prompt of {longest} tokens exceed the "
            f"target's context of {model.context}; the most are {model.context - longest}"
        )
    identity = {"weights_sha256": checkpoint.weights_hash(), "num_batches": len(batches)}
    claim_workdir(workdir, {**dataclasses.asdict(sampling), **identity})
    stops = checkpoint.stop_tokens()
    goal, written = settings["num_tokens"], 0
    with rich.progress.Progress(console=console) as bar:
        task = bar.add_task(f"{len(batches)} batches of {sampling.batch_size}", total=goal)
        for number, count in enumerate(respond(model, params, batches, sampling, stops, workdir), start=1):
            written += count
            description = f"{written:,} response tokens, {number}/{len(batches)} batches"
            bar.update(task, completed=written, description=description)
            if not console.is_terminal:
                console.print(description)
            if written >= goal:
                return


def _check(settings: dict) -> None:
    """What can be refused before anything is opened."""
    if not settings["prompts"] and not settings["code_prompts"]:
        raise ValueError("config.prompts is empty; it takes a JSONL file")
    smallest = {"max_prompt_tokens": 1, "num_tokens": 1, "code_prompts": 0, "passage_prompts": 0, "seed": 0}
    for key, least in smallest.items():
        if settings[key] < least:
            raise ValueError(f"config.{key}: {settings[key]} is below {least}, the smallest valid value")


def _prompts(settings: dict) -> tuple[Prompt, ...]:
    """Those of the file's ``categories`` (none named: all), and those made of its passages and of code."""
    everything = read_prompts(settings["prompts"]) if settings["prompts"] else ()
    wanted = settings["categories"]
    known = sorted({prompt.category for prompt in everything} - {""})
    if unknown := [name for name in wanted if name not in known]:
        told = nearest(unknown[0], known) if known else "no prompt has a category, leave categories empty"
        raise ValueError(f"config.categories: no prompt of {unknown[0]!r}; {told}")
    prompts = tuple(prompt for prompt in everything if not wanted or prompt.category in wanted)
    if settings["passage_prompts"]:
        prompts += passage_prompts(everything, settings["passage_prompts"])
    if settings["code_prompts"]:
        prompts += code_prompts(standard_library()[0], settings["code_prompts"])
    return prompts


def tokenize(checkpoint: Checkpoint, prompts: Sequence[Prompt]) -> list[PromptTokens]:
    """Each prompt as the one message of a conversation. ValueError without a chat template."""
    template, tokenizer = checkpoint.chat_template(), checkpoint.tokenizer()
    if template is None:
        raise ValueError(f"{checkpoint.where} states no chat template; responses are to chat prompts")
    texts = [template.render([{"role": "user", "content": prompt.text}]) for prompt in prompts]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [PromptTokens(id=prompt.id, tokens=tuple(e.ids)) for prompt, e in zip(prompts, encodings)]
