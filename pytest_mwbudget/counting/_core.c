/* The counting core of pytest-mwbudget: who created how much, exactly.

   At every moment one *owner*, a small integer, is charged: a layer, the endpoint, the server's end. Hooks on object
   creation (PyRefTracer, CPython 3.13) and round the allocators of the "object" and "mem" domains add to that owner's
   tally. What switches the owner is here as well, because switching must not create anything that could be counted:

   - a *coroutine proxy* is a coroutine round a coroutine. Each of its steps is charged to its owner, and when the step
     ends the charge goes back to whoever was charged before. Nested proxies therefore follow the stack of a task,
     however often tasks take turns. The outermost proxy of a task, its *root*, leaves the charge with the owner that
     suspended: what the event loop does to park the task is that owner's.
   - a *guard* is a callable round a callable. One kind runs it *aside*: charged to nobody, so that probes written in
     Python leave no trace in the figures. The other kind, for callbacks of the event loop, runs it for an owner and
     leaves the charge there, as a root does.

   There is one counting run in a process, because allocators and the reference tracer are the process's own. It counts
   the thread that started it; what other threads do goes to an owner of theirs, and other interpreters are not counted.
   Everything here runs with the main interpreter's GIL held, but for the hooks: those an interpreter with a GIL of its
   own may enter at any time, and they touch nothing before they know which interpreter it is.
   Nothing is hooked outside start() ... stop(), and stop() puts back what start() found, unless another tool has
   installed itself on top in the meantime: then this one's hooks stay below as mere links to what they replaced.

   A class is held from its first object on, so that its address means nothing else, until take() has told of it and
   all its remembered objects are dead.

   Tallies live in memory of the C library, past the allocators that are being counted. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY

static PyObject *
PyErr_GetRaisedException(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

static void
PyErr_SetRaisedException(PyObject *error)
{
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
}
#endif

#if PY_VERSION_HEX >= 0x030D0000
#define HAVE_TRACER 1
#else
#define HAVE_TRACER 0
#define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
#endif

#define NOBODY (-1)
#define MAX_OWNERS 100000
#define RECENT 16

/* ---- state ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t objects, allocations, bytes, suspensions;
} Tally;

typedef struct {
    PyTypeObject *type; /* a strong reference; NULL in a free slot */
    int owner;
    int64_t count, remembered;
} TypeCount;

typedef struct {
    PyObject *object; /* an address to compare, never to follow; NULL in a free slot */
    PyTypeObject *type; /* borrowed from a TypeCount that knows of it; NULL for an object that is forgotten */
    int owner, period;
} Born;

typedef struct {
    void *block;
    size_t size;
    int owner, resized;
} Allocation;

typedef struct {
    PyMemAllocatorDomain domain;
    PyMemAllocatorEx below; /* what our functions call */
    int linked;             /* our functions are, as far as we know, somewhere in this domain's chain */
    int64_t calls;
} Domain;

/* Sizes are powers of two; at most half the slots are used. */
typedef struct {
    TypeCount *slots;
    size_t size, used;
} Types;

static struct {
    int active;
    unsigned generation;
    PyThreadState *thread; /* to compare: of this thread in this interpreter */
    int owners, aside, elsewhere; /* owners from 0; then what probes do; then other threads */
    int current, suspender;
    Tally *tallies;
    Types types;
    Born *born;
    size_t born_size, born_used;
    int remembering, period;
    Allocation newest, recent[RECENT]; /* of anybody; of owners from 0 */
    unsigned recent_next;
    int out_of_memory;
    Domain domains[2];
#if HAVE_TRACER
    struct {
        PyRefTracer below;
        void *data;
        int linked;
        int64_t calls;
    } tracer;
#endif
} counting = {
    .domains = {{.domain = PYMEM_DOMAIN_OBJ}, {.domain = PYMEM_DOMAIN_MEM}},
};

static inline int
serving(void)
{
    return counting.active && PyThreadState_GetUnchecked() == counting.thread;
}

static inline int
live(unsigned generation)
{
    return serving() && generation == counting.generation;
}

/* Whom the running thread is charged to: NOBODY in another interpreter, which may run at the same time as this one. */
static inline int
charged(void)
{
    PyThreadState *thread = PyThreadState_GetUnchecked();
    if (thread == NULL) {
        return NOBODY;
    }
    if (thread == counting.thread) {
        return counting.current;
    }
    return PyThreadState_GetInterpreter(thread) == PyInterpreterState_Main() ? counting.elsewhere : NOBODY;
}

/* Charge an owner until give_back(). Returns who was charged: NOBODY when nothing is counted, or not
   here. What runs in between may stop the run and start another, so both need to know which run is meant. */
static inline int
hand_over(unsigned generation, int owner)
{
    if (!live(generation)) {
        return NOBODY;
    }
    int before = counting.current;
    counting.current = owner;
    return before;
}

static inline void
give_back(unsigned generation, int before)
{
    if (before != NOBODY && live(generation)) {
        counting.current = before;
    }
}

/* ---- tables: open addressing ----------------------------------------------------------------------------------- */

static inline size_t
scattered(const void *pointer, int owner, size_t size)
{
    uint64_t key = ((uint64_t)(uintptr_t)pointer >> 4) + (uint64_t)owner * 0x9E3779B97F4A7C15ull;
    key ^= key >> 29;
    key *= 0xBF58476D1CE4E5B9ull;
    key ^= key >> 32;
    return (size_t)key & (size - 1);
}

static TypeCount *
type_slot(TypeCount *table, size_t size, PyTypeObject *type, int owner)
{
    size_t at = scattered(type, owner, size);
    while (table[at].type != NULL && (table[at].type != type || table[at].owner != owner)) {
        at = (at + 1) & (size - 1);
    }
    return &table[at];
}

/* Begin anew with the classes of remembered objects only. The caller owns what was there. */
static int
renew_types(Types *taken)
{
    *taken = counting.types;
    if (taken->size == 0) {
        return 1;
    }
    TypeCount *table = calloc(taken->size, sizeof(TypeCount));
    if (table == NULL) {
        return 0;
    }
    counting.types.slots = table;
    counting.types.used = 0;
    for (size_t i = 0; i < taken->size; i++) {
        TypeCount *old = &taken->slots[i];
        if (old->remembered) {
            TypeCount *slot = type_slot(table, taken->size, old->type, old->owner);
            *slot = *old;
            slot->count = 0;
            Py_INCREF(slot->type);
            counting.types.used++;
        }
    }
    return 1;
}

/* Letting go of a class may run any code. */
static void
release_types(Types *types)
{
    for (size_t i = 0; i < types->size; i++) {
        Py_XDECREF(types->slots[i].type);
    }
    free(types->slots);
}

static Born *
born_slot(Born *table, size_t size, PyObject *object)
{
    size_t at = scattered(object, 0, size);
    while (table[at].object != NULL && table[at].object != object) {
        at = (at + 1) & (size - 1);
    }
    return &table[at];
}

#if HAVE_TRACER
static int
grow_types(void)
{
    size_t size = counting.types.size ? counting.types.size * 2 : 1024;
    TypeCount *table = calloc(size, sizeof(TypeCount));
    if (table == NULL) {
        counting.out_of_memory = 1;
        return 0;
    }
    for (size_t i = 0; i < counting.types.size; i++) {
        TypeCount *old = &counting.types.slots[i];
        if (old->type != NULL) {
            *type_slot(table, size, old->type, old->owner) = *old;
        }
    }
    free(counting.types.slots);
    counting.types.slots = table;
    counting.types.size = size;
    return 1;
}

static TypeCount *
count_type(PyTypeObject *type, int owner, int number)
{
    if (counting.types.used * 2 >= counting.types.size && !grow_types()) {
        return NULL;
    }
    TypeCount *slot = type_slot(counting.types.slots, counting.types.size, type, owner);
    if (slot->type == NULL) {
        Py_INCREF(type);
        slot->type = type;
        slot->owner = owner;
        counting.types.used++;
    }
    slot->count += number;
    return slot;
}

static int
grow_born(void)
{
    size_t size = counting.born_size ? counting.born_size * 2 : 16384;
    Born *table = calloc(size, sizeof(Born));
    if (table == NULL) {
        counting.out_of_memory = 1;
        return 0;
    }
    for (size_t i = 0; i < counting.born_size; i++) {
        if (counting.born[i].object != NULL) {
            *born_slot(table, size, counting.born[i].object) = counting.born[i];
        }
    }
    free(counting.born);
    counting.born = table;
    counting.born_size = size;
    return 1;
}

static void
forget_slot(Born *slot)
{
    if (slot->type != NULL) {
        type_slot(counting.types.slots, counting.types.size, slot->type, slot->owner)->remembered--;
        slot->type = NULL;
    }
}

static void
forget(PyObject *object)
{
    if (counting.born_used) {
        forget_slot(born_slot(counting.born, counting.born_size, object));
    }
}

static void
remember(PyObject *object, TypeCount *kind)
{
    if (counting.born_used * 2 >= counting.born_size && !grow_born()) {
        return;
    }
    Born *slot = born_slot(counting.born, counting.born_size, object);
    if (slot->object == NULL) {
        slot->object = object;
        counting.born_used++;
    }
    forget_slot(slot); /* not every death is reported */
    slot->type = kind->type;
    slot->owner = kind->owner;
    slot->period = counting.period;
    kind->remembered++;
}
#endif

/* ---- allocations ----------------------------------------------------------------------------------------------- */

static inline int
within(const Allocation *made, const void *address)
{
    return (uintptr_t)address - (uintptr_t)made->block < made->size;
}

/* The allocation that this is in, if it was among the last; where memory was used again, its last use. */
static Allocation *
recent_allocation(const void *address)
{
    for (unsigned age = 1; age <= RECENT; age++) {
        Allocation *made = &counting.recent[(counting.recent_next - age) % RECENT];
        if (within(made, address)) {
            return made;
        }
    }
    return NULL;
}

static inline void
count_allocation(Domain *domain, void *block, size_t size, int resized)
{
    int owner = charged();
    if (owner == NOBODY) {
        return;
    }
    domain->calls++;
    if (counting.active && block != NULL) {
        counting.tallies[owner].allocations++;
        counting.tallies[owner].bytes += (int64_t)size;
        counting.newest = (Allocation){block, size, owner, resized};
        if (owner < counting.owners) {
            counting.recent[counting.recent_next++ % RECENT] = counting.newest;
        }
    }
}

static void *
counting_malloc(void *context, size_t size)
{
    Domain *domain = context;
    void *block = domain->below.malloc(domain->below.ctx, size);
    count_allocation(domain, block, size, 0);
    return block;
}

static void *
counting_calloc(void *context, size_t number, size_t size)
{
    Domain *domain = context;
    void *block = domain->below.calloc(domain->below.ctx, number, size);
    count_allocation(domain, block, number * size, 0);
    return block;
}

static void *
counting_realloc(void *context, void *old, size_t size)
{
    Domain *domain = context;
    void *block = domain->below.realloc(domain->below.ctx, old, size);
    count_allocation(domain, block, size, old != NULL);
    return block;
}

static void
passing_free(void *context, void *block)
{
    Domain *domain = context;
    domain->below.free(domain->below.ctx, block);
}

static int
on_top(Domain *domain)
{
    PyMemAllocatorEx now;
    PyMem_GetAllocator(domain->domain, &now);
    return now.ctx == domain && now.malloc == counting_malloc;
}

/* Whether an allocation in this domain still comes through our functions. */
static int
reached(Domain *domain)
{
    int64_t before = domain->calls;
    if (domain->domain == PYMEM_DOMAIN_OBJ) {
        PyObject_Free(PyObject_Malloc(1));
    }
    else {
        PyMem_Free(PyMem_Malloc(1));
    }
    return domain->calls != before;
}

static void
hook_allocator(Domain *domain)
{
    /* An earlier run may have left our functions below another tool's, or such a tool may have put them back. */
    if (!on_top(domain) && !(domain->linked && reached(domain))) {
        PyMemAllocatorEx ours = {domain, counting_malloc, counting_calloc, counting_realloc, passing_free};
        PyMem_GetAllocator(domain->domain, &domain->below);
        PyMem_SetAllocator(domain->domain, &ours);
    }
    domain->linked = 1;
}

/* Returns whether our functions were in the chain to the end. */
static int
unhook_allocator(Domain *domain)
{
    if (on_top(domain)) {
        PyMem_SetAllocator(domain->domain, &domain->below);
        domain->linked = 0;
        return 1;
    }
    /* Someone stands above us, and calls us; or has put back what was there before us. */
    domain->linked = reached(domain);
    return domain->linked;
}

/* ---- objects --------------------------------------------------------------------------------------------------- */

#if HAVE_TRACER
static void
created(PyObject *object, int owner)
{
    int fresh = within(&counting.newest, object);
    /* A text, bytes or tuple that is brought to its size is reported again, and is not another object. */
    int number = fresh && counting.newest.resized ? 0 : 1;
    counting.newest.resized = 0;
    counting.tallies[owner].objects += number;
    TypeCount *kind = count_type(Py_TYPE(object), owner, number);
    if (counting.remembering && kind != NULL) {
        remember(object, kind);
    }
    else {
        forget(object); /* the address is another's now */
    }
    if (!fresh && owner < counting.owners) { /* out of a free list: the allocation was for an object before it */
        Allocation *stale;
        while ((stale = recent_allocation(object)) != NULL) {
            *stale = (Allocation){0};
        }
    }
}

static int
on_reference(PyObject *object, PyRefTracerEvent event, void *Py_UNUSED(data))
{
    if (event != PyRefTracer_CREATE && event != PyRefTracer_DESTROY) {
        return 0;
    }
    if (counting.tracer.below != NULL) {
        counting.tracer.below(object, event, counting.tracer.data);
    }
    int owner = charged();
    if (owner == NOBODY) {
        return 0;
    }
    if (event == PyRefTracer_DESTROY) {
        forget(object);
        return 0;
    }
    counting.tracer.calls++;
    if (counting.active) {
        created(object, owner);
    }
    return 0;
}

/* Whether the creation of an object still comes to our tracer. */
static int
tracer_reached(void)
{
    int64_t before = counting.tracer.calls;
    PyObject *object = PyList_New(0);
    if (object == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(object);
    return counting.tracer.calls != before;
}

/* Returns whether another tracer is there, or -1. As with allocators, ours may be there as a link. */
static int
hook_tracer(void)
{
    void *data;
    PyRefTracer now = PyRefTracer_GetTracer(&data);
    int hooked = now == on_reference || (counting.tracer.linked && tracer_reached());
    if (!hooked) {
        if (PyRefTracer_SetTracer(on_reference, NULL) < 0) {
            return -1;
        }
        counting.tracer.below = now;
        counting.tracer.data = data;
    }
    counting.tracer.linked = 1;
    return now == on_reference ? counting.tracer.below != NULL : now != NULL;
}

/* Put back the tracer that was there, unless someone else decided what is there now. Returns whether ours had its
   events to the end; `below` stays, for one that calls ours or puts it back later. */
static int
unhook_tracer(void)
{
    void *data;
    if (PyRefTracer_GetTracer(&data) == on_reference) {
        PyRefTracer_SetTracer(counting.tracer.below, counting.tracer.data);
        counting.tracer.below = NULL;
        counting.tracer.linked = 0;
        return 1;
    }
    counting.tracer.linked = tracer_reached();
    return counting.tracer.linked;
}
#endif

/* ---- coroutine proxies ------------------------------------------------------------------------------------------- */

enum { INNER, ROOT };

typedef struct {
    PyObject_HEAD
    PyObject *awaitable;
    PyObject *steps; /* the iterator that is stepped; NULL before the first step */
    PyObject *returned; /* called aside when the coroutine has returned; NULL when nobody wants to know */
    PyObject *weakrefs;
    int owner, kind;
    unsigned generation;
} Proxy;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *callable;
    int owner;
    unsigned generation;
} Guard;

enum { ASIDE, CALLBACK };

typedef struct {
    PyTypeObject *proxy_type, *guard_type;
} ModuleState;

/* Begin a step: whom to charge again at its end, NOBODY when this proxy is of a run that has stopped. */
static inline int
enter(Proxy *self)
{
    int before = hand_over(self->generation, self->owner);
    if (before != NOBODY) {
        counting.suspender = NOBODY;
    }
    return before;
}

static inline void
leave(Proxy *self, int before, int suspended)
{
    if (before == NOBODY || !live(self->generation)) {
        return;
    }
    if (!suspended) {
        counting.suspender = NOBODY;
        counting.current = self->kind == ROOT ? self->owner : before;
        return;
    }
    if (counting.suspender == NOBODY) { /* the innermost proxy comes first */
        counting.suspender = self->owner;
        counting.tallies[self->owner].suspensions++;
    }
    if (self->kind == ROOT) {
        counting.current = counting.suspender;
        counting.suspender = NOBODY;
    }
    else {
        counting.current = before;
    }
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
    if (steps == NULL) {
        return NULL;
    }
    if (is_coroutine(steps)) {
        PyErr_SetString(PyExc_TypeError, "__await__() returned a coroutine");
        Py_CLEAR(steps);
    }
    else if (!PyIter_Check(steps)) {
        PyErr_Format(PyExc_TypeError, "__await__() returned non-iterator of type '%.100s'", Py_TYPE(steps)->tp_name);
        Py_CLEAR(steps);
    }
    return steps;
}

/* A new reference to the iterator that is stepped. To get it may run code that steps this very proxy. */
static PyObject *
steps_begun(Proxy *self)
{
    if (self->steps == NULL) {
        PyObject *steps = steps_of(self->awaitable);
        if (steps == NULL) {
            return NULL;
        }
        Py_XSETREF(self->steps, steps);
    }
    return Py_NewRef(self->steps);
}

/* Tell, aside, that the coroutine has returned, in a step that was counted. */
static int
told(Proxy *self, int before)
{
    if (self->returned == NULL || before == NOBODY || !live(self->generation)) {
        return 1;
    }
    int charged_now = hand_over(self->generation, counting.aside);
    PyObject *answer = PyObject_CallNoArgs(self->returned);
    give_back(self->generation, charged_now);
    Py_XDECREF(answer);
    return answer != NULL;
}

static PySendResult
proxy_am_send(PyObject *op, PyObject *value, PyObject **result)
{
    Proxy *self = (Proxy *)op;
    *result = NULL;
    int before = enter(self);
    PySendResult outcome = PYGEN_ERROR;
    PyObject *steps = steps_begun(self);
    if (steps != NULL) {
        outcome = PyIter_Send(steps, value, result);
        Py_DECREF(steps);
    }
    leave(self, before, outcome == PYGEN_NEXT);
    if (outcome == PYGEN_RETURN && !told(self, before)) {
        Py_CLEAR(*result);
        return PYGEN_ERROR;
    }
    return outcome;
}

/* Raise StopIteration(value) as a coroutine does. The exception is ours: a coroutine that is awaited needs none. */
static void
raise_stop(Proxy *self, PyObject *value)
{
    int before = hand_over(self->generation, counting.aside);
    /* Not PyErr_SetObject(StopIteration, value): it would take a tuple apart. */
    PyObject *stop = value == Py_None ? PyObject_CallNoArgs(PyExc_StopIteration)
                                      : PyObject_CallOneArg(PyExc_StopIteration, value);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    give_back(self->generation, before);
}

static PyObject *
proxy_send(PyObject *op, PyObject *value)
{
    PyObject *result;
    PySendResult outcome = proxy_am_send(op, value, &result);
    if (outcome == PYGEN_RETURN) {
        raise_stop((Proxy *)op, result);
        Py_CLEAR(result);
    }
    return result;
}

/* What `await` calls. Returning NULL without an exception is how an iterator returns None. */
static PyObject *
proxy_iternext(PyObject *op)
{
    PyObject *result;
    PySendResult outcome = proxy_am_send(op, Py_None, &result);
    if (outcome == PYGEN_RETURN) {
        if (result != Py_None) {
            raise_stop((Proxy *)op, result);
        }
        Py_CLEAR(result);
    }
    return result;
}

/* A method, looked up aside; NULL without an exception when there is none. */
static PyObject *
method_of(Proxy *self, PyObject *object, const char *name)
{
    int before = hand_over(self->generation, counting.aside);
    Py_INCREF(object);
    PyObject *found = PyObject_GetAttrString(object, name);
    Py_DECREF(object);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    give_back(self->generation, before);
    return found;
}

/* throw or close of what is stepped. Before the first step it is that of the coroutine: what takes exceptions is one.
   Other awaitables have nothing to end by then, and may have a close() that means something else. */
static PyObject *
ending(Proxy *self, const char *name)
{
    if (self->steps != NULL) {
        return method_of(self, self->steps, name);
    }
    PyObject *method = method_of(self, self->awaitable, "throw");
    if (method != NULL && strcmp(name, "throw") != 0) {
        Py_SETREF(method, method_of(self, self->awaitable, name));
    }
    return method;
}

/* Raise what throw() was called with. */
static void
raise_thrown(PyObject *const *arguments, Py_ssize_t number)
{
    if (number < 1 || number > 3) {
        PyErr_Format(PyExc_TypeError, "throw expected 1 to 3 arguments, got %zd", number);
        return;
    }
    PyObject *type = arguments[0], *value = number > 1 ? arguments[1] : NULL;
    if (PyExceptionClass_Check(type)) {
        PyErr_SetObject(type, value == Py_None ? NULL : value);
    }
    else if (PyExceptionInstance_Check(type)) {
        PyErr_SetObject((PyObject *)Py_TYPE(type), type);
    }
    else {
        PyErr_Format(PyExc_TypeError, "exceptions must be classes or instances deriving from BaseException, not %.100s",
                     Py_TYPE(type)->tp_name);
    }
}

/* Not METH_VARARGS: its tuple of arguments would be the caller's. */
static PyObject *
proxy_throw(PyObject *op, PyObject *const *arguments, Py_ssize_t number)
{
    Proxy *self = (Proxy *)op;
    PyObject *method = ending(self, "throw"), *result = NULL;
    if (method == NULL && PyErr_Occurred()) {
        return NULL;
    }
    int before = enter(self);
    if (method != NULL) {
        result = PyObject_Vectorcall(method, arguments, (size_t)number, NULL);
        Py_DECREF(method);
    }
    else { /* what takes no exceptions ends here */
        raise_thrown(arguments, number);
    }
    leave(self, before, result != NULL);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_StopIteration)) { /* it caught the exception, and returned */
        PyObject *stop = PyErr_GetRaisedException();
        if (told(self, before)) {
            PyErr_SetRaisedException(stop);
        }
        else {
            Py_DECREF(stop);
        }
    }
    return result;
}

static PyObject *
proxy_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    Proxy *self = (Proxy *)op;
    PyObject *method = ending(self, "close");
    if (method == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    int before = enter(self);
    PyObject *result = PyObject_CallNoArgs(method);
    leave(self, before, 0);
    Py_DECREF(method);
    return result;
}

/* An attribute of its own, looked up aside, or else that of the object inside. */
static PyObject *
own_or_inner(PyObject *op, PyObject *name, unsigned generation, PyObject *inner)
{
    int before = hand_over(generation, counting.aside);
    PyObject *found = PyObject_GenericGetAttr(op, name);
    int missing = found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError);
    if (missing) {
        PyErr_Clear();
    }
    give_back(generation, before);
    return missing ? PyObject_GetAttr(inner, name) : found;
}

/* Everything else that may be asked of a coroutine (cr_frame, cr_running, __qualname__, ...) is the inner one's. */
static PyObject *
proxy_getattro(PyObject *op, PyObject *name)
{
    Proxy *self = (Proxy *)op;
    return own_or_inner(op, name, self->generation, self->awaitable);
}

static int
proxy_traverse(PyObject *op, visitproc visit, void *arg)
{
    Proxy *self = (Proxy *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->awaitable);
    Py_VISIT(self->steps);
    Py_VISIT(self->returned);
    return 0;
}

/* The rest is there from the beginning and never NULL. It cannot close a cycle without the help of something that was
   made earlier and changed later, and that is cleared. */
static int
proxy_clear(PyObject *op)
{
    Py_CLEAR(((Proxy *)op)->steps);
    return 0;
}

static void
proxy_dealloc(PyObject *op)
{
    Proxy *self = (Proxy *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    Py_XDECREF(self->steps);
    Py_DECREF(self->awaitable);
    Py_XDECREF(self->returned);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef proxy_methods[] = {
    {"send", proxy_send, METH_O, "Run one step."},
    {"throw", (PyCFunction)(void (*)(void))proxy_throw, METH_FASTCALL, "Run one step that begins with an exception."},
    {"close", proxy_close, METH_NOARGS, "End the coroutine where it stands."},
    {0},
};

/* Some ask whether it is a coroutine, and await nothing else. */
static PyObject *
proxy_class(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)Py_TYPE(((Proxy *)op)->awaitable));
}

static PyGetSetDef proxy_getset[] = {
    {"__class__", proxy_class, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef proxy_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(Proxy, weakrefs), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot proxy_slots[] = {
    {Py_tp_doc, "A coroutine whose steps are charged to an owner."},
    {Py_tp_methods, proxy_methods},
    {Py_tp_members, proxy_members},
    {Py_tp_getset, proxy_getset},
    {Py_tp_getattro, proxy_getattro},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, proxy_iternext},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, proxy_am_send},
    {Py_tp_traverse, proxy_traverse},
    {Py_tp_clear, proxy_clear},
    {Py_tp_dealloc, proxy_dealloc},
    {0, NULL},
};

static PyType_Spec proxy_spec = {
    .name = "pytest_mwbudget.counting._core.CoroutineProxy",
    .basicsize = sizeof(Proxy),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = proxy_slots,
};

/* ---- guards ---------------------------------------------------------------------------------------------------- */

/* callable(owner charged so far, *arguments); -1 for a caller who is not counted. */
static PyObject *
guard_aside(PyObject *op, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Guard *self = (Guard *)op;
    Py_ssize_t number = PyVectorcall_NARGS(flags);
    Py_ssize_t all = number + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    PyObject *small[12], **with_owner = all < 12 ? small : malloc((size_t)(all + 1) * sizeof(PyObject *));
    if (with_owner == NULL) {
        return PyErr_NoMemory();
    }
    int before = hand_over(self->generation, counting.aside);
    PyObject *result = NULL, *owner = PyLong_FromLong(before);
    if (owner != NULL) {
        with_owner[0] = owner;
        for (Py_ssize_t i = 0; i < all; i++) {
            with_owner[i + 1] = arguments[i];
        }
        result = PyObject_Vectorcall(self->callable, with_owner, (size_t)number + 1, names);
        Py_DECREF(owner);
    }
    if (with_owner != small) {
        free(with_owner);
    }
    give_back(self->generation, before);
    return result;
}

static PyObject *
guard_callback(PyObject *op, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Guard *self = (Guard *)op;
    if (live(self->generation)) {
        counting.current = self->owner;
    }
    return PyObject_Vectorcall(self->callable, arguments, flags, names);
}

static PyObject *
guard_getattro(PyObject *op, PyObject *name)
{
    Guard *self = (Guard *)op;
    return own_or_inner(op, name, self->generation, self->callable);
}

static int
guard_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((Guard *)op)->callable);
    return 0;
}

static void
guard_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    Py_DECREF(((Guard *)op)->callable);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMemberDef guard_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Guard, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot guard_slots[] = {
    {Py_tp_doc, "A callable that is charged to somebody else than its caller."},
    {Py_tp_members, guard_members},
    {Py_tp_getattro, guard_getattro},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_dealloc, guard_dealloc},
    {0, NULL},
};

static PyType_Spec guard_spec = {
    .name = "pytest_mwbudget.counting._core.Guard",
    .basicsize = sizeof(Guard),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = guard_slots,
};

/* ---- functions ------------------------------------------------------------------------------------------------- */

static int
checked_owner(long owner)
{
    if (!counting.active) {
        PyErr_SetString(PyExc_RuntimeError, "no counting run is under way");
        return 0;
    }
    if (owner < 0 || owner > counting.elsewhere) {
        PyErr_Format(PyExc_ValueError, "owner %ld, but this counting run has 0 to %d", owner, counting.elsewhere);
        return 0;
    }
    return 1;
}

static PyObject *
make_proxy(PyObject *module, PyObject *arguments)
{
    int owner, root = 0;
    PyObject *awaitable, *returned = Py_None;
    if (!PyArg_ParseTuple(arguments, "iO|pO:coroutine_proxy", &owner, &awaitable, &root, &returned) ||
        !checked_owner(owner)) {
        return NULL;
    }
    unsigned generation = counting.generation; /* making an object may collect others, and that run any code */
    Proxy *self = PyObject_GC_New(Proxy, ((ModuleState *)PyModule_GetState(module))->proxy_type);
    if (self == NULL) {
        return NULL;
    }
    self->awaitable = Py_NewRef(awaitable);
    self->returned = returned == Py_None ? NULL : Py_NewRef(returned);
    self->steps = self->weakrefs = NULL;
    self->owner = owner;
    self->kind = root ? ROOT : INNER;
    self->generation = generation;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *
make_guard(PyObject *module, PyObject *callable, int kind, int owner)
{
    unsigned generation = counting.generation;
    Guard *self = PyObject_GC_New(Guard, ((ModuleState *)PyModule_GetState(module))->guard_type);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = kind == ASIDE ? guard_aside : guard_callback;
    self->callable = Py_NewRef(callable);
    self->owner = owner;
    self->generation = generation;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *
make_aside(PyObject *module, PyObject *callable)
{
    return checked_owner(0) ? make_guard(module, callable, ASIDE, 0) : NULL;
}

static PyObject *
make_callback(PyObject *module, PyObject *arguments)
{
    int owner;
    PyObject *callable;
    if (!PyArg_ParseTuple(arguments, "iO:callback", &owner, &callable) || !checked_owner(owner)) {
        return NULL;
    }
    return make_guard(module, callable, CALLBACK, owner);
}

static PyObject *
run_as(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t number, PyObject *names)
{
    if (number < 2) {
        PyErr_SetString(PyExc_TypeError, "run(owner, callable, ...)");
        return NULL;
    }
    long owner = PyLong_AsLong(arguments[0]);
    if (owner == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (!serving()) {
        return PyObject_Vectorcall(arguments[1], arguments + 2, (size_t)number - 2, names);
    }
    if (!checked_owner(owner)) {
        return NULL;
    }
    unsigned generation = counting.generation;
    int before = hand_over(generation, (int)owner);
    PyObject *result = PyObject_Vectorcall(arguments[1], arguments + 2, (size_t)number - 2, names);
    give_back(generation, before);
    return result;
}

static PyObject *
set_charge(PyObject *Py_UNUSED(module), PyObject *value)
{
    long owner = PyLong_AsLong(value);
    if ((owner == -1 && PyErr_Occurred()) || !checked_owner(owner)) {
        return NULL;
    }
    if (!serving()) {
        return PyLong_FromLong(counting.elsewhere);
    }
    int before = hand_over(counting.generation, counting.aside);
    PyObject *charged_before = PyLong_FromLong(before);
    give_back(counting.generation, charged_before == NULL ? before : (int)owner);
    return charged_before;
}

static void
discount_allocation(int owner, const void *address)
{
    Allocation *made = recent_allocation(address);
    if (made == NULL || made->owner != owner) {
        return; /* out of a free list */
    }
    counting.tallies[owner].allocations--;
    counting.tallies[owner].bytes -= (int64_t)made->size;
    counting.tallies[counting.aside].allocations++;
    counting.tallies[counting.aside].bytes += (int64_t)made->size;
    *made = (Allocation){0};
}

/* A container that a probe's own arguments were put into: it was charged to its caller and is none of his. */
static PyObject *
discount(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int owner;
    PyObject *object;
    if (!PyArg_ParseTuple(arguments, "iO:discount", &owner, &object) || !checked_owner(owner)) {
        return NULL;
    }
#if HAVE_TRACER
    counting.tallies[owner].objects--;
    counting.tallies[counting.aside].objects++;
    count_type(Py_TYPE(object), owner, -1);
    count_type(Py_TYPE(object), counting.aside, 1);
#endif
    discount_allocation(owner, object);
    if (PyDict_CheckExact(object)) {
        discount_allocation(owner, ((PyDictObject *)object)->ma_keys);
    }
    Py_RETURN_NONE;
}

static PyObject *
start(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int owners;
    if (!PyArg_ParseTuple(arguments, "i:start", &owners)) {
        return NULL;
    }
    if (counting.active) {
        PyErr_SetString(PyExc_RuntimeError,
                        "counting is under way already: there can be one counting run in a process");
        return NULL;
    }
    if (owners < 1 || owners > MAX_OWNERS) {
        return PyErr_Format(PyExc_ValueError, "%d owners, but a counting run has 1 to %d", owners, MAX_OWNERS);
    }
    Tally *tallies = calloc((size_t)owners + 2, sizeof(Tally));
    if (tallies == NULL) {
        return PyErr_NoMemory();
    }
    counting.tallies = tallies;
    counting.owners = owners;
    counting.aside = owners;
    counting.elsewhere = owners + 1;
    counting.current = counting.aside;
    counting.suspender = NOBODY;
    counting.thread = PyThreadState_Get();
    counting.generation++;
    counting.remembering = counting.period = counting.out_of_memory = 0;
    counting.newest = (Allocation){0};
    memset(counting.recent, 0, sizeof(counting.recent));
    int other_tracer = 0;
#if HAVE_TRACER
    other_tracer = hook_tracer();
    if (other_tracer < 0) {
        free(counting.tallies);
        counting.tallies = NULL;
        return NULL;
    }
#endif
    hook_allocator(&counting.domains[0]);
    hook_allocator(&counting.domains[1]);
    counting.active = 1;
    return PyBool_FromLong(other_tracer);
}

static PyObject *
stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (!counting.active) {
        PyErr_SetString(PyExc_RuntimeError, "no counting run is under way");
        return NULL;
    }
    int allocations_lost = !unhook_allocator(&counting.domains[0]);
    allocations_lost |= !unhook_allocator(&counting.domains[1]);
    int objects_lost = counting.out_of_memory;
#if HAVE_TRACER
    objects_lost |= !unhook_tracer();
#endif
    counting.active = 0;
    Types types = counting.types;
    free(counting.tallies);
    free(counting.born);
    counting.tallies = NULL;
    counting.types = (Types){0};
    counting.born = NULL;
    counting.born_size = counting.born_used = 0;
    release_types(&types); /* last: by now another run may have started */
    return Py_BuildValue("(NN)", PyBool_FromLong(objects_lost), PyBool_FromLong(allocations_lost));
}

static PyObject *
tally_rows(const Tally *tallies, Py_ssize_t owners)
{
    PyObject *rows = PyList_New(owners);
    for (Py_ssize_t i = 0; rows != NULL && i < owners; i++) {
        PyObject *row = Py_BuildValue("(LLLL)", (long long)tallies[i].objects, (long long)tallies[i].allocations,
                                      (long long)tallies[i].bytes, (long long)tallies[i].suspensions);
        if (row == NULL) {
            Py_CLEAR(rows);
            break;
        }
        PyList_SET_ITEM(rows, i, row);
    }
    return rows;
}

static PyObject *
type_rows(const Types *types)
{
    PyObject *rows = PyList_New(0);
    for (size_t i = 0; rows != NULL && i < types->size; i++) {
        const TypeCount *kind = &types->slots[i];
        if (kind->count == 0) {
            continue;
        }
        PyObject *row = Py_BuildValue("(iOL)", kind->owner, (PyObject *)kind->type, (long long)kind->count);
        if (row == NULL || PyList_Append(rows, row) < 0) {
            Py_CLEAR(rows);
        }
        Py_XDECREF(row);
    }
    return rows;
}

/* Takes the tables away before it makes objects: those are counted too, aside, in the new ones. */
static PyObject *
take(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (!checked_owner(0)) {
        return NULL;
    }
    unsigned generation = counting.generation;
    int owners = counting.elsewhere + 1;
    Tally *taken = counting.tallies, *tallies = calloc((size_t)owners, sizeof(Tally));
    Types types;
    if (tallies == NULL || !renew_types(&types)) {
        free(tallies);
        return PyErr_NoMemory();
    }
    counting.tallies = tallies;
    int before = hand_over(generation, counting.aside);
    PyObject *tally_list = tally_rows(taken, owners), *type_list = type_rows(&types), *result = NULL;
    if (tally_list != NULL && type_list != NULL) {
        result = PyTuple_Pack(2, tally_list, type_list);
    }
    Py_XDECREF(tally_list);
    Py_XDECREF(type_list);
    free(taken);
    release_types(&types);
    give_back(generation, before);
    return result;
}

static PyObject *
begin_period(PyObject *Py_UNUSED(module), PyObject *value)
{
    int period;
    if (!PyArg_Parse(value, "i:period", &period) || !checked_owner(0)) {
        return NULL;
    }
    counting.remembering = HAVE_TRACER && period >= 0;
    counting.period = period;
    Py_RETURN_NONE;
}

static int
append_birth(PyObject *found, void *address)
{
    if (counting.born_size == 0) {
        return 1;
    }
    Born *slot = born_slot(counting.born, counting.born_size, address);
    if (slot->type == NULL) {
        return 1;
    }
    PyObject *row = Py_BuildValue("(iiO)", slot->period, slot->owner, (PyObject *)slot->type);
    int appended = row != NULL && PyList_Append(found, row) == 0;
    Py_XDECREF(row);
    return appended;
}

static int
append_births(PyObject *found, PyObject *ids)
{
    PyObject *item, *iterator = PyObject_GetIter(ids);
    if (iterator == NULL) {
        return 0;
    }
    while ((item = PyIter_Next(iterator)) != NULL) {
        void *address = PyLong_AsVoidPtr(item);
        Py_DECREF(item);
        if ((address == NULL && PyErr_Occurred()) || !append_birth(found, address)) {
            break;
        }
    }
    Py_DECREF(iterator);
    return !PyErr_Occurred();
}

/* What is asked about is whatever the ids are; both they and the answer are made aside. */
static PyObject *
born(PyObject *Py_UNUSED(module), PyObject *ids)
{
    if (!checked_owner(0)) {
        return NULL;
    }
    unsigned generation = counting.generation;
    int before = hand_over(generation, counting.aside);
    PyObject *found = PyList_New(0);
    if (found != NULL && !append_births(found, ids)) {
        Py_CLEAR(found);
    }
    give_back(generation, before);
    return found;
}

/* A look at what some objects refer to. Addresses only: nothing is created while it lasts. */
typedef struct {
    uintptr_t *found; /* remembered objects, with repetitions */
    PyObject **untracked; /* containers whose inside is yet to be seen */
    PyObject **visited; /* all containers that were ever in `untracked`: a hash set, NULL in empty slots */
    size_t found_used, found_size, untracked_used, untracked_size, visited_used, visited_size;
    int failed;
} Look;

static int
room(void **items, size_t used, size_t *size, size_t width)
{
    if (used < *size) {
        return 1;
    }
    size_t more = *size ? *size * 2 : 1024;
    void *bigger = realloc(*items, more * width);
    if (bigger == NULL) {
        return 0;
    }
    *items = bigger;
    *size = more;
    return 1;
}

static PyObject **
visited_slot(PyObject **table, size_t size, PyObject *object)
{
    size_t at = scattered(object, 0, size);
    while (table[at] != NULL && table[at] != object) {
        at = (at + 1) & (size - 1);
    }
    return &table[at];
}

static int
grow_visited(Look *look)
{
    size_t size = look->visited_size ? look->visited_size * 2 : 1024;
    PyObject **table = calloc(size, sizeof(PyObject *));
    if (table == NULL) {
        return 0;
    }
    for (size_t i = 0; i < look->visited_size; i++) {
        if (look->visited[i] != NULL) {
            *visited_slot(table, size, look->visited[i]) = look->visited[i];
        }
    }
    free(look->visited);
    look->visited = table;
    look->visited_size = size;
    return 1;
}

/* Note that the inside of a container is to be seen, once: nested containers that share their parts have more paths
   than memory has room for. Returns 0 without memory. */
static int
visit_later(Look *look, PyObject *container)
{
    if (look->visited_used * 2 >= look->visited_size && !grow_visited(look)) {
        return 0;
    }
    PyObject **slot = visited_slot(look->visited, look->visited_size, container);
    if (*slot != NULL) {
        return 1;
    }
    if (!room((void **)&look->untracked, look->untracked_used, &look->untracked_size, sizeof(PyObject *))) {
        return 0;
    }
    *slot = container;
    look->visited_used++;
    look->untracked[look->untracked_used++] = container;
    return 1;
}

/* The collector stops tracking tuples and dicts in which nothing could be part of a cycle. */
static int
look_at(PyObject *object, void *argument)
{
    Look *look = argument;
    Born *slot = counting.born_size ? born_slot(counting.born, counting.born_size, object) : NULL;
    if (slot != NULL && slot->object != NULL && slot->type != NULL) {
        if (!room((void **)&look->found, look->found_used, &look->found_size, sizeof(uintptr_t))) {
            look->failed = 1;
            return 1;
        }
        look->found[look->found_used++] = (uintptr_t)object;
    }
    if ((PyTuple_CheckExact(object) || PyDict_CheckExact(object)) && !PyObject_GC_IsTracked(object) &&
        !visit_later(look, object)) {
        look->failed = 1;
        return 1;
    }
    return 0;
}

static int
look_into(PyObject *object, Look *look)
{
    traverseproc traverse = Py_TYPE(object)->tp_traverse;
    return traverse == NULL ? 0 : traverse(object, look_at, look);
}

static PyObject *
reached_from(PyObject *Py_UNUSED(module), PyObject *objects)
{
    if (!checked_owner(0)) {
        return NULL;
    }
    if (!PyList_CheckExact(objects)) {
        return PyErr_Format(PyExc_TypeError, "reached() takes a list, not %.100s", Py_TYPE(objects)->tp_name);
    }
    Look look = {0};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects) && !look.failed; i++) {
        look_at(PyList_GET_ITEM(objects, i), &look);
        look_into(PyList_GET_ITEM(objects, i), &look);
    }
    while (look.untracked_used && !look.failed) {
        look_into(look.untracked[--look.untracked_used], &look);
    }
    unsigned generation = counting.generation;
    int before = hand_over(generation, counting.aside);
    PyObject *ids = look.failed ? PyErr_NoMemory() : PySet_New(NULL);
    for (size_t i = 0; ids != NULL && i < look.found_used; i++) {
        PyObject *id = PyLong_FromVoidPtr((void *)look.found[i]);
        if (id == NULL || PySet_Add(ids, id) < 0) {
            Py_CLEAR(ids);
        }
        Py_XDECREF(id);
    }
    give_back(generation, before);
    free(look.found);
    free(look.untracked);
    free(look.visited);
    return ids;
}

static PyMethodDef functions[] = {
    {"start", start, METH_VARARGS,
     "start(owners) -> bool\n\nCount for owners 0 to owners - 1; owner `owners` is for what runs aside, the one after"
     " it for other threads. True when another reference tracer was there, which keeps getting its events.\n"
     "RuntimeError when one is open already or the interpreter is free-threaded."},
    {"stop", stop, METH_NOARGS,
     "stop() -> (bool, bool)\n\nStop counting and put back what start() found. Whether object events, and whether"
     " allocations, went past it: another tool replaced its hook in the meantime."},
    {"take", take, METH_NOARGS,
     "take() -> ([(objects, allocations, bytes, suspensions)], [(owner, type, objects)])\n\nWhat was counted since the"
     " last take(), by owner, and the objects by type; begins anew."},
    {"charge", set_charge, METH_O,
     "charge(owner) -> int\n\nCharge this owner from here on; returns who was charged. Changes nothing in a thread that"
     " is not counted."},
    {"run", (PyCFunction)(void (*)(void))run_as, METH_FASTCALL | METH_KEYWORDS,
     "run(owner, callable, ...)\n\nCall it for this owner."},
    {"coroutine_proxy", make_proxy, METH_VARARGS,
     "coroutine_proxy(owner, awaitable, root=False, returned=None) -> CoroutineProxy\n\nA coroutine that charges each"
     " of its steps to the owner, and calls returned() aside when it has returned."},
    {"aside", make_aside, METH_O,
     "aside(callable) -> Guard\n\nA callable that calls callable(owner, ...), charged to nobody; owner is the caller's,"
     " -1 for a caller that is not counted."},
    {"callback", make_callback, METH_VARARGS,
     "callback(owner, callable) -> Guard\n\nA callable for an event loop to call on behalf of the owner."},
    {"discount", discount, METH_VARARGS,
     "discount(owner, object)\n\nTake the creation of the object, just now, off the owner's tally."},
    {"period", begin_period, METH_O,
     "period(number)\n\nRemember the objects that are created from here on under this number; no more with -1."},
    {"born", born, METH_O,
     "born(ids) -> [(period, owner, type)]\n\nOf the living objects with these ids, those that were remembered."},
    {"reached", reached_from, METH_O,
     "reached(objects) -> {id}\n\nThe remembered objects among these, a list, and what they refer to. Containers that"
     " the garbage collector does not track are looked into."},
    {0},
};

static int
execute(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "pytest_mwbudget.counting._core counts in the main interpreter only");
        return -1;
    }
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError, "pytest_mwbudget.counting._core does not support free-threaded interpreters");
    return -1;
#endif
    state->proxy_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &proxy_spec, NULL);
    state->guard_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &guard_spec, NULL);
    if (state->proxy_type == NULL || state->guard_type == NULL ||
        PyModule_AddIntConstant(module, "COUNTS_OBJECTS", HAVE_TRACER) < 0) {
        return -1;
    }
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->proxy_type);
    Py_VISIT(state->guard_type);
    return 0;
}

static int
module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->proxy_type);
    Py_CLEAR(state->guard_type);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* trying to import it must not switch the GIL on */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pytest_mwbudget.counting._core",
    .m_doc = "Objects, allocations and bytes by owner.",
    .m_size = sizeof(ModuleState),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
