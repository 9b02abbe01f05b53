"""An independent draft model that drafts a tree, level by level."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cache as kv
from specjax.drafters import draft_laws
from specjax.models.language_model import LanguageModel
from specjax.trees.contracts import DrawChildren, TreeProposal
from specjax.trees.topology import Choices, from_choices, make_tree
from specjax.types import Array, Noise, Outcome, Params, Warp, pytree


@pytree
class TreeModelState:
    """The draft model's own cache, which holds committed tokens alone, and the length to go back to.

    A round leaves its tree out of the cache, so that between rounds the tokens
    of the last path, 1 to D + 1, are pending.
    """

    cache: kv.KVCache  # or any cache with a ``length`` that rewinds by it
    before: Array  # [] int32: cache.length when the round began


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeModelDrafter:
    """Drafts a tree of a fixed shape with a smaller language model, one step a level.

    The children of a node are drawn from q of the node as the rule wants them:
    without replacement for RecursiveRejection and Traversal (RSD-C, Jeon et
    al. 2024, 2402.14160; Sequoia, Chen et al. 2024, 2402.12374), independently
    for SpecInfer (Miao et al. 2023, 2305.09781), the likeliest for OneHotWalk.
    Lossless under each of them: every child is drawn from the very array that
    is reported. A node with more children than q has support leaves some of
    them invalid. ``params`` is (target params, draft params).

    The first step of a round ingests the pending tokens, of a static width
    D + 1; each later one feeds the inner nodes of a level, which see the
    committed tokens and their own ancestors. So a round takes D steps.
    """

    model: LanguageModel
    choices: Choices  # the shape; see trees/builders.py
    # The target's vocabulary, and where the draft model's padding begins: as for ModelDrafter.
    vocab_size: int | None = None
    num_ids: int | None = None
    # None: the request's own warp, of which a greedy row draws one child a node and no more. A number
    # replaces its sampling parameters (not its processors).
    temperature: float | None = None

    def __post_init__(self) -> None:
        sizes = {"vocab_size": self.vocab_size, "num_ids": self.num_ids}
        draft_laws.check_settings("TreeModelDrafter", sizes, self.temperature)
        object.__setattr__(self, "choices", tuple(tuple(choice) for choice in self.choices))
        from_choices(self.choices)
        for choice in self.choices:
            before = (*choice[:-1], choice[-1] - 1)
            if choice[-1] > 0 and before not in self.choices:
                raise ValueError(
                    f"node {choice} has no sibling {before}: a child that was drawn cannot be left out"
                )

    @property
    def num_nodes(self) -> int:
        return 1 + len(self.choices)

    @property
    def max_depth(self) -> int:
        return max(map(len, self.choices), default=0)

    def init(
        self,
        params: tuple[Params, Params],
        prompt: Array,
        length: Array,
        max_len: int,
        max_gamma: int,
        features: tuple[Array, ...],
    ) -> tuple[TreeModelState, Array]:
        """Feeds ``prompt`` [P]; the last of its ``length`` tokens is left for the first round."""
        output = self.model.apply(params[1], prompt, self.model.init_cache(max_len))
        state = TreeModelState(cache=kv.rewind(output.cache, length - 1), before=length - 1)
        return state, self._available(length)

    def propose_tree(
        self,
        params: tuple[Params, Params],
        state: TreeModelState,
        tokens: Array,
        length: Array,
        num_wanted: Array,
        noise: Noise,
        draw_children: DrawChildren,
        warp: Warp,
    ) -> tuple[TreeProposal, TreeModelState]:
        """The tree below ``tokens[length - 1]``; ``probs`` [N, V] are zero for its leaves."""
        parent, levels = from_choices(self.choices)[0], _levels(self.choices)
        nodes = np.arange(self.num_nodes)
        drafted = jnp.zeros(nodes.shape, jnp.int32).at[0].set(tokens[length - 1])
        valid = jnp.ones(nodes.shape, bool)
        logits, committed = self._ingest(params, state, tokens, length)
        cache, laws = committed, []
        for level in levels:
            if level.depth > 0:
                fed = drafted[level.nodes]
                positions = jnp.full(fed.shape, length - 1 + level.depth)
                output = self.model.apply(params[1], fed, cache, positions, _mask(level, cache, length))
                logits, cache = output.logits, output.cache
            logits = draft_laws.over_target_vocabulary(logits, self._vocab_size, self.num_ids)
            q = draft_laws.draft_law(logits, drafted[level.paths], warp, self.temperature)
            own_noise = jax.tree.map(lambda x, at=level.children: x[at], noise)
            children, drawn = jax.vmap(draw_children)(own_noise, q)
            drawn &= valid[level.nodes][:, None]
            exists = np.nonzero(level.children)
            drafted = drafted.at[level.children[exists]].set(children[exists])
            valid = valid.at[level.children[exists]].set(drawn[exists])
            laws.append(q)

        depth = np.array([0, *sorted(map(len, self.choices))])
        valid &= (nodes <= num_wanted) & (depth <= self._room(length))
        tree = make_tree(drafted, parent, max_depth=self.max_depth, valid=valid | (nodes == 0))
        probs = jnp.zeros((self.num_nodes, self._vocab_size), jnp.float32)
        if levels:
            probs = probs.at[np.concatenate([level.nodes for level in levels])].set(jnp.concatenate(laws))
        new_state = TreeModelState(cache=kv.rewind(cache, length), before=state.cache.length)
        return TreeProposal(tree=tree, probs=probs), new_state

    def commit(
        self, params: tuple[Params, Params], state: TreeModelState, tokens: Array, outcome: Outcome
    ) -> tuple[TreeModelState, Array]:
        """Leaves the emitted tokens pending; a frozen row forgets the whole round."""
        ingested = jnp.where(outcome.num_emitted > 0, outcome.old_length, state.before)
        new_state = TreeModelState(cache=kv.rewind(state.cache, ingested), before=ingested)
        return new_state, self._available(outcome.old_length + outcome.num_emitted)

    def _ingest(
        self, params: tuple[Params, Params], state: TreeModelState, tokens: Array, length: Array
    ) -> tuple[Array, kv.KVCache]:
        """(logits [1, Vq] after the last committed token, the cache with all of them)."""
        pending = jax.lax.dynamic_slice(tokens, (state.cache.length,), (self.max_depth + 1,))
        output = self.model.apply(params[1], pending, state.cache)
        last = length - state.cache.length - 1
        # Rows past the last were fed leftovers: forget them.
        return output.logits[last][None], kv.rewind(output.cache, length)

    @property
    def _vocab_size(self) -> int:
        return self.vocab_size or self.model.vocab_size

    def _room(self, length: Array) -> Array:
        """[] int32: how deep a tree still fits into the draft model's context."""
        return jnp.maximum(self.model.context - length, 0).astype(jnp.int32)

    def _available(self, length: Array) -> Array:
        """[] int32: how many nodes it could draft next."""
        return jnp.where(self._room(length) > 0, self.num_nodes - 1, 0).astype(jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Level:
    """The inner nodes of one depth, static. They are fed in this order, levels one after the other."""

    depth: int
    nodes: np.ndarray  # [n]
    paths: np.ndarray  # [n, depth]: each node's ancestors below the root, and itself
    children: np.ndarray  # [n, K], padded with 0
    sees: np.ndarray  # [n, I] bool: of all inner nodes below the root, which are ancestors or itself


@functools.cache
def _levels(choices: Choices) -> tuple[_Level, ...]:
    """The steps of a tree of that shape; none if it is its root alone."""
    parent, _ = from_choices(choices)
    depth = np.array([0, *sorted(map(len, choices))])
    inner = np.array(sorted({0, *parent[1:].tolist()}))

    def path(node: int) -> list[int]:
        return [*path(parent[node]), node] if node > 0 else []

    levels = []
    for at in range(depth.max()):
        nodes = inner[depth[inner] == at]
        children = [np.flatnonzero(parent == node) for node in nodes]
        width = max(map(len, children))
        paths = np.array([path(int(node)) for node in nodes], np.int32).reshape(len(nodes), at)
        levels.append(
            _Level(
                depth=at,
                nodes=nodes,
                paths=paths,
                children=np.stack([np.pad(c, (0, width - len(c))) for c in children]),
                sees=(paths[:, :, None] == inner[inner > 0]).any(axis=1),
            )
        )
    return tuple(levels)


def _mask(level: _Level, cache: kv.KVCache, length: Array) -> Array:
    """[n, S] bool: the committed slots, and those of a node's ancestors and itself."""
    committed = jnp.arange(cache.max_len) < length
    tree = jnp.zeros((len(level.nodes), cache.max_len), bool)
    return committed | jax.lax.dynamic_update_slice(tree, jnp.asarray(level.sees), (0, length))
