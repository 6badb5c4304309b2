/* The module: start and stop a counting run, charge a call, and return the counts. */

#include "core.h"

#define MAX_OWNERS 100000

Run counting;
THREAD_LOCAL Lane lane;

void
begin_lane(PyThreadState *thread)
{
    lane = (Lane){.thread = thread, .generation = counting.generation, .current = NOBODY, .suspender = NOBODY};
    forget_allocations();
}

int
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
    unsigned generation = counting.generation;
    if (!live(generation)) {
        return PyObject_Vectorcall(arguments[1], arguments + 2, (size_t)number - 2, names);
    }
    if (!checked_owner(owner)) {
        return NULL;
    }
    int before = hand_over(generation, (int)owner);
    PyObject *result = PyObject_Vectorcall(arguments[1], arguments + 2, (size_t)number - 2, names);
    give_back(generation, before);
    return result;
}

/* For a container that holds a probe's arguments: CPython charged the container to the caller of the probe. */
static PyObject *
discount(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int owner;
    PyObject *object;
    if (!PyArg_ParseTuple(arguments, "iO:discount", &owner, &object) || !checked_owner(owner)) {
        return NULL;
    }
    if (counting.executed == NULL) {
        discount_object(owner, object);
    }
    Py_RETURN_NONE;
}

static PyObject *
start(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    int owners;
    PyObject *skipped = NULL;
    if (!PyArg_ParseTuple(arguments, "i|O!:start", &owners, &PyTuple_Type, &skipped)) {
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
    Executed *executed = skipped == NULL ? NULL : calloc((size_t)owners + 2, sizeof(Executed));
    if (tallies == NULL || (skipped != NULL && executed == NULL)) {
        free(tallies);
        free(executed);
        return PyErr_NoMemory();
    }
    counting = (Run){
        .generation = counting.generation + 1,
        .owners = owners,
        .aside = owners,
        .elsewhere = owners + 1,
        .tallies = tallies,
        .types = {.width = sizeof(TypeCount), .first_size = 1024},
        .births = {.width = sizeof(Birth), .first_size = 16384},
        .threads = {.width = sizeof(ThreadCount), .first_size = 64},
        .codes = {.width = sizeof(KnownCode), .first_size = 1024},
        .period = -1,
        .executed = executed,
        .skipped = Py_XNewRef(skipped),
    };
    charge(counting.aside);
    int other_tracer = skipped == NULL ? hook() : 0;
    if (other_tracer < 0) {
        free(tallies);
        return NULL;
    }
    counting.active = 1;
    return PyBool_FromLong(other_tracer);
}

static PyObject *
stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (!checked_owner(0)) {
        return NULL;
    }
    int objects_lost = counting.out_of_memory, allocations_lost = 0;
    if (counting.executed == NULL) {
        unhook(&objects_lost, &allocations_lost);
    }
    counting.active = 0;
    Run ended = counting;
    counting = (Run){.generation = ended.generation};
    free(ended.tallies);
    free(ended.executed);
    free(ended.births.slots);
    free(ended.threads.slots);
    /* Last: these may run code that starts another run. */
    release_keys(&ended.types);
    release_keys(&ended.codes);
    Py_XDECREF(ended.skipped);
    return Py_BuildValue("(NN)", PyBool_FromLong(objects_lost), PyBool_FromLong(allocations_lost));
}

/* Append `row` to `rows` and release `row`; either may be NULL with an exception. Returns `rows`, NULL on error. */
static PyObject *
with_row(PyObject *rows, PyObject *row)
{
    if (rows != NULL && (row == NULL || PyList_Append(rows, row) < 0)) {
        Py_CLEAR(rows);
    }
    Py_XDECREF(row);
    return rows;
}

static PyObject *
tally_rows(const Tally *tallies, int owners)
{
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows != NULL && i < owners; i++) {
        const Tally *tally = &tallies[i];
        rows = with_row(
            rows, Py_BuildValue("(LLLL)", tally->objects, tally->allocations, tally->bytes, tally->suspensions));
    }
    return rows;
}

static PyObject *
type_rows(const Table *types)
{
    PyObject *rows = PyList_New(0);
    for (size_t i = 0; rows != NULL && i < types->size; i++) {
        const TypeCount *kind = slot_at(types, i);
        if (kind->count != 0) {
            rows = with_row(rows, Py_BuildValue("(iOL)", kind->key.owner, (PyObject *)kind->key.address, kind->count));
        }
    }
    return rows;
}

/* Replaces the tables before it creates objects, which are counted too: aside, in the new tables. */
static PyObject *
take(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (!checked_owner(0)) {
        return NULL;
    }
    unsigned generation = counting.generation;
    int owners = counting.elsewhere + 1;
    Tally *taken = counting.tallies, *tallies = calloc((size_t)owners, sizeof(Tally));
    Table types;
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
    release_keys(&types);
    give_back(generation, before);
    return result;
}

static PyObject *
other_threads(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (!checked_owner(0)) {
        return NULL;
    }
    unsigned generation = counting.generation;
    int before = hand_over(generation, counting.aside);
    Table threads = counting.threads;
    counting.threads = (Table){.width = threads.width, .first_size = threads.first_size};
    PyObject *found = PyDict_New();
    for (size_t i = 0; found != NULL && i < threads.size; i++) {
        const ThreadCount *thread = slot_at(&threads, i);
        if (thread->events == 0) {
            continue;
        }
        PyObject *ident = PyLong_FromUnsignedLong((unsigned long)(uintptr_t)thread->key.address);
        PyObject *events = PyLong_FromLongLong(thread->events);
        if (ident == NULL || events == NULL || PyDict_SetItem(found, ident, events) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(ident);
        Py_XDECREF(events);
    }
    free(threads.slots);
    give_back(generation, before);
    return found;
}

static PyObject *
begin_period(PyObject *Py_UNUSED(module), PyObject *value)
{
    int period;
    if (!PyArg_Parse(value, "i:period", &period) || !checked_owner(0)) {
        return NULL;
    }
    counting.period = period;
    Py_RETURN_NONE;
}

static int
checked_list(PyObject *objects, const char *function)
{
    if (!checked_owner(0)) {
        return 0;
    }
    if (!PyList_CheckExact(objects)) {
        PyErr_Format(PyExc_TypeError, "%s() takes a list, not %.100s", function, Py_TYPE(objects)->tp_name);
        return 0;
    }
    return 1;
}

static PyObject *
born(PyObject *Py_UNUSED(module), PyObject *objects)
{
    if (!checked_list(objects, "born")) {
        return NULL;
    }
    unsigned generation = counting.generation;
    int before = hand_over(generation, counting.aside);
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found != NULL && counting.births.used && i < PyList_GET_SIZE(objects); i++) {
        /* A copy, because objects created below may be remembered, which may move the table. */
        Birth birth = *(Birth *)slot_of(&counting.births, PyList_GET_ITEM(objects, i), 0);
        if (birth.type == NULL) {
            continue;
        }
        PyObject *id = PyLong_FromVoidPtr(birth.key.address);
        PyObject *row = Py_BuildValue("(iiO)", birth.period, birth.owner, (PyObject *)birth.type);
        if (id == NULL || row == NULL || PyDict_SetItem(found, id, row) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(id);
        Py_XDECREF(row);
    }
    give_back(generation, before);
    return found;
}

static PyObject *
untracked(PyObject *Py_UNUSED(module), PyObject *objects)
{
    if (!checked_list(objects, "untracked")) {
        return NULL;
    }
    unsigned generation = counting.generation;
    int before = hand_over(generation, counting.aside);
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && counting.births.used && i < PyList_GET_SIZE(objects); i++) {
        PyObject *one = PyList_GET_ITEM(objects, i);
        int holds = PyDict_CheckExact(one) || (PyTuple_CheckExact(one) && ((Birth *)slot_of(&counting.births, one, 0))->type);
        if (holds && !PyObject_GC_IsTracked(one) && PyList_Append(found, one) < 0) {
            Py_CLEAR(found);
        }
    }
    give_back(generation, before);
    return found;
}

/* The docstrings of PythonCore document these functions, those of executed.py the callbacks of sys.monitoring. */
static PyMethodDef functions[] = {
    {"start", start, METH_VARARGS, NULL},
    {"stop", stop, METH_NOARGS, NULL},
    {"take", take, METH_NOARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))run_as, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"coroutine_proxy", make_proxy, METH_VARARGS, NULL},
    {"aside", make_aside, METH_O, NULL},
    {"callback", make_callback, METH_VARARGS, NULL},
    {"lent", make_lent, METH_VARARGS, NULL},
    {"discount", discount, METH_VARARGS, NULL},
    {"other_threads", other_threads, METH_NOARGS, NULL},
    {"period", begin_period, METH_O, NULL},
    {"born", born, METH_O, NULL},
    {"untracked", untracked, METH_O, NULL},
    {"take_executed", take_executed, METH_NOARGS, NULL},
    {"on_instruction", (PyCFunction)(void (*)(void))on_instruction, METH_FASTCALL, NULL},
    {"on_call", (PyCFunction)(void (*)(void))on_call, METH_FASTCALL, NULL},
    {"on_start", (PyCFunction)(void (*)(void))on_start, METH_FASTCALL, NULL},
    {"known_codes", known_codes, METH_NOARGS, NULL},
    {"instrumentation", instrumentation, METH_O, NULL},
    {0},
};

static int
execute(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "pytest_mwbudget.counting._core counts in the main interpreter only");
        return -1;
    }
    if (PyType_Ready(&ProxyType) < 0 || PyType_Ready(&GuardType) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "COUNTS_OBJECTS", HAVE_TRACER);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pytest_mwbudget.counting._core",
    .m_doc = "Objects, allocations, bytes and executed code by owner.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
