/* Read how many instructions per cycle the processor's core issues to this thread now.

   Two hardware threads of a core share its pipeline. Where another one works, this one gets part of the width. A
   virtual machine is not told: no counter of its system shows it.

   - A chain of additions, each of which needs the result of the one before, takes a cycle each, whoever else works on
     the core. It is the clock, in cycles at the core's present frequency.
   - No-ops need nothing but a place in the pipeline, so they take all of its width that this thread can have. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define READS 1
#include <time.h>
#else
#define READS 0
#endif

#if READS

enum { ADDITIONS = 64, CHAINS = 50, NO_OPS = 256, BLOCKS = 50 };

static double
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void
add_in_a_chain(void)
{
    unsigned long sum = 0, one = 1;
    for (int chain = 0; chain < CHAINS; chain++) {
        /* Registers only: some cores add a constant in no time. */
        __asm__ volatile(".rept 64\n\tadd %1, %0\n\t.endr" : "+r"(sum) : "r"(one) : "cc");
    }
}

static void
do_nothing(void)
{
    for (int block = 0; block < BLOCKS; block++) {
        /* nopl 0(%rax): shorter ones would wait for the decoder. */
        __asm__ volatile(".rept 256\n\t.byte 0x0f, 0x1f, 0x40, 0x00\n\t.endr");
    }
}

#endif

PyDoc_STRVAR(issue_width_doc,
"issue_width() -> float | None\n\n"
"Return the no-ops per cycle that the core issues to this thread now, in about 3 µs; None where this is not known.");

static PyObject *
issue_width(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
#if READS
    double begin = now_ns();
    add_in_a_chain();
    double middle = now_ns();
    do_nothing();
    double end = now_ns();
    double cycle_ns = (middle - begin) / (ADDITIONS * CHAINS);
    return PyFloat_FromDouble(NO_OPS * BLOCKS * cycle_ns / (end - middle));
#else
    Py_RETURN_NONE;
#endif
}

static PyMethodDef methods[] = {
    {"issue_width", issue_width, METH_NOARGS, issue_width_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pytest_mwbudget.timing._pipeline",
    .m_doc = "How much of a core's pipeline this thread has.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__pipeline(void)
{
    return PyModuleDef_Init(&module_def);
}
