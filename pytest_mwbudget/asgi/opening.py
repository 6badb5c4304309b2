"""Watch how a request passes the parts of its endpoint, while `tracing` watches its ASGI callables.

What a framework calls inside an endpoint is no ASGI callable, so its module names the functions. Their calls and those
of ASGI callables are the *steps* of the request, each inside another one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import metadata
from types import CodeType, FrameType
from typing import Self

from ..interpreter import internals
from ..interpreter.code_patching import Function
from ..model.endpoint import HANDLER, ROUTING, SERIALIZE, VALIDATE
from .callables import functions_called
from .calls import Call
from .frameworks import django, fastapi, litestar, reading, starlette
from .frameworks.gates import INSIDE, Gate
from .frameworks.seam import FrameworkLayer, Hook

UNREADABLE = "its parts could not be read ({}: {})"
# By package, the functions that enter parts. An endpoint of FastAPI has those of Starlette too.
GATES = {"starlette": starlette.GATES, "fastapi": fastapi.GATES, "litestar": litestar.GATES, "django": django.GATES}


@dataclass(slots=True, eq=False)
class Step:
    """A call inside a request: of a part's function, which has a `hook`, or of an ASGI callable.

    Its frame is kept alive, so that the identities of the objects it holds stay valid.
    """

    frame: FrameType
    # The step that it is inside.
    parent: Self | None
    task: object
    # In another thread than the request's.
    elsewhere: bool
    hook: Hook | None = None
    # It has returned or raised: code that runs later in its context is not inside it.
    over: bool = False

    @property
    def part(self) -> str | None:
        """The name of the part that it enters, None for a dependency and if it enters no part."""
        return None if self.hook is None or self.hook.layer is None else self.hook.layer.name

    def outer(self) -> Iterator[Self]:
        """Yield the steps that this step is inside, innermost first."""
        step = self.parent
        while step is not None:
            yield step
            step = step.parent

    def innermost_open(self) -> Self | None:
        """Return the innermost of this step and those that it is inside which is not over, None if all are."""
        return next((step for step in (self, *self.outer()) if not step.over), None)


_current: ContextVar[Step | None] = ContextVar("pytest_mwbudget_step", default=None)


@dataclass(slots=True)
class Opening:
    """The steps of one request, in order, and what its route is."""

    steps: list[Step] = field(default_factory=list)
    step_of: dict[FrameType, Step] = field(default_factory=dict)
    hooks: dict[CodeType, list[Hook]] = field(default_factory=dict)
    # The framework of the route, None if the request came to no route.
    route: str | None = None
    # What the framework has for the route: the callable, or Litestar's handler.
    endpoint: object = None
    # Whether the app itself says which parts a request enters.
    custom: bool = False
    # The hooks of the callable, empty for a route of FastAPI.
    handler: list[Hook] = field(default_factory=list)
    # The dependencies that FastAPI solved, the values in `dependency_overrides`, and how often FastAPI rebuilt a
    # dependency because of these.
    solved: list[object] = field(default_factory=list)
    stand_ins: Sequence[object] = ()
    rebuilt: int = 0
    # The models in the type of the response, those that the handler returned with the functions that validate them, and
    # the number of calls of each such function.
    models: list[type] = field(default_factory=list)
    returned_models: dict[type, set[Function]] = field(default_factory=dict)
    validated: Counter[Function] = field(default_factory=Counter)
    # Whether the handler returned a str or bytes, and whether a step raised an exception.
    text: bool = False
    raised: bool = False
    # Why the parts could not be read.
    error: str | None = None

    def begin(self) -> None:
        """Watch the functions of the frameworks that are imported."""
        for package, gates in GATES.items():
            for gate in gates if package in sys.modules else ():
                if not gate.of_each:
                    self._watch(gate.hooks(FrameworkLayer(None, name=gate.part)))

    def _watch(self, hooks: Iterable[Hook]) -> None:
        for hook in hooks:
            known = self.hooks.setdefault(hook.function.__code__, [])
            if not any(watched.function is hook.function and watched.instance is hook.instance for watched in known):
                known.append(hook)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def entered(self, frame: FrameType, task: object, *, elsewhere: bool) -> None:
        """Note the call of a watched function."""
        try:
            hook = next((watched for watched in self.hooks[frame.f_code] if watched.is_entered_by(frame)), None)
        except Exception as error:
            self._note_error(error)
            return
        if hook is not None and hook.layer is None:
            self.validated[hook.function] += 1
        elif hook is not None and frame not in self.step_of:
            step = Step(frame, self._outer(frame, elsewhere=elsewhere), task, elsewhere, hook)
            self._note(step)
            if step.part == VALIDATE:
                self._read_dependencies(frame)
            elif step.part == SERIALIZE:
                self._guarded(self._read_response(frame))

    def _read_dependencies(self, frame: FrameType) -> None:
        """Watch the callable for which FastAPI solves dependencies, which is the handler in the outermost call."""
        if self.route == "litestar":
            self._guarded(litestar.dependency_hooks(frame.f_locals))
            return
        outer = self.step_of[frame].outer()
        if any(step.hook and step.hook.function.__code__ is frame.f_code for step in outer):
            hooks = self._guarded(fastapi.dependency_hooks(frame.f_locals))
            self.stand_ins = fastapi.stand_ins(frame.f_locals)
            self.rebuilt += bool(self.stand_ins)
            self.solved += [hook.layer.callee for hook in hooks[:1] if hook.layer is not None]

    def _read_response(self, frame: FrameType) -> Iterator[Hook]:
        """Note the models of a response, and yield hooks of the validators of those that the handler returned."""
        self.text = self.text or fastapi.returns_text(frame.f_locals)
        for model in fastapi.response_models(frame.f_locals):
            self.models.append(model)
            if fastapi.returns(frame.f_locals, model):
                self.returned_models[model] = set(fastapi.validators(model))
                yield from (Hook(function, None, None, INSIDE, part=True) for function in self.returned_models[model])

    def entered_asgi(self, frame: FrameType, call: Call, task: object, *, elsewhere: bool) -> None:
        """Note the call of an ASGI callable, and watch the callable of the route if the router has found it."""
        self.entered_layer(frame, task, elsewhere=elsewhere)  # perhaps a mounted app, which is the handler
        scope = call.scope
        if django.is_handler(call.lead):
            self.route, self.endpoint, self.handler = "django", None, []
        elif litestar.is_route(handler := scope.get("route_handler")):
            if handler is not self.endpoint:
                self.route, self.endpoint = "litestar", handler
                self.handler = self._guarded(litestar.handler_hooks(handler))
                self._guarded(litestar.hooks_beside(handler))
        elif "endpoint" in scope and scope["endpoint"] is not self.endpoint:
            self.endpoint, self.handler, self.custom = scope["endpoint"], [], False
            if fastapi.is_route(route := scope.get("route")):
                self.route, self.custom = "fastapi", fastapi.has_own_handler(route)
            elif "starlette" in sys.modules:
                self.route = "starlette"
            # FastAPI calls the handler of a WebSocket itself, past the function for those of requests.
            if self.route == "starlette" or scope.get("type") == "websocket":
                self.handler = self._guarded(starlette.handler_hooks(scope))

    def entered_layer(self, frame: FrameType, task: object, *, elsewhere: bool) -> None:
        """Note a call that is traced as that of a layer or of the endpoint, unless it enters a part."""
        if frame not in self.step_of:
            self._note(Step(frame, self._outer(frame, elsewhere=elsewhere), task, elsewhere))

    def returned(self, frame: FrameType, answer: object, *, raised: bool) -> None:
        """Note that a step is over, and watch the view that Django's routing returned."""
        step = self.step_of[frame]
        step.over = True
        self.raised = self.raised or raised
        if step.part == ROUTING and answer is not None:
            self.route, self.endpoint = "django", answer
            self.handler = self._guarded(django.view_hooks(answer))

    def _guarded(self, hooks: Iterator[Hook]) -> list[Hook]:
        """Watch and return the hooks; none if they cannot be read."""
        try:
            readable = list(hooks)
        except Exception as error:  # an app or a release that is built in another way must break no test
            self._note_error(error)
            return []
        self._watch(readable)
        return readable

    def _note_error(self, error: Exception) -> None:
        self.error = UNREADABLE.format(type(error).__name__, error)

    def _note(self, step: Step) -> None:
        _current.set(step)
        self.steps.append(step)
        self.step_of[step.frame] = step

    def _outer(self, frame: FrameType, *, elsewhere: bool) -> Step | None:
        """Return the step inside which a frame runs: on its own stack, or else where its task or work was made."""
        inherited = _current.get()
        if inherited is not None:
            inherited = inherited.innermost_open()
        for outer in internals.with_callers(frame.f_back):
            if outer in self.step_of:
                below = self.step_of[outer]
                # A thread that waits for the event loop may do work for it meanwhile, as asgiref's do.
                for_loop = elsewhere and inherited in self.steps and below in inherited.outer()
                return inherited if for_loop else below
        if inherited is None and elsewhere:
            inherited = next((step for step in reversed(self.steps) if not step.over), None)
        return inherited if inherited in self.steps else None

    def end(self) -> None:
        """Tell the functions apart that share their code, and have equal cells or none."""
        shared = [step for step in self.steps if step.hook and len(self.hooks.get(step.frame.f_code, ())) > 1]
        for step, function in zip(
            shared, internals.functions_of([each_step.frame for each_step in shared]), strict=True
        ):
            known = self.hooks[step.frame.f_code]
            if step.hook is not None:
                same = (hook for hook in known if hook.function is function and hook.instance is step.hook.instance)
                step.hook = next(same, step.hook)

    # ---- the result -------------------------------------------------------------------------------------------------

    def why_moved(self, entered: Collection[object]) -> str | None:
        """Return which function of the route's framework is missing or was not called, None if all is as it should be.

        `entered` are the parts that the request entered. A request that was refused before its handler moves nothing.
        """
        assert self.route is not None
        refused = self.raised and HANDLER not in entered
        for gate in GATES[self.route]:
            if gate.needed and gate.function is None:
                return f"{_release(self.route)} has no function {gate.name}"
            due = not self.custom and gate.after is not None and all(part in entered for part in gate.after)
            if due and not refused and not self._called(gate):
                return f"{_release(self.route)} did not call {gate.name}"
        return None

    @property
    def handled(self) -> bool:
        """Whether the request entered the callable of the route, where its hooks are known."""
        return any(step.hook in self.handler for step in self.steps if step.hook is not None)

    def converts(self) -> bool:
        """Return whether FastAPI turned what the handler returned into JSON."""
        return not self.text and any(self._called(gate) for gate in fastapi.GATES if gate.part == SERIALIZE)

    def validated_again(self) -> dict[type, int]:
        """Return the models that the handler returned, each with the number of calls of its validators by FastAPI."""
        return {
            model: sum(self.validated[function] for function in functions)
            for model, functions in self.returned_models.items()
        }

    def calls_of(self, dependency: object, steps: Iterable[Step]) -> int:
        """Count the steps that are calls of a dependency by FastAPI for one route; 0 if they may be of another route.

        Partials, and functions of one `def`, share their code. A request that enters several routes, or a route several
        times, solves the dependencies of each.
        """
        code = _code_of(dependency)
        if code is not None and any(solved is not dependency and _code_of(solved) is code for solved in self.solved):
            return 0
        solving = (_outermost_solving(step) for step in steps)
        return max(Counter(outermost for outermost in solving if outermost is not None).values(), default=0)

    def _called(self, gate: Gate) -> bool:
        function: object = gate.function
        return any(step.hook is not None and step.hook.function is function for step in self.steps)


def _outermost_solving(step: Step) -> Step | None:
    """Return the outermost of the calls of `solve_dependencies` directly round a step, None without such a call."""
    outermost = None
    for outer in step.outer():
        if outer.part != VALIDATE:
            break
        outermost = outer
    return outermost


def _code_of(dependency: object) -> CodeType | None:
    function = next(functions_called(reading.entered(dependency)), None)
    return None if function is None else function.__code__


def _release(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package
