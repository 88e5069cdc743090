/* Busy: how long each device worked for each key, however many streams worked at once. */
#include "sweep.h"

#include <stdlib.h>
#include <string.h>

/* What one device did for one key. */
typedef struct {
    int32_t key, device;
    int64_t first, reached; /* everything from `first` to `reached` is accounted for */
    int64_t busy;
} Pair;

typedef struct {
    PyObject_HEAD
    Input nodes[2]; /* parent and key */
    Pair *pairs;
    int64_t pair_count, pair_room;
    int64_t *slots; /* open addressing; NONE: free */
    size_t capacity;
    uint64_t seed;
    int has_last;
    int64_t last; /* the latest start so far */
} Busy;

/* ---------------------------------------------------------------- nodes */

static int check_nodes(const Input *inputs, long long keys) {
    if (inputs[0].length > INT32_MAX || keys < 0 || keys > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "there must be fewer than 2^31 nodes and keys");
        return -1;
    }
    for (int64_t node = 0; node < inputs[0].length; node++) {
        int32_t parent = ints(&inputs[0])[node], key = ints(&inputs[1])[node];
        if (parent < NONE || parent >= node || key < 0 || key >= keys) {
            PyErr_Format(PyExc_ValueError, "node %lld has the parent %d and the key %d of %lld", (long long)node,
                         parent, key, keys);
            return -1;
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- the pairs */

static size_t slot_of(const Busy *self, int32_t key, int32_t device) {
    return (size_t)mix(((uint64_t)(uint32_t)key << 32 | (uint32_t)device) ^ self->seed) & (self->capacity - 1);
}

static int grow(Busy *self) {
    size_t capacity = self->capacity ? 2 * self->capacity : 256;
    Pair *pairs = realloc(self->pairs, capacity / 2 * sizeof *pairs);
    if (!pairs)
        return -1;
    self->pairs = pairs;
    int64_t *slots = malloc(capacity * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0xFF, capacity * sizeof *slots);
    free(self->slots);
    self->slots = slots;
    self->capacity = capacity;
    self->pair_room = (int64_t)(capacity / 2);
    for (int64_t i = 0; i < self->pair_count; i++) {
        size_t at = slot_of(self, self->pairs[i].key, self->pairs[i].device);
        while (slots[at] != NONE)
            at = (at + 1) & (capacity - 1);
        slots[at] = i;
    }
    return 0;
}

static int add_work(Busy *self, int32_t key, int32_t device, int64_t start, int64_t end) {
    if (self->pair_count == self->pair_room && grow(self) < 0)
        return -1;
    size_t at = slot_of(self, key, device);
    for (int64_t found; (found = self->slots[at]) != NONE; at = (at + 1) & (self->capacity - 1)) {
        Pair *pair = &self->pairs[found];
        if (pair->key != key || pair->device != device)
            continue;
        int64_t begin = start > pair->reached ? start : pair->reached;
        if (end > begin)
            pair->busy = add_wrapping(pair->busy, subtract_wrapping(end, begin));
        pair->reached = end > pair->reached ? end : pair->reached;
        return 0;
    }
    self->slots[at] = self->pair_count;
    self->pairs[self->pair_count++] = (Pair){key, device, start, end, end > start ? subtract_wrapping(end, start) : 0};
    return 0;
}

/* ---------------------------------------------------------------- the Python type */

static PyObject *busy_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static const Expected expected[] = {{"i", "node_parent", 0}, {"i", "node_key", 0}};
    static char *names[] = {"node_parent", "node_key", "keys", NULL};
    PyObject *parent, *key;
    long long keys;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOL", names, &parent, &key, &keys))
        return NULL;
    PyObject *columns = PyTuple_Pack(2, parent, key);
    Busy *self = columns ? (Busy *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0) : NULL;
    if (self && (read_all(columns, "Busy", expected, 2, self->nodes) < 0 || check_nodes(self->nodes, keys) < 0)) {
        Py_CLEAR(self);
    } else if (self) {
        self->seed = hash_seed();
        if (grow(self) < 0) {
            Py_CLEAR(self);
            PyErr_NoMemory();
        }
    }
    Py_XDECREF(columns);
    return (PyObject *)self;
}

static void busy_dealloc(PyObject *object) {
    Busy *self = (Busy *)object;
    PyTypeObject *type = Py_TYPE(object);
    free_all(self->nodes, 2);
    free(self->pairs);
    free(self->slots);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static int check_work(const Busy *self, const Input *node) {
    for (int64_t row = 0; row < node->length; row++)
        if (ints(node)[row] < NONE || ints(node)[row] >= self->nodes[0].length) {
            PyErr_Format(PyExc_ValueError, "node must be from -1 to %lld, got %d at row %lld",
                         (long long)self->nodes[0].length - 1, ints(node)[row], (long long)row);
            return -1;
        }
    return 0;
}

/* 1 when the starts ascend, 0 when they do not, -1 when out of memory. A key that comes twice on the way up does no
 * harm: the second time there is nothing left to add. */
static int add_rows(Busy *self, const Input *inputs) {
    const int32_t *parent = ints(&self->nodes[0]), *key = ints(&self->nodes[1]);
    const int32_t *node = ints(&inputs[0]), *device = ints(&inputs[1]);
    const int64_t *start = longs(&inputs[2]), *end = longs(&inputs[3]);
    int ascending = 1;
    for (int64_t row = 0; row < inputs[0].length; row++) {
        if (node[row] == NONE)
            continue;
        ascending &= !self->has_last || start[row] >= self->last;
        self->has_last = 1;
        self->last = start[row];
        for (int32_t at = node[row]; at != NONE; at = parent[at])
            if (add_work(self, key[at], device[row], start[row], end[row]) < 0)
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

static int by_key(const void *left, const void *right) {
    const Pair *one = left, *other = right;
    if (one->key != other->key)
        return one->key < other->key ? -1 : 1;
    return (one->device > other->device) - (one->device < other->device);
}

static PyObject *busy_result(PyObject *object, PyObject *ignored) {
    static const char *const names[] = {"key", "device", "busy_ns", "first_ns", "last_ns"};
    Busy *self = (Busy *)object;
    int64_t count = self->pair_count;
    Pair *pairs = new_values(count, sizeof *pairs);
    int32_t *narrow[2] = {new_values(count, 4), new_values(count, 4)};
    int64_t *wide[3] = {new_values(count, 8), new_values(count, 8), new_values(count, 8)};
    Column *columns[5] = {
        column_of("i", count, narrow[0]), column_of("i", count, narrow[1]),
        column_of("l", count, wide[0]), column_of("l", count, wide[1]), column_of("l", count, wide[2])};
    int failed = !pairs || !narrow[0] || !narrow[1] || !wide[0] || !wide[1] || !wide[2];
    (void)ignored;
    for (int i = 0; i < 5; i++)
        failed |= !columns[i];
    if (failed) {
        free(pairs);
        for (int i = 0; i < 5; i++)
            column_drop(columns[i]);
        return PyErr_NoMemory();
    }
    memcpy(pairs, self->pairs, (size_t)count * sizeof *pairs);
    qsort(pairs, (size_t)count, sizeof *pairs, by_key);
    for (int64_t i = 0; i < count; i++) {
        narrow[0][i] = pairs[i].key;
        narrow[1][i] = pairs[i].device;
        wide[0][i] = pairs[i].busy;
        wide[1][i] = pairs[i].first;
        wide[2][i] = pairs[i].reached;
    }
    free(pairs);
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
