"""Everything that decides what a training run computes."""

from __future__ import annotations

import dataclasses
import math

import jax
import optax

from specjax.models.decoder import DecoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A stretch of steps with one batch shape."""

    steps: int
    batch_size: int
    context: int  # tokens a window


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run. Two runs of one recipe on one machine give the same log."""

    model: DecoderConfig
    stages: tuple[Stage, ...]
    learning_rate: float  # the peak
    warmup_steps: int
    final_fraction: float = 0.1  # of the peak, at the last step of the cosine
    weight_decay: float = 0.1  # of matrices; norms are not decayed
    clip_norm: float = 1.0
    seed: int = 0
    checkpoint_every: int = 150  # steps
    evaluate_every: int = 150
    evaluation_batches: int = 4  # of the first stage's shape, from the held-out modules

    def __post_init__(self) -> None:
        positive = {"learning_rate": self.learning_rate, "checkpoint_every": self.checkpoint_every}
        positive |= {
            "clip_norm": self.clip_norm,
            "evaluate_every": self.evaluate_every,
            "evaluation_batches": self.evaluation_batches,
        }
        for number, stage in enumerate(self.stages):
            positive |= {f"stages[{number}].{name}": size for name, size in dataclasses.asdict(stage).items()}
            if stage.context > self.model.max_position_embeddings:
                raise ValueError(
                    f"stages[{number}].context {stage.context} exceeds the model's "
                    f"max_position_embeddings {self.model.max_position_embeddings}"
                )
        for name, size in positive.items():
            if not 0 < size < math.inf:
                raise ValueError(f"{name} must be positive, got {size}")
        for name in ("weight_decay", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction must lie in [0, 1], got {self.final_fraction}")
        if not self.stages:
            raise ValueError("stages is empty: a run needs at least one")
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must lie in 0..{self.steps - 1}")

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def tokens(self) -> int:
        return self.tokens_until(self.steps)

    def tokens_until(self, step: int) -> int:
        """Tokens read by the first ``step`` steps."""
        tokens = 0
        for stage in self.stages:
            tokens += min(step, stage.steps) * stage.batch_size * stage.context
            step = max(0, step - stage.steps)
        return tokens

    def schedule(self) -> optax.Schedule:
        """Learning rate by step: linear warm-up, then a cosine down to ``final_fraction`` of the peak."""
        peak = self.learning_rate
        return optax.warmup_cosine_decay_schedule(
            0.0, peak, self.warmup_steps, self.steps, end_value=self.final_fraction * peak
        )

    def optimizer(self) -> optax.GradientTransformation:
        """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) behind a global-norm clip."""
        matrices = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
        return optax.chain(
            optax.clip_by_global_norm(self.clip_norm),
            optax.adamw(self.schedule(), b2=0.95, weight_decay=self.weight_decay, mask=matrices),
        )
