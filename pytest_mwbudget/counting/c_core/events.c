/* The hooks: on object creation (PyRefTracer, CPython 3.13) and on the allocators of the domains "object" and "mem".

   The hooks are installed by start() and removed by stop(), unless another tool was installed on top in the meantime:
   then they stay below that tool, and only call the functions they replaced. */

#include "core.h"

#define RECENT 16

typedef struct {
    void *block;
    size_t size;
    int owner, resized;
} Allocation;

/* Of this thread, because threads may take turns between an allocation and what is made of it: `newest` of any owner,
   `recent` of owners from 0. */
static THREAD_LOCAL Allocation newest, recent[RECENT];
static THREAD_LOCAL unsigned recent_next;

typedef struct {
    PyMemAllocatorDomain domain;
    PyMemAllocatorEx below; /* called by our functions */
    int linked;             /* our functions are, as far as known, in this domain's chain */
    int64_t calls;
} Domain;

static Domain domains[] = {{.domain = PYMEM_DOMAIN_OBJ}, {.domain = PYMEM_DOMAIN_MEM}};

/* The owner that the running thread is charged to: NOBODY in another interpreter, which may run in parallel. */
int
charged(void)
{
    PyThreadState *thread = PyThreadState_GetUnchecked();
    if (thread == NULL) {
        return NOBODY;
    }
    int owner = charged_here(thread);
    if (owner != NOBODY) {
        return owner;
    }
    return PyThreadState_GetInterpreter(thread) == PyInterpreterState_Main() ? counting.elsewhere : NOBODY;
}

/* ---- allocations ----------------------------------------------------------------------------------------------- */

static inline int
within(const Allocation *made, const void *address)
{
    return (uintptr_t)address - (uintptr_t)made->block < made->size;
}

/* The most recent allocation that contains the address, if it is one of the last RECENT. */
static Allocation *
recent_allocation(const void *address)
{
    for (unsigned age = 1; age <= RECENT; age++) {
        Allocation *made = &recent[(recent_next - age) % RECENT];
        if (within(made, address)) {
            return made;
        }
    }
    return NULL;
}

void
forget_allocations(void)
{
    newest = (Allocation){0};
    memset(recent, 0, sizeof(recent));
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
        counting.tallies[owner].bytes += (long long)size;
        if (owner == counting.elsewhere) {
            count_thread();
        }
        newest = (Allocation){block, size, owner, resized};
        if (owner < counting.owners) {
            recent[recent_next++ % RECENT] = newest;
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

/* Whether an allocation in this domain still calls our functions. */
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
    /* After an earlier run our functions may still be below those of another tool, or be restored by it. */
    if (!on_top(domain) && !(domain->linked && reached(domain))) {
        PyMemAllocatorEx ours = {domain, counting_malloc, counting_calloc, counting_realloc, passing_free};
        PyMem_GetAllocator(domain->domain, &domain->below);
        PyMem_SetAllocator(domain->domain, &ours);
    }
    domain->linked = 1;
}

/* Returns whether our functions stayed in the chain to the end. */
static int
unhook_allocator(Domain *domain)
{
    if (on_top(domain)) {
        PyMem_SetAllocator(domain->domain, &domain->below);
        domain->linked = 0;
        return 1;
    }
    /* Another tool is on top and calls our functions, or has restored those from before start(). */
    domain->linked = reached(domain);
    return domain->linked;
}

/* ---- objects --------------------------------------------------------------------------------------------------- */

#if HAVE_TRACER
static struct {
    PyRefTracer below;
    void *data;
    int linked;
    int64_t calls;
} tracer;

static void
created(PyObject *object, int owner)
{
    int fresh = within(&newest, object);
    /* A resized str, bytes or tuple is reported again, but is the same object. */
    int number = fresh && newest.resized ? 0 : 1;
    newest.resized = 0;
    counting.tallies[owner].objects += number;
    if (owner == counting.elsewhere) {
        count_thread();
    }
    TypeCount *kind = count_type(Py_TYPE(object), owner, number);
    if (counting.period >= 0 && kind != NULL) {
        remember(object, kind);
    }
    else {
        forget(object); /* a new object has the address now */
    }
    if (!fresh && owner < counting.owners) { /* from a free list: the allocation was for an earlier object */
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
    if (tracer.below != NULL) {
        tracer.below(object, event, tracer.data);
    }
    int owner = charged();
    if (owner == NOBODY) {
        return 0;
    }
    if (event == PyRefTracer_DESTROY) {
        forget(object);
        return 0;
    }
    tracer.calls++;
    if (counting.active) {
        created(object, owner);
    }
    return 0;
}

/* Whether the creation of an object still calls our tracer. */
static int
tracer_reached(void)
{
    int64_t before = tracer.calls;
    PyObject *object = PyList_New(0);
    if (object == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(object);
    return tracer.calls != before;
}

/* Returns whether another tracer is installed, or -1. As with allocators, our tracer may still be below the other. */
static int
hook_tracer(void)
{
    void *data;
    PyRefTracer now = PyRefTracer_GetTracer(&data);
    int hooked = now == on_reference || (tracer.linked && tracer_reached());
    if (!hooked) {
        if (PyRefTracer_SetTracer(on_reference, NULL) < 0) {
            return -1;
        }
        tracer.below = now;
        tracer.data = data;
    }
    tracer.linked = 1;
    return now == on_reference ? tracer.below != NULL : now != NULL;
}

/* Restore the previous tracer, unless another tool has replaced ours. Returns whether our tracer got events to the end.
   `below` is kept then, because that tool may call our tracer or restore it later. */
static int
unhook_tracer(void)
{
    void *data;
    if (PyRefTracer_GetTracer(&data) == on_reference) {
        PyRefTracer_SetTracer(tracer.below, tracer.data);
        tracer.below = NULL;
        tracer.linked = 0;
        return 1;
    }
    tracer.linked = tracer_reached();
    return tracer.linked;
}
#endif

/* ---- both ------------------------------------------------------------------------------------------------------ */

/* Returns whether another reference tracer is installed, or -1 with an exception. */
int
hook(void)
{
    int other_tracer = 0;
#if HAVE_TRACER
    other_tracer = hook_tracer();
    if (other_tracer < 0) {
        return -1;
    }
#endif
    hook_allocator(&domains[0]);
    hook_allocator(&domains[1]);
    return other_tracer;
}

void
unhook(int *objects_lost, int *allocations_lost)
{
    *allocations_lost = !unhook_allocator(&domains[0]);
    *allocations_lost |= !unhook_allocator(&domains[1]);
    *objects_lost = counting.out_of_memory;
#if HAVE_TRACER
    *objects_lost |= !unhook_tracer();
#endif
}

static void
discount_allocation(int owner, const void *address)
{
    Allocation *made = recent_allocation(address);
    if (made == NULL || made->owner != owner) {
        return; /* from a free list */
    }
    counting.tallies[owner].allocations--;
    counting.tallies[owner].bytes -= (long long)made->size;
    counting.tallies[counting.aside].allocations++;
    counting.tallies[counting.aside].bytes += (long long)made->size;
    *made = (Allocation){0};
}

/* Move the creation of the object, which must be recent, from the owner to `aside`. */
void
discount_object(int owner, PyObject *object)
{
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
}
