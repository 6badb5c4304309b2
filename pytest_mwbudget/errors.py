"""Errors and warnings, in words for the person who reads the test report.

Every message states the value, the choices and the remedy. `session` turns an error into a usage error of pytest or a
failed test, so no user sees an internal traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any


class MwBudgetError(Exception):
    """Base of every error that pytest-mwbudget raises on purpose.

    `message_id` is the id of its page for `mwbudget explain`, None if it has none.
    """

    message_id: str | None = None

    def __init__(self, message: str, *, message_id: str | None = None) -> None:
        super().__init__(message)
        if message_id is not None:
            self.message_id = message_id


class SettingError(MwBudgetError):
    """A marker keyword, an option or a configuration value is unusable."""

    message_id = "setting"


class AppError(MwBudgetError):
    """The app under test cannot be found, or is not an ASGI app."""

    message_id = "app"


class LifespanError(MwBudgetError):
    """The app's startup or shutdown failed or did not end."""

    message_id = "lifespan"


class ResponseError(MwBudgetError):
    """The app answered, but its response cannot be measured.

    `status` is that of a response that differs from those before it.
    """

    message_id = "response"
    status: int | None = None


class StatusError(ResponseError):
    """The app answered with another status than expected, or with an error status."""


class RepetitionError(ResponseError):
    """The app raised in a repetition of the request; its exception is the cause."""

    message_id = "repetition"


class LayerNameError(MwBudgetError):
    """A budget names a layer that is not in the stack."""

    message_id = "layer-name"


class MeasurementError(MwBudgetError):
    """The app answers, but cannot be measured. The `message_id` tells the kinds apart."""


class EndlessError(MeasurementError):
    """The response began and did not end in time."""

    message_id = "stopped-answering"


class VersusError(MwBudgetError):
    """Two versions of a project cannot be compared. The `message_id` tells the kinds apart."""


class BudgetWarning(UserWarning):
    """A verdict is undecided, and the settings make that a warning."""


def of_the_app(error: BaseException) -> BaseException:
    """Return the app's own exception if `error` wraps it, else `error`."""
    return error.__cause__ or error if isinstance(error, RepetitionError) else error


def tagged(text: str, message_id: str) -> str:
    """Return `text` with the id that `mwbudget explain` takes."""
    return f"{text} [{message_id}]"


def explain_command(message_id: str) -> str:
    """Return the command that prints the page of a message."""
    return f"mwbudget explain {message_id}"


def more_about(message_id: str) -> str:
    """Return the line below a message that names the command for its page."""
    return f"More: {explain_command(message_id)}"


def report_of(error: Exception) -> str:
    """Return the message of an error, its notes, and the command for its page."""
    lines = [str(error), *getattr(error, "__notes__", ())]
    if isinstance(error, MwBudgetError) and error.message_id is not None:
        lines.append(more_about(error.message_id))
    return "\n".join(lines)


def text_of(error: BaseException) -> str:
    """Return the text of an exception, also if its class cannot make a text."""
    try:
        return str(error)
    except Exception as broken:
        return f"(its text could not be made: {type(broken).__name__})"


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes, contexts and the members of groups, each once, causes first."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        exception = waiting.pop()
        if exception is None or any(exception is other for other in seen):
            continue
        seen.append(exception)
        if issubclass(type(exception), BaseExceptionGroup):
            waiting += BaseExceptionGroup.exceptions.__get__(exception)
        waiting += [attribute_of(exception, "__context__"), attribute_of(exception, "__cause__")]
        yield exception


def attribute_of(error: BaseException, name: str) -> Any:
    """Read an attribute that every exception has, without running code of the class of `error`.

    A user's class may define a property of this name that raises, and an exception in a hook ends the run.
    """
    return getattr(BaseException, name).__get__(error)


def described(error: BaseException) -> str:
    """Return the name of an exception's class, and its text if it has any."""
    name, text = type(error).__name__, text_of(error)
    return f"{name}: {text}" if text else name


# A shorter text is a part of too many names.
SHORTEST_PART = 3


def near_miss(value: str, choices: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the choice nearest to `value`, or an empty string if none is near.

    A choice is near if it is spelt alike, or else if it contains `value`: `GZip` is near `GZipMiddleware`.
    """
    folded, by_folded = value.casefold(), {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    if not close and len(folded) >= SHORTEST_PART:
        close = [choice for choice in by_folded if folded in choice]
    return f" Did you mean {by_folded[close[0]]!r}?" if close else ""
