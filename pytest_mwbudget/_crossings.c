/* The timing probes of pytest-mwbudget in C: they note who owns the time from here on, and what the clock says.

   They do what the probes in boundaries.py do, for half the cost, and leave the same log: owner, nanoseconds,
   owner, nanoseconds, ... So what a probe costs, which has to be taken off again, is small beside what is measured.

   - A *probe* stands in for the function through which layers are entered. It tells the layers by the arguments before
     the scope, and lets everything else pass.
   - A *passage* is a coroutine round the coroutine of a layer, or of one call of its receive or send. It marks the
     crossing when it begins and when it ends. The outermost passage of a task, its root, also marks when the task is
     suspended, and at its resumption whose time it is again.
   - A *way* is the receive or the send that a layer gets: what is called through it belongs to the layer outside.

   There is one log in a process; start() begins it anew, and passages of an earlier one only pass on. It belongs to the
   thread that started it. The file shares nothing with _ledger.c: what counts and what times must not meet. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

#define SUSPENDED (-1)
#define NO_PARENT (-1)
#define FIRST_SIZE 4096

#ifdef __APPLE__ /* its monotonic clock counts microseconds */
#define REAL_CLOCK CLOCK_UPTIME_RAW
#else
#define REAL_CLOCK CLOCK_MONOTONIC
#endif

/* ---- the log --------------------------------------------------------------------------------------------------- */

static struct {
    int64_t *marks; /* owner, nanoseconds, ... */
    size_t used, size;
    clockid_t clock;
    int stepping; /* whether suspensions are marked */
    int depth;    /* passages on the stack */
    void *context; /* the context that the innermost of them runs in, to be compared and nothing else */
    unsigned generation;
    unsigned long thread;
    int failed; /* there was no memory for a mark */
} timeline;

static PyObject *more_body; /* the key of a message */

static void
mark(int owner)
{
    struct timespec now;
    if (timeline.used == timeline.size) {
        size_t size = timeline.size ? timeline.size * 2 : FIRST_SIZE;
        int64_t *marks = realloc(timeline.marks, size * sizeof(int64_t));
        if (marks == NULL) {
            timeline.failed = 1;
            return;
        }
        timeline.marks = marks;
        timeline.size = size;
    }
    clock_gettime(timeline.clock, &now);
    timeline.marks[timeline.used++] = owner;
    timeline.marks[timeline.used++] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int
owner_now(void)
{
    return (int)timeline.marks[timeline.used - 2];
}

static inline int
live(unsigned generation)
{
    return generation == timeline.generation && PyThread_get_thread_ident() == timeline.thread;
}

/* ---- types ----------------------------------------------------------------------------------------------------- */

/* A layer, told by its leads, the arguments before the scope. */
typedef struct {
    PyObject *leads; /* a tuple */
    PyObject *callable;
    int owner, parent; /* the parent's owner for the first layer of a task, else NO_PARENT */
} Target;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *passing; /* what is called for anything but a target */
    Target *targets;
    int number;
} Probe;

enum { RECEIVE, SEND };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *callable;
    int outer, owner, kind;
    int body_over; /* from here on receive waits for the disconnect, and nobody works meanwhile */
    unsigned generation;
} Way;

enum { LAYER, MESSAGE, REQUEST };
enum { CREATED, WAITING, RUNNING, ENDED };

typedef struct {
    PyObject_HEAD
    PyObject *callable;
    PyObject *arguments, *names; /* a tuple, keywords last; the keywords' names or NULL */
    PyObject *steps;             /* the iterator that is stepped; NULL before the first step and after the last */
    Way *way;                    /* of a message; else NULL */
    PyObject *weakrefs;
    int kind, state;
    int owner, outer, parent, suspended; /* the last is whose time it was when the step before ended */
    unsigned generation;
} Passage;

/* What a step of a passage found, to be put back at its end. */
typedef struct {
    int live, root, depth, owner;
    void *context;
} Step;

typedef struct {
    PyTypeObject *probe_type, *way_type, *passage_type;
} ModuleState;

/* There is one module in a process, see execute(). */
static ModuleState types;

/* ---- passages -------------------------------------------------------------------------------------------------- */

/* Takes the callable and the arguments. */
static PyObject *
make_passage(int kind, PyObject *callable, PyObject *arguments, PyObject *names, int owner, int parent, Way *way)
{
    Passage *self = arguments == NULL ? NULL : PyObject_GC_New(Passage, types.passage_type);
    if (self == NULL) {
        Py_DECREF(callable);
        Py_XDECREF(arguments);
        return NULL;
    }
    self->callable = callable;
    self->arguments = arguments;
    self->names = Py_XNewRef(names);
    self->steps = self->weakrefs = NULL;
    self->way = (Way *)Py_XNewRef((PyObject *)way);
    self->kind = kind;
    self->state = CREATED;
    self->owner = owner;
    self->outer = way != NULL ? way->owner : 0;
    self->parent = parent;
    self->suspended = 0;
    self->generation = timeline.generation;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *
tuple_of(PyObject *const *arguments, Py_ssize_t number)
{
    PyObject *tuple = PyTuple_New(number);
    for (Py_ssize_t i = 0; tuple != NULL && i < number; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(arguments[i]));
    }
    return tuple;
}

static PyObject *
way_call(PyObject *op, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Way *self = (Way *)op;
    if (self->body_over || !live(self->generation)) {
        return PyObject_Vectorcall(self->callable, arguments, flags, names);
    }
    Py_ssize_t all = PyVectorcall_NARGS(flags) + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    PyObject *callable = Py_NewRef(self->callable);
    return make_passage(MESSAGE, callable, tuple_of(arguments, all), names, self->outer, NO_PARENT, self);
}

static PyObject *
make_way(PyObject *callable, int outer, int owner, int kind)
{
    Way *self = PyObject_GC_New(Way, types.way_type);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = way_call;
    self->callable = Py_NewRef(callable);
    self->outer = outer;
    self->owner = owner;
    self->kind = kind;
    self->body_over = 0;
    self->generation = timeline.generation;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int
is_coroutine(PyObject *object)
{
    if (!PyGen_CheckExact(object)) {
        return PyCoro_CheckExact(object);
    }
    PyObject *code = PyObject_GetAttrString(object, "gi_code");
    int marked = code != NULL && ((PyCodeObject *)code)->co_flags & CO_ITERABLE_COROUTINE;
    Py_XDECREF(code);
    return marked;
}

/* What `await` would step: the object itself if it is a coroutine, else what its __await__ returns. */
static PyObject *
steps_of(PyObject *awaitable)
{
    if (is_coroutine(awaitable)) {
        return Py_NewRef(awaitable);
    }
    PyAsyncMethods *async = Py_TYPE(awaitable)->tp_as_async;
    if (async == NULL || async->am_await == NULL) {
        return PyErr_Format(PyExc_TypeError, "object %.100s can't be used in 'await' expression",
                            Py_TYPE(awaitable)->tp_name);
    }
    PyObject *steps = async->am_await(awaitable);
    if (steps != NULL && is_coroutine(steps)) {
        PyErr_SetString(PyExc_TypeError, "__await__() returned a coroutine");
        Py_CLEAR(steps);
    }
    else if (steps != NULL && !PyIter_Check(steps)) {
        PyErr_Format(PyExc_TypeError, "__await__() returned non-iterator of type '%.100s'", Py_TYPE(steps)->tp_name);
        Py_CLEAR(steps);
    }
    return steps;
}

/* Give the layer its own receive and send, which are the two arguments after the scope. */
static int
put_ways(Passage *self)
{
    Py_ssize_t keywords = self->names == NULL ? 0 : PyTuple_GET_SIZE(self->names);
    Py_ssize_t at = PyTuple_GET_SIZE(self->arguments) - keywords - 2;
    for (int kind = RECEIVE; kind <= SEND; kind++) {
        PyObject *given = PyTuple_GET_ITEM(self->arguments, at + kind);
        PyObject *way = make_way(given, self->outer, self->owner, kind);
        if (way == NULL) {
            return 0;
        }
        PyTuple_SET_ITEM(self->arguments, at + kind, way); /* nobody else has seen this tuple */
        Py_DECREF(given);
    }
    return 1;
}

/* Call what is to be awaited, in its own time. Returns whether it can be stepped. */
static int
begin(Passage *self, const Step *step)
{
    if (step->live) {
        if (self->kind == LAYER) {
            int first_of_task = step->root && self->parent != NO_PARENT;
            if (first_of_task && timeline.stepping) {
                mark(self->parent); /* who runs the task, which began before */
            }
            self->outer = first_of_task ? self->parent : owner_now();
            if (!put_ways(self)) {
                return 0;
            }
        }
        else if (self->kind != REQUEST && owner_now() == SUSPENDED) {
            mark(self->outer); /* a task that a layer made for itself sends: what it did before that is the layer's */
        }
        if (self->kind != REQUEST) {
            mark(self->owner);
        }
    }
    Py_ssize_t keywords = self->names == NULL ? 0 : PyTuple_GET_SIZE(self->names);
    PyObject *const *arguments = &PyTuple_GET_ITEM(self->arguments, 0);
    size_t number = (size_t)(PyTuple_GET_SIZE(self->arguments) - keywords);
    PyObject *awaitable = PyObject_Vectorcall(self->callable, arguments, number, self->names);
    if (awaitable != NULL) {
        self->steps = steps_of(awaitable);
        Py_DECREF(awaitable);
    }
    return self->steps != NULL;
}

static void
note_body(Way *way, PyObject *message)
{
    PyObject *more = PyDict_Check(message) ? Py_XNewRef(PyDict_GetItemWithError(message, more_body))
                                           : PyObject_GetItem(message, more_body);
    way->body_over = more == NULL || PyObject_IsTrue(more) == 0;
    Py_XDECREF(more);
    PyErr_Clear();
}

/* Returns whether it may be stepped. */
static int
step_begins(Passage *self, Step *step)
{
    if (self->state == RUNNING) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return 0;
    }
    if (self->state == ENDED) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return 0;
    }
    step->live = live(self->generation);
    if (step->live) {
        step->depth = timeline.depth++;
        step->owner = owner_now();
        step->context = timeline.context;
        timeline.context = PyThreadState_Get()->context;
        /* An eager task begins inside a step of another task, but in a context of its own. */
        step->root = step->depth == 0 || (step->context != NULL && step->context != timeline.context);
        if (step->root && timeline.stepping && self->state == WAITING) {
            mark(self->suspended);
        }
    }
    self->state = RUNNING;
    return 1;
}

static void
step_ends(Passage *self, const Step *step, int suspended)
{
    if (step->live && live(self->generation)) {
        timeline.depth = step->depth;
        timeline.context = step->context;
        if (suspended) {
            self->suspended = owner_now();
            if (step->root && timeline.stepping) {
                mark(step->depth == 0 ? SUSPENDED : step->owner); /* whoever began an eager task goes on */
            }
        }
        else if (self->kind != REQUEST) {
            mark(self->outer);
        }
    }
    self->state = suspended ? WAITING : ENDED;
    if (!suspended) { /* as a coroutine that ends lets go of its frame */
        Py_CLEAR(self->steps);
        Py_CLEAR(self->arguments);
        Py_CLEAR(self->way);
    }
}

static PySendResult
passage_am_send(PyObject *op, PyObject *value, PyObject **result)
{
    Passage *self = (Passage *)op;
    PySendResult outcome = PYGEN_ERROR;
    Step step;
    *result = NULL;
    if (!step_begins(self, &step)) {
        return PYGEN_ERROR;
    }
    if (self->steps != NULL || begin(self, &step)) {
        outcome = PyIter_Send(self->steps, value, result);
    }
    if (outcome == PYGEN_RETURN && self->way != NULL && self->way->kind == RECEIVE) {
        note_body(self->way, *result);
    }
    step_ends(self, &step, outcome == PYGEN_NEXT);
    return outcome;
}

static void
raise_stop(PyObject *value)
{
    /* Not PyErr_SetObject(StopIteration, value): it would take a tuple apart. */
    PyObject *stop = value == Py_None ? PyObject_CallNoArgs(PyExc_StopIteration)
                                      : PyObject_CallOneArg(PyExc_StopIteration, value);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
}

static PyObject *
passage_send(PyObject *op, PyObject *value)
{
    PyObject *result;
    if (passage_am_send(op, value, &result) == PYGEN_RETURN) {
        raise_stop(result);
        Py_CLEAR(result);
    }
    return result;
}

/* What `await` calls. Returning NULL without an exception is how an iterator returns None. */
static PyObject *
passage_iternext(PyObject *op)
{
    PyObject *result;
    if (passage_am_send(op, Py_None, &result) == PYGEN_RETURN) {
        if (result != Py_None) {
            raise_stop(result);
        }
        Py_CLEAR(result);
    }
    return result;
}

/* An attribute of what is stepped; NULL without an exception when it has none. */
static PyObject *
steps_attribute(PyObject *steps, const char *name)
{
    PyObject *method = PyObject_GetAttrString(steps, name);
    if (method == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    return method;
}

/* Raise what throw() was called with. */
static void
raise_thrown(PyObject *const *arguments, Py_ssize_t number)
{
    if (number < 1 || number > 3) {
        PyErr_Format(PyExc_TypeError, "throw expected 1 to 3 arguments, got %zd", number);
    }
    else if (PyExceptionClass_Check(arguments[0])) {
        PyErr_SetObject(arguments[0], number > 1 && arguments[1] != Py_None ? arguments[1] : NULL);
    }
    else if (PyExceptionInstance_Check(arguments[0])) {
        PyErr_SetObject((PyObject *)Py_TYPE(arguments[0]), arguments[0]);
    }
    else {
        PyErr_Format(PyExc_TypeError, "exceptions must be classes or instances deriving from BaseException, not %.100s",
                     Py_TYPE(arguments[0])->tp_name);
    }
}

/* End what never began: nobody's time has passed in it. */
static void
end_unbegun(Passage *self)
{
    step_ends(self, &(Step){.live = 0}, 0);
}

static PyObject *
passage_throw(PyObject *op, PyObject *const *arguments, Py_ssize_t number)
{
    Passage *self = (Passage *)op;
    PyObject *result = NULL;
    Step step;
    if (self->state == CREATED) {
        end_unbegun(self);
        raise_thrown(arguments, number);
        return NULL;
    }
    if (!step_begins(self, &step)) {
        return NULL;
    }
    PyObject *method = steps_attribute(self->steps, "throw");
    if (method != NULL) {
        result = PyObject_Vectorcall(method, arguments, (size_t)number, NULL);
        Py_DECREF(method);
    }
    else if (!PyErr_Occurred()) { /* what takes no exceptions ends here */
        raise_thrown(arguments, number);
    }
    step_ends(self, &step, result != NULL);
    return result;
}

static PyObject *
passage_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Passage *self = (Passage *)op;
    PyObject *result = NULL;
    Step step;
    if (self->state == CREATED) {
        end_unbegun(self);
    }
    if (self->state == ENDED) {
        Py_RETURN_NONE;
    }
    if (!step_begins(self, &step)) {
        return NULL;
    }
    PyObject *method = steps_attribute(self->steps, "close");
    if (method != NULL) {
        result = PyObject_CallNoArgs(method);
        Py_DECREF(method);
    }
    else if (!PyErr_Occurred()) {
        result = Py_NewRef(Py_None);
    }
    if (step.live) {
        self->outer = step.owner; /* it may be closed by anybody, who then goes on */
    }
    step_ends(self, &step, 0);
    return result;
}

/* An attribute of its own, or else the inner object's. */
static PyObject *
own_or_inner(PyObject *op, PyObject *name, PyObject *inner)
{
    PyObject *found = PyObject_GenericGetAttr(op, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(inner, name);
    }
    return found;
}

/* __qualname__, cr_code, ... */
static PyObject *
passage_getattro(PyObject *op, PyObject *name)
{
    Passage *self = (Passage *)op;
    return own_or_inner(op, name, self->steps != NULL ? self->steps : self->callable);
}

/* It passes for a coroutine: some await only what inspect.iscoroutine() is true of. */
static PyObject *
passage_class(PyObject *Py_UNUSED(op), void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)&PyCoro_Type);
}

static PyObject *
passage_is_in_state(PyObject *op, void *state)
{
    return PyBool_FromLong(((Passage *)op)->state == *(const int *)state);
}

#if PY_VERSION_HEX >= 0x030F0000
/* What inspect.getcoroutinestate() asks for, by the name of its answers. */
static PyObject *
passage_state(PyObject *op, void *Py_UNUSED(closure))
{
    static const char *const names[] = {
        [CREATED] = "CORO_CREATED",
        [WAITING] = "CORO_SUSPENDED",
        [RUNNING] = "CORO_RUNNING",
        [ENDED] = "CORO_CLOSED",
    };
    return PyUnicode_FromString(names[((Passage *)op)->state]);
}
#endif

/* cr_frame, cr_await: none while there is nothing to step. */
static PyObject *
passage_of_inner(PyObject *op, void *name)
{
    PyObject *steps = ((Passage *)op)->steps;
    PyObject *found = steps == NULL ? NULL : steps_attribute(steps, name);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

static const int running = RUNNING, waiting = WAITING;

static PyGetSetDef passage_getset[] = {
    {"__class__", passage_class, NULL, NULL, NULL},
    {"cr_running", passage_is_in_state, NULL, NULL, (void *)&running},
    {"cr_suspended", passage_is_in_state, NULL, NULL, (void *)&waiting},
#if PY_VERSION_HEX >= 0x030F0000
    {"cr_state", passage_state, NULL, NULL, NULL},
#endif
    {"cr_frame", passage_of_inner, NULL, NULL, "cr_frame"},
    {"cr_await", passage_of_inner, NULL, NULL, "cr_await"},
    {NULL, NULL, NULL, NULL, NULL},
};

static int
passage_traverse(PyObject *op, visitproc visit, void *arg)
{
    Passage *self = (Passage *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->callable);
    Py_VISIT(self->arguments);
    Py_VISIT(self->names);
    Py_VISIT(self->steps);
    Py_VISIT((PyObject *)self->way);
    return 0;
}

/* Here and below, what is there from the beginning cannot close a cycle without the help of something that is cleared;
   so it stays, and whatever is called after all finds it. */
static int
passage_clear(PyObject *op)
{
    ((Passage *)op)->state = ENDED;
    Py_CLEAR(((Passage *)op)->steps);
    return 0;
}

static void
passage_dealloc(PyObject *op)
{
    Passage *self = (Passage *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    Py_XDECREF(self->steps);
    Py_XDECREF(self->arguments);
    Py_XDECREF(self->way);
    Py_XDECREF(self->names);
    Py_DECREF(self->callable);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef passage_methods[] = {
    {"send", passage_send, METH_O, "Run one step."},
    {"throw", (PyCFunction)(void (*)(void))passage_throw, METH_FASTCALL, "Run one step that begins with an exception."},
    {"close", passage_close, METH_NOARGS, "End the coroutine where it stands."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef passage_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(Passage, weakrefs), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot passage_slots[] = {
    {Py_tp_doc, "A coroutine whose beginning and end are marked."},
    {Py_tp_methods, passage_methods},
    {Py_tp_members, passage_members},
    {Py_tp_getset, passage_getset},
    {Py_tp_getattro, passage_getattro},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, passage_iternext},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, passage_am_send},
    {Py_tp_traverse, passage_traverse},
    {Py_tp_clear, passage_clear},
    {Py_tp_dealloc, passage_dealloc},
    {0, NULL},
};

static PyType_Spec passage_spec = {
    .name = "pytest_mwbudget._crossings.Passage",
    .basicsize = sizeof(Passage),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = passage_slots,
};

/* ---- ways ------------------------------------------------------------------------------------------------------ */

static int
way_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((Way *)op)->callable);
    return 0;
}

/* What asks whether it is a coroutine function gets the answer of the one inside. */
static PyObject *
way_getattro(PyObject *op, PyObject *name)
{
    return own_or_inner(op, name, ((Way *)op)->callable);
}

static void
way_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    Py_DECREF(((Way *)op)->callable);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMemberDef way_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Way, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot way_slots[] = {
    {Py_tp_doc, "The receive or the send of a layer."},
    {Py_tp_members, way_members},
    {Py_tp_getattro, way_getattro},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, way_traverse},
    {Py_tp_dealloc, way_dealloc},
    {0, NULL},
};

static PyType_Spec way_spec = {
    .name = "pytest_mwbudget._crossings.Way",
    .basicsize = sizeof(Way),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = way_slots,
};

/* ---- probes ---------------------------------------------------------------------------------------------------- */

static Target *
target_of(Probe *self, PyObject *const *leads, Py_ssize_t number)
{
    for (int i = 0; i < self->number; i++) {
        Target *target = &self->targets[i];
        Py_ssize_t same = 0;
        if (PyTuple_GET_SIZE(target->leads) != number) {
            continue;
        }
        while (same < number && PyTuple_GET_ITEM(target->leads, same) == leads[same]) {
            same++;
        }
        if (same == number) {
            return target;
        }
    }
    return NULL;
}

static PyObject *
probe_call(PyObject *op, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Probe *self = (Probe *)op;
    Py_ssize_t number = PyVectorcall_NARGS(flags);
    Target *target = number < 3 ? NULL : target_of(self, arguments, number - 3);
    if (target == NULL) {
        return PyObject_Vectorcall(self->passing, arguments, flags, names);
    }
    Py_ssize_t all = number + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    int owner = target->owner, parent = target->parent;
    PyObject *callable = Py_NewRef(target->callable); /* before anything that may run code, which may set() */
    return make_passage(LAYER, callable, tuple_of(arguments, all), names, owner, parent, NULL);
}

static PyObject *
probe_set(PyObject *op, PyObject *arguments)
{
    Probe *self = (Probe *)op;
    PyObject *leads, *callable;
    int owner, parent = NO_PARENT;
    if (!PyArg_ParseTuple(arguments, "O!iO|i:set", &PyTuple_Type, &leads, &owner, &callable, &parent)) {
        return NULL;
    }
    Target *target = target_of(self, &PyTuple_GET_ITEM(leads, 0), PyTuple_GET_SIZE(leads));
    if (target != NULL) {
        target->owner = owner;
        target->parent = parent;
        Py_XSETREF(target->callable, Py_NewRef(callable));
        Py_RETURN_NONE;
    }
    Target *targets = PyMem_Realloc(self->targets, (size_t)(self->number + 1) * sizeof(Target));
    if (targets == NULL) {
        return PyErr_NoMemory();
    }
    self->targets = targets;
    targets[self->number++] = (Target){Py_NewRef(leads), Py_NewRef(callable), owner, parent};
    Py_RETURN_NONE;
}

static int
probe_traverse(PyObject *op, visitproc visit, void *arg)
{
    Probe *self = (Probe *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->passing);
    for (int i = 0; i < self->number; i++) {
        Py_VISIT(self->targets[i].leads);
        Py_VISIT(self->targets[i].callable);
    }
    return 0;
}

static int
probe_clear(PyObject *op)
{
    Probe *self = (Probe *)op;
    Target *targets = self->targets;
    int number = self->number;
    self->targets = NULL;
    self->number = 0;
    for (int i = 0; i < number; i++) {
        Py_CLEAR(targets[i].leads);
        Py_CLEAR(targets[i].callable);
    }
    PyMem_Free(targets);
    return 0;
}

static PyObject *
probe_forget(PyObject *op, PyObject *Py_UNUSED(arguments))
{
    probe_clear(op);
    Py_RETURN_NONE;
}

static void
probe_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    probe_clear(op);
    Py_DECREF(((Probe *)op)->passing);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef probe_methods[] = {
    {"set", probe_set, METH_VARARGS,
     "set(leads, owner, callable, parent=-1)\n\nCalls with these arguments before the scope are the owner's, and go to"
     " `callable`. `parent` is who owns the task of which this is the first layer."},
    {"clear", probe_forget, METH_NOARGS, "clear()\n\nForget what was set: every call passes."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef probe_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Probe, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot probe_slots[] = {
    {Py_tp_doc, "Stands in for a function through which layers are entered."},
    {Py_tp_methods, probe_methods},
    {Py_tp_members, probe_members},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, probe_traverse},
    {Py_tp_clear, probe_clear},
    {Py_tp_dealloc, probe_dealloc},
    {0, NULL},
};

static PyType_Spec probe_spec = {
    .name = "pytest_mwbudget._crossings.Probe",
    .basicsize = sizeof(Probe),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = probe_slots,
};

/* ---- functions ------------------------------------------------------------------------------------------------- */

static PyObject *
make_probe(PyObject *Py_UNUSED(module), PyObject *passing)
{
    Probe *self = PyObject_GC_New(Probe, types.probe_type);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = probe_call;
    self->passing = Py_NewRef(passing);
    self->targets = NULL;
    self->number = 0;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *
watch(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t number)
{
    if (number < 1) {
        PyErr_SetString(PyExc_TypeError, "watch(app, ...)");
        return NULL;
    }
    PyObject *app = Py_NewRef(arguments[0]);
    return make_passage(REQUEST, app, tuple_of(arguments + 1, number - 1), NULL, 0, NO_PARENT, NULL);
}

static PyObject *
start(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int cpu = 0, stepping = 1;
    if (!PyArg_ParseTuple(arguments, "|pp:start", &cpu, &stepping)) {
        return NULL;
    }
    timeline.used = 0;
    timeline.depth = 0;
    timeline.failed = 0;
    timeline.clock = cpu ? CLOCK_THREAD_CPUTIME_ID : REAL_CLOCK;
    timeline.stepping = stepping;
    timeline.context = NULL;
    timeline.generation++;
    timeline.thread = 0; /* nobody's, until there is a mark to look at */
    mark(0);
    if (timeline.failed) {
        return PyErr_NoMemory();
    }
    timeline.thread = PyThread_get_thread_ident();
    Py_RETURN_NONE;
}

static PyObject *
read_log(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (timeline.failed) {
        return PyErr_NoMemory();
    }
    PyObject *list = PyList_New((Py_ssize_t)timeline.used);
    for (size_t i = 0; list != NULL && i < timeline.used; i++) {
        PyObject *item = PyLong_FromLongLong(timeline.marks[i]);
        if (item == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    return list;
}

static PyMethodDef functions[] = {
    {"probe", make_probe, METH_O,
     "probe(passing) -> Probe\n\nA probe without targets; `passing` is called for what is none of them."},
    {"watch", (PyCFunction)(void (*)(void))watch, METH_FASTCALL,
     "watch(app, ...) -> Passage\n\nA coroutine that calls the app and awaits it: the root of a request."},
    {"start", start, METH_VARARGS,
     "start(cpu=False, stepping=True)\n\nBegin the log anew, with the clock of the processor's time if `cpu`, with marks"
     " at suspensions if `stepping`."},
    {"read", read_log, METH_NOARGS, "read() -> [owner, nanoseconds, ...]\n\nThe log."},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *Py_UNUSED(module))
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "pytest_mwbudget._crossings times in the main interpreter only");
        return -1;
    }
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError, "pytest_mwbudget._crossings does not support free-threaded interpreters");
    return -1;
#endif
    if (more_body != NULL) {
        return 0; /* imported a second time: the first types stay */
    }
    types.passage_type = (PyTypeObject *)PyType_FromSpec(&passage_spec);
    types.way_type = (PyTypeObject *)PyType_FromSpec(&way_spec);
    types.probe_type = (PyTypeObject *)PyType_FromSpec(&probe_spec);
    more_body = PyUnicode_InternFromString("more_body");
    return types.passage_type && types.way_type && types.probe_type && more_body ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pytest_mwbudget._crossings",
    .m_doc = "Who owns the time of a request.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__crossings(void)
{
    return PyModuleDef_Init(&definition);
}
