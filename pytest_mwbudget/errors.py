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


class RepetitionError(ResponseError):
    """The app raised in a call after the first one; its exception is the cause."""


class LayerNameError(MwBudgetError):
    """A budget names a layer that is not in the stack."""


class MeasurementError(MwBudgetError):
    """The app answers, but cannot be measured."""


class BudgetWarning(UserWarning):
    """A verdict is undecided, and the settings say that this is only worth a warning."""


def of_the_app(error: BaseException) -> BaseException:
    """The app's own exception where `error` says in what call it was raised, else `error`."""
    return error.__cause__ or error if isinstance(error, RepetitionError) else error


# A shorter text is part of too many names.
SHORTEST_PART = 3


def near_miss(value: str, choices: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the choice nearest to `value`, or an empty string when none is near.

    Near is what is spelt alike, or else what `value` is a part of: `GZip` is near `GZipMiddleware`.
    """
    folded, by_folded = value.casefold(), {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    if not close and len(folded) >= SHORTEST_PART:
        close = [choice for choice in by_folded if folded in choice]
    return f" Did you mean {by_folded[close[0]]!r}?" if close else ""
