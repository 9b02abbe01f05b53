"""A tiny sweep of chains and trees together: which cells exist, what their lines hold, what is refused."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from test_sweep import launch, rows_of

from experiments import models, shape_choice
from experiments.cells import all_cells
from experiments.drafter_names import DrafterName
from experiments.plan import prepare
from experiments.rules import RULES, TREE_RULES
from experiments.settings import SweepSettings
from specjax.analysis.heads import predicted_taus
from specjax.analysis.records import PromptRecord
from specjax.models.heads.folder import TrainedFor, save
from specjax.models.heads.heads import init_network
from specjax.models.heads.medusa import MedusaConfig
from specjax.trees.builders import expected_tokens
from specjax.trees.contracts import TreeRule

HEADS = 3


@pytest.fixture(scope="module")
def heads(pair, tmp_path_factory):
    """Untrained Medusa heads of the tiny target: each says what the target says one place too early."""
    target = models.load_target(pair[0], "float32")
    config = MedusaConfig(num_heads=HEADS, width=16, num_ids=40)
    accuracies = np.tile([0.4, 0.2, 0.1] + [0.01] * 7, (HEADS, 1))
    made_for = TrainedFor(
        weights_sha256=target.weights_sha256, vocab_size=target.model.vocab_size, taps=("final",)
    )
    path = tmp_path_factory.mktemp("heads") / "medusa"
    save(path, config, init_network(config, 0), np.arange(40), made_for, (accuracies, accuracies))
    return str(path)


@pytest.fixture(scope="module")
def settings(pair, heads, prompts_file):
    target, draft = pair
    return SweepSettings(
        targets=(target,),
        drafters=("none", f"{draft}:optimal", f"{heads}:static"),
        rules=("rejection", "one_hot_walk"),
        gammas=(4,),
        temperatures=(0.0,),
        prompts=prompts_file,
        num_prompts=2,
        max_new_tokens=8,
        cost_repeats=2,
    )


@pytest.fixture(scope="module")
def rows(settings, tmp_path_factory):
    path = tmp_path_factory.mktemp("trees") / "run"
    status, _ = launch(settings, path, report=False)
    assert status == 0, [row["error"] for row in rows_of(path)]
    return {(row["drafter"], row["acceptance"]): row | {"path": path} for row in rows_of(path)}


def test_only_cells_whose_rule_fits_exist(settings, rows):
    trees = [(name, "one_hot_walk") for name in ("small:optimal", "medusa:static")]
    assert sorted(rows) == sorted([("none", "none"), *trees])
    assert len(rows) == len(all_cells(settings))
    both = SweepSettings(
        drafters=("draft", "draft:2x1"), rules=("block", "specinfer", "typical"), gammas=(4,)
    )
    pairs = [("draft", "block"), ("draft:2x1", "specinfer"), ("draft:2x1", "typical")]
    assert [(cell.drafter, cell.rule) for cell in all_cells(both)] == pairs


def test_a_fixed_shape_has_a_gamma_of_its_own(settings):
    cells = all_cells(SweepSettings(drafters=("draft:2x1",), rules=("specinfer",), gammas=(1, 4, 9)))
    assert [cell.gamma for cell in cells] == [4]


def test_greedy_trees_give_the_tokens_of_plain_decoding(rows):
    for row in rows.values():
        assert row["identical_to_baseline"] == 2 and row["divergence_margins"] == []


def test_heads_predict_their_tau_on_the_text_that_was_decoded(rows):
    for (drafter, _), row in rows.items():
        predicted = [row["tau_of_ranks"], row["tau_of_accuracies"]]
        if drafter == "medusa:static":
            assert all(1 <= tau <= 1 + HEADS for tau in predicted)
            assert len(predicted_taus([row])) == 1
        else:
            assert predicted == [None, None] and predicted_taus([row]) == []


def test_the_lines_of_trees_say_what_was_accepted_where(rows):
    for (drafter, _), row in rows.items():
        nodes = row["accepted_by_node"]
        assert row["is_tree"] == (":" in drafter)
        if not row["is_tree"]:
            assert row["shape"] == [] and row["bookkeeping_share"] is None
            continue
        assert len(row["shape"]) == row["gamma"] == 4
        assert nodes[0] == row["num_rounds"]
        assert sum(nodes[1:]) == sum(row["accepted_by_position"])
        depth = [len(node) for node in row["shape"]]
        by_depth = np.bincount(depth, weights=nodes[1:], minlength=5)[1:]
        assert by_depth.tolist() == row["accepted_by_position"]
        assert row["alpha_overlap"] is None and row["tau"] >= 1
        assert row["bookkeeping_share"] is not None


def test_typical_acceptance_is_the_one_lossy_rule():
    rules = {name: make(SweepSettings()) for name, make in RULES.items()}
    assert {name for name, rule in rules.items() if not rule.lossless} == {"typical"}
    assert {name for name, rule in rules.items() if isinstance(rule, TreeRule)} == set(TREE_RULES)


def test_units_of_a_line_add_up_to_its_tau(rows):
    for row in rows.values():
        assert row["tau"] == pytest.approx(sum(row["emitted_by_unit"]) / sum(row["rounds_by_unit"]))


def test_a_static_tree_is_grown_from_the_accuracies_of_its_heads(rows):
    row = rows["medusa:static", "one_hot_walk"]
    assert row["shape"] == [[0], [1], [0, 0], [2]] or row["shape"] == [[0], [1], [2], [0, 0]]
    assert np.shape(row["rank_accuracies"]) == (HEADS, 10)
    assert row["weights_hash"].count("+") == 1


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("draft", "holds heads of another target"),
        ("target", "weights_sha256"),
    ],
)
def test_heads_of_another_target_are_refused(heads, base, told, prompts_file):
    fields = {"prompts": prompts_file, "num_prompts": 2, "rules": ("one_hot_walk",), "gammas": (4,)}
    with pytest.raises(ValueError, match=told):
        prepare(SweepSettings(targets=(str(models.PAIR[base]),), drafters=(f"{heads}:static",), **fields))


def test_a_branching_deeper_than_the_heads_is_refused(settings, heads):
    deep = dataclasses.replace(settings, drafters=(f"{heads}:1x1x1x1",))
    with pytest.raises(ValueError, match="1x1x1x1: the tree is 4 deep, the heads reach 3 tokens ahead"):
        prepare(deep)


def test_all_cells_share_the_target_that_heads_read(settings):
    plan = prepare(settings)
    (target,) = plan.targets.values()
    assert target.model.taps == ("final",)
    assert any("medusa" in name for name in plan.resolved())
    without = prepare(dataclasses.replace(settings, drafters=("none",)))
    assert next(iter(without.targets.values())).model.taps == ()


def test_records_of_trees_are_taken_up_with_their_shape(rows):
    row = rows["small:optimal", "one_hot_walk"]
    lines = (row["path"] / "cells" / f"{row['cell_id']}.records.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    assert header["shape"] == row["shape"] and len(row["shape"]) == 4
    records = [PromptRecord.from_dict(json.loads(line)["record"]) for line in lines[1:]]
    assert sum(record.accepted_nodes[0] for record in records) == row["num_rounds"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"drafters": ("draft:2x1",)}, "drafts trees, which no rule of rejection judges; add 'one_hot_walk'"),
        ({"rules": ("specinfer",)}, "drafts chains, which no rule of specinfer judges; add 'rejection'"),
        ({"drafters": ("draft:2x2x2",)}, "drafts 14 nodes, more than the budget of 8"),
        ({"drafters": ("draft:2x2x2",)}, "nearest is 'draft:2x2', or add 14 to config.gammas"),
        ({"drafters": ("draft:9",)}, "nearest is 'draft:8'"),
        ({"drafters": ("draft:2y2",)}, "unknown shape '2y2'"),
        ({"drafters": ("draft:optmal",)}, "nearest is 'optimal', or a branching such as 2x2x1"),
        ({"drafters": ("draft:0x2",)}, "unknown shape '0x2'"),
        (
            {"drafters": ("draft:static",)},
            "no rank accuracies to grow a tree from; nearest is 'draft:optimal'",
        ),
        ({"drafters": ("drft:2x1",)}, "unknown 'drft'; nearest is 'draft'"),
        ({"drafters": ("bigram:2x1",)}, "bigram drafts chains alone; nearest are 'bigram' and 'draft:2x1'"),
        ({"drafters": ("draft:optimal",), "gammas": (0,)}, "no gamma is above 0"),
        ({"drafters": ("medusa-smollm2:static",), "rules": ("specinfer",)}, "add 'one_hot_walk'"),
    ],
)
def test_trees_that_cannot_be_drafted(changes, told):
    with pytest.raises(ValueError) as error:
        prepare(SweepSettings(**{"gammas": (8,)} | changes))
    assert told in str(error.value)


def test_children_are_measured_over_the_nodes_that_have_them():
    shape = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
    measured = shape_choice.child_acceptance(shape, np.array([100, 50, 20, 10, 10, 25, 10, 8]))
    visits, taken = np.array([100 + 50 + 20 + 10, 100 + 50, 100]), np.array([50 + 10 + 10 + 8, 20 + 25, 10])
    assert measured == pytest.approx((taken + [0.5, 0.25, 0.125]) / (visits + 1))


def test_an_optimal_tree_follows_what_was_measured():
    """Control: the first shape is not simply kept. Here only second children are ever right."""
    name = DrafterName("draft", "optimal")

    def second_children_win(shape):
        wins = [float(all(rank == 1 for rank in node)) for node in ((), *shape)]
        return 100 * np.array(wins)

    first = shape_choice.choose(name, 7, None, lambda shape: np.append(100, np.full(len(shape), 10)))
    shape = shape_choice.choose(name, 7, None, second_children_win)
    right = [0.0, 1.0]
    assert expected_tokens(shape, right) > expected_tokens(first, [*right, 0, 0, 0, 0, 0, 0])


def test_a_shape_with_too_few_nodes_names_the_largest():
    accuracies = np.full((1, 2), 0.3)
    with pytest.raises(ValueError, match="has 2 nodes to draft, not 5; nearest gamma is 2"):
        shape_choice.choose(DrafterName("heads", "static"), 5, accuracies, lambda shape: np.ones(1))
