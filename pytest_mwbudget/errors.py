"""What can go wrong between a test and its numbers, in words for the person who reads the test report.

Every message states the value, the choices and the remedy. `plugin` turns these into a pytest usage error or a
failed test; none of them reaches the user as an internal traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MwBudgetError(Exception):
    """Base of every error that pytest-mwbudget raises on purpose."""


class SettingError(MwBudgetError):
    """A marker keyword, an option or a configuration value is unusable."""


class AppError(MwBudgetError):
    """The app under test cannot be found, or is not an ASGI app."""


class LifespanError(MwBudgetError):
    """The app's startup or shutdown failed or did not end."""


class ResponseError(MwBudgetError):
    """The app answered, but not in a way on which a measurement could stand."""


class LayerNameError(MwBudgetError):
    """A budget names a layer that is not in the stack."""


class MeasurementError(MwBudgetError):
    """The app answers, but cannot be measured."""


class BudgetWarning(UserWarning):
    """A verdict is undecided, and the settings say that this is only worth a warning."""


def near_miss(value: str, choices: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the choice nearest to `value`, or an empty string when none is near."""
    by_folded = {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(value.casefold(), by_folded, n=1, cutoff=0.6)
    return f" Did you mean {by_folded[close[0]]!r}?" if close else ""
