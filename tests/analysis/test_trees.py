"""Trees in the report: what was accepted where, beside chains of as many scored tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_trees import ACCURACIES, BOOKKEEPING, CHILDREN, tree_results

from specjax.analysis import cells, tree_plots, trees
from specjax.analysis.break_even import alphas_needed
from specjax.analysis.figures import FIGURES
from specjax.analysis.gamma_choice import choices
from specjax.analysis.heads import PUBLISHED_TOP1, head_lines, predicted_taus, tau_curves, top1_curves
from specjax.analysis.heads_plots import training_figure
from specjax.analysis.metrics import CHAIN_ONLY
from specjax.analysis.report import write_report
from specjax.trees.builders import expected_tokens


@pytest.fixture(scope="module")
def rows():
    return tree_results()


@pytest.fixture(scope="module")
def lines(rows):
    return {
        (line.row["drafter"], line.row["acceptance"], line.row["gamma"], line.row["temperature"]): line
        for line in trees.budget_lines(rows)
    }


def test_ranks_are_measured_as_they_were_drawn(lines):
    line = lines["heads:optimal", "one_hot_walk", 31, 0.0]
    visits = sum(node.visits for node in trees.nodes(line.row) if node.choice[-1] == 0)
    spread = 3 * np.sqrt(CHILDREN[0] * (1 - CHILDREN[0]) / visits)
    assert line.ranks[0] == pytest.approx(CHILDREN[0], abs=spread + 0.03)  # groups differ
    assert line.ranks[0] > line.ranks[1] > line.ranks[2]


def test_tau_is_what_the_nodes_add_up_to(lines):
    for line in lines.values():
        if line.row.get("is_tree"):
            counts = np.array(line.row["accepted_by_node"])
            assert line.row["tau"] == pytest.approx(counts.sum() / counts[0])
    row = lines["heads:static", "one_hot_walk", 15, 0.0].row
    assert row["tau"] == pytest.approx(expected_tokens([tuple(n) for n in row["shape"]], CHILDREN), rel=0.1)


def test_the_gain_is_over_the_chain_of_the_same_drafter_and_budget(lines):
    tree = lines["heads:static", "one_hot_walk", 15, 0.0]
    chain = lines["heads", "rejection", 15, 0.0]
    assert tree.gain == pytest.approx(tree.row["tau"] / chain.row["tau"])
    assert tree.gain_ci[0] < tree.gain < tree.gain_ci[1]
    assert chain.gain is None
    assert lines["heads:2x2x2", "one_hot_walk", 14, 0.0].gain is None  # no chain of 14


def test_the_paired_interval_is_narrower_than_that_of_either_tau(lines):
    """Prompts are easy or hard for both; control: the same counts in another order give a wider one."""
    tree = lines["heads:static", "one_hot_walk", 15, 0.0].row
    chain = lines["heads", "rejection", 15, 0.0].row
    width = lambda row, other: np.ptp(trees.tau_ratio(row, other)[1])
    turned = tree | {name: np.roll(tree[name], 1).tolist() for name in ("emitted_by_unit", "rounds_by_unit")}
    assert 2 * width(tree, chain) < width(turned, chain)


def test_other_prompts_are_not_paired(lines):
    row = lines["heads", "rejection", 15, 0.0].row
    fewer = row | {name: row[name][:-1] for name in ("emitted_by_unit", "rounds_by_unit")}
    assert trees.tau_ratio(row, fewer) == (pytest.approx(1.0), None)


def test_the_v_that_pays_is_where_the_cost_model_says_one(lines):
    for line in lines.values():
        row = line.row
        assert row["tau"] / (row["proposal_cost_ratio"] + line.pays_below) == pytest.approx(1.0)
    tree = lines["heads:optimal", "one_hot_walk", 31, 0.0]
    chains = [line.row for key, line in lines.items() if key[0] == "heads" and key[3] == 0.0]
    fastest = max(row["speedup_cost_model"] for row in chains)
    d = tree.row["proposal_cost_ratio"]
    assert tree.row["tau"] / (d + tree.beats_chains_below) == pytest.approx(fastest)


def test_bookkeeping_is_a_share_of_the_round(lines):
    row = lines["heads:static", "one_hot_walk", 15, 0.0].row
    assert row["bookkeeping_share"] == pytest.approx(BOOKKEEPING, rel=0.05)
    assert row["bookkeeping_share_ci"][0] < BOOKKEEPING * 1.02
    assert lines["heads", "rejection", 15, 0.0].row["bookkeeping_share"] is None


def test_what_supposes_a_chain_is_undefined_and_not_drawn_for_trees(rows):
    for row in trees.tree_rows(rows):
        assert all(row[name] is None and row[f"{name}_ci"] is None for name in CHAIN_ONLY)
    assert not any(":" in line.label for line in alphas_needed(rows))
    assert not any(":" in choice.label for choice in choices(rows))
    assert alphas_needed(rows) and choices(rows)


def test_a_lossy_rule_is_named_in_every_label(rows):
    for name, group in cells.by_drafter(rows).items():
        assert ("(lossy)" in name) == (group[0]["acceptance"] == "typical")


def test_every_node_and_its_chance_is_drawn(lines):
    row = lines["heads:2x2x2", "one_hot_walk", 14, 0.0].row
    figure = tree_plots.tree_figure([row])
    (axis,) = figure.axes
    texts = [text.get_text() for text in axis.texts]
    assert texts.count("root") == 1 and texts.count("0") + texts.count("1") == 14
    chances = [f"{node.acceptance:.2f}".removeprefix("0") for node in trees.nodes(row)]
    assert sorted(text for text in texts if text.startswith(".")) == sorted(chances)
    widths = {node.choice: line.get_linewidth() for node, line in zip(trees.nodes(row), axis.lines)}
    assert widths[0,] > widths[1,]


def test_lossless_trees_are_drawn_before_lossy_ones(rows):
    titles = [axis.get_title(loc="left") for axis in tree_plots.tree_figure(rows).axes]
    assert len(titles) == 3 and not any("lossy" in title for title in titles)
    only_lossy = [row for row in rows if not row["lossless"]]
    assert all("typical" in axis.get_title(loc="left") or "heads:" in axis.get_title(loc="left")
               for axis in tree_plots.tree_figure(only_lossy).axes)  # fmt: skip


def test_groups_are_compared_at_one_budget(rows):
    figure = tree_plots.group_figure(rows)
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "T = 0, 32 tokens scored",
        "T = 1, 32 tokens scored",
    ]
    assert figure.axes[0].get_yticklabels()[1].get_text() == "chat"


@pytest.mark.parametrize("name", ["tree_budgets", "trees", "tree_groups", "heads"])
def test_axes_are_labelled_and_sweeps_without_trees_go_without(name, rows):
    spec = next(spec for spec in FIGURES if spec.name == name)
    axes = [axis for axis in spec.draw(rows).axes if axis.axison]
    assert axes and all(axis.get_xlabel() for axis in axes) and axes[0].get_ylabel()
    chains = [row | {"rank_accuracies": None} for row in rows if not row.get("is_tree")]
    assert spec.applies(rows) and not spec.applies(chains)
    assert spec.draw(chains).texts


def test_heads_stand_beside_the_published_ones(rows):
    found = head_lines(rows)
    assert [line.head for line in found] == [1, 2, 3]
    assert found[0].top["heads"] == pytest.approx(np.cumsum(ACCURACIES[0]))
    assert found[2].published["Medusa, Vicuna-7B"] == PUBLISHED_TOP1["Medusa, Vicuna-7B"][2] == 0.201


def test_the_report_has_both_sections(rows, tmp_path):
    few = [row for row in rows if row["temperature"] == 0.0 and row["gamma"] in (0, 15)]
    write_report(tmp_path, few, [], {"device": "cpu"})
    page, markdown = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    for section in ("Trees", "Heads"):
        assert f">{section}</h2>" in page and f"\n## {section}\n" in markdown
    assert "typical (lossy)" in markdown and "3.0 %" in markdown
    tables = [
        line
        for line in markdown.splitlines()
        if line.startswith("| heads:static | one_hot_walk | 0.0 | 16 |")
    ]
    assert len(tables) == 1 and tables[0].count("|") == 18


def test_predictions_stand_beside_what_was_decoded(rows, tmp_path):
    row = next(row for row in rows if row["drafter"] == "heads:static" and row["gamma"] == 15)
    fields = {"tau_of_ranks": row["tau"], "tau_of_accuracies": 1 + 1.25 * (row["tau"] - 1)}
    lines = predicted_taus([row | fields, row, row | {"tau_of_ranks": 1.0, "tau_of_accuracies": 1.0}])
    assert [line.over_walk for line in lines] == [pytest.approx(1), None]
    assert [line.over_accuracies for line in lines] == [pytest.approx(0.8), None]
    write_report(tmp_path, [row | fields], [], {"device": "cpu"})
    page, markdown = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    assert "<th>tau decoded</th>" in page and "| 1.00 | 0.80 |" in markdown


def metrics():
    for step in (0, 250, 500):
        line = {"step": step, "loss": 3.0}
        if step:
            line |= {"held_out_predicted_tau_chain": 1.4, "held_out_predicted_tau_tree16": 1.8}
            line |= {"held_out_top1_head1": 0.4, "held_out_top1_head2": 0.2}
        if step == 500:
            line |= {"held_out_real_tau_tree16": 1.7, "held_out_real_tau_tree16_ci": [1.6, 1.85]}
        yield line


def test_proxy_and_decoding_over_training():
    chain, tree = tau_curves(metrics())
    assert (chain.shape, tree.shape) == ("chain", "tree16")
    assert tree.steps == [250, 500] and tree.predicted == [1.8, 1.8]
    assert tree.real == [None, 1.7] and tree.real_ci == [None, [1.6, 1.85]]
    assert chain.real == [None, None]
    assert top1_curves(metrics()) == {1: [(250, 0.4), (500, 0.4)], 2: [(250, 0.2), (500, 0.2)]}
    figure = training_figure(metrics())
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)
    drawn = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert drawn == ["chain: predicted", "tree of 16: predicted", "tree of 16: decoded"]
    assert training_figure([]).texts


def test_lines_are_json(rows):
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
