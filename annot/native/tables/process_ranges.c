/* Ranges of a process: the shortest range around each one, and the innermost ranges at each moment.
 *
 * The Python reference implementation is annot/attribution/column_ops.py; it documents each function. */
#include "column_ops.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- lists of rows */

typedef struct {
    int32_t *rows;
    int64_t count, room;
} Rows;

static int add_row(Rows *list, int32_t row) {
    int32_t *rows = make_room(list->rows, list->count, &list->room, sizeof *rows);
    if (!rows)
        return -1;
    list->rows = rows;
    rows[list->count++] = row;
    return 0;
}

static void free_lists(Rows *lists, int64_t count) {
    for (int64_t i = 0; lists && i < count; i++)
        free(lists[i].rows);
    free(lists);
}

static int check_order(const int64_t *start, int64_t count) {
    for (int64_t row = 1; row < count; row++)
        if (start[row] < start[row - 1]) {
            PyErr_Format(PyExc_ValueError, "start must ascend; row %lld is out of order", (long long)row);
            return -1;
        }
    return 0;
}

/* ---------------------------------------------------------------- enclosing */

enum { START, END, KEY, ABOVE };

/* A range that ends before it starts is accepted and counts as the longest. */
static uint64_t length_of(const int64_t *start, const int64_t *end, int32_t row) {
    return (uint64_t)end[row] - (uint64_t)start[row];
}

static void drop_ended(Rows *open, const int64_t *end, int64_t begin) {
    int64_t kept = 0;
    for (int64_t i = 0; i < open->count; i++)
        if (end[open->rows[i]] >= begin)
            open->rows[kept++] = open->rows[i];
    open->count = kept;
}

/* Returns the shortest range around `row` among `best` and the ranges in `open`, which are sorted by start. */
static int32_t shortest(Rows *open, const int64_t *start, const int64_t *end, int64_t row, int32_t best) {
    int64_t ended = 0;
    while (open->count && end[open->rows[open->count - 1]] < start[row])
        open->count--;
    for (int64_t i = open->count - 1; i >= 0; i--) {
        int32_t other = open->rows[i];
        /* Earlier ranges in the list start earlier; around this row they are longer than the best. */
        if (best != NONE && (uint64_t)end[row] - (uint64_t)start[other] > length_of(start, end, best))
            break;
        ended += end[other] < start[row];
        if (end[other] < end[row])
            continue;
        uint64_t length = length_of(start, end, other);
        uint64_t least = best == NONE ? UINT64_MAX : length_of(start, end, best);
        if (best == NONE || length < least || (length == least && other > best))
            best = other;
    }
    if (2 * ended > open->count)
        drop_ended(open, end, start[row]);
    return best;
}

static int find_enclosing(const Input *inputs, Rows *open, int32_t *parent) {
    const int64_t *start = longs(&inputs[START]), *end = longs(&inputs[END]);
    const int32_t *key = ints(&inputs[KEY]), *above = ints(&inputs[ABOVE]);
    for (int64_t row = 0; row < inputs[START].length; row++) {
        parent[row] = NONE;
        for (int32_t around = above[key[row]]; around != NONE; around = above[around])
            parent[row] = shortest(&open[around], start, end, row, parent[row]);
        if (add_row(&open[key[row]], (int32_t)row) < 0)
            return -1;
    }
    return 0;
}

static PyObject *enclosing(PyObject *module, PyObject *args) {
    static const Expected expected[] = {{"l", "start", 0}, {"l", "end", 0}, {"i", "key", 0}, {"i", "above", 0}};
    Input inputs[4];
    if (read_columns(args, "enclosing", expected, 4, inputs) < 0)
        return NULL;
    if (same_lengths(inputs, ABOVE) < 0) {
        free_all(inputs, 4);
        return NULL;
    }
    Column *column = NULL;
    int64_t count = inputs[START].length, keys = inputs[ABOVE].length;
    int valid = check_parents(&inputs[ABOVE], "above") == 0 && check_values(&inputs[KEY], "key", 0, keys - 1) == 0 &&
                check_order(longs(&inputs[START]), count) == 0;
    int32_t *parent = valid ? new_values(count, sizeof *parent) : NULL;
    Rows *open = valid ? calloc((size_t)keys + 1, sizeof *open) : NULL;
    if (parent && open) {
        Py_BEGIN_ALLOW_THREADS
        if (find_enclosing(inputs, open, parent) == 0) {
            column = column_of("i", count, parent);
            parent = NULL;
        }
        Py_END_ALLOW_THREADS
    }
    free(parent);
    free_lists(open, keys);
    free_all(inputs, 4);
    return valid ? arrow_array(column) : NULL;
}

/* ---------------------------------------------------------------- heaps with the largest row on top */

static int push(Rows *heap, int32_t row) {
    if (add_row(heap, row) < 0)
        return -1;
    int64_t at = heap->count - 1;
    for (; at > 0 && heap->rows[(at - 1) / 2] < row; at = (at - 1) / 2)
        heap->rows[at] = heap->rows[(at - 1) / 2];
    heap->rows[at] = row;
    return 0;
}

static void pop(Rows *heap) {
    int32_t row = heap->rows[--heap->count];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && heap->rows[child + 1] > heap->rows[child])
            child++;
        if (heap->rows[child] <= row)
            break;
        heap->rows[at] = heap->rows[child];
    }
    if (heap->count)
        heap->rows[at] = row;
}

/* ---------------------------------------------------------------- moments */

enum { BEGIN, FINISH, THREAD, PARENT, BY_END };

/* From `moment` on, `row` is the innermost range of the thread that began last. */
typedef struct {
    int32_t thread, row;
    int64_t moment;
} Change;

typedef struct {
    const int32_t *thread, *parent;
    int32_t threads;
    uint8_t *innermost;
    int32_t *inside;  /* per range: number of its open children */
    Rows *candidates; /* per thread: heap of rows that are or were innermost; the last heap is for all threads */
    int32_t *best;    /* per heap: the innermost row that began last, as last recorded */
    int32_t *counts;  /* result: number of innermost ranges at each moment */
    int64_t moment;
    Change *changes; /* result */
    int64_t change_count, room;
} Moments;

/* Records the innermost row of a heap that began last, if it has changed. */
static int note_best(Moments *self, int32_t thread) {
    Rows *heap = &self->candidates[thread];
    while (heap->count && !self->innermost[heap->rows[0]])
        pop(heap);
    int32_t best = heap->count ? heap->rows[0] : NONE;
    if (self->best[thread] == best)
        return 0;
    Change *changes = make_room(self->changes, self->change_count, &self->room, sizeof *changes);
    if (!changes)
        return -1;
    self->changes = changes;
    self->best[thread] = best;
    changes[self->change_count++] = (Change){thread == self->threads ? NONE : thread, best, self->moment};
    return 0;
}

static int note(Moments *self, int32_t count, int32_t row) {
    int32_t thread = self->thread[row], above = self->parent[row];
    self->counts[++self->moment] = count;
    if (note_best(self, self->threads) < 0 || note_best(self, thread) < 0)
        return -1;
    return above != NONE && self->thread[above] != thread ? note_best(self, self->thread[above]) : 0;
}

static int add_innermost(Moments *self, int32_t row) {
    self->innermost[row] = 1;
    return push(&self->candidates[self->thread[row]], row) < 0 ? -1 : push(&self->candidates[self->threads], row);
}

static int begin(Moments *self, int32_t row) {
    int32_t above = self->parent[row], count = self->counts[self->moment] + 1;
    if (above != NONE) {
        count -= self->innermost[above];
        self->innermost[above] = 0;
        self->inside[above]++;
    }
    return add_innermost(self, row) < 0 ? -1 : note(self, count, row);
}

static int finish(Moments *self, int32_t row) {
    int32_t above = self->parent[row], count = self->counts[self->moment] - self->innermost[row];
    self->innermost[row] = 0;
    if (above != NONE && --self->inside[above] == 0) {
        if (add_innermost(self, above) < 0)
            return -1;
        count++;
    }
    return note(self, count, row);
}

static int visit_all(Moments *self, const Input *inputs) {
    const int64_t *start = longs(&inputs[BEGIN]), *end = longs(&inputs[FINISH]);
    const int32_t *by_end = ints(&inputs[BY_END]);
    int64_t count = inputs[BEGIN].length, begun = 0;
    for (int64_t i = 0; i < count; i++) {
        for (; begun < count && start[begun] <= end[by_end[i]]; begun++)
            if (begin(self, (int32_t)begun) < 0)
                return -1;
        if (finish(self, by_end[i]) < 0)
            return -1;
    }
    return 0;
}

/* Checks that each range ends once and after its start. `counts` has room for one start and one end per range. */
static int check_moments(const Input *inputs, uint8_t *seen, int32_t *threads) {
    const int64_t *start = longs(&inputs[BEGIN]), *end = longs(&inputs[FINISH]);
    const int32_t *thread = ints(&inputs[THREAD]), *by_end = ints(&inputs[BY_END]);
    int64_t count = inputs[BEGIN].length;
    if (check_values(&inputs[THREAD], "thread", 0, count - 1) < 0 || check_parents(&inputs[PARENT], "parent") < 0 ||
        check_values(&inputs[BY_END], "by_end", 0, count - 1) < 0 || check_order(start, count) < 0)
        return -1;
    for (int64_t row = 0; row < count; row++) {
        if (seen[by_end[row]]++ || end[row] < start[row]) {
            PyErr_Format(PyExc_ValueError, "the ranges must be in order; row %lld is out of place", (long long)row);
            return -1;
        }
        *threads = thread[row] >= *threads ? thread[row] + 1 : *threads;
    }
    memset(seen, 0, (size_t)count);
    return 0;
}

static int set_up(Moments *self, const Input *inputs) {
    size_t count = (size_t)inputs[BEGIN].length;
    self->thread = ints(&inputs[THREAD]);
    self->parent = ints(&inputs[PARENT]);
    self->innermost = calloc(count + 1, 1);
    if (!self->innermost || check_moments(inputs, self->innermost, &self->threads) < 0)
        return -1;
    self->inside = calloc(count + 1, sizeof *self->inside);
    self->candidates = calloc((size_t)self->threads + 1, sizeof *self->candidates);
    self->best = malloc(((size_t)self->threads + 1) * sizeof *self->best);
    self->counts = calloc(2 * count + 1, sizeof *self->counts);
    if (!self->inside || !self->candidates || !self->best || !self->counts)
        return -1;
    memset(self->best, 0xFF, ((size_t)self->threads + 1) * sizeof *self->best);
    return 0;
}

static void tear_down(Moments *self) {
    free(self->innermost);
    free(self->inside);
    free_lists(self->candidates, self->threads + 1);
    free(self->best);
    free(self->counts);
    free(self->changes);
}

/* Columns of the counts, and of the thread, moment and row of each change; NULL when out of memory. */
static void make_columns(Moments *self, int64_t moments, Column **columns) {
    int64_t count = self->change_count;
    int32_t *thread = new_values(count, sizeof *thread), *row = new_values(count, sizeof *row);
    int64_t *moment = new_values(count, sizeof *moment);
    for (int64_t i = 0; thread && row && moment && i < count; i++) {
        thread[i] = self->changes[i].thread;
        row[i] = self->changes[i].row;
        moment[i] = self->changes[i].moment;
    }
    columns[0] = column_of("i", moments, self->counts);
    self->counts = NULL;
    columns[1] = column_of("i", count, thread);
    columns[2] = column_of("l", count, moment);
    columns[3] = column_of("i", count, row);
}

static PyObject *innermost(PyObject *module, PyObject *args) {
    static const Expected expected[] = {
        {"l", "start", 0}, {"l", "end", 0}, {"i", "thread", 0}, {"i", "parent", 0}, {"i", "by_end", 0}};
    Input inputs[5];
    Moments moments = {0};
    Column *columns[4] = {NULL};
    if (read_all(args, "innermost", expected, 5, inputs) < 0)
        return NULL;
    if (set_up(&moments, inputs) == 0) {
        Py_BEGIN_ALLOW_THREADS
        if (visit_all(&moments, inputs) == 0)
            make_columns(&moments, 2 * inputs[BEGIN].length + 1, columns);
        Py_END_ALLOW_THREADS
    }
    tear_down(&moments);
    free_all(inputs, 5);
    return PyErr_Occurred() ? NULL : arrow_tuple(columns, 4);
}

static PyMethodDef functions[] = {
    {"enclosing", enclosing, METH_VARARGS,
     "enclosing(start, end, key, above): return the row of the shortest range around each one, or -1."},
    {"innermost", innermost, METH_VARARGS,
     "innermost(start, end, thread, parent, by_end): return the number of innermost ranges at each moment, and the\n"
     "thread, moment and row of each change."},
    {NULL, NULL, 0, NULL},
};

int annot_add_process_ranges(PyObject *module) { return PyModule_AddFunctions(module, functions); }
