/* crossing, parents: the crossing ranges among ranges in order, and the parents of the others. */
#include "column_ops.h"
#include "parts.h"

#include <stdlib.h>

typedef struct {
    const int32_t *thread, *weight;
    const int64_t *start, *end;
    int64_t count;
    uint8_t *crosses;      /* result: a bit per row */
    int64_t *stack, *heap; /* each has room for all rows */
} Crossing;

static inline int is_crossing(const Crossing *all, int64_t row) { return all->crosses[row >> 3] >> (row & 7) & 1; }

static inline void mark_crossing(Crossing *all, int64_t row) { all->crosses[row >> 3] |= (uint8_t)(1 << (row & 7)); }

/* Heap of open ranges with the earliest end on top. */
static void push_open(const Crossing *all, int64_t size, int64_t row) {
    int64_t at = size;
    for (; at > 0 && all->end[all->heap[(at - 1) / 2]] > all->end[row]; at = (at - 1) / 2)
        all->heap[at] = all->heap[(at - 1) / 2];
    all->heap[at] = row;
}

static int64_t pop_open(const Crossing *all, int64_t size) {
    int64_t first = all->heap[0], last = all->heap[--size], at = 0;
    for (int64_t below; (below = 2 * at + 1) < size; at = below) {
        below += below + 1 < size && all->end[all->heap[below + 1]] < all->end[all->heap[below]];
        if (all->end[all->heap[below]] >= all->end[last])
            break;
        all->heap[at] = all->heap[below];
    }
    all->heap[at] = last;
    return first;
}

/* Marks the ranges of one weight that cross a heavier range. The heavier ranges nest. */
static void mark_crossing_heavier(Crossing *all, int32_t weight) {
    int64_t height = 0, open = 0, here = -1;
    for (int64_t row = 0; row < all->count; row++) {
        if (all->weight[row] < weight || is_crossing(all, row))
            continue;
        if (here < 0 || all->thread[here] != all->thread[row])
            height = open = 0;
        here = row;
        int64_t start = all->start[row], end = all->end[row];
        if (all->weight[row] > weight) {
            while (open && all->end[all->heap[0]] < end) {
                int64_t crossed = pop_open(all, open--);
                if (all->end[crossed] > start)
                    mark_crossing(all, crossed);
            }
            while (height && all->end[all->stack[height - 1]] < end)
                height--;
            all->stack[height++] = row;
            continue;
        }
        while (height && all->end[all->stack[height - 1]] <= start)
            height--;
        if (height && all->end[all->stack[height - 1]] < end)
            mark_crossing(all, row);
        else
            push_open(all, open++, row);
    }
}

/* Marks the ranges of one weight that cross an earlier, unmarked range of that weight. With `any_weight`, compares
 * ranges of all weights and stops at the first. Returns whether it found any. */
static int mark_crossing_earlier(Crossing *all, int32_t weight, int any_weight) {
    int64_t height = 0;
    int found = 0;
    for (int64_t row = 0; row < all->count; row++) {
        if ((!any_weight && all->weight[row] != weight) || is_crossing(all, row))
            continue;
        if (height && all->thread[all->stack[0]] != all->thread[row])
            height = 0;
        int64_t start = all->start[row], end = all->end[row];
        while (height && all->end[all->stack[height - 1]] < end && all->end[all->stack[height - 1]] <= start)
            height--;
        if (height && all->end[all->stack[height - 1]] < end) {
            found = 1;
            if (any_weight)
                break;
            mark_crossing(all, row);
        } else {
            all->stack[height++] = row;
        }
    }
    return found;
}

/* Returns the largest weight less than `below` among the unmarked ranges, or INT64_MIN. */
static int64_t next_weight(const Crossing *all, int64_t below) {
    int64_t most = INT64_MIN;
    for (int64_t row = 0; row < all->count; row++)
        if (all->weight[row] < below && all->weight[row] > most && !is_crossing(all, row))
            most = all->weight[row];
    return most;
}

static void find_crossing(Crossing *all) {
    if (!mark_crossing_earlier(all, 0, 1)) /* the common case: all ranges nest */
        return;
    for (int64_t weight = INT64_MAX; (weight = next_weight(all, weight)) != INT64_MIN;) {
        mark_crossing_heavier(all, (int32_t)weight);
        mark_crossing_earlier(all, (int32_t)weight, 0);
    }
}

static PyObject *crossing(PyObject *module, PyObject *args) {
    static const Expected expected[] = {
        {"i", "thread", 0}, {"l", "start", 0}, {"l", "end", 0}, {"i", "weight", 0}, {"b", "foreign", 0}};
    Input inputs[5];
    if (read_all(args, "crossing", expected, 5, inputs) < 0)
        return NULL;
    int64_t count = inputs[0].length;
    Column *column = NULL;
    Crossing all = {ints(&inputs[0]), ints(&inputs[3]), longs(&inputs[1]), longs(&inputs[2]), count, NULL, NULL, NULL};
    all.crosses = calloc((size_t)count / 8 + 1, 1);
    all.stack = new_values(count, sizeof *all.stack);
    all.heap = new_values(count, sizeof *all.heap);
    if (all.crosses && all.stack && all.heap) {
        Py_BEGIN_ALLOW_THREADS
        for (int64_t row = 0; row < count; row++)
            if (is_true(&inputs[4], row))
                mark_crossing(&all, row);
        find_crossing(&all);
        column = column_of("b", count, all.crosses);
        all.crosses = NULL;
        Py_END_ALLOW_THREADS
    }
    free(all.crosses);
    free(all.stack);
    free(all.heap);
    free_all(inputs, 5);
    return arrow_array(column);
}

/* The chain of parents of the previous row serves as the stack of open ranges. */
static void find_parents(const int32_t *thread, const int64_t *end, int64_t count, int32_t *parent, int32_t *depth) {
    for (int64_t row = 0; row < count; row++) {
        int32_t above = row > 0 && thread[row - 1] == thread[row] ? (int32_t)(row - 1) : NONE;
        while (above != NONE && end[above] < end[row])
            above = parent[above];
        parent[row] = above;
        depth[row] = above == NONE ? 0 : depth[above] + 1;
    }
}

static PyObject *parents(PyObject *module, PyObject *args) {
    static const Expected expected[] = {{"i", "thread", 0}, {"l", "end", 0}};
    Input inputs[2];
    if (read_all(args, "parents", expected, 2, inputs) < 0)
        return NULL;
    int64_t count = inputs[0].length;
    Column *columns[2] = {NULL, NULL};
    int32_t *parent = new_values(count, sizeof *parent), *depth = new_values(count, sizeof *depth);
    if (parent && depth) {
        Py_BEGIN_ALLOW_THREADS
        find_parents(ints(&inputs[0]), longs(&inputs[1]), count, parent, depth);
        Py_END_ALLOW_THREADS
        columns[0] = column_of("i", count, parent);
        columns[1] = column_of("i", count, depth);
        parent = depth = NULL;
    }
    free(parent);
    free(depth);
    free_all(inputs, 2);
    return arrow_tuple(columns, 2);
}

static PyMethodDef functions[] = {
    {"crossing", crossing, METH_VARARGS,
     "crossing(thread, start, end, weight, foreign): return which ranges to leave out so that the others nest."},
    {"parents", parents, METH_VARARGS,
     "parents(thread, end): return the parent row and the depth of ranges that nest."},
    {NULL, NULL, 0, NULL},
};

int annot_add_nesting(PyObject *module) { return PyModule_AddFunctions(module, functions); }
