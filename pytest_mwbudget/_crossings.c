/* The timing probes of pytest-mwbudget in C: they note who owns the time from here on, and what the clock says.

   They do what the probes in boundaries.py do, for a quarter of the cost, and leave the same log: owner, nanoseconds,
   owner, nanoseconds, ... So what a probe costs, which has to be taken off again, is small beside what is measured.

   - A *probe* stands in for the function through which layers are entered. It tells the layers by the arguments before
     the scope, and lets everything else pass.
   - A *passage* is a coroutine round the coroutine of a layer, or of one call of its receive or send. It marks the
     crossing when it begins and when it ends. The outermost passage of a task also marks when the task is suspended,
     and at its resumption whose time it is again.
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

/* ---- the log --------------------------------------------------------------------------------------------------- */

static struct {
    int64_t *marks; /* owner, nanoseconds, ... */
    size_t used, size;
    clockid_t clock;
    int stepping; /* whether suspensions are marked */
    int depth;    /* passages on the stack of the running task */
    unsigned generation;
    unsigned long thread;
    int failed; /* there was no memory for a mark */
} timeline;

static PyObject *more_body; /* the key of a message */

static void
mark(int64_t owner)
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

static inline int64_t
owner_now(void)
{
    return timeline.marks[timeline.used - 2];
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

typedef struct {
    PyObject_HEAD
    PyObject *callable;
    PyObject *arguments, *names; /* a tuple, keywords last; the keywords' names or NULL */
    PyObject *steps;             /* the iterator that is stepped; NULL before the first step */
    Way *way;                    /* of a message; else NULL */
    PyObject *weakrefs;
    int kind;
    int64_t owner, outer, parent, suspended;
    unsigned generation;
} Passage;

typedef struct {
    PyTypeObject *probe_type, *way_type, *passage_type;
} ModuleState;

/* There is one module in a process, see execute(). */
static ModuleState types;

/* ---- passages -------------------------------------------------------------------------------------------------- */

/* Takes the arguments. */
static PyObject *
make_passage(int kind, PyObject *callable, PyObject *arguments, PyObject *names, int64_t owner, int64_t parent, Way *way)
{
    Passage *self = arguments == NULL ? NULL : PyObject_GC_New(Passage, types.passage_type);
    if (self == NULL) {
        Py_XDECREF(arguments);
        return NULL;
    }
    self->callable = Py_NewRef(callable);
    self->arguments = arguments;
    self->names = Py_XNewRef(names);
    self->steps = self->weakrefs = NULL;
    self->way = (Way *)Py_XNewRef((PyObject *)way);
    self->kind = kind;
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
    return make_passage(MESSAGE, self->callable, tuple_of(arguments, all), names, self->outer, NO_PARENT, self);
}

static PyObject *
make_way(PyObject *callable, int64_t outer, int64_t owner, int kind)
{
    Way *self = PyObject_GC_New(Way, types.way_type);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = way_call;
    self->callable = Py_NewRef(callable);
    self->outer = (int)outer;
    self->owner = (int)owner;
    self->kind = kind;
    self->body_over = 0;
    self->generation = timeline.generation;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

/* What `await` would step: the object itself if it is a coroutine, else what its __await__ returns. */
static PyObject *
steps_of(PyObject *awaitable)
{
    if (PyCoro_CheckExact(awaitable)) {
        return Py_NewRef(awaitable);
    }
    PyAsyncMethods *async = Py_TYPE(awaitable)->tp_as_async;
    if (async != NULL && async->am_await != NULL) {
        PyObject *steps = async->am_await(awaitable);
        if (steps != NULL && !PyIter_Check(steps)) {
            PyErr_Format(PyExc_TypeError, "__await__() returned non-iterator of type '%.100s'", Py_TYPE(steps)->tp_name);
            Py_CLEAR(steps);
        }
        return steps;
    }
    if (PyGen_CheckExact(awaitable)) { /* a coroutine of types.coroutine */
        return Py_NewRef(awaitable);
    }
    PyErr_Format(PyExc_TypeError, "object %.100s can't be used in 'await' expression", Py_TYPE(awaitable)->tp_name);
    return NULL;
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
begin(Passage *self)
{
    if (live(self->generation)) {
        if (self->kind == LAYER) {
            int first_of_task = timeline.depth == 0 && self->parent != NO_PARENT;
            if (first_of_task && timeline.stepping) {
                mark(self->parent); /* who runs the task, which began before */
            }
            self->outer = first_of_task ? self->parent : owner_now();
            if (!put_ways(self)) {
                return 0;
            }
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
    PyObject *more = PyDict_Check(message) ? Py_XNewRef(PyDict_GetItemWithError(message, more_body)) : NULL;
    way->body_over = more == NULL || PyObject_IsTrue(more) == 0;
    Py_XDECREF(more);
    PyErr_Clear();
}

/* Returns how deep it was, for step_ends(); -1 when it is none of this log's. */
static int
step_begins(Passage *self)
{
    if (!live(self->generation)) {
        return -1;
    }
    if (timeline.depth == 0 && timeline.stepping && self->steps != NULL) {
        mark(self->suspended);
    }
    return timeline.depth;
}

static void
step_ends(Passage *self, int depth, int suspended)
{
    if (depth < 0 || !live(self->generation)) {
        return;
    }
    timeline.depth = depth;
    if (suspended) {
        self->suspended = owner_now();
        if (depth == 0 && timeline.stepping) {
            mark(SUSPENDED);
        }
    }
    else if (self->kind != REQUEST) {
        mark(self->outer);
    }
}

/* Begin if need be, which is at its caller's depth; then go one deeper. */
static int
ready(Passage *self, int depth)
{
    if (self->steps == NULL && !begin(self)) {
        return 0;
    }
    if (depth >= 0 && live(self->generation)) {
        timeline.depth = depth + 1;
    }
    return 1;
}

static PySendResult
passage_am_send(PyObject *op, PyObject *value, PyObject **result)
{
    Passage *self = (Passage *)op;
    PySendResult outcome = PYGEN_ERROR;
    int depth = step_begins(self);
    *result = NULL;
    if (ready(self, depth)) {
        PyObject *steps = Py_NewRef(self->steps);
        outcome = PyIter_Send(steps, value, result);
        Py_DECREF(steps);
    }
    if (outcome == PYGEN_RETURN && self->way != NULL && self->way->kind == RECEIVE) {
        note_body(self->way, *result);
    }
    step_ends(self, depth, outcome == PYGEN_NEXT);
    return outcome;
}

static void
raise_stop(PyObject *value)
{
    /* Not PyErr_SetObject(StopIteration, value): it would take a tuple apart. */
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
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

static PyObject *
passage_throw(PyObject *op, PyObject *const *arguments, Py_ssize_t number)
{
    Passage *self = (Passage *)op;
    PyObject *result = NULL;
    int depth = step_begins(self);
    if (ready(self, depth)) {
        PyObject *method = PyObject_GetAttrString(self->steps, "throw");
        if (method != NULL) {
            result = PyObject_Vectorcall(method, arguments, (size_t)number, NULL);
            Py_DECREF(method);
        }
    }
    step_ends(self, depth, result != NULL);
    return result;
}

static PyObject *
passage_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Passage *self = (Passage *)op;
    if (self->steps == NULL) {
        Py_RETURN_NONE;
    }
    return PyObject_CallMethod(self->steps, "close", NULL);
}

/* What else may be asked of a coroutine (cr_frame, cr_running, __qualname__, ...) is the inner one's. */
static PyObject *
passage_getattro(PyObject *op, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(op, name);
    if (found == NULL && ((Passage *)op)->steps != NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(((Passage *)op)->steps, name);
    }
    return found;
}

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

static int
passage_clear(PyObject *op)
{
    Passage *self = (Passage *)op;
    Py_CLEAR(self->steps);
    Py_CLEAR(self->callable);
    Py_CLEAR(self->arguments);
    Py_CLEAR(self->names);
    Py_CLEAR(self->way);
    return 0;
}

static void
passage_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (((Passage *)op)->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    passage_clear(op);
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

static int
way_clear(PyObject *op)
{
    Py_CLEAR(((Way *)op)->callable);
    return 0;
}

static void
way_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    way_clear(op);
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
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, way_traverse},
    {Py_tp_clear, way_clear},
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
    return make_passage(LAYER, target->callable, tuple_of(arguments, all), names, target->owner, target->parent, NULL);
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
    Py_CLEAR(self->passing);
    return 0;
}

static void
probe_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    probe_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef probe_methods[] = {
    {"set", probe_set, METH_VARARGS,
     "set(leads, owner, callable, parent=-1)\n\nCalls with these arguments before the scope are the owner's, and go to"
     " `callable`. `parent` is who owns the task of which this is the first layer."},
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
    return make_passage(REQUEST, arguments[0], tuple_of(arguments + 1, number - 1), NULL, 0, NO_PARENT, NULL);
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
    timeline.clock = cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    timeline.stepping = stepping;
    timeline.generation++;
    timeline.thread = PyThread_get_thread_ident();
    mark(0);
    return timeline.failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
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
    if (types.passage_type != NULL) {
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
