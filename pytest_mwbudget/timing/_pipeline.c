/* Read how many instructions per cycle the processor's core issues to this thread now.

   Two hardware threads of a core share its pipeline. Where another one works, this one gets part of the width. A
   virtual machine is not told: no counter of its system shows it.

   - A chain of additions, each of which needs the result of the one before, takes a cycle each, whoever else works on
     the core. It is the clock, in cycles at the core's present frequency.
   - No-ops need nothing but a place in the pipeline, so they take all of its width that this thread can have.

   The loops are written in assembler, because a compiler that unrolled them would make code that no cache holds. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define READS 1
#include <x86intrin.h>
#else
#define READS 0
#endif

#if READS

enum { ADDITIONS = 64, CHAINS = 100, NO_OPS = 256, BLOCKS = 100, WIDEST = 16 };

/* In ticks. The two times are compared with each other only, so any steady counter will do. Some count in steps of 26
   ticks, which has to be little of each time: it is 1 % of the shorter on a core that issues eight. */
static unsigned long long
now(void)
{
    _mm_lfence();
    unsigned long long ticks = __rdtsc();
    _mm_lfence();
    return ticks;
}

static void
add_in_chains(unsigned long chains)
{
    unsigned long sum = 0, one = 1;
    /* Registers only: some cores add a constant in no time. */
    __asm__ volatile("1:\n\t.rept %c3\n\tadd %2, %0\n\t.endr\n\tdec %1\n\tjnz 1b"
                     : "+&r"(sum), "+&r"(chains) : "r"(one), "i"(ADDITIONS) : "cc");
}

static void
do_nothing(unsigned long blocks)
{
    /* nopl 0(%rax): shorter ones would wait for the decoder. */
    __asm__ volatile("1:\n\t.rept %c1\n\t.byte 0x0f, 0x1f, 0x40, 0x00\n\t.endr\n\tdec %0\n\tjnz 1b"
                     : "+&r"(blocks) : "i"(NO_OPS) : "cc");
}

/* Never inlined: the first of two counts has to bring this very code into the caches, and not a copy of it. */
__attribute__((noinline)) static double
read_width(unsigned long chains, unsigned long blocks)
{
    unsigned long long begin = now();
    add_in_chains(chains);
    unsigned long long middle = now();
    do_nothing(blocks);
    unsigned long long end = now();
    double ticks_per_cycle = (double)(middle - begin) / (ADDITIONS * (double)chains);
    return end > middle ? NO_OPS * (double)blocks * ticks_per_cycle / (double)(end - middle) : 0.0;
}

#endif

PyDoc_STRVAR(issue_width_doc,
"issue_width() -> float | None\n\n"
"Return the no-ops per cycle that the core issues to this thread now, in 3 to 5 µs; None where this is not known.");

static PyObject *
issue_width(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
#if READS
    /* The second of two counts: the app has pushed this code out of the caches. */
    (void)read_width(1, 1);
    double width = read_width(CHAINS, BLOCKS);
    /* An interrupted reading, or a processor that is emulated. */
    if (width > 0 && width <= WIDEST) {
        return PyFloat_FromDouble(width);
    }
#endif
    Py_RETURN_NONE;
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
