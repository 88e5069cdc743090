/* Shared by the sweeps: loops over ranges, launches and device work. annot/correlate/sweep.py is their Python twin.
 *
 * Rows are numbered from 0 and -1 is no row. A row number that is out of place is a ValueError. Sums of times wrap
 * around instead of being undefined; times between -2^62 and 2^62, which the readers vouch for, never do. */
#ifndef ANNOT_SWEEP_H
#define ANNOT_SWEEP_H

#include "arrow.h"

#define NONE (-1)

/* A row of `inputs` as arrow_read wants it. */
typedef struct {
    const char *format, *name;
    int nulls;
} Expected;

/* Reads as many columns of one length from a tuple of arguments; 0, or -1 with an exception set and all freed. */
int read_all(PyObject *args, const char *function, const Expected *expected, int count, Input *inputs);
void free_all(Input *inputs, int count);

/* A result of `length` values of 4 or 8 bytes; NULL when out of memory. */
void *new_values(int64_t length, size_t size);
/* A tuple of columns, which it takes over; NULL with an exception set when one of them is NULL. */
PyObject *arrow_tuple(Column **columns, int count);

static inline int64_t add_wrapping(int64_t left, int64_t right) {
    return (int64_t)((uint64_t)left + (uint64_t)right);
}

static inline int64_t subtract_wrapping(int64_t left, int64_t right) {
    return (int64_t)((uint64_t)left - (uint64_t)right);
}

/* Mixes all bits of `value` into all of the result. */
static inline uint64_t mix(uint64_t value) {
    value = (value ^ value >> 32) * 0xD6E8FEB86659FD93u;
    value = (value ^ value >> 32) * 0xD6E8FEB86659FD93u;
    return value ^ value >> 32;
}

/* A number that the writer of a profile cannot know, for hashing what comes from it. */
uint64_t hash_seed(void);

/* Each adds functions or types to the module; -1 with an exception set on failure. */
int annot_add_codes(PyObject *module);    /* sweep_codes.c: codes */
int annot_add_nesting(PyObject *module);  /* sweep_nesting.c: order, crossing, parents */
int annot_add_sums(PyObject *module);     /* sweep_sums.c: paths, fold, Sums */
int annot_add_shared(PyObject *module);   /* sweep_shared.c: enclosing, innermost */
int annot_add_tree(PyObject *module);     /* sweep_tree.c: Tree */
int annot_add_launches(PyObject *module); /* sweep_launches.c: LaunchTable */
int annot_add_busy(PyObject *module);     /* sweep_busy.c: Busy */
int annot_add_sweeps(PyObject *module);   /* all of them */

#endif
