import io

import pytest
from rich.console import Console

from experiments.comparison import Decode, draw, summarise, table

RATES = ("tokens_per_second", "transformers_tokens_per_second")


def decode(prompt, **changes):
    usual = {
        "drafter": "draft",
        "gamma": 3,
        "num_tokens": 60,
        "seconds": 0.5 + 0.1 * prompt,
        "rounds": 21,
        "cut": 3,
        "transformers_seconds": 2.0,
        "transformers_rounds": 20,
        "gap": None,
    }
    return Decode(prompt=prompt, **usual | changes)


@pytest.fixture(scope="module")
def rows():
    plain = [decode(i, drafter="none", gamma=0, transformers_seconds=0.5 + 0.1 * i) for i in range(3)]
    drafted = [decode(i, gap=3e-5 if i == 1 else None) for i in range(3)]
    # Methods come interleaved, prompt by prompt.
    return summarise([each for pair in zip(plain, drafted) for each in pair])


def test_rates_are_of_totals_and_tau_counts_what_the_end_cut(rows):
    row = rows[1]
    assert (row["drafter"], row["gamma"], row["num_tokens"]) == ("draft", 3, 180)
    assert row["tokens_per_second"] == pytest.approx(180 / 1.8)
    assert row["transformers_tokens_per_second"] == pytest.approx(180 / 6)
    assert row["ratio"] == pytest.approx(6 / 1.8)
    assert (row["tau"], row["transformers_tau"]) == (3.0, 3.0)
    assert (row["diverging"], row["widest_gap"]) == (1, 3e-5)


def test_intervals_are_paired_over_prompts(rows):
    plain, drafted = rows
    assert plain["ratio"] == pytest.approx(1)
    assert plain["ratio_ci"] == pytest.approx([1, 1])  # both slow on the same prompts: no spread is left
    low, high = drafted["ratio_ci"]
    assert 2 / 0.7 <= low < drafted["ratio"] < high <= 2 / 0.5


def test_table_and_figure_show_every_method(rows):
    console = Console(file=io.StringIO(), width=120)
    console.print(table(rows))
    text = console.file.getvalue()
    for shown in ("plain decoding", "draft, gamma 3", "3.33x", "1/3, gap 3e-05"):
        assert shown in text
    (axes,) = draw(rows, "title").axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["plain decoding", "draft\ngamma 3"]
    assert [text.get_text() for text in axes.texts] == ["1.0x", "3.3x"]
    heights = {round(bar.get_height(), 6) for bar in axes.patches}
    assert heights == {round(row[name], 6) for row in rows for name in RATES}
