/* A coroutine that wraps a coroutine. Each step is charged to the proxy's owner, and the end of a step restores the
   previous owner. Nested proxies therefore follow the stack of a task, however often the event loop switches tasks. The
   outermost proxy of a task, its *root*, leaves the owner that suspended charged, because that owner causes the event
   loop's work of suspending the task. */

#include "core.h"

typedef struct {
    Wrapper base;
    PyObject *steps;    /* the iterator that is stepped; NULL before the first step */
    PyObject *returned; /* called aside when the coroutine has returned; may be NULL */
    PyObject *weakrefs;
    int root;
} Proxy;

/* Begin a step. Returns the owner to restore at its end. */
static inline int
enter(Proxy *self)
{
    int before = hand_over(self->base.generation, self->base.owner);
    if (live(self->base.generation)) {
        lane.suspender = NOBODY;
    }
    return before;
}

static inline void
leave(Proxy *self, int before, int suspended)
{
    if (!live(self->base.generation)) {
        return;
    }
    int stays = self->root && before != NOBODY; /* a loop outside of a lane is not counted between steps */
    if (!suspended) {
        lane.suspender = NOBODY;
        charge(stays ? self->base.owner : before);
        return;
    }
    if (lane.suspender == NOBODY) { /* the innermost proxy leaves first */
        lane.suspender = self->base.owner;
        counting.tallies[self->base.owner].suspensions++;
    }
    charge(stays ? lane.suspender : before);
    if (self->root) {
        lane.suspender = NOBODY;
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

/* The iterator that `await` would step: the object itself if it is a coroutine, else the result of __await__. */
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

/* A new reference to the iterator that is stepped. steps_of() may run code that steps this same proxy. */
static PyObject *
steps_begun(Proxy *self)
{
    if (self->steps == NULL) {
        PyObject *steps = steps_of(self->base.inner);
        if (steps == NULL) {
            return NULL;
        }
        Py_XSETREF(self->steps, steps);
    }
    return Py_NewRef(self->steps);
}

/* Call `returned` aside, if the step was counted. Returns 0 with an exception if the call fails. */
static int
told(Proxy *self)
{
    if (self->returned == NULL || !live(self->base.generation)) {
        return 1;
    }
    int charged_now = hand_over(self->base.generation, counting.aside);
    PyObject *answer = PyObject_CallNoArgs(self->returned);
    give_back(self->base.generation, charged_now);
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
    if (outcome == PYGEN_RETURN && !told(self)) {
        Py_CLEAR(*result);
        return PYGEN_ERROR;
    }
    return outcome;
}

/* Raise StopIteration(value) as a coroutine does. Charged aside: `await` on a coroutine creates no exception. */
static void
raise_stop(Proxy *self, PyObject *value)
{
    int before = hand_over(self->base.generation, counting.aside);
    /* Not PyErr_SetObject(StopIteration, value), which would unpack a tuple. */
    PyObject *stop = value == Py_None ? PyObject_CallNoArgs(PyExc_StopIteration)
                                      : PyObject_CallOneArg(PyExc_StopIteration, value);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    give_back(self->base.generation, before);
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

static PyObject *
proxy_iternext(PyObject *op)
{
    return proxy_send(op, Py_None);
}

/* A method, looked up aside; NULL without an exception if it does not exist. */
static PyObject *
method_of(Proxy *self, PyObject *object, const char *name)
{
    int before = hand_over(self->base.generation, counting.aside);
    Py_INCREF(object);
    PyObject *found = PyObject_GetAttrString(object, name);
    Py_DECREF(object);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    give_back(self->base.generation, before);
    return found;
}

/* The method throw or close of the stepped iterator; before the first step, of the object inside if its type has a
   throw(), as that of coroutines does. Other awaitables have nothing to end by then, and their close() may have another
   meaning. */
static PyObject *
ending(Proxy *self, const char *name)
{
    if (self->steps != NULL) {
        return method_of(self, self->steps, name);
    }
    PyObject *throws = method_of(self, (PyObject *)Py_TYPE(self->base.inner), "throw");
    if (throws == NULL) {
        return NULL;
    }
    Py_DECREF(throws);
    return method_of(self, self->base.inner, name);
}

/* Raise the exception that throw() was called with. */
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

/* Not METH_VARARGS, whose tuple of arguments would be charged to the caller. */
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
    else { /* without throw() the coroutine ends here */
        raise_thrown(arguments, number);
    }
    leave(self, before, result != NULL);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_StopIteration)) { /* the coroutine returned */
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (told(self)) {
            PyErr_Restore(type, value, traceback);
        }
        else {
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(traceback);
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

static int
proxy_traverse(PyObject *op, visitproc visit, void *arg)
{
    Proxy *self = (Proxy *)op;
    Py_VISIT(self->base.inner);
    Py_VISIT(self->steps);
    Py_VISIT(self->returned);
    return 0;
}

/* Clears only `steps`. The other references are set at creation, so every cycle through them contains an older object
   that was changed later, and clearing that object breaks the cycle. */
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
    PyObject_GC_UnTrack(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    Py_XDECREF(self->steps);
    Py_DECREF(self->base.inner);
    Py_XDECREF(self->returned);
    PyObject_GC_Del(op);
}

static PyMethodDef proxy_methods[] = {
    {"send", proxy_send, METH_O, "Run one step."},
    {"throw", (PyCFunction)(void (*)(void))proxy_throw, METH_FASTCALL, "Run one step that begins with an exception."},
    {"close", proxy_close, METH_NOARGS, "End the coroutine where it stands."},
    {0},
};

/* Some code checks isinstance for a coroutine before it awaits. */
static PyObject *
proxy_class(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)Py_TYPE(((Wrapper *)op)->inner));
}

static PyObject *
proxy_awaitable(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef(((Proxy *)op)->base.inner);
}

static PyGetSetDef proxy_getset[] = {
    {"__class__", proxy_class, NULL, NULL, NULL},
    {"_awaitable", proxy_awaitable, NULL, NULL, NULL},
    {0},
};

static PyAsyncMethods proxy_async = {.am_await = PyObject_SelfIter, .am_send = proxy_am_send};

PyTypeObject ProxyType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "pytest_mwbudget.counting._core.CoroutineProxy",
    .tp_doc = "A coroutine whose steps are charged to an owner.",
    .tp_basicsize = sizeof(Proxy),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = proxy_methods,
    .tp_getset = proxy_getset,
    .tp_getattro = wrapper_getattro,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = proxy_iternext,
    .tp_as_async = &proxy_async,
    .tp_weaklistoffset = offsetof(Proxy, weakrefs),
    .tp_traverse = proxy_traverse,
    .tp_clear = proxy_clear,
    .tp_dealloc = proxy_dealloc,
};

PyObject *
make_proxy(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int owner, root = 0;
    PyObject *awaitable, *returned = Py_None;
    if (!PyArg_ParseTuple(arguments, "iO|pO:coroutine_proxy", &owner, &awaitable, &root, &returned) ||
        !checked_owner(owner)) {
        return NULL;
    }
    Proxy *self = new_wrapper(&ProxyType, owner, awaitable);
    if (self == NULL) {
        return NULL;
    }
    self->returned = returned == Py_None ? NULL : Py_NewRef(returned);
    self->steps = self->weakrefs = NULL;
    self->root = root;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}
