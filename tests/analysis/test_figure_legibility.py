"""What a figure must show whole: legends, lone points, slow rounds, the numbers of the table beside it."""

from __future__ import annotations

import pytest
from synthetic_runs import results

from specjax.analysis import cells, plot_style, plots, theory_plots
from specjax.analysis.break_even_plots import alpha_needed_figure
from specjax.analysis.gamma_choice import choices

WITH_LEGENDS = (
    plots.speedup_figure,
    plots.acceptance_figure,
    theory_plots.expected_tokens_figure,
    theory_plots.optimal_gamma_figure,
    theory_plots.memory_figure,
    theory_plots.timeline_figure,
    alpha_needed_figure,
)


@pytest.fixture(scope="module")
def rows():
    return cells.speculative(results(gammas=(1, 3, 7)))


def of_drafters(rows, count):
    """Lines of ``count`` drafters; a fourth has a long name."""
    names = list(cells.by_drafter(rows))[:count]
    more = [row | {"drafter": "prompt_lookup+draft-smollm2"} for row in rows if row["drafter"] == "draft"]
    return [row for row in rows if row["drafter"] in names] + more * (count > len(names))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("draw", WITH_LEGENDS, ids=lambda draw: draw.__name__)
def test_the_legend_lies_inside_the_figure(draw, count, rows):
    figure = draw(of_drafters(rows, count))
    figure.canvas.draw()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1
    assert whole.y0 <= box.y0 and box.y1 <= whole.y1


@pytest.mark.parametrize("gammas", [(3,), (3, 7)], ids=len)
def test_the_prediction_for_a_single_gamma_is_a_point(gammas, rows):
    figure = plots.speedup_figure([row for row in rows if row["gamma"] in gammas])
    predicted = [line for line in figure.axes[0].lines if line.get_linestyle() in ("--", ":")]
    assert len(predicted) == 6  # two at each temperature
    alone = len(gammas) == 1
    assert {line.get_marker() for line in predicted} == ({"D", "x"} if alone else {""})
    shown = {line.get_marker() for line in figure.legends[0].get_lines()}
    assert {"D", "x"} <= shown if alone else not {"D", "x"} & shown


def test_optimal_gamma_says_what_the_table_says(rows):
    # Each drafter is slower than plain decoding at the warmest temperature.
    slowed = [row | {"speedup": row["speedup"] * (0.1 if row["temperature"] == 1 else 1)} for row in rows]
    axis = theory_plots.optimal_gamma_figure(slowed).axes[0]
    points = sorted(
        (x, y) for line in axis.lines if len(line.get_xdata()) == 1 for x, y in [line.get_xydata()[0]]
    )
    table = choices(slowed)
    assert points == sorted((choice.alpha, choice.measured_gamma) for choice in table)
    assert {choice.measured_gamma for choice in table if choice.temperature == 1} == {0}


def test_a_proposal_is_divided_only_into_steps_it_takes(rows):
    row = next(row for row in rows if row["drafter"] == "draft" and row["gamma"] == 7)
    assert theory_plots.draft_steps(row) == 7
    copied = row | {"costs": row["costs"] | {"draft_step_seconds": []}}
    assert theory_plots.draft_steps(copied) == 1


def test_the_timeline_ends_after_its_slowest_row(rows):
    slow = [row | {"verify_cost_ratio": 9.0} for row in rows]
    axis = theory_plots.timeline_figure(slow).axes[0]
    end = max(bar.get_x() + bar.get_width() for bar in axis.patches)
    assert 12 < end <= axis.get_xlim()[1]


def test_temperatures_differ_by_fill(rows):
    for draw in (theory_plots.expected_tokens_figure, theory_plots.memory_figure):
        axis = draw(rows).axes[0]
        points = [line for line in axis.lines if line.get_marker() in plot_style.MARKERS]
        fills = {line.get_xdata()[0]: line.get_fillstyle() for line in points}
        for lines in cells.by_temperature(rows).values():
            assert len({fills[row["alpha_overlap"]] for row in lines}) == 1
        assert len(set(fills.values())) == 3


def test_panels_share_their_ticks_and_none_of_four_stands_alone(rows):
    axes = plots.acceptance_figure(of_drafters(rows, 4)).axes
    assert [axis.get_subplotspec().rowspan.start for axis in axes] == [0, 0, 1, 1]
    assert len({axis.get_xlim() for axis in axes}) == 1
    assert all(axis.xaxis.get_tick_params()["labelbottom"] for axis in axes)


def test_no_line_of_many_rules_is_left_out(rows):
    """Three drafters under three rules are more than there are markers: rules share their drafter's."""
    rules = ("rejection", "block", "coupled")
    many = [row | {"acceptance": rule} for row in rows for rule in rules]
    assert len(cells.by_drafter(many)) > len(plot_style.MARKERS)
    axis = theory_plots.expected_tokens_figure(many).axes[0]
    points = [line for line in axis.lines if line.get_marker() in plot_style.MARKERS]
    assert len(points) == len(many) and len({line.get_marker() for line in points}) == 3
    assert len(choices(many)) == sum(
        len(line.get_xdata()) == 1 for line in theory_plots.optimal_gamma_figure(many).axes[0].lines
    )
