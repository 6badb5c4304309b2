/* The callbacks of sys.monitoring: bytecode instructions executed, calls made, Python functions entered.

   An event is charged like an object. Code of this package and of its probes is in no count, whoever is charged for it.
   No callback returns DISABLE, which would end the events of an instruction. */

#include "core.h"

/* Whether the code counts, which its file name tells. Code that is known is kept alive, so that no other code can get
   its address. */
static int
is_counted(PyObject *code)
{
    if (counting.last_code.key.address == code) {
        return counting.last_code.counted;
    }
    int added;
    KnownCode *known = slot_for(&counting.codes, code, 0, &added);
    if (known == NULL) {
        return 0;
    }
    if (added) {
        Py_INCREF(code);
        known->counted = 1;
        PyObject *file = ((PyCodeObject *)code)->co_filename;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(counting.skipped); i++) {
            if (PyUnicode_Tailmatch(file, PyTuple_GET_ITEM(counting.skipped, i), 0, PY_SSIZE_T_MAX, -1) != 0) {
                PyErr_Clear(); /* of an item that is no text */
                known->counted = 0;
            }
        }
    }
    counting.last_code = *known;
    return known->counted;
}

/* What the event of an executing code object, the first argument, is to be added to. NULL if it is not counted. */
static Executed *
charged_for(PyObject *const *arguments, Py_ssize_t number)
{
    if (!counting.active || counting.executed == NULL || number < 1 || !PyCode_Check(arguments[0])) {
        return NULL;
    }
    int owner = charged();
    if (owner == NOBODY || owner == counting.aside || !is_counted(arguments[0])) {
        return NULL;
    }
    if (owner == counting.elsewhere) {
        count_thread();
    }
    return &counting.executed[owner];
}

PyObject *
on_instruction(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t number)
{
    Executed *executed = charged_for(arguments, number);
    if (executed != NULL) {
        executed->bytecodes++;
    }
    Py_RETURN_NONE;
}

PyObject *
on_call(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t number)
{
    Executed *executed = charged_for(arguments, number);
    if (executed != NULL) {
        executed->calls++;
    }
    Py_RETURN_NONE;
}

PyObject *
on_start(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t number)
{
    Executed *executed = charged_for(arguments, number);
    if (executed != NULL) {
        executed->py_calls++;
    }
    Py_RETURN_NONE;
}

static int
counts_executed(void)
{
    if (!checked_owner(0)) {
        return 0;
    }
    if (counting.executed == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this counting run counts memory");
        return 0;
    }
    return 1;
}

/* Replaces the counts before it creates objects, which may run any code. */
PyObject *
take_executed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (!counts_executed()) {
        return NULL;
    }
    int owners = counting.elsewhere + 1;
    Executed *taken = counting.executed, *executed = calloc((size_t)owners, sizeof(Executed));
    if (executed == NULL) {
        return PyErr_NoMemory();
    }
    counting.executed = executed;
    PyObject *rows = PyList_New(owners);
    for (int i = 0; rows != NULL && i < owners; i++) {
        PyObject *row = Py_BuildValue("(LLL)", taken[i].bytecodes, taken[i].calls, taken[i].py_calls);
        if (row == NULL) {
            Py_CLEAR(rows);
            break;
        }
        PyList_SET_ITEM(rows, i, row);
    }
    free(taken);
    return rows;
}

PyObject *
known_codes(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (!counts_executed()) {
        return NULL;
    }
    PyObject *codes = PyList_New(0);
    for (size_t i = 0; codes != NULL && i < counting.codes.size; i++) {
        KnownCode *known = slot_at(&counting.codes, i);
        if (known->key.address != NULL && known->counted && PyList_Append(codes, known->key.address) < 0) {
            Py_CLEAR(codes);
        }
    }
    return codes;
}

/* The number that CPython gives to the set of events for which the code was instrumented. */
PyObject *
instrumentation(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "instrumentation() takes code, not %.100s", Py_TYPE(code)->tp_name);
    }
#if PY_VERSION_HEX >= 0x030C0000
    return PyLong_FromUnsignedLongLong(((PyCodeObject *)code)->_co_instrumentation_version);
#else
    return PyLong_FromLong(0);
#endif
}
