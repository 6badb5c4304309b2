/* The counting core of pytest-mwbudget: exact counts by owner, either of objects, allocations and bytes, or of executed
   code. The docstrings of PythonCore describe the interface.

   At every moment one *owner*, a small integer, is charged: a layer, the endpoint, the server side. events.c adds each
   event of memory to the tally of the charged owner, executed.c each event of executed code. proxy.c and guard.c switch the owner, in C because a switch must not create
   anything that would be counted.

   A process has at most one counting run, because allocators and the reference tracer belong to the process. Each thread
   of the main interpreter has a *lane*, which has the owner that the thread is charged to. The lane of the thread that
   starts the run is always open. Any other is open while work runs there that belongs to an owner; the rest of what
   such threads do is charged to one owner, `elsewhere`. Other interpreters are not counted. Everything here runs with
   the main interpreter's GIL held, except the hooks: an interpreter with its own GIL may enter them at any time, so they
   touch no data but their thread's own before they know the interpreter. */

#ifndef MWBUDGET_CORE_H
#define MWBUDGET_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __GNUC__
#pragma GCC visibility push(hidden)
#endif

#if PY_VERSION_HEX >= 0x030D0000
#define HAVE_TRACER 1
#else
#define HAVE_TRACER 0
#define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
#endif

#define NOBODY (-1)

#ifdef _MSC_VER
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

/* ---- tables.c ---- */

/* The first member of each slot of a table. */
typedef struct {
    void *address; /* NULL in a free slot */
    int owner;
} Key;

/* A hash table with open addressing: the size is a power of two, and at most half the slots are used. Its memory comes
   from the C library, because Python's allocators are being counted. */
typedef struct {
    char *slots;
    size_t width, first_size, size, used;
} Table;

/* By class and owner. The table holds a reference to the class, so that no other class can get its address. */
typedef struct {
    Key key;
    long long count, remembered;
} TypeCount;

/* By the object's address, which is never dereferenced. The owner is in `owner`, not in the key. */
typedef struct {
    Key key;
    PyTypeObject *type; /* borrowed from a TypeCount; NULL if the object was forgotten */
    int owner, period;
} Birth;

/* By thread: the events of a thread that had no lane in this run. The address is the thread's ident. */
typedef struct {
    Key key;
    long long events;
} ThreadCount;

/* By code object, to which the table holds a reference: whether the code is counted. */
typedef struct {
    Key key;
    int counted;
} KnownCode;

void *slot_at(const Table *table, size_t index);
void *slot_of(const Table *table, void *address, int owner);
void *slot_for(Table *table, void *address, int owner, int *added);
int renew_types(Table *taken);
void release_keys(Table *table);
TypeCount *count_type(PyTypeObject *type, int owner, int number);
void count_thread(void);
void remember(PyObject *object, TypeCount *kind);
void forget(PyObject *object);

/* ---- events.c ---- */

typedef struct {
    long long objects, allocations, bytes, suspensions;
} Tally;

int charged(void);
void forget_allocations(void);
void discount_object(int owner, PyObject *object);
int hook(void);
void unhook(int *objects_lost, int *allocations_lost);

/* ---- executed.c ---- */

typedef struct {
    long long bytecodes, calls, py_calls;
} Executed;

PyObject *on_instruction(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *on_call(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *on_start(PyObject *module, PyObject *const *arguments, Py_ssize_t number);
PyObject *take_executed(PyObject *module, PyObject *ignored);
PyObject *known_codes(PyObject *module, PyObject *ignored);
PyObject *instrumentation(PyObject *module, PyObject *code);

/* ---- module.c: the counting run ---- */

typedef struct {
    int active;
    unsigned generation;          /* the number of the run */
    int owners, aside, elsewhere; /* owners from 0; then the work of probes; then threads without an open lane */
    Tally *tallies;
    Table types, births, threads;
    int period; /* objects are remembered under this number; -1 for none */
    Executed *executed; /* NULL in a run that counts memory */
    PyObject *skipped;  /* a tuple of how the file names begin whose code is not counted */
    Table codes;
    KnownCode last_code; /* a copy: consecutive instructions are of the same code */
    int out_of_memory;
} Run;

extern Run counting;

/* Whether the run with this number is under way. A run that has ended is never under way again. */
static inline int
live(unsigned generation)
{
    return counting.active && generation == counting.generation;
}

/* The lane of this thread in the run `generation`. It is open if `current` is an owner. The thread state is only
   compared: a thread of the system may run other interpreters too. */
typedef struct {
    PyThreadState *thread;
    unsigned generation;
    int current, suspender;
} Lane;

extern THREAD_LOCAL Lane lane;

void begin_lane(PyThreadState *thread);

/* The owner that this thread is charged to in this run, NOBODY outside of a lane. */
static inline int
charged_here(PyThreadState *thread)
{
    return thread == lane.thread && lane.generation == counting.generation ? lane.current : NOBODY;
}

/* Charge an owner in this thread, which must be one of the main interpreter; with NOBODY the lane is closed. */
static inline void
charge(int owner)
{
    PyThreadState *thread = PyThreadState_GetUnchecked();
    if (thread != lane.thread || lane.generation != counting.generation) {
        begin_lane(thread);
    }
    lane.current = owner;
}

/* Charge an owner until give_back(). Returns the previous owner of this thread, NOBODY if it had no open lane or the run
   is over. Code between the two calls may stop the run and start another one, so both take the number of the run. */
static inline int
hand_over(unsigned generation, int owner)
{
    if (!live(generation)) {
        return NOBODY;
    }
    int before = charged_here(PyThreadState_GetUnchecked());
    charge(owner);
    return before;
}

static inline void
give_back(unsigned generation, int before)
{
    if (live(generation)) {
        charge(before);
    }
}

int checked_owner(long owner);

/* ---- guard.c and proxy.c ---- */

/* The first member of a guard and of a coroutine proxy. */
typedef struct {
    PyObject_HEAD
    PyObject *inner; /* the callable or awaitable inside */
    int owner;
    unsigned generation;
} Wrapper;

extern PyTypeObject ProxyType, GuardType;

void *new_wrapper(PyTypeObject *type, int owner, PyObject *inner);
PyObject *wrapper_getattro(PyObject *op, PyObject *name);
PyObject *make_proxy(PyObject *module, PyObject *arguments);
PyObject *make_aside(PyObject *module, PyObject *callable);
PyObject *make_callback(PyObject *module, PyObject *arguments);
PyObject *make_lent(PyObject *module, PyObject *arguments);

#endif
