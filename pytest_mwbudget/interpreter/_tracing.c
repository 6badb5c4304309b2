/* Remove tracers and profilers from every thread, and restore them.

   sys.settrace and sys.setprofile affect the current thread only. That is enough on CPython 3.11. From 3.12 on they are
   built on sys.monitoring: as long as any thread has a tracer or a profiler, the code of the whole process runs
   instrumented, which slows down threads without a tool too. An idle pool thread cannot remove its own tracer, so this
   module removes the tools of every thread.

   CPython counts the threads that have a tool. PyEval_SetTrace and PyEval_SetProfile maintain that count, but only for
   the calling thread. To remove a tool, the calling thread therefore takes it over from its thread and uninstalls it.
   To restore a tool, the calling thread installs it and hands it over. Both move one reference between public fields of
   two thread states, with the GIL held. A build without a GIL is treated like 3.11: the current thread only.

   `spread` and `gather` move a profiler in the same way, to profile all threads for a while, also on 3.11. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000 && !defined(Py_GIL_DISABLED)
#define EVERY_THREAD 1
#else
#define EVERY_THREAD 0
#endif

#define CAPSULE "pytest_mwbudget.interpreter._tracing.tool"

enum { TRACER, PROFILER, KINDS };
static const char *const kind_names[KINDS] = {"tracer", "profiler"};

static int
kind_named(const char *name)
{
    return strcmp(name, kind_names[TRACER]) == 0 ? TRACER : PROFILER;
}

static Py_tracefunc *
function_of(PyThreadState *thread, int kind)
{
    return kind == TRACER ? &thread->c_tracefunc : &thread->c_profilefunc;
}

static PyObject **
object_of(PyThreadState *thread, int kind)
{
    return kind == TRACER ? &thread->c_traceobj : &thread->c_profileobj;
}

static void
install(int kind, Py_tracefunc function, PyObject *object)
{
    if (kind == TRACER) {
        PyEval_SetTrace(function, object);
    }
    else {
        PyEval_SetProfile(function, object);
    }
}

/* The functions below change the fields of a thread state without CPython's count. */

typedef struct {
    Py_tracefunc function;
    PyObject *object;
} Tool;

/* CPython 3.11 reads a flag beside the fields; later versions read the fields. */
static void
set_flag(PyThreadState *thread)
{
#if PY_VERSION_HEX < 0x030C0000
    int traced = thread->c_tracefunc != NULL || thread->c_profilefunc != NULL;
    thread->cframe->use_tracing = traced && !thread->tracing ? 255 : 0;
#else
    (void)thread;
#endif
}

static Tool
lift(PyThreadState *thread, int kind)
{
    Tool tool = {*function_of(thread, kind), *object_of(thread, kind)};
    *function_of(thread, kind) = NULL;
    *object_of(thread, kind) = NULL;
    set_flag(thread);
    return tool;
}

static void
lay(PyThreadState *thread, int kind, Tool tool)
{
    *function_of(thread, kind) = tool.function;
    *object_of(thread, kind) = tool.object;
    set_flag(thread);
}

/* ---- threads -------------------------------------------------------------------------------------------------- */

static PyThreadState *
next_of_all(PyThreadState *own, PyThreadState *thread)
{
#ifndef Py_GIL_DISABLED
    if (thread == NULL) {
        return PyInterpreterState_ThreadHead(own->interp);
    }
    return PyThreadState_Next(thread);
#else
    return thread == NULL ? own : NULL;
#endif
}

/* The threads whose tools slow the calling thread down. */
static PyThreadState *
next_thread(PyThreadState *own, PyThreadState *thread)
{
#if EVERY_THREAD
    return next_of_all(own, thread);
#else
    return thread == NULL ? own : NULL;
#endif
}

/* Identified by number, because CPython reuses the addresses of thread states but not the numbers. */
static PyThreadState *
thread_numbered(PyThreadState *own, uint64_t number)
{
    PyThreadState *thread = NULL;
    while ((thread = next_of_all(own, thread)) != NULL) {
        if (PyThreadState_GetID(thread) == number) {
            return thread;
        }
    }
    return NULL;
}

static PyThreadState *
thread_with_tool(PyThreadState *own, int kind)
{
    if (*function_of(own, kind) != NULL) {
        return own;
    }
    PyThreadState *thread = NULL;
    while ((thread = next_thread(own, thread)) != NULL) {
        if (*function_of(thread, kind) != NULL) {
            return thread;
        }
    }
    return NULL;
}

/* ---- suspend and resume --------------------------------------------------------------------------------------- */

static void
drop_object(PyObject *capsule)
{
    Py_XDECREF((PyObject *)PyCapsule_GetContext(capsule));
}

static PyObject *
described(PyThreadState *thread, int kind)
{
    PyObject *object = *object_of(thread, kind);
    PyObject *capsule = PyCapsule_New((void *)*function_of(thread, kind), CAPSULE, drop_object);
    if (capsule == NULL) {
        return NULL;
    }
    PyCapsule_SetContext(capsule, Py_XNewRef(object));
    return Py_BuildValue("skKON", kind_names[kind], (unsigned long)thread->thread_id,
                         (unsigned long long)PyThreadState_GetID(thread), object == NULL ? Py_None : object, capsule);
}

static int
take_off(PyThreadState *own, PyThreadState *thread, int kind)
{
    uint64_t number = PyThreadState_GetID(thread);
    if (thread != own) {
        lay(own, kind, lift(thread, kind));
    }
    install(kind, NULL, NULL);
    if (*function_of(own, kind) == NULL) {
        return 1;
    }
    /* An audit hook refused. The hook may have run Python and ended the thread, so look the thread up again. */
    thread = thread_numbered(own, number);
    if (thread != NULL && thread != own) {
        lay(thread, kind, lift(own, kind));
    }
    return 0;
}

PyDoc_STRVAR(suspend_doc,
"suspend()\n--\n\n"
"Take every tracer and profiler off its thread, and return them for `resume`.\n\n"
"A list of (\"tracer\" or \"profiler\", the thread's ident, the thread's number, the tool or None, what installs it).\n"
"The calling thread's tools come first. A tool that an audit hook protects stays, and `at_work` tells of it.");

static PyObject *
suspend(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyThreadState *own = PyThreadState_Get();
    PyObject *taken = PyList_New(0);
    if (taken == NULL) {
        return NULL;
    }
    for (int kind = 0; kind < KINDS; kind++) {
        PyThreadState *thread;
        while ((thread = thread_with_tool(own, kind)) != NULL) {
            PyObject *item = described(thread, kind);
            if (item == NULL || PyList_Append(taken, item) < 0) {
                Py_XDECREF(item);
                Py_DECREF(taken);
                return NULL;
            }
            Py_DECREF(item);
            if (!take_off(own, thread, kind)) {
                PyList_SetSlice(taken, PyList_GET_SIZE(taken) - 1, PyList_GET_SIZE(taken), NULL);
                break;
            }
        }
    }
    return taken;
}

static void
put_back(PyThreadState *own, uint64_t number, int kind, Tool tool)
{
    PyThreadState *thread = thread_numbered(own, number);
    if (thread == NULL || *function_of(thread, kind) != NULL) {
        return; /* the thread has ended, or has a new tool */
    }
    if (thread == own) {
        install(kind, tool.function, tool.object);
        return;
    }
    Tool kept = lift(own, kind);
    install(kind, tool.function, tool.object);
    thread = thread_numbered(own, number); /* an audit hook may have run Python and ended it */
    if (thread != NULL && *function_of(thread, kind) == NULL && *function_of(own, kind) != NULL) {
        lay(thread, kind, lift(own, kind));
    }
    else if (*function_of(own, kind) != NULL) {
        install(kind, NULL, NULL);
    }
    lay(own, kind, kept);
}

PyDoc_STRVAR(resume_doc,
"resume(taken)\n--\n\n"
"Put back what `suspend` took. A thread that has ended, or has a new tool of the kind, is left alone.");

static PyObject *
resume(PyObject *Py_UNUSED(module), PyObject *taken)
{
    if (!PyList_Check(taken)) {
        return PyErr_Format(PyExc_TypeError, "resume() takes the list that suspend() returned, not %R", taken);
    }
    PyThreadState *own = PyThreadState_Get();
    for (Py_ssize_t i = PyList_GET_SIZE(taken) - 1; i >= 0; i--) {
        const char *name;
        unsigned long ident;
        unsigned long long number;
        PyObject *object, *capsule;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(taken, i), "skKOO", &name, &ident, &number, &object, &capsule)) {
            return NULL;
        }
        Tool tool = {(Py_tracefunc)PyCapsule_GetPointer(capsule, CAPSULE), NULL};
        if (tool.function == NULL) {
            return NULL;
        }
        tool.object = (PyObject *)PyCapsule_GetContext(capsule);
        put_back(own, number, kind_named(name), tool);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(hand_over_doc,
"hand_over(kind, number)\n--\n\n"
"Give the calling thread's tool of this kind to the thread of this number, or take it off where that has ended or has\n"
"one.");

static PyObject *
hand_over(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *name;
    unsigned long long number;
    if (!PyArg_ParseTuple(arguments, "sK", &name, &number)) {
        return NULL;
    }
    int kind = kind_named(name);
    PyThreadState *own = PyThreadState_Get(), *thread = thread_numbered(own, number);
    if (thread != NULL && thread != own && *function_of(thread, kind) == NULL) {
        lay(thread, kind, lift(own, kind));
    }
    else {
        install(kind, NULL, NULL);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(at_work_doc,
"at_work()\n--\n\n"
"The tracers and profilers that slow the calling thread down: a list of (\"tracer\" or \"profiler\", the ident of its\n"
"thread, the tool or None).");

static PyObject *
at_work(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyThreadState *own = PyThreadState_Get(), *thread = NULL;
    PyObject *found = PyList_New(0);
    if (found == NULL) {
        return NULL;
    }
    while ((thread = next_thread(own, thread)) != NULL) {
        for (int kind = 0; kind < KINDS; kind++) {
            if (*function_of(thread, kind) == NULL) {
                continue;
            }
            PyObject *object = *object_of(thread, kind);
            PyObject *item = Py_BuildValue("skO", kind_names[kind], (unsigned long)thread->thread_id,
                                           object == NULL ? Py_None : object);
            if (item == NULL || PyList_Append(found, item) < 0) {
                Py_XDECREF(item);
                Py_DECREF(found);
                return NULL;
            }
            Py_DECREF(item);
        }
    }
    return found;
}

/* ---- profile all threads for a while ------------------------------------------------------------------------- */

/* Another thread than `own` whose profiler has this object; `object` NULL finds a thread without a profiler. */
static PyThreadState *
other_thread_with(PyThreadState *own, PyObject *object)
{
    PyThreadState *thread = NULL;
    while ((thread = next_of_all(own, thread)) != NULL) {
        if (thread != own && thread->c_profileobj == object && (object != NULL || thread->c_profilefunc == NULL)) {
            return thread;
        }
    }
    return NULL;
}

PyDoc_STRVAR(spread_doc,
"spread()\n--\n\n"
"Give the calling thread's profiler to all other threads; returns whether all have it.\n\n"
"A thread that has another profiler keeps it. A build without a GIL does nothing.");

static PyObject *
spread(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
#ifndef Py_GIL_DISABLED
    PyThreadState *own = PyThreadState_Get(), *thread = NULL;
    Tool tool = {own->c_profilefunc, own->c_profileobj};
    if (tool.function == NULL || tool.object == NULL) {
        Py_RETURN_FALSE;
    }
    while ((thread = other_thread_with(own, NULL)) != NULL) {
        uint64_t number = PyThreadState_GetID(thread);
        put_back(own, number, PROFILER, tool);
        thread = thread_numbered(own, number);
        if (thread != NULL && thread->c_profilefunc == NULL) {
            Py_RETURN_FALSE; /* an audit hook refused */
        }
    }
    while ((thread = next_of_all(own, thread)) != NULL) {
        if (thread->c_profileobj != tool.object) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
#else
    Py_RETURN_FALSE;
#endif
}

PyDoc_STRVAR(gather_doc,
"gather(profiler)\n--\n\n"
"Take this profiler off all threads but the calling one.");

static PyObject *
gather(PyObject *Py_UNUSED(module), PyObject *profiler)
{
    PyThreadState *own = PyThreadState_Get(), *thread;
    while ((thread = other_thread_with(own, profiler)) != NULL) {
        Tool kept = lift(own, PROFILER);
        int taken = take_off(own, thread, PROFILER);
        lay(own, PROFILER, kept);
        if (!taken) {
            break; /* an audit hook refused */
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"suspend", suspend, METH_NOARGS, suspend_doc},
    {"resume", resume, METH_O, resume_doc},
    {"hand_over", hand_over, METH_VARARGS, hand_over_doc},
    {"at_work", at_work, METH_NOARGS, at_work_doc},
    {"spread", spread, METH_NOARGS, spread_doc},
    {"gather", gather, METH_O, gather_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pytest_mwbudget.interpreter._tracing",
    .m_doc = "Take tracers and profilers off every thread, and put them back.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__tracing(void)
{
    return PyModuleDef_Init(&module_def);
}
