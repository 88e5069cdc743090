/* Exchange of columns with Python through the Arrow C data interface, without copies.
 *
 * polars, PyArrow and other Arrow libraries accept the objects of `arrow_array`, and produce objects that `arrow_read`
 * accepts. Layouts: https://arrow.apache.org/docs/format/CDataInterface.html. */
#pragma once

#include <Python.h>
#include <stdatomic.h>
#include <stdint.h>

/* ---------------------------------------------------------------- exported columns */

/* Immutable values with a reference count: several Arrow arrays may share one column. */
typedef struct {
    atomic_int references;
    const char *format; /* static: an Arrow format, such as "l", "i", "I", "b" or "vu" */
    int64_t length, nulls;
    void *owned[3];          /* buffers freed with the column */
    void (*release)(void *); /* called with `kept` when the column is freed */
    void *kept;
    int64_t buffer_count;
    const void *buffers[]; /* in the order of the Arrow format */
} Column;

/* Returns a column with `buffer_count` buffers, all NULL; NULL when out of memory. Works without the GIL. */
Column *column_new(const char *format, int64_t length, int64_t buffer_count);
/* Returns a column of fixed-width values and takes ownership of `values`. Returns NULL if `values` is NULL, and with
 * `values` freed when out of memory. Works without the GIL. */
Column *column_of(const char *format, int64_t length, void *values);
void column_drop(Column *column);

/* Returns a Python object with `__arrow_c_array__` and a length, and takes ownership of the column. Returns NULL with
 * an exception set; if `column` is NULL, that is MemoryError. */
PyObject *arrow_array(Column *column);

/* ---------------------------------------------------------------- imported columns */

typedef struct {
    int64_t length;
    const void *values;
    const uint8_t *valid;     /* validity bitmap; NULL if the column has no nulls */
    int64_t shift;            /* first bit of row 0, in `valid` and in the values of booleans */
    struct ArrowArray *chunk; /* owner of the buffers */
} Input;

/* Reads an object with `__arrow_c_stream__` in one chunk. `format` is "l", "i" or "b": 64-bit integers,
 * 32-bit integers or booleans. `name` appears in messages. `nulls`: whether nulls are allowed. Returns 0, or -1 with
 * TypeError or ValueError set. */
int arrow_read(PyObject *object, const char *format, const char *name, int nulls, Input *input);
void arrow_free(Input *input);

static inline int bit_of(const void *bits, int64_t bit) { return ((const uint8_t *)bits)[bit >> 3] >> (bit & 7) & 1; }

static inline int is_null(const Input *input, int64_t row) {
    return input->valid && !bit_of(input->valid, row + input->shift);
}

static inline int is_true(const Input *input, int64_t row) { return bit_of(input->values, row + input->shift); }

static inline const int64_t *longs(const Input *input) { return input->values; }
static inline const int32_t *ints(const Input *input) { return input->values; }

/* -1 with a ValueError when the lengths differ. */
int same_lengths(const Input *inputs, int count);
