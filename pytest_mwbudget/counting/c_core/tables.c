/* The tables: object counts by class and owner, remembered objects, known code, and events by thread. */

#include "core.h"

void *
slot_at(const Table *table, size_t index)
{
    return table->slots + index * table->width;
}

/* The slot with this key, or the free slot for it. The table must have slots. */
void *
slot_of(const Table *table, void *address, int owner)
{
    uint64_t hash = ((uint64_t)(uintptr_t)address >> 4) + (uint64_t)owner * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
    hash *= 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 32;
    for (size_t index = (size_t)hash;; index++) {
        Key *key = slot_at(table, index & (table->size - 1));
        if (key->address == NULL || (key->address == address && key->owner == owner)) {
            return key;
        }
    }
}

/* Double the slots of a table. Returns 0 if out of memory. */
static int
grow(Table *table)
{
    Table bigger = *table;
    bigger.size = table->size ? table->size * 2 : table->first_size;
    bigger.slots = calloc(bigger.size, table->width);
    if (bigger.slots == NULL) {
        counting.out_of_memory = 1;
        return 0;
    }
    for (size_t i = 0; i < table->size; i++) {
        Key *key = slot_at(table, i);
        if (key->address != NULL) {
            memcpy(slot_of(&bigger, key->address, key->owner), key, table->width);
        }
    }
    free(table->slots);
    *table = bigger;
    return 1;
}

/* The slot with this key; a missing key is added, and `added` set. NULL if out of memory. */
void *
slot_for(Table *table, void *address, int owner, int *added)
{
    if (table->used * 2 >= table->size && !grow(table)) {
        return NULL;
    }
    Key *key = slot_of(table, address, owner);
    *added = key->address == NULL;
    if (*added) {
        *key = (Key){address, owner};
        table->used++;
    }
    return key;
}

TypeCount *
count_type(PyTypeObject *type, int owner, int number)
{
    int added;
    TypeCount *slot = slot_for(&counting.types, type, owner, &added);
    if (slot != NULL) {
        if (added) {
            Py_INCREF(type);
        }
        slot->count += number;
    }
    return slot;
}

/* Count an event of this thread, unless it had a lane in this run: then it is known who hands it work. */
void
count_thread(void)
{
    int added;
    if (lane.thread == PyThreadState_GetUnchecked() && lane.generation == counting.generation) {
        return;
    }
    ThreadCount *slot = slot_for(&counting.threads, (void *)(uintptr_t)PyThread_get_thread_ident(), 0, &added);
    if (slot != NULL) {
        slot->events++;
    }
}

/* Start a new table with only the classes of remembered objects. The caller owns the old one, `taken`. Returns 0 if out
   of memory. */
int
renew_types(Table *taken)
{
    *taken = counting.types;
    if (taken->size == 0) {
        return 1;
    }
    char *slots = calloc(taken->size, taken->width);
    if (slots == NULL) {
        return 0;
    }
    counting.types.slots = slots;
    counting.types.used = 0;
    for (size_t i = 0; i < taken->size; i++) {
        TypeCount *old = slot_at(taken, i);
        if (old->remembered) {
            count_type(old->key.address, old->key.owner, 0)->remembered = old->remembered;
        }
    }
    return 1;
}

/* Release a table whose keys are references. Releasing a class or code may run any code. */
void
release_keys(Table *table)
{
    for (size_t i = 0; i < table->size; i++) {
        Py_XDECREF(((Key *)slot_at(table, i))->address);
    }
    free(table->slots);
}

static void
forget_slot(Birth *slot)
{
    if (slot->type != NULL) {
        ((TypeCount *)slot_of(&counting.types, slot->type, slot->owner))->remembered--;
        slot->type = NULL;
    }
}

void
forget(PyObject *object)
{
    if (counting.births.used) {
        forget_slot(slot_of(&counting.births, object, 0));
    }
}

void
remember(PyObject *object, TypeCount *kind)
{
    int added;
    Birth *slot = slot_for(&counting.births, object, 0, &added);
    if (slot == NULL) {
        return;
    }
    forget_slot(slot); /* not every deallocation is reported */
    slot->type = kind->key.address;
    slot->owner = kind->key.owner;
    slot->period = counting.period;
    kind->remembered++;
}
