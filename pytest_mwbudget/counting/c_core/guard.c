/* A wrapper of a callable. An *aside* charges the call to the owner `aside`, which keeps probes written in Python out
   of the figures. A *callback*, which the event loop calls, charges the call to an owner, which stays charged
   afterwards, as with the root of a task. *Lent* work, which another thread calls, charges the call to an owner there. */

#include "core.h"

typedef struct {
    Wrapper base;
    vectorcallfunc vectorcall;
} Guard;

/* The caller must set the other fields, and start tracking by the garbage collector. */
void *
new_wrapper(PyTypeObject *type, int owner, PyObject *inner)
{
    unsigned generation = counting.generation; /* a garbage collection may run any code */
    Wrapper *self = PyObject_GC_New(Wrapper, type);
    if (self != NULL) {
        self->inner = Py_NewRef(inner);
        self->owner = owner;
        self->generation = generation;
    }
    return self;
}

/* Attributes of the wrapper itself are looked up aside. All others (cr_frame, cr_running, __qualname__, ...) come from
   the object inside. */
PyObject *
wrapper_getattro(PyObject *op, PyObject *name)
{
    Wrapper *self = (Wrapper *)op;
    int before = hand_over(self->generation, counting.aside);
    PyObject *found = PyObject_GenericGetAttr(op, name);
    int missing = found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError);
    if (missing) {
        PyErr_Clear();
    }
    give_back(self->generation, before);
    return missing ? PyObject_GetAttr(self->inner, name) : found;
}

/* Calls callable(previous owner, *arguments). The owner is -1 if the caller is not counted, and then nothing is charged
   aside either. */
static PyObject *
guard_aside(PyObject *op, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Wrapper *self = (Wrapper *)op;
    Py_ssize_t number = PyVectorcall_NARGS(flags);
    Py_ssize_t all = number + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    PyObject *small[12], **with_owner = all < 12 ? small : malloc((size_t)(all + 1) * sizeof(PyObject *));
    if (with_owner == NULL) {
        return PyErr_NoMemory();
    }
    int before = live(self->generation) ? charged_here(PyThreadState_GetUnchecked()) : NOBODY;
    if (before != NOBODY) {
        charge(self->owner);
    }
    PyObject *result = NULL, *owner = PyLong_FromLong(before);
    if (owner != NULL) {
        with_owner[0] = owner;
        for (Py_ssize_t i = 0; i < all; i++) {
            with_owner[i + 1] = arguments[i];
        }
        result = PyObject_Vectorcall(self->inner, with_owner, (size_t)number + 1, names);
        Py_DECREF(owner);
    }
    if (with_owner != small) {
        free(with_owner);
    }
    if (before != NOBODY) {
        give_back(self->generation, before);
    }
    return result;
}

static PyObject *
guard_callback(PyObject *op, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Wrapper *self = (Wrapper *)op;
    int before = hand_over(self->generation, self->owner);
    PyObject *result = PyObject_Vectorcall(self->inner, arguments, flags, names);
    if (before == NOBODY) { /* a loop outside of a lane */
        give_back(self->generation, before);
    }
    return result;
}

static PyObject *
guard_lent(PyObject *op, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Wrapper *self = (Wrapper *)op;
    int before = hand_over(self->generation, self->owner);
    PyObject *result = PyObject_Vectorcall(self->inner, arguments, flags, names);
    give_back(self->generation, before);
    return result;
}

/* An executor may send the work to another process, where nothing is charged. */
static PyObject *
guard_reduce(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    PyObject *functools = PyImport_ImportModule("functools");
    PyObject *partial = functools == NULL ? NULL : PyObject_GetAttrString(functools, "partial");
    Py_XDECREF(functools);
    return partial == NULL ? NULL : Py_BuildValue("(N(O))", partial, ((Wrapper *)op)->inner);
}

static PyMethodDef guard_methods[] = {
    {"__reduce__", guard_reduce, METH_NOARGS, NULL},
    {0},
};

static int
guard_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(((Wrapper *)op)->inner);
    return 0;
}

static void
guard_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    Py_DECREF(((Wrapper *)op)->inner);
    PyObject_GC_Del(op);
}

PyTypeObject GuardType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "pytest_mwbudget.counting._core.Guard",
    .tp_doc = "A callable that is charged to somebody else than its caller.",
    .tp_basicsize = sizeof(Guard),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Guard, vectorcall),
    .tp_getattro = wrapper_getattro,
    .tp_methods = guard_methods,
    .tp_call = PyVectorcall_Call,
    .tp_traverse = guard_traverse,
    .tp_dealloc = guard_dealloc,
};

static PyObject *
make_guard(vectorcallfunc vectorcall, int owner, PyObject *callable)
{
    Guard *self = new_wrapper(&GuardType, owner, callable);
    if (self != NULL) {
        self->vectorcall = vectorcall;
        PyObject_GC_Track(self);
    }
    return (PyObject *)self;
}

PyObject *
make_aside(PyObject *Py_UNUSED(module), PyObject *callable)
{
    return checked_owner(0) ? make_guard(guard_aside, counting.aside, callable) : NULL;
}

PyObject *
make_callback(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int owner;
    PyObject *callable;
    if (!PyArg_ParseTuple(arguments, "iO:callback", &owner, &callable) || !checked_owner(owner)) {
        return NULL;
    }
    return make_guard(guard_callback, owner, callable);
}

PyObject *
make_lent(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int owner;
    PyObject *callable;
    if (!PyArg_ParseTuple(arguments, "iO:lent", &owner, &callable) || !checked_owner(owner)) {
        return NULL;
    }
    return make_guard(guard_lent, owner, callable);
}
