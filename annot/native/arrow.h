/* Columns that come from Python and go back to it through the Arrow C data interface, without a copy.
 *
 * Any library that speaks the interface takes what `arrow_batch` and `arrow_array` return, and gives what
 * `arrow_read` takes; https://arrow.apache.org/docs/format/CDataInterface.html holds the layouts. */
#ifndef ANNOT_ARROW_H
#define ANNOT_ARROW_H

#include <Python.h>
#include <stdatomic.h>
#include <stdint.h>

/* ---------------------------------------------------------------- columns that are handed out */

/* Values that no one changes any more; counted, because several Arrow arrays may stand for one column. */
typedef struct {
    atomic_int references;
    const char *format; /* static: "l", "i", "b" or "vu" */
    int64_t length, nulls;
    void *owned[3];          /* freed along with the column */
    void (*let_go)(void *);  /* what to do with `kept` then */
    void *kept;
    int64_t buffer_count;
    const void *buffers[]; /* as the format lays them out */
} Column;

/* A column with room for so many buffers, all NULL; NULL when out of memory. Needs no GIL. */
Column *column_new(const char *format, int64_t length, int64_t buffer_count);
/* A column of plain values, which it takes over; NULL, and the values freed, when out of memory. Needs no GIL. */
Column *column_of(const char *format, int64_t length, void *values);
void column_drop(Column *column);

/* A Python object with `__arrow_c_array__` and a length. Takes the column over; NULL with an exception set. */
PyObject *arrow_array(Column *column);
/* The same of a table; takes the columns over, and copies the names. */
PyObject *arrow_batch(Column **columns, const char *const *names, int count, int64_t rows);

/* ---------------------------------------------------------------- columns that come in */

typedef struct {
    int64_t length;
    const void *values;
    const uint8_t *valid; /* a bit per row, from bit `shift` on, as booleans have; NULL: there are no nulls */
    int64_t shift;
    void *holder; /* what keeps the above alive */
} Input;

/* Reads an object with `__arrow_c_stream__` or `__arrow_c_array__`; `format` is "l", "i" or "b": integers of
 * 64 or 32 bits, or booleans. `name` is for messages, `nulls` says whether there may be any. 0, or -1 with a
 * TypeError or ValueError. */
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

/* Adds the type of what is handed out; -1 with an exception set on failure. */
int annot_add_arrow(PyObject *module);

#endif
