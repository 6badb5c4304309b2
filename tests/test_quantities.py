"""The table of quantities agrees with the types of their names, the records and the checks."""

from __future__ import annotations

from typing import get_args

from pytest_mwbudget.config.checks import KINDS
from pytest_mwbudget.config.table import SETTINGS
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.quantities import COUNTED, ESTIMATED, TRAITS, CountedQuantity, Quantity, budgeted
from pytest_mwbudget.model.results import Count, ResultRow

from .test_report_schema import typed


def test_the_names_that_types_allow_are_those_that_a_layer_can_have_a_budget_of() -> None:
    times, counts = get_args(Quantity)
    assert {*get_args(times), *get_args(counts)} == {*budgeted("layer")}
    assert {*get_args(CountedQuantity)} == {*COUNTED}


def test_the_path_of_each_figure_leads_to_a_figure_of_its_kind() -> None:
    for name, traits in TRAITS.items():
        kind, _ = typed(ResultRow, traits.path)
        assert (kind is Count) == traits.counted
        assert kind is Estimate or name not in ESTIMATED
        assert kind in (Count, Estimate, float)


def test_every_budget_has_a_keyword_and_a_check() -> None:
    for name, traits in TRAITS.items():
        if traits.holders:
            assert SETTINGS[name].kind in KINDS
            assert SETTINGS[name].text.startswith("budget for ")
        else:
            assert name not in SETTINGS
