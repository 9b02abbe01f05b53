"""The same decode by ``transformers`` and by specjax, one after the other in one process."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import itertools

import jax.numpy as jnp
from rich.progress import track

from experiments import catalogue, models, runner
from experiments import transformers_peer as peer
from experiments.cells import NONE
from experiments.compare_setup import LOOKUP
from experiments.comparison import Decode
from experiments.plan import Plan
from specjax.acceptance.rejection import Rejection
from specjax.testing import parity
from specjax.types import Request


class SideBySide:
    """A pair in the memory of both implementations, and every way to decode with it.

    ``plan`` has one target and one draft model; ``prompt_lookup`` may be among its drafters.
    """

    def __init__(self, plan: Plan):
        self.plan, self.settings = plan, plan.settings
        (self.target,) = plan.targets.values()
        self.prompts = plan.token_ids[self.target.name]
        self.batches = runner.make_batches(self.prompts, batch_size=1)
        self.peer_target = peer.load(models.source_of(self.target.name, models.TARGETS))
        (draft,) = plan.draft_models
        self.peer_draft = peer.load(models.source_of(draft, models.DRAFT_MODELS))
        names = [name for name in self.settings.drafters if name != NONE]
        self.methods = [(NONE, 0), *itertools.product(names, self.settings.gammas)]
        self.drafters = {
            name: catalogue.make_drafter(name, self.target, plan.draft_models) for name in (NONE, *names)
        }
        sizes = {
            "max_len": runner.max_len(self.prompts, self.settings),
            "max_gamma": max(self.settings.gammas),
        }
        self.programs = {
            (name, gamma): runner.make_program(self.target, self.drafters[name], Rejection(), gamma, **sizes)
            for name, gamma in self.methods
        }

    def run(self) -> Iterator[Decode]:
        """Every prompt by every method; nothing that is timed compiles."""
        by_width = {batch.tokens.shape[1]: batch for batch in self.batches}
        for batch, method in itertools.product(by_width.values(), self.methods):
            self.decode(batch, method)
        for batch in track(self.batches, description="decoding"):
            for method in self.methods:
                yield self.decode(batch, method)

    def decode(self, batch: runner.Batch, method: tuple[str, int]) -> Decode:
        """One prompt, first by transformers and then here."""
        name, gamma = method
        (prompt,), new = batch.index, self.settings.max_new_tokens
        theirs = peer.generate(
            self.peer_target,
            self.prompts[prompt],
            new,
            assistant=self.peer_draft if name in self.plan.draft_models else None,
            prompt_lookup=name == LOOKUP,
            gamma=gamma,
        )
        params = (self.target.params, self.drafters[name].params)
        request = runner.request_for(batch, self.settings, 0.0, ())
        ours = runner.decode_timed(self.programs[method], params, batch, request)
        counts = ours.state.statistics
        return Decode(
            drafter=self.drafters[name].label,
            gamma=gamma,
            prompt=prompt,
            num_tokens=len(ours.tokens(0)) - len(self.prompts[prompt]),
            seconds=ours.seconds + ours.prefill_seconds,
            rounds=int(counts.rounds[0]),
            cut=int(counts.cut[0]),
            transformers_seconds=theirs.seconds,
            transformers_rounds=len(theirs.scored),
            gap=self.gap(batch, request, ours, theirs),
        )

    def gap(
        self, batch: runner.Batch, request: Request, ours: runner.Timed, theirs: peer.PeerDecode
    ) -> float | None:
        """Between the target's two best logits where the two outputs part; None where they do not."""
        start, tokens = int(batch.lengths[0]), ours.state.tokens.copy()
        tokens[0, start : start + len(theirs.tokens)] = theirs.tokens
        length = jnp.array([start + len(theirs.tokens)])
        expected = dataclasses.replace(ours.state, tokens=tokens, length=length)
        for each in parity.divergences(expected, ours.state):
            return parity.margin(self.target.model, self.target.params, request, expected, each)
        return None
