"""One group of cells: warm-up, costs, then prompt by prompt the baseline and each gamma.

Records go to disk as they come, a cell the moment its last record exists, and
a failing cell as a row with its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments import catalogue, costs, greedy_text, rows, runner, tree_shapes
from experiments.catalogue import LoadedDrafter
from experiments.cells import Cell, cell_id
from experiments.drafter_names import NONE, DrafterName
from experiments.plan import Plan
from experiments.progress import SweepProgress
from experiments.runner import Agreement, Batch, Timed
from experiments.workdir import Row, Workdir
from specjax.analysis.records import PromptRecord
from specjax.decoding.generate import decode_donated, prefill
from specjax.decoding.program import Program
from specjax.drafters.head_chain import HeadChain
from specjax.drafters.medusa import MedusaTree
from specjax.models.language_model import TransformerLM
from specjax.sampling import GREEDY_BELOW
from specjax.sharding import mesh_of, place_batch
from specjax.training.heads_stream import ResponseStream
from specjax.types import DecodeState, Params, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """What all groups of one launch share."""

    plan: Plan
    workdir: Workdir
    progress: SweepProgress
    config_hash: str
    environment: dict[str, Any]
    greedy_texts: dict[str, ResponseStream] = dataclasses.field(default_factory=dict)  # by target, once read


def num_units(cells: Sequence[Cell], plan: Plan) -> int:
    """Decodes of a batch that ``cells`` take: what progress counts."""
    settings = plan.settings
    batches = -(-settings.num_prompts // settings.batch_size)
    return len(cells) * batches * settings.repeats


class GroupRun:
    """The cells of one (target, drafter, rule, temperature) that are not finished yet."""

    def __init__(self, launch: Launch, cells: Sequence[Cell]):
        self.launch = launch
        self.settings = launch.plan.settings
        self.cells = list(cells)
        self.ids = {cell: cell_id(cell, self.settings) for cell in cells}
        self.ended: set[Cell] = set()
        self.records: dict[Cell, dict[tuple[int, int], PromptRecord]] = {cell: {} for cell in cells}
        self.agreements: dict[Cell, dict[tuple[int, int], Agreement]] = {cell: {} for cell in cells}
        self.compile_seconds: dict[Cell, float] = {}

    def run(self) -> None:
        """Decodes what is missing; afterwards every cell is on disk, finished or failed."""
        with self._failures_of(self.cells):
            self._load()
            self._restore()
            self._warm_up()
            self._prepare_costs()
            self._decode()
        for cell in self._live():
            with self._failures_of([cell]):
                self._finish(cell)

    def _load(self) -> None:
        plan, first = self.launch.plan, self.cells[0]
        self.target = plan.targets[first.target]
        self.drafter = catalogue.make_drafter(
            DrafterName.parse(first.drafter).base, self.target, plan.draft_models
        )
        self.rule = catalogue.RULES[first.rule](self.settings)
        prompts = plan.token_ids[first.target]
        self.batches = runner.make_batches(prompts, self.settings.batch_size)
        self.sizes = runner.buffer_sizes(prompts, self.settings)
        alone = catalogue.make_drafter(NONE, self.target, {})
        plain = catalogue.RULES[NONE if first.is_tree else first.rule](self.settings)
        self.baseline = runner.make_program(self.target, alone, plain, 0, **self.sizes)
        self.params = (self.target.params, self.drafter.params)
        self.drafters: dict[Cell, LoadedDrafter] = {}
        self.programs: dict[Cell, Program] = {}
        for cell in self.cells:
            with self._failures_of([cell]):
                self.drafters[cell] = self._shaped(cell) if cell.is_tree else self.drafter
                self.programs[cell] = runner.make_program(
                    self.target, self.drafters[cell], self.rule, cell.gamma, **self.sizes
                )

    def _shaped(self, cell: Cell) -> LoadedDrafter:
        self.launch.progress.working_on(f"shape of {cell}")
        return tree_shapes.shaped(cell, self.launch.plan, self.target, self.drafter, self.sizes)

    def _provenance(self, cell: Cell) -> dict[str, Any]:
        """What made a cell's records, so that those of another machine or shape are not taken up."""
        made = {**self.launch.environment, **self.sizes, "weights_hash": self.weights_hash}
        return made | ({"shape": [list(node) for node in self.drafters[cell].shape]} if cell.is_tree else {})

    @property
    def weights_hash(self) -> str:
        return "+".join(filter(None, (self.target.weights_hash, self.drafter.weights_hash)))

    def _restore(self) -> None:
        """Takes up the records of a launch that was killed."""
        for cell in self._live():
            for row in self.launch.workdir.read_records(self.ids[cell], self._provenance(cell)):
                agreement = Agreement(identical=row["identical"], margin=row["margin"])
                self._keep(cell, PromptRecord.from_dict(row["record"]), agreement)

    def _keep(self, cell: Cell, record: PromptRecord, agreement: Agreement) -> None:
        self.records[cell][record.prompt, record.repeat] = record
        self.agreements[cell][record.prompt, record.repeat] = agreement

    def _request(self, batch: Batch, repeat: int = 0, max_new_tokens: int | None = None) -> Request:
        return runner.request_for(
            batch,
            self.settings,
            self.cells[0].temperature,
            self.target.stop_tokens,
            repeat,
            max_new_tokens,
        )

    def _warm_up(self) -> None:
        """Compiles every program for every prompt-length bucket, so that no timed run compiles."""
        by_width = {batch.tokens.shape[1]: batch for batch in self.batches}
        requests = {width: self._request(batch, 0, 2) for width, batch in by_width.items()}
        compiled = lambda program, params: sum(
            runner.warm_up(program, params, batch, requests[width]) for width, batch in by_width.items()
        )
        self.launch.progress.working_on(f"compiling {self.cells[0]}")
        baseline_seconds = compiled(self.baseline, (self.target.params, ()))
        for cell in self._live():
            with self._failures_of([cell]):
                self.compile_seconds[cell] = (
                    baseline_seconds if cell.is_baseline else compiled(self.programs[cell], self.params)
                )

    def _program(self, cell: Cell) -> Program:
        return self.baseline if cell.is_baseline else self.programs[cell]

    def _params(self, cell: Cell) -> tuple[Params, Params]:
        return (self.target.params, ()) if cell.is_baseline else self.params

    def _prepare_costs(self) -> None:
        live = self._live()
        if not live:
            return
        self.launch.progress.working_on(f"costs of {live[0]}")
        params = self._params(live[-1])
        request, state = self._halfway(self._program(live[-1]), params)
        programs = {gamma: self._program(cell) for cell in live for gamma in self._program(cell).gammas}
        self.meter = costs.CostMeter(programs, params, request, state)

    def _halfway(self, program: Program, params: tuple[Params, Params]) -> tuple[Request, DecodeState]:
        """Amid the decode of the most average batch: a step costs by the tokens that it attends to."""
        means = [np.mean(batch.lengths[: len(batch.index)]) for batch in self.batches]
        batch = self.batches[int(np.argmin(np.abs(means - np.mean(means))))]
        request = self._request(batch, max_new_tokens=max(1, self.settings.max_new_tokens // 2))
        tokens, request = place_batch(jnp.asarray(batch.tokens), request, mesh_of(params))
        return request, decode_donated(program, params, request, prefill(program, params, tokens, request))

    def _measure_costs(self, share: float) -> None:
        """Repeats until ``share`` of them are done, at least one."""
        while self.meter.num_repeats < max(1, round(share * self.settings.cost_repeats)):
            self.meter.repeat()

    def _decode(self) -> None:
        turns = [(repeat, batch) for repeat in range(self.settings.repeats) for batch in self.batches]
        for number, (repeat, batch) in enumerate(turns, start=1):
            self._decode_batch(batch, repeat, share=number / len(turns))

    def _decode_batch(self, batch: Batch, repeat: int, share: float) -> None:
        """Costs up to ``share`` of their repeats, one baseline run, then each cell that lacks this batch."""
        progress = self.launch.progress
        done = lambda cell: all((prompt, repeat) in self.records[cell] for prompt in batch.index)
        todo = [cell for cell in self._live() if not done(cell)]
        progress.advance(len(self.cells) - len(todo))
        if not todo:
            return
        self._measure_costs(share)
        request = self._request(batch, repeat)
        plain = runner.decode_timed(self.baseline, (self.target.params, ()), batch, request)
        for cell in todo:
            progress.working_on(str(cell))
            with self._failures_of([cell]):
                if cell.is_baseline:
                    timed = plain
                else:
                    timed = runner.decode_timed(self.programs[cell], self.params, batch, request)
                self._store(cell, batch, repeat, timed, plain)
                progress.decoded(self._rate(timed, batch))

    def _rate(self, timed: Timed, batch: Batch) -> float:
        rows = len(batch.index)
        return int((timed.state.length[:rows] - batch.lengths[:rows]).sum()) / timed.seconds

    def _store(self, cell: Cell, batch: Batch, repeat: int, timed: Timed, plain: Timed) -> None:
        categories = [prompt.category for prompt in self.launch.plan.prompts]
        buckets = self._program(cell).gammas
        records = runner.row_records(timed, plain, batch, repeat, buckets=buckets, categories=categories)
        agreements = runner.agreements(
            timed,
            plain,
            batch,
            self._request(batch, repeat),
            self.target,
            comparable=rows.is_comparable(cell),
        )
        lines = []
        for record, agreement in zip(records, agreements, strict=True):
            self._keep(cell, record, agreement)
            lines.append({"record": record.to_dict(), **dataclasses.asdict(agreement)})
        self.launch.workdir.append_records(self.ids[cell], lines)
        if repeat == 0 and batch.number == 0:
            drawn = runner.first_trace(timed, self.target, title=str(cell))
            self.launch.workdir.write_trace(self.ids[cell], drawn)
        if len(self.records[cell]) == self.settings.num_prompts * self.settings.repeats:
            self._finish(cell)

    def _finish(self, cell: Cell) -> None:
        keys = sorted(self.records[cell])
        self._measure_costs(1.0)
        row = rows.finished_row(
            cell,
            self.launch.plan,
            [self.records[cell][key] for key in keys],
            self.meter.costs(),
            agreements=[self.agreements[cell][key] for key in keys],
            compile_seconds=self.compile_seconds[cell],
            weights_hash=self.weights_hash,
            drafter=self.drafters[cell],
        )
        self._end(cell, row | self._predicted_tau(cell))

    def _predicted_tau(self, cell: Cell) -> dict[str, float | None]:
        """What heads would emit along the text that plain greedy decoding gave."""
        drafter, texts = self.drafters[cell].drafter, self.launch.greedy_texts
        if not isinstance(drafter, HeadChain | MedusaTree) or cell.temperature >= GREEDY_BELOW:
            return greedy_text.NOT_PREDICTED
        if cell.target not in texts:
            assert isinstance(self.target.model, TransformerLM)  # heads read no other
            params = (self.target.params, ())
            decodes = [
                (batch, runner.decode_timed(self.baseline, params, batch, self._request(batch)).state)
                for batch in self.batches
            ]
            texts[cell.target] = greedy_text.read(self.target.model, self.target.params, decodes)
        return greedy_text.predicted(texts[cell.target], drafter, self.drafter.params, cell.gamma)

    @contextlib.contextmanager
    def _failures_of(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Whatever goes wrong inside becomes the row of each of ``cells`` that has none yet."""
        try:
            yield
        except Exception as error:  # of any kind: one cell that fails must not end a night's sweep
            for cell in cells:
                if cell not in self.ended:
                    self._end(cell, rows.failed_row(cell, self.launch.plan, error))

    def _end(self, cell: Cell, row: Row) -> None:
        row = row | {"config_hash": self.launch.config_hash, **self.launch.environment}
        self.launch.workdir.write_cell(self.ids[cell], row)
        self.ended.add(cell)
        self.launch.progress.cell_ended(str(cell), row)

    def _live(self) -> list[Cell]:
        """Cells still to be finished."""
        return [cell for cell in self.cells if cell not in self.ended]
