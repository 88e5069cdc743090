/* Busy: how long each device worked for each key, however many streams worked at once.
 *
 * A piece of work counts to every key above its node, which would take its depth in time if each key were told. A key
 * whose topmost nodes are one, as most are, is that node's subtree. There the work is added at its node, less what
 * overlaps, and the tree is folded at the end. What overlaps, the heavy paths of the tree know: `reached`, the latest
 * end so far, never falls on the way up, so on a path it is a staircase of few steps, of which each piece replaces those
 * that it passes. The other keys are told one by one. */
#include "sweep_nodes.h"

#include <stdlib.h>
#include <string.h>

/* What one device did for one node (numbers below the count of nodes) or key (after them). */
typedef struct {
    int32_t owner, device;
    int64_t first, reached; /* of a key: everything from `first` to `reached` is accounted for */
    int64_t busy;           /* of a node: what it has more than the nodes below it, or less */
} Pair;

/* The nodes of a path down to `bottom`, from where the step above ends. */
typedef struct {
    int32_t bottom;
    int64_t reached;
} Step;

typedef struct {
    Step *steps; /* from the top of the path; `reached` falls */
    int64_t count, room;
} Stairs;

/* Numbers for pairs of an owner and a device. */
typedef struct {
    int32_t (*names)[2];
    int64_t count, room;
    int64_t *slots; /* open addressing; NONE: free */
    size_t capacity;
    uint64_t seed;
} Index;

typedef struct {
    PyObject_HEAD
    Nodes nodes;
    Index index, paths;
    Pair *pairs;    /* of `index` */
    Stairs *stairs; /* of `paths`, by head */
    int has_last;
    int64_t last; /* the latest start so far */
} Busy;

/* ---------------------------------------------------------------- the pairs */

static size_t slot_of(const Index *index, int32_t owner, int32_t device) {
    uint64_t name = (uint64_t)(uint32_t)owner << 32 | (uint32_t)device;
    return (size_t)mix(name ^ index->seed) & (index->capacity - 1);
}

static int grow(Index *index) {
    size_t capacity = index->capacity ? 2 * index->capacity : 256;
    void *names = realloc(index->names, capacity / 2 * sizeof *index->names);
    if (!names)
        return -1;
    index->names = names;
    int64_t *slots = malloc(capacity * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0xFF, capacity * sizeof *slots);
    free(index->slots);
    index->slots = slots;
    index->capacity = capacity;
    index->room = (int64_t)(capacity / 2);
    for (int64_t i = 0; i < index->count; i++) {
        size_t at = slot_of(index, index->names[i][0], index->names[i][1]);
        while (slots[at] != NONE)
            at = (at + 1) & (capacity - 1);
        slots[at] = i;
    }
    return 0;
}

static void free_index(Index *index) {
    free(index->names);
    free(index->slots);
}

/* The number of a pair. What is new is added to `*values`, a table of so many bytes each, as zeros; NONE: no memory. */
static int64_t number_of(Index *index, int32_t owner, int32_t device, void **values, size_t size) {
    size_t at = 0;
    if (index->capacity) {
        at = slot_of(index, owner, device);
        for (int64_t found; (found = index->slots[at]) != NONE; at = (at + 1) & (index->capacity - 1))
            if (index->names[found][0] == owner && index->names[found][1] == device)
                return found;
    }
    if (index->count == index->room) {
        void *grown = grow(index) < 0 ? NULL : realloc(*values, (size_t)index->room * size);
        if (!grown) {
            index->room = index->count; /* the table is as short as before */
            return NONE;
        }
        *values = grown;
        at = slot_of(index, owner, device);
        while (index->slots[at] != NONE)
            at = (at + 1) & (index->capacity - 1);
    }
    index->slots[at] = index->count;
    index->names[index->count][0] = owner;
    index->names[index->count][1] = device;
    memset((char *)*values + (size_t)index->count * size, 0, size);
    return index->count++;
}

/* The pair, as it is before any work; NULL: no memory. */
static Pair *pair_of(Busy *self, int32_t owner, int32_t device, int64_t start) {
    int64_t before = self->index.count;
    int64_t number = number_of(&self->index, owner, device, (void **)&self->pairs, sizeof *self->pairs);
    if (number == before)
        self->pairs[number] = (Pair){owner, device, start, INT64_MIN, 0};
    return number == NONE ? NULL : &self->pairs[number];
}

/* ---------------------------------------------------------------- a piece of work */

typedef struct {
    int32_t device;
    int64_t start, end;
} Piece;

static int tell_key(Busy *self, int32_t key, const Piece *piece) {
    Pair *pair = pair_of(self, (int32_t)(self->nodes.count + key), piece->device, piece->start);
    if (!pair)
        return -1;
    int64_t begin = piece->start > pair->reached ? piece->start : pair->reached;
    if (piece->end > begin)
        pair->busy = add_wrapping(pair->busy, subtract_wrapping(piece->end, begin));
    pair->reached = piece->end > pair->reached ? piece->end : pair->reached;
    return 0;
}

/* From this node up, `now` of the piece is new, where it was `*below` below. */
static int change(Busy *self, int32_t node, const Piece *piece, int64_t now, int64_t *below) {
    Pair *pair = pair_of(self, node, piece->device, piece->start);
    if (!pair)
        return -1;
    pair->busy = add_wrapping(pair->busy, subtract_wrapping(now, *below));
    *below = now;
    return 0;
}

/* The first step that reaches less than `reached`, or, if that is INT64_MIN, that goes down to `place`. */
static int64_t first_step(const Busy *self, const Stairs *stairs, int64_t reached, int32_t place) {
    int64_t low = 0, high = stairs->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const Step *step = &stairs->steps[middle];
        if (reached != INT64_MIN ? step->reached < reached : self->nodes.place[step->bottom] >= place)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Puts a step down to `node` in the place of those from `low` to below `high`. */
static int put_step(Stairs *stairs, int64_t low, int64_t high, int32_t node, int64_t reached) {
    if (low == high && stairs->count == stairs->room) {
        int64_t room = stairs->room ? 2 * stairs->room : 2;
        Step *steps = realloc(stairs->steps, (size_t)room * sizeof *steps);
        if (!steps)
            return -1;
        stairs->steps = steps;
        stairs->room = room;
    }
    memmove(stairs->steps + low + 1, stairs->steps + high, (size_t)(stairs->count - high) * sizeof *stairs->steps);
    stairs->count += low + 1 - high;
    stairs->steps[low] = (Step){node, reached};
    return 0;
}

/* 1: go on with the path above, 0: all above is busy until the end of the piece, -1: no memory. */
static int add_to_path(Busy *self, int32_t node, const Piece *piece, int64_t *below) {
    int64_t number = number_of(&self->paths, self->nodes.head[node], piece->device, (void **)&self->stairs, sizeof(Stairs));
    if (number == NONE)
        return -1;
    Stairs *stairs = &self->stairs[number];
    while (stairs->count && stairs->steps[stairs->count - 1].reached <= piece->start)
        stairs->count--; /* later work begins later still */
    int64_t low = first_step(self, stairs, piece->end, 0);
    int64_t high = first_step(self, stairs, INT64_MIN, self->nodes.place[node]);
    int32_t at = node;
    for (int64_t step = high; step >= low; at = stairs->steps[--step].bottom) {
        int64_t from = step < stairs->count ? stairs->steps[step].reached : piece->start;
        if (change(self, at, piece, subtract_wrapping(piece->end, from), below) < 0)
            return -1;
        if (step == 0)
            break;
    }
    if (low > 0) {
        int32_t covered = high < low ? node : stairs->steps[low - 1].bottom;
        if (change(self, covered, piece, 0, below) < 0)
            return -1;
    }
    if (high >= low) {
        int whole = high < stairs->count && stairs->steps[high].bottom == node;
        if (put_step(stairs, low, high + whole, node, piece->end) < 0)
            return -1;
    }
    return low == 0;
}

static int add_piece(Busy *self, int32_t node, const Piece *piece) {
    const int32_t *parent = self->nodes.parent, *key = self->nodes.key;
    for (int32_t at = self->nodes.told[node]; at != NONE; at = parent[at] == NONE ? NONE : self->nodes.told[parent[at]])
        if (tell_key(self, key[at], piece) < 0)
            return -1;
    Pair *pair = pair_of(self, node, piece->device, piece->start);
    if (!pair)
        return -1;
    pair->reached = piece->end > pair->reached ? piece->end : pair->reached;
    int64_t below = 0;
    int more = piece->end > piece->start;
    for (int32_t at = node; more > 0 && at != NONE; at = parent[self->nodes.head[at]])
        more = add_to_path(self, at, piece, &below);
    return more < 0 ? -1 : 0;
}

/* ---------------------------------------------------------------- the Python type */

static PyObject *busy_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"node_parent", "node_key", "keys", NULL};
    PyObject *parent, *key;
    long long keys;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOL", names, &parent, &key, &keys))
        return NULL;
    PyObject *columns = PyTuple_Pack(2, parent, key);
    Busy *self = columns ? (Busy *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0) : NULL;
    if (self && read_nodes(columns, keys, &self->nodes) < 0)
        Py_CLEAR(self);
    else if (self)
        self->index.seed = self->paths.seed = hash_seed();
    Py_XDECREF(columns);
    return (PyObject *)self;
}

static void busy_dealloc(PyObject *object) {
    Busy *self = (Busy *)object;
    PyTypeObject *type = Py_TYPE(object);
    free_nodes(&self->nodes);
    for (int64_t i = 0; i < self->paths.count; i++)
        free(self->stairs[i].steps);
    free(self->stairs);
    free(self->pairs);
    free_index(&self->index);
    free_index(&self->paths);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static int check_work(const Busy *self, const Input *node) {
    for (int64_t row = 0; row < node->length; row++)
        if (ints(node)[row] < NONE || ints(node)[row] >= self->nodes.count) {
            PyErr_Format(PyExc_ValueError, "node must be from -1 to %lld, got %d at row %lld",
                         (long long)self->nodes.count - 1, ints(node)[row], (long long)row);
            return -1;
        }
    return 0;
}

/* 1 when the starts ascend, 0 when they do not, -1 when out of memory. */
static int add_rows(Busy *self, const Input *inputs) {
    const int32_t *node = ints(&inputs[0]), *device = ints(&inputs[1]);
    const int64_t *start = longs(&inputs[2]), *end = longs(&inputs[3]);
    int ascending = 1;
    for (int64_t row = 0; row < inputs[0].length; row++) {
        if (node[row] == NONE)
            continue;
        ascending &= !self->has_last || start[row] >= self->last;
        self->has_last = 1;
        self->last = start[row];
        Piece piece = {device[row], start[row], end[row]};
        if (add_piece(self, node[row], &piece) < 0)
            return -1;
    }
    return ascending;
}

static PyObject *busy_add(PyObject *object, PyObject *args) {
    static const Expected expected[] = {{"i", "node", 0}, {"i", "device", 0}, {"l", "start", 0}, {"l", "end", 0}};
    Input inputs[4];
    if (read_all(args, "add", expected, 4, inputs) < 0)
        return NULL;
    int ascending = check_work((Busy *)object, &inputs[0]) < 0 ? -1 : add_rows((Busy *)object, inputs);
    free_all(inputs, 4);
    if (ascending < 0)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return PyBool_FromLong(ascending);
}

/* ---------------------------------------------------------------- the result */

static int by_key(const void *left, const void *right) {
    const Pair *one = left, *other = right;
    if (one->owner != other->owner)
        return one->owner < other->owner ? -1 : 1;
    return (one->device > other->device) - (one->device < other->device);
}

static int by_device(const void *left, const void *right) {
    const Pair *one = left, *other = right;
    if (one->device != other->device)
        return one->device < other->device ? -1 : 1;
    return (one->owner < other->owner) - (one->owner > other->owner);
}

typedef struct {
    Pair *pairs;
    int64_t count, room;
} Rows;

static int append(Rows *rows, Pair pair) {
    if (rows->count == rows->room) {
        int64_t room = rows->room ? 2 * rows->room : 256;
        Pair *pairs = realloc(rows->pairs, (size_t)room * sizeof *pairs);
        if (!pairs)
            return -1;
        rows->pairs = pairs;
        rows->room = room;
    }
    rows->pairs[rows->count++] = pair;
    return 0;
}

/* Adds the nodes above those of one device, from `first` on, that have no work of their own; `seen` is 0 for all. */
static int add_above(const Busy *self, Rows *rows, int64_t first, char *seen) {
    const int32_t *parent = self->nodes.parent;
    int64_t own = rows->count;
    for (int64_t i = first; i < own; i++)
        seen[rows->pairs[i].owner] = 1;
    for (int64_t i = first; i < own; i++)
        for (int32_t at = parent[rows->pairs[i].owner]; at != NONE && !seen[at]; at = parent[at]) {
            seen[at] = 1;
            if (append(rows, (Pair){at, rows->pairs[i].device, INT64_MAX, INT64_MIN, 0}) < 0)
                return -1;
        }
    for (int64_t i = first; i < rows->count; i++)
        seen[rows->pairs[i].owner] = 0;
    return 0;
}

/* Adds up what the nodes of one device, from `first` on and the last node first, have with all below them. */
static void fold_up(const Busy *self, Rows *rows, int64_t first, int64_t *where) {
    const int32_t *parent = self->nodes.parent;
    for (int64_t i = first; i < rows->count; i++)
        where[rows->pairs[i].owner] = i;
    for (int64_t i = first; i < rows->count; i++) {
        Pair *pair = &rows->pairs[i], *above;
        if (parent[pair->owner] == NONE)
            continue;
        above = &rows->pairs[where[parent[pair->owner]]];
        above->busy = add_wrapping(above->busy, pair->busy);
        above->first = pair->first < above->first ? pair->first : above->first;
        above->reached = pair->reached > above->reached ? pair->reached : above->reached;
    }
}

/* Turns the nodes of one device, from `first` on, into the keys of which they are the only topmost ones. */
static void name_keys(const Busy *self, Rows *rows, int64_t first) {
    const int32_t *key = self->nodes.key;
    int64_t kept = first;
    for (int64_t i = first; i < rows->count; i++) {
        int32_t node = rows->pairs[i].owner;
        if (self->nodes.lone[key[node]] != node)
            continue;
        rows->pairs[kept] = rows->pairs[i];
        rows->pairs[kept++].owner = key[node];
    }
    rows->count = kept;
}

/* Gives a row per key and device, in this order; -1: no memory. */
static int add_up(const Busy *self, Rows *rows) {
    int64_t count = self->index.count;
    Pair *pairs = malloc((size_t)(count + 1) * sizeof *pairs);
    char *seen = calloc((size_t)self->nodes.count + 1, 1);
    int64_t *where = malloc((size_t)(self->nodes.count + 1) * sizeof *where);
    int failed = !pairs || !seen || !where;
    if (!failed && count) {
        memcpy(pairs, self->pairs, (size_t)count * sizeof *pairs);
        qsort(pairs, (size_t)count, sizeof *pairs, by_device);
    }
    for (int64_t i = 0; !failed && i < count;) {
        int32_t device = pairs[i].device;
        for (; !failed && i < count && pairs[i].device == device && pairs[i].owner >= self->nodes.count; i++) {
            pairs[i].owner -= (int32_t)self->nodes.count;
            failed = append(rows, pairs[i]) < 0;
        }
        int64_t first = rows->count;
        for (; !failed && i < count && pairs[i].device == device; i++)
            failed = append(rows, pairs[i]) < 0;
        failed = failed || add_above(self, rows, first, seen) < 0;
        if (failed || rows->count == first)
            continue;
        qsort(rows->pairs + first, (size_t)(rows->count - first), sizeof *pairs, by_device);
        fold_up(self, rows, first, where);
        name_keys(self, rows, first);
    }
    free(pairs);
    free(seen);
    free(where);
    if (!failed && rows->count)
        qsort(rows->pairs, (size_t)rows->count, sizeof *rows->pairs, by_key);
    return failed ? -1 : 0;
}

static PyObject *busy_result(PyObject *object, PyObject *ignored) {
    static const char *const names[] = {"key", "device", "busy_ns", "first_ns", "last_ns"};
    Rows rows = {NULL, 0, 0};
    (void)ignored;
    if (add_up((Busy *)object, &rows) < 0) {
        free(rows.pairs);
        return PyErr_NoMemory();
    }
    int64_t count = rows.count;
    int32_t *narrow[2] = {new_values(count, 4), new_values(count, 4)};
    int64_t *wide[3] = {new_values(count, 8), new_values(count, 8), new_values(count, 8)};
    Column *columns[5] = {
        column_of("i", count, narrow[0]), column_of("i", count, narrow[1]),
        column_of("l", count, wide[0]), column_of("l", count, wide[1]), column_of("l", count, wide[2])};
    int failed = !narrow[0] || !narrow[1] || !wide[0] || !wide[1] || !wide[2];
    for (int i = 0; i < 5; i++)
        failed |= !columns[i];
    if (failed) {
        free(rows.pairs);
        for (int i = 0; i < 5; i++)
            column_drop(columns[i]);
        return PyErr_NoMemory();
    }
    for (int64_t i = 0; i < count; i++) {
        narrow[0][i] = rows.pairs[i].owner;
        narrow[1][i] = rows.pairs[i].device;
        wide[0][i] = rows.pairs[i].busy;
        wide[1][i] = rows.pairs[i].first;
        wide[2][i] = rows.pairs[i].reached;
    }
    free(rows.pairs);
    return arrow_batch(columns, names, 5, count);
}

/* ---------------------------------------------------------------- module */

static PyMethodDef busy_methods[] = {
    {"add", busy_add, METH_VARARGS, "Add work: node, device, start, end; returns whether the starts ascend."},
    {"result", busy_result, METH_NOARGS, "A row per key and device: key, device, busy_ns, first_ns, last_ns."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot busy_slots[] = {
    {Py_tp_doc, "Busy(node_parent, node_key, keys): how long each device worked for each key above a node."},
    {Py_tp_new, busy_new},
    {Py_tp_dealloc, busy_dealloc},
    {Py_tp_methods, busy_methods},
    {0, NULL},
};

static PyType_Spec busy_spec = {"annot.native._tables.Busy", sizeof(Busy), 0, Py_TPFLAGS_DEFAULT, busy_slots};

int annot_add_busy(PyObject *module) {
    PyObject *type = PyType_FromSpec(&busy_spec);
    if (!type || PyModule_AddObjectRef(module, "Busy", type) < 0)
        return -1;
    Py_DECREF(type);
    return 0;
}
