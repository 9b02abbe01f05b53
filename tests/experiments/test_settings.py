import dataclasses
import math

import pytest

from experiments.cells import all_cells, cell_id, groups, share
from experiments.settings import SweepSettings, from_config, shared


def test_defaults_are_valid_and_canonical():
    assert SweepSettings() == from_config({})


def test_numbers_are_normalised_so_that_equal_settings_are_one_cell():
    settings = from_config({"temperatures": (0, 0.0, -0.0, 1), "gammas": (3, 3.0, 1), "top_p": 1})
    assert settings.temperatures == (0.0, 1.0)
    assert settings.gammas == (3, 1)
    assert all(type(gamma) is int for gamma in settings.gammas)
    assert settings == from_config({"temperatures": (0.0, 1.0), "gammas": (3, 1)})


@pytest.mark.parametrize(
    "field, value, told",
    [
        ("gama", (3,), "nearest is 'gammas'"),
        ("temprature", 0.6, "nearest is 'temperatures'"),
        ("num-epochs", 1, "config.num-epochs: no such key"),
        ("maxNewTokens", 1, "nearest is 'max_new_tokens'"),
        ("gammas", (7.5,), "gammas: 7.5 is not a whole number; nearest are 7 and 8"),
        ("gammas", (3, 7.5), "gammas: 7.5"),
        ("gammas", (-1,), "gammas: -1 is below 0"),
        ("gammas", (True,), "not a whole number"),
        ("gammas", ("three",), "not a whole number"),
        ("gammas", (math.nan,), "not a whole number"),
        ("gammas", 3, "is not a list"),
        ("stop_at_eos", "false", "stop_at_eos: 'false' must be True or False"),
        ("top_k", 2**31, "top_k: 2147483648 is above 2147483647"),
        ("prompts", None, "prompts: None is not a name"),
        ("prompts", "", "prompts: '' is not a name"),
        ("gammas", (), "empty"),
        ("temperatures", (-0.1,), "temperatures: -0.1 must be a number at least 0"),
        ("temperatures", (0.6, math.nan), "temperatures: nan"),
        ("temperatures", ("nan",), "temperatures: 'nan'"),
        ("temperatures", (math.inf,), "temperatures: inf"),
        ("top_p", 0.0, "top_p: 0.0 must be a number in (0, 1]"),
        ("top_p", 1.5, "top_p: 1.5"),
        ("top_k", -1, "top_k: -1 is below 0"),
        ("min_p", 1.0, "min_p"),
        ("lenience", 0.0, "lenience"),
        ("lenience", 1.5, "1 is lossless"),
        ("batch_size", 0, "batch_size: 0 is below 1"),
        ("num_prompts", 0, "num_prompts"),
        ("dtype", "float23", "nearest is 'float32'"),
        ("mesh", (1,), "takes two"),
        ("mesh", (0, 1), "mesh: 0 is below 1"),
        ("drafters", (3,), "not a name"),
        ("repetition_penalty", 0, "repetition_penalty: 0 must be a number above 0"),
        ("presence_penalty", math.inf, "presence_penalty: inf must be a number"),
        ("frequency_penalty", "high", "frequency_penalty: 'high'"),
        ("logit_bias", ((5, 1.0, 2),), "is not a pair of a token id and what its score gains"),
        ("logit_bias", ((5, -math.inf),), "banned_tokens bans"),
        ("banned_tokens", (-1,), "banned_tokens: -1 is below 0"),
        ("banned_tokens", 7, "is not a list"),
        ("min_new_tokens", 65, "min_new_tokens: 65 is above 64, the largest valid value"),
    ],
)
def test_bad_values_are_refused_in_one_line(field, value, told):
    with pytest.raises(ValueError) as refusal:
        from_config({field: value})
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


SETTINGS = SweepSettings(
    drafters=("none", "draft", "prompt_lookup"),
    rules=("rejection", "block"),
    gammas=(1, 3),
    temperatures=(0, 1),
)


def test_one_baseline_cell_per_target_and_temperature():
    cells = all_cells(SETTINGS)
    assert len(cells) == 2 + 2 * 2 * 2 * 2 == len(set(cells))
    assert [cell.temperature for cell in cells if cell.is_baseline] == [0.0, 1.0]


def test_groups_hold_the_gammas_of_one_drafter_rule_and_temperature():
    members = groups(all_cells(SETTINGS))
    for most in (1, 2, 100):
        fewer = groups(all_cells(SETTINGS), most)
        assert [cell for each in fewer for cell in each] == list(all_cells(SETTINGS))
        assert all(len(each) <= most and len({cell.group for cell in each}) == 1 for each in fewer)
    assert fewer == members
    assert [len(group) for group in members] == [1, 1] + [2] * 8
    assert all(len({cell.group for cell in group}) == 1 for group in members)


def test_what_bounds_memory_is_no_part_of_a_cell():
    """A launch that ran out of memory goes on with fewer gammas at once."""
    fewer = dataclasses.replace(SETTINGS, gammas_at_once=1)
    cell = all_cells(SETTINGS)[-1]
    assert cell_id(cell, SETTINGS) == cell_id(cell, fewer) and shared(SETTINGS) == shared(fewer)


def test_cell_ids_depend_on_the_cell_alone():
    wider = SweepSettings(
        drafters=("draft", "none"), rules=("block",), gammas=(7, 3), temperatures=(1.0, 0.0, 0.6)
    )
    here = {cell: cell_id(cell, SETTINGS) for cell in all_cells(SETTINGS)}
    there = {cell: cell_id(cell, wider) for cell in all_cells(wider)}
    common = here.keys() & there.keys()
    assert len(common) == 2 + 2  # the baselines, and block gamma 3 of the draft
    assert all(here[cell] == there[cell] for cell in common)
    assert len(set(here.values())) == len(here)
    other_seed = SweepSettings(seed=1)
    assert cell_id(all_cells(other_seed)[0], other_seed) not in here.values()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_shares_are_a_partition(count):
    cells = all_cells(SETTINGS)
    parts = [share(cells, f"{i}/{count}") for i in range(count)]
    assert tuple(cell for part in parts for cell in part) == cells


@pytest.mark.parametrize("which", ["4/4", "1", "a/b", "0/0", "-1/4", "1/2/3"])
def test_bad_shares_are_refused(which):
    with pytest.raises(ValueError, match="--cells"):
        share(all_cells(SETTINGS), which)


def test_no_shares_at_all():
    with pytest.raises(ValueError, match="number of shares must be at least 1"):
        share(all_cells(SETTINGS), "0/0")
