/* Tree: find the innermost range around a call. */
#include "column_ops.h"
#include "parts.h"

#include <stdlib.h>

typedef struct {
    int32_t thread;
    int64_t begin, end; /* rows of the thread */
} Segment;

enum { THREAD, START, END, PARENT, COLUMNS };

typedef struct {
    PyObject_HEAD
    Input inputs[COLUMNS];
    Segment *segments; /* sorted by thread */
    int64_t segment_count;
} Tree;

/* Returns the first row that is out of order or has an invalid parent, or -1. */
static int64_t first_misplaced(const Input *inputs) {
    const int32_t *thread = ints(&inputs[THREAD]), *parent = ints(&inputs[PARENT]);
    const int64_t *start = longs(&inputs[START]);
    for (int64_t row = 0; row < inputs[0].length; row++) {
        if (row > 0 && thread[row] < thread[row - 1])
            return row;
        if (row > 0 && thread[row] == thread[row - 1] && start[row] < start[row - 1])
            return row;
        if (parent[row] < NONE || parent[row] >= row || (parent[row] != NONE && thread[parent[row]] != thread[row]))
            return row;
    }
    return -1;
}

static int find_segments(Tree *self) {
    const int32_t *thread = ints(&self->inputs[THREAD]);
    int64_t rows = self->inputs[THREAD].length, count = 0;
    for (int64_t row = 0; row < rows; row++)
        count += row == 0 || thread[row] != thread[row - 1];
    if (!(self->segments = calloc((size_t)count + 1, sizeof *self->segments)))
        return -1;
    for (int64_t row = 0; row < rows; row++) {
        if (row == 0 || thread[row] != thread[row - 1])
            self->segments[self->segment_count++] = (Segment){.thread = thread[row], .begin = row};
        self->segments[self->segment_count - 1].end = row + 1;
    }
    return 0;
}

static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static const Expected expected[] = {{"i", "thread", 0}, {"l", "start", 0}, {"l", "end", 0}, {"i", "parent", 0}};
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Tree does not support keyword arguments");
        return NULL;
    }
    Tree *self = new_object(type);
    if (!self || read_all(args, "Tree", expected, COLUMNS, self->inputs) < 0) {
        Py_CLEAR(self);
        return (PyObject *)self;
    }
    int64_t misplaced = self->inputs[0].length > INT32_MAX ? INT32_MAX : first_misplaced(self->inputs);
    if (misplaced >= 0)
        PyErr_Format(PyExc_ValueError, "the ranges must be in order and fewer than 2^31; row %lld is out of place",
                     (long long)misplaced);
    else if (find_segments(self) < 0)
        PyErr_NoMemory();
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void tree_dealloc(PyObject *object) {
    Tree *self = (Tree *)object;
    free_all(self->inputs, COLUMNS);
    free(self->segments);
    free_object(object);
}

/* Position of the previous call of a thread. The next call usually starts shortly after it. */
typedef struct {
    int64_t last;    /* last range with a start up to that of the call; the row before the segment if there is none */
    int64_t start;   /* start of the call */
    int64_t running; /* first range, from `last` upwards, still open at `start` */
} Cursor;

static int by_thread(const void *thread, const void *segment) {
    int32_t wanted = *(const int32_t *)thread, here = ((const Segment *)segment)->thread;
    return (wanted > here) - (wanted < here);
}

/* Returns the last row in [low, high) with a start up to `at`, or low - 1. */
static int64_t search(const int64_t *start, int64_t low, int64_t high, int64_t at) {
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (start[middle] <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* Returns the same by galloping search from row `from`, which has a start up to `at`. */
static int64_t gallop(const int64_t *start, int64_t from, int64_t high, int64_t at) {
    int64_t step = 1;
    while (from + step < high && start[from + step] <= at) {
        from += step;
        step *= 2;
    }
    return search(start, from + 1, from + step < high ? from + step : high, at);
}

static int64_t innermost(const Tree *self, const Segment *segment, Cursor *cursor, int64_t from, int64_t until) {
    const int64_t *start = longs(&self->inputs[START]), *end = longs(&self->inputs[END]);
    const int32_t *parent = ints(&self->inputs[PARENT]);
    int64_t last;
    if (from < cursor->start || cursor->last < segment->begin)
        last = search(start, segment->begin, segment->end, from);
    else
        last = gallop(start, cursor->last, segment->end, from);
    int64_t row = last < segment->begin ? NONE : last;
    if (last == cursor->last && from >= cursor->start)
        row = cursor->running;
    while (row != NONE && end[row] < from)
        row = parent[row];
    *cursor = (Cursor){last, from, row};
    while (row != NONE && end[row] < until)
        row = parent[row];
    return row;
}

static void find_owners(const Tree *self, const Input *calls, Cursor *cursors, int32_t *owner) {
    const int32_t *thread = ints(&calls[THREAD]);
    const int64_t *start = longs(&calls[START]), *end = longs(&calls[END]);
    const Segment *segment = NULL;
    for (int64_t i = 0; i < self->segment_count; i++)
        cursors[i] = (Cursor){self->segments[i].begin - 1, INT64_MIN, NONE};
    for (int64_t call = 0; call < calls[0].length; call++) {
        owner[call] = NONE;
        if (is_null(&calls[THREAD], call) || is_null(&calls[START], call) || is_null(&calls[END], call))
            continue;
        if (!segment || segment->thread != thread[call])
            segment = bsearch(&thread[call], self->segments, (size_t)self->segment_count, sizeof *segment, by_thread);
        if (segment)
            owner[call] = (int32_t)innermost(self, segment, &cursors[segment - self->segments], start[call], end[call]);
    }
}

static PyObject *tree_owners(PyObject *object, PyObject *args) {
    static const Expected expected[] = {{"i", "thread", 1}, {"l", "start", 1}, {"l", "end", 1}};
    Tree *self = (Tree *)object;
    Input calls[3];
    if (read_all(args, "owners", expected, 3, calls) < 0)
        return NULL;
    Column *column = NULL;
    int32_t *owner = new_values(calls[0].length, sizeof *owner);
    Cursor *cursors = calloc((size_t)self->segment_count + 1, sizeof *cursors);
    if (owner && cursors) {
        Py_BEGIN_ALLOW_THREADS
        find_owners(self, calls, cursors, owner);
        column = column_of("i", calls[0].length, owner);
        owner = NULL;
        Py_END_ALLOW_THREADS
    }
    free(owner);
    free(cursors);
    free_all(calls, 3);
    return arrow_array(column);
}

static PyMethodDef tree_methods[] = {
    {"owners", tree_owners, METH_VARARGS,
     "owners(thread, start, end): return the row of the innermost range around each call, or -1."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tree_slots[] = {
    {Py_tp_doc, "Tree(thread, start, end, parent): sorted ranges that nest."},
    {Py_tp_new, tree_new},
    {Py_tp_dealloc, tree_dealloc},
    {Py_tp_methods, tree_methods},
    {0, NULL},
};

static PyType_Spec tree_spec = {"annot.native._tables.Tree", sizeof(Tree), 0, Py_TPFLAGS_DEFAULT, tree_slots};

int annot_add_tree(PyObject *module) { return add_type(module, "Tree", &tree_spec); }
