"""Null layers: blank layers, which only call what is inside them, between two probes (docs/decisions/0005)."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from ..analysis.samples import BlankLayers
from ..asgi.calls import FrameworkReader, Reader
from ..interpreter.code_patching import compiled, twin
from ..interpreter.stand_ins import stand_in_for_callable
from ..model.stack import OWNER_BITS, Owner
from .probe_code import ArgumentSearch, Probe, Targets, probe_trampoline

# The numbers of blank layers in a null layer, one of them at random.
BLANKS = (1, 1, 4)
# In one null layer of this many, the blank layers wrap `send`; in one of this many, a blank layer divides its probes.
WRAPPING_EVERY, DIVIDING_EVERY = 3, 5
DIVIDING = BlankLayers(1, wrapping=True, dividing=True)


def random_blanks(rng: random.Random, *, wrapping: bool, dividing: bool = False) -> BlankLayers:
    """Choose the blank layers of a null layer; `wrapping` and `dividing` allow those that do so."""
    if dividing and rng.randrange(DIVIDING_EVERY) == 0:
        return DIVIDING
    return BlankLayers(rng.choice(BLANKS), wrapping and rng.randrange(WRAPPING_EVERY) == 0)


@dataclass(frozen=True, slots=True)
class NullLayer:
    """The inside of a null layer's outer probe: for each choice of blank layers a function that ends in a probe.

    `targets` are those of the inner probe. Functions with parameters of the same shape share one null layer, so that
    its code is as warm as the probe that it stands for. A function whose arguments are searched has its own.
    """

    outermost: Mapping[BlankLayers, Callable[..., Any]]
    targets: Targets


def null_layer(
    reader: Reader | FrameworkReader,
    probe: Probe,
    search: ArgumentSearch,
    inside: Collection[Owner] | None,
    owner: Owner,
    *,
    plain: bool,
) -> NullLayer:
    """Make a null layer round `probe`, to be called as the reader's function is; `inside` is that of the probe.

    `owner` owns the time of the null layer.
    """

    async def never_called(*arguments: object, **named: object) -> None: ...

    targets: Targets = {}
    inner = blank_layer(reader, never_called, plain=plain)
    code = probe_trampoline(reader, probe, targets, inner, search, inside)
    probed = twin(inner, code)
    outermost = {}
    for wrapping in (False, True) if reader.ordinary else (False,):
        function: Callable[..., Any] = probed
        for count in range(1, max(BLANKS) + 1):
            function = blank_layer(reader, function, plain=plain, wrapping=wrapping)
            outermost[BlankLayers(count, wrapping)] = search.as_target(reader, function)
    if reader.ordinary and not plain:
        outermost[DIVIDING] = dividing_layer(reader, probed, search, owner)
    return NullLayer(outermost, targets)


_INNER = "the inner function"
_STAND_IN_FOR = "the function stand_in_for_callable"
_BLANK = """
def make():
    {kind} shape({signature}):
        _inner_ = {inner!r}
        return {wait} _inner_({passed})
"""
_WRAPPING_BLANK = """
def make():
    {kind} shape({signature}):
        _inner_ = {inner!r}
        async def _wrapping_(*arguments, **named):
            return await _given_(*arguments, **named)
        _stand_in_for_ = {stand_in_for!r}
        _given_, _wrapped_ = _stand_in_for_({send}, _wrapping_)
        return {wait} _inner_({passed})
"""


def blank_layer(
    reader: Reader | FrameworkReader, inner: Callable[..., Any], *, plain: bool, wrapping: bool = False
) -> FunctionType:
    """Make a layer that only calls `inner`, and wraps `send` if `wrapping`; called as the reader's function is.

    Only a reader of ordinary parameters can have a layer that wraps `send`.
    """
    parameters = reader.parameters
    passed, send = parameters.passed, ""
    if wrapping:
        *others, send = parameters.positional
        passed = ", ".join([*others, "_wrapped_"])
    source = (_WRAPPING_BLANK if wrapping else _BLANK).format(
        kind="def" if plain else "async def",
        wait="" if plain else "await",
        signature=parameters.signature,
        passed=passed,
        send=send,
        inner=_INNER,
        stand_in_for=_STAND_IN_FOR,
    )
    return FunctionType(_copied(compiled(source, {_INNER: inner, _STAND_IN_FOR: stand_in_for_callable})), {})


_TIMELINE, _LOG, _CLOCK = "the log", "the function that appends to the log", "the clock"
_DIVIDING = """
def make():
    async def shape({signature}):
        _inner_ = {inner!r}
        _log_ = {log!r}
        _clock_ = {clock!r}
        _timeline_ = {timeline!r}
        _log_({unowned}); _log_(_clock_())
        async def _receiving_(*arguments, **named):
            if _timeline_[-2] & {bits} != {unowned}:  # after the body, probes log nothing
                return await _ask_(*arguments, **named)
            _log_({owner}); _log_(_clock_())
            try:
                return await _ask_(*arguments, **named)
            finally:
                _log_({unowned}); _log_(_clock_())
        async def _sending_(*arguments, **named):
            _log_({owner}); _log_(_clock_())
            try:
                return await _given_(*arguments, **named)
            finally:
                _log_({unowned}); _log_(_clock_())
        _stand_in_for_ = {stand_in_for!r}
        _ask_, _receive_ = _stand_in_for_({receive}, _receiving_)
        _given_, _send_ = _stand_in_for_({send}, _sending_)
        try:
            return await _inner_({passed}_receive_, _send_)
        finally:
            _log_({owner}); _log_(_clock_())
"""


def dividing_layer(
    reader: Reader | FrameworkReader, inner: Callable[..., Any], search: ArgumentSearch, owner: Owner
) -> FunctionType:
    """Make a blank layer that logs the time from here to the inner probe as unowned, and otherwise as the owner's."""
    *others, receive, send = reader.parameters.positional
    source = _DIVIDING.format(
        signature=reader.parameters.signature,
        passed="".join(f"{name}, " for name in others),
        receive=receive,
        send=send,
        owner=owner,
        unowned=search.unowned,
        bits=OWNER_BITS,
        inner=_INNER,
        log=_LOG,
        timeline=_TIMELINE,
        clock=_CLOCK,
        stand_in_for=_STAND_IN_FOR,
    )
    constants: dict[object, object] = {_INNER: inner, _STAND_IN_FOR: stand_in_for_callable}
    constants |= {_TIMELINE: search.log, _LOG: search.log.append, _CLOCK: search.clock}
    return FunctionType(_copied(compiled(source, constants)), {})


def _copied(code: CodeType) -> CodeType:
    """Copy a code object and those inside it. CPython specialises each copy by what that copy has run."""
    constants = (_copied(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    return code.replace(co_consts=tuple(constants))
