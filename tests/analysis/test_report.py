"""The report of a synthetic sweep: every section, real numbers, nothing fetched, nothing unescaped."""

from __future__ import annotations

import re

import pytest
from synthetic_runs import GROUPS, results

from specjax.analysis import cells
from specjax.analysis.figures import FIGURES
from specjax.analysis.gamma_choice import choices
from specjax.analysis.report import write_report
from specjax.analysis.trace import DecodeTrace, Piece, TraceLine

SECTIONS = (
    "Cells",
    "Which gamma",
    "By group",
    "What alpha pays",
    "Predicted and measured",
    "Figures",
    "Decodes",
    "Definitions",
    "Environment",
)
# Those of trees and heads are tested beside a sweep that has some, in test_trees.py.
OF_CHAINS = [spec for spec in FIGURES if spec.section not in ("Trees", "Heads")]
ATTACK = "<script>alert('|')</script>"


@pytest.fixture(scope="module")
def rows():
    return results(gammas=(1, 3, 7), groups=tuple(GROUPS))


@pytest.fixture(scope="module")
def workdir(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    lines = (
        TraceLine(0, (Piece(ATTACK, "prompt"),)),
        TraceLine(1, (Piece("ab", "accepted"), Piece("<b>", "rejected"), Piece("cd", "residual"))),
    )
    write_report(
        folder, rows, [DecodeTrace(f"row {ATTACK}", lines)], {"device": "cpu", "versions": {"jax": "1"}}
    )
    return folder


@pytest.fixture(scope="module")
def page(workdir):
    return (workdir / "report.html").read_text()


def test_both_reports_have_every_section(workdir, page):
    markdown = (workdir / "report.md").read_text()
    for section in SECTIONS:
        assert f">{section}</h2>" in page, section
        assert f"\n## {section}\n" in markdown, section


def test_headline_is_the_fastest_lossless_cell(rows, page):
    best = max((row for row in cells.speculative(rows)), key=lambda row: row["speedup"])
    assert f'<div class="big">{best["speedup"]:.2f}×</div>' in page
    assert "[{:.2f}, {:.2f}] at 95 %".format(*best["speedup_ci"]) in page


def test_a_lossy_cell_is_never_the_headline(rows):
    best = cells.best(rows)
    others = [row | {"lossless": row is not best} for row in rows if row.get("status") == "ok"]
    assert cells.best(others)["speedup"] < best["speedup"]
    assert cells.best([row | {"lossless": False} for row in others]) is None


def test_parity_tells_tokens_compared_and_rows_that_part(rows, tmp_path):
    greedy = next(row for row in cells.speculative(rows) if row["temperature"] == 0.0)
    told = {
        "num_tokens": 5376,
        "num_decodes": 56,
        "identical_to_baseline": 54,
        "divergence_margins": [3e-6, 1e-6],
    }
    sampled = {"num_decodes": 56, "identical_to_baseline": None, "divergence_margins": None}
    write_report(tmp_path, [greedy | told, greedy | sampled], [], {"device": "cpu"})
    page, markdown = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    assert markdown.count("| 5,376 | 56 | 2 | 3.0e-06 |") == 1
    assert page.count("<td>5,376</td><td>56</td><td>2</td><td>3.0e-06</td>") == 1
    section = markdown.split("## Parity")[1].split("\n## ")[0]
    assert section.count(f"| {greedy['drafter']} |") == 1  # a sampled cell has no tokens to be the same as


@pytest.mark.parametrize("spec", OF_CHAINS, ids=lambda spec: spec.name)
def test_every_axis_is_labelled(spec, rows):
    axes = [axis for axis in spec.draw(rows).axes if axis.axison and axis.get_label() != "<colorbar>"]
    assert axes and all(axis.get_xlabel() for axis in axes)
    assert axes[0].get_ylabel() or axes[0].get_yticklabels()[0].get_text()


def test_the_heat_map_shows_the_measured_numbers(rows):
    figure = next(spec for spec in FIGURES if spec.name == "speedup_heatmap").draw(rows)
    shown = sorted(text.get_text() for axis in figure.axes for text in axis.texts)
    assert shown == sorted(f"{row['speedup']:.2f}" for row in cells.speculative(rows))


def test_every_figure_is_written_linked_and_embedded(workdir, page):
    markdown = (workdir / "report.md").read_text()
    for spec in OF_CHAINS:
        image = workdir / "figures" / f"{spec.name}.png"
        assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 5_000
        assert f"](figures/{spec.name}.png)" in markdown
    assert page.count('src="data:image/png;base64,') == len(OF_CHAINS)


def test_the_page_fetches_nothing_and_runs_nothing(page):
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "@import" not in page and "url(" not in page


def test_text_of_prompts_and_errors_is_escaped(workdir, page):
    assert ATTACK not in page and "&lt;script&gt;alert(&#39;|&#39;)" in page
    assert '<span class="rejected" title="draft token, rejected">&lt;b&gt;</span>' in page
    assert "OutOfMemory: &lt;15&gt;" in page
    markdown = (workdir / "report.md").read_text()
    assert "### row &lt;script>alert('\\|')&lt;/script>" in markdown
    assert "[-<b>-]{+cd+}" in markdown


def test_markdown_tables_are_rectangular(workdir):
    widths = []
    for line in (workdir / "report.md").read_text().splitlines():
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
        elif widths:
            assert len(set(widths)) == 1, line
            widths = []


def test_gamma_is_chosen_three_ways(rows):
    chosen = {(choice.label, choice.temperature): choice for choice in choices(rows)}
    assert len(chosen) == 9
    draft, lookup = chosen["draft", 0.0], chosen["prompt_lookup", 1.0]
    # v(T) = 1 + .06 (T - 1) makes long drafts cost more than the paper supposes.
    assert draft.costs_gamma < draft.paper_gamma
    assert draft.measured_gamma in (3, 7) and draft.tau > draft.break_even_tau
    assert draft.lower_bound == pytest.approx((1 + draft.alpha) / (1 + draft.c))
    assert lookup.measured_gamma in (0, 1)


def test_plain_decoding_wins_where_no_gamma_pays(rows):
    slow = [row | {"speedup": 0.9} for row in rows if row.get("status") == "ok"]
    assert all(choice.measured_gamma == 0 and choice.measured_speedup == 1 for choice in choices(slow))


def test_labels_name_pair_and_rule_only_where_they_differ():
    row = {"pair": "big+small", "drafter": "small", "acceptance": "block", "gamma": 3}
    other = row | {"pair": "huge+small"}
    assert cells.label(row, [row]) == "small"
    assert cells.label(row, [row, other]) == "big+small"
    assert cells.label(row, [row, other | {"acceptance": "coupled"}]) == "big+small, block"


def test_a_lossy_rule_is_named_even_where_it_is_the_only_one():
    row = {"pair": "big+small", "drafter": "small", "acceptance": "rejection", "lossless": False}
    assert cells.label(row, [row]) == "small, rejection (lossy)"
    assert cells.label(row | {"lossless": True}, [row]) == "small"
    assert cells.label(row | {"drafter": "none"}, [row]) == "none"


def test_a_sweep_without_drafters_or_costs_still_reports(rows, tmp_path):
    write_report(tmp_path, [row for row in rows if row["drafter"] == "none"], [], {})
    report = (tmp_path / "report.md").read_text()
    assert "No finished lossless cell with a drafter" in report
    assert "By group" not in report and not (tmp_path / "figures" / "groups.png").exists()
    predicted = ("draft_cost_ratio", "proposal_cost_ratio", "verify_cost_ratio")
    predicted += ("speedup_leviathan", "speedup_cost_model")
    blank = {key: None for name in predicted for key in (name, f"{name}_ci")}
    # Lines from before groups were told apart have no such field.
    older = [{key: value for key, value in row.items() if key != "by_group"} for row in rows[:5]]
    write_report(tmp_path, [row | blank for row in older], [], {})
    page = (tmp_path / "report.html").read_text()
    assert page.count("No costs were measured") == 2
    assert "by-group" not in page and page.count("<h2") == len(SECTIONS) - 1
