/* Shared by the column operations: loops over ranges, launches and GPU activities. The Python reference
 * implementation is annot/attribution/column_ops.py.
 *
 * Row numbers start at 0; -1 means "no row". An invalid row number raises ValueError. Times are in nanoseconds. Sums
 * of times wrap around on overflow; the readers keep times between -2^62 and 2^62, where this cannot happen. */
#pragma once

#include "arrow.h"

#define NONE (-1)

/* Format, name and nullability of one argument, as arrow_read expects them. */
typedef struct {
    const char *format, *name;
    int nulls;
} Expected;

/* Reads `count` columns of fewer than 2^31 rows from the argument tuple. Returns 0, or -1 with an exception set and the inputs freed. */
int read_columns(PyObject *args, const char *function, const Expected *expected, int count, Input *inputs);
/* The same, for columns of equal length. */
int read_all(PyObject *args, const char *function, const Expected *expected, int count, Input *inputs);
void free_all(Input *inputs, int count);

/* Checks that all values are from `least` to `most`; -1 with a ValueError. */
int check_values(const Input *input, const char *name, int64_t least, int64_t most);
/* Checks that each value is NONE or an earlier row; -1 with a ValueError. */
int check_parents(const Input *input, const char *name);

/* Allocates a result of `length` values of `size` bytes; NULL when out of memory. */
void *new_values(int64_t length, size_t size);
void *grow_values(void *values, int64_t *room, size_t size);

/* Returns `values` with room for more than `count`. Returns NULL when out of memory; `values` stays valid. */
static inline void *make_room(void *values, int64_t count, int64_t *room, size_t size) {
    return count < *room ? values : grow_values(values, room, size);
}

/* Returns a tuple of the columns and takes ownership of them. Returns NULL with an exception set if one is NULL. */
PyObject *arrow_tuple(Column **columns, int count);

/* Adds a type to the module; -1 with an exception set on failure. */
int add_type(PyObject *module, const char *name, PyType_Spec *spec);
/* Returns a zeroed object of a type; NULL with an exception set. `free_object` frees it at the end of its dealloc. */
void *new_object(PyTypeObject *type);
void free_object(PyObject *object);

static inline int64_t add_wrapping(int64_t left, int64_t right) { return (int64_t)((uint64_t)left + (uint64_t)right); }

static inline int64_t subtract_wrapping(int64_t left, int64_t right) {
    return (int64_t)((uint64_t)left - (uint64_t)right);
}

/* Hash of an integer: every bit of `value` affects every bit of the result. */
static inline uint64_t mix(uint64_t value) {
    value = (value ^ value >> 32) * 0xD6E8FEB86659FD93u;
    value = (value ^ value >> 32) * 0xD6E8FEB86659FD93u;
    return value ^ value >> 32;
}

/* Seed for hash tables with keys from a profile. It is unpredictable, so a profile cannot force collisions. */
uint64_t hash_seed(void);
