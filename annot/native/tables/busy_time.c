/* Busy: time for which each device was busy with GPU activities of each key, across all streams.
 *
 * A GPU activity (kernel, copy or memset) counts towards every key above its node, so updating each key would take time
 * proportional to the depth. Most keys have one topmost node, and their activities are those of its subtree. For these
 * keys, the time of an activity that no earlier one covers is added at nodes, as differences between a node and the
 * nodes below it, and `result` sums the differences up the tree. `reached`, the latest end in a subtree so far, never
 * decreases towards the root. On a heavy path it is therefore a staircase, stored as a few steps; an activity replaces
 * the steps that end before it does. Keys with several topmost nodes are updated one by one. */
#include "layer_chains.h"
#include "pair_table.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>

/* Busy time of one device for an owner: a node, or a key (key number plus the number of nodes). */
typedef struct {
    int32_t owner, device;
    int64_t first, reached; /* first start and latest end */
    int64_t busy;           /* of a node: difference to the sum of the nodes below it, may be negative */
} Time;

/* Nodes of a heavy path with the same `reached`: from the end of the previous step down to `bottom`. */
typedef struct {
    int32_t bottom;
    int64_t reached;
} Step;

typedef struct {
    Step *steps; /* from the top of the path; `reached` decreases */
    int64_t count, room;
} Stairs;

typedef struct {
    PyObject_HEAD
    Nodes nodes;
    PairTable times;  /* of Time */
    PairTable stairs; /* of Stairs; the owners are the heads of paths */
    int has_last;
    int64_t last; /* the latest start so far */
} Busy;

/* Returns the time, which it adds if missing; NULL when out of memory. */
static Time *time_of(Busy *self, int32_t owner, int32_t device, int64_t start) {
    int64_t count = self->times.count;
    Time *time = value_of(&self->times, owner, device, sizeof *time);
    if (time && self->times.count > count)
        *time = (Time){owner, device, start, INT64_MIN, 0};
    return time;
}

/* ---------------------------------------------------------------- a GPU activity */

typedef struct {
    int32_t device;
    int64_t start, end;
} Activity;

static int add_to_key(Busy *self, int32_t key, const Activity *activity) {
    Time *time = time_of(self, (int32_t)(self->nodes.count + key), activity->device, activity->start);
    if (!time)
        return -1;
    int64_t begin = activity->start > time->reached ? activity->start : time->reached;
    if (activity->end > begin)
        time->busy = add_wrapping(time->busy, subtract_wrapping(activity->end, begin));
    time->reached = activity->end > time->reached ? activity->end : time->reached;
    return 0;
}

/* Sets the uncovered time of the activity to `now` from this node upwards; below the node it is `*below`. */
static int add_change(Busy *self, int32_t node, const Activity *activity, int64_t now, int64_t *below) {
    Time *time = time_of(self, node, activity->device, activity->start);
    if (!time)
        return -1;
    time->busy = add_wrapping(time->busy, subtract_wrapping(now, *below));
    *below = now;
    return 0;
}

/* Returns the first step that reaches less than `reached`; with INT64_MIN, the first one that extends to `position`. */
static int64_t first_step(const Busy *self, const Stairs *stairs, int64_t reached, int32_t position) {
    int64_t low = 0, high = stairs->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const Step *step = &stairs->steps[middle];
        if (reached != INT64_MIN ? step->reached < reached : self->nodes.position[step->bottom] >= position)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Replaces the steps from `low` to `high` (exclusive) by one step down to `node`. */
static int put_step(Stairs *stairs, int64_t low, int64_t high, int32_t node, int64_t reached) {
    if (low == high) {
        Step *steps = make_room(stairs->steps, stairs->count, &stairs->room, sizeof *steps);
        if (!steps)
            return -1;
        stairs->steps = steps;
    }
    memmove(stairs->steps + low + 1, stairs->steps + high, (size_t)(stairs->count - high) * sizeof *stairs->steps);
    stairs->count += low + 1 - high;
    stairs->steps[low] = (Step){node, reached};
    return 0;
}

/* Returns 1 to continue with the path above, 0 if everything above is busy until the end of the activity, -1 when out
 * of memory. */
static int add_to_path(Busy *self, int32_t node, const Activity *activity, int64_t *below) {
    int32_t head = self->nodes.head[node];
    Stairs *stairs = value_of(&self->stairs, head, activity->device, sizeof *stairs);
    if (!stairs)
        return -1;
    while (stairs->count && stairs->steps[stairs->count - 1].reached <= activity->start)
        stairs->count--; /* starts ascend: these steps cover no later activity */
    int64_t low = first_step(self, stairs, activity->end, 0);
    int64_t high = first_step(self, stairs, INT64_MIN, self->nodes.position[node]);
    int32_t at = node;
    for (int64_t step = high; step >= low; at = stairs->steps[--step].bottom) {
        int64_t from = step < stairs->count ? stairs->steps[step].reached : activity->start;
        if (add_change(self, at, activity, subtract_wrapping(activity->end, from), below) < 0)
            return -1;
        if (step == 0)
            break;
    }
    if (low > 0) {
        int32_t covered = high < low ? node : stairs->steps[low - 1].bottom;
        if (add_change(self, covered, activity, 0, below) < 0)
            return -1;
    }
    if (high >= low) {
        int ends_here = high < stairs->count && stairs->steps[high].bottom == node;
        if (put_step(stairs, low, high + ends_here, node, activity->end) < 0)
            return -1;
    }
    return low == 0;
}

static int add_activity(Busy *self, int32_t node, const Activity *activity) {
    const int32_t *parent = self->nodes.parent, *key = self->nodes.key, *shared = self->nodes.shared;
    for (int32_t at = shared[node]; at != NONE; at = parent[at] == NONE ? NONE : shared[parent[at]])
        if (add_to_key(self, key[at], activity) < 0)
            return -1;
    Time *time = time_of(self, node, activity->device, activity->start);
    if (!time)
        return -1;
    time->reached = activity->end > time->reached ? activity->end : time->reached;
    int64_t below = 0;
    int more = activity->end > activity->start;
    for (int32_t at = node; more > 0 && at != NONE; at = parent[self->nodes.head[at]])
        more = add_to_path(self, at, activity, &below);
    return more < 0 ? -1 : 0;
}

static PyObject *busy_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"node_parent", "node_key", "keys", NULL};
    PyObject *parent, *key;
    long long keys;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOL", names, &parent, &key, &keys))
        return NULL;
    PyObject *columns = PyTuple_Pack(2, parent, key);
    Busy *self = columns ? new_object(type) : NULL;
    if (self && read_nodes(columns, keys, &self->nodes) < 0)
        Py_CLEAR(self);
    else if (self)
        self->times.seed = self->stairs.seed = hash_seed();
    Py_XDECREF(columns);
    return (PyObject *)self;
}

static void busy_dealloc(PyObject *object) {
    Busy *self = (Busy *)object;
    free_nodes(&self->nodes);
    for (int64_t i = 0; i < self->stairs.count; i++)
        free(((Stairs *)self->stairs.values)[i].steps);
    free(self->stairs.values);
    free(self->times.values);
    free_pairs(&self->stairs);
    free_pairs(&self->times);
    free_object(object);
}

/* Returns 1 if the starts ascend, 0 if they do not, -1 when out of memory. */
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
        Activity activity = {device[row], start[row], end[row]};
        if (add_activity(self, node[row], &activity) < 0)
            return -1;
    }
    return ascending;
}

static PyObject *busy_add(PyObject *object, PyObject *args) {
    static const Expected expected[] = {{"i", "node", 0}, {"i", "device", 0}, {"l", "start", 0}, {"l", "end", 0}};
    Input inputs[4];
    if (read_all(args, "add", expected, 4, inputs) < 0)
        return NULL;
    int ascending = check_values(&inputs[0], "node", NONE, ((Busy *)object)->nodes.count - 1) < 0
                        ? -1
                        : add_rows((Busy *)object, inputs);
    free_all(inputs, 4);
    if (ascending < 0)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return PyBool_FromLong(ascending);
}

/* ---------------------------------------------------------------- the result */

static int by_device(const void *left, const void *right) {
    const Time *one = left, *other = right;
    if (one->device != other->device)
        return one->device < other->device ? -1 : 1;
    return (one->owner < other->owner) - (one->owner > other->owner);
}

typedef struct {
    Time *times;
    int64_t count, room;
} Rows;

static int append(Rows *rows, Time time) {
    Time *times = make_room(rows->times, rows->count, &rows->room, sizeof *times);
    if (!times)
        return -1;
    rows->times = times;
    times[rows->count++] = time;
    return 0;
}

/* Adds rows for ancestors that lack one, for the rows of one device from `first` on. `seen` must be 0 and is reset. */
static int add_above(const Busy *self, Rows *rows, int64_t first, char *seen) {
    const int32_t *parent = self->nodes.parent;
    int64_t count = rows->count;
    for (int64_t i = first; i < count; i++)
        seen[rows->times[i].owner] = 1;
    for (int64_t i = first; i < count; i++)
        for (int32_t at = parent[rows->times[i].owner]; at != NONE && !seen[at]; at = parent[at]) {
            seen[at] = 1;
            if (append(rows, (Time){at, rows->times[i].device, INT64_MAX, INT64_MIN, 0}) < 0)
                return -1;
        }
    for (int64_t i = first; i < rows->count; i++)
        seen[rows->times[i].owner] = 0;
    return 0;
}

/* Sums the subtrees of one device, from row `first` on. The rows are sorted by node in descending order. */
static void fold_up(const Busy *self, Rows *rows, int64_t first, int64_t *where) {
    const int32_t *parent = self->nodes.parent;
    for (int64_t i = first; i < rows->count; i++)
        where[rows->times[i].owner] = i;
    for (int64_t i = first; i < rows->count; i++) {
        Time *time = &rows->times[i], *above;
        if (parent[time->owner] == NONE)
            continue;
        above = &rows->times[where[parent[time->owner]]];
        above->busy = add_wrapping(above->busy, time->busy);
        above->first = time->first < above->first ? time->first : above->first;
        above->reached = time->reached > above->reached ? time->reached : above->reached;
    }
}

/* Replaces nodes by their keys, from row `first` on, and drops nodes other than the only topmost one of their key. */
static void name_keys(const Busy *self, Rows *rows, int64_t first) {
    const int32_t *key = self->nodes.key;
    int64_t kept = first;
    for (int64_t i = first; i < rows->count; i++) {
        int32_t node = rows->times[i].owner;
        if (self->nodes.single[key[node]] != node)
            continue;
        rows->times[kept] = rows->times[i];
        rows->times[kept++].owner = key[node];
    }
    rows->count = kept;
}

/* Computes a row per key and device; -1 when out of memory. */
static int add_up(const Busy *self, Rows *rows) {
    int64_t count = self->times.count;
    Time *times = malloc((size_t)(count + 1) * sizeof *times);
    char *seen = calloc((size_t)self->nodes.count + 1, 1);
    int64_t *where = malloc((size_t)(self->nodes.count + 1) * sizeof *where);
    int failed = !times || !seen || !where;
    if (!failed && count) {
        memcpy(times, self->times.values, (size_t)count * sizeof *times);
        qsort(times, (size_t)count, sizeof *times, by_device);
    }
    for (int64_t i = 0; !failed && i < count;) {
        int32_t device = times[i].device;
        for (; !failed && i < count && times[i].device == device && times[i].owner >= self->nodes.count; i++) {
            times[i].owner -= (int32_t)self->nodes.count;
            failed = append(rows, times[i]) < 0;
        }
        int64_t first = rows->count;
        for (; !failed && i < count && times[i].device == device; i++)
            failed = append(rows, times[i]) < 0;
        failed = failed || add_above(self, rows, first, seen) < 0;
        if (failed || rows->count == first)
            continue;
        qsort(rows->times + first, (size_t)(rows->count - first), sizeof *times, by_device);
        fold_up(self, rows, first, where);
        name_keys(self, rows, first);
    }
    free(times);
    free(seen);
    free(where);
    return failed ? -1 : 0;
}

static PyObject *busy_result(PyObject *object, PyObject *ignored) {
    Rows rows = {NULL, 0, 0};
    if (add_up((Busy *)object, &rows) < 0) {
        free(rows.times);
        return PyErr_NoMemory();
    }
    int64_t count = rows.count;
    int32_t *narrow[2] = {new_values(count, 4), new_values(count, 4)};
    int64_t *wide[3] = {new_values(count, 8), new_values(count, 8), new_values(count, 8)};
    int complete = narrow[0] && narrow[1] && wide[0] && wide[1] && wide[2];
    for (int64_t i = 0; complete && i < count; i++) {
        narrow[0][i] = rows.times[i].owner;
        narrow[1][i] = rows.times[i].device;
        wide[0][i] = rows.times[i].busy;
        wide[1][i] = rows.times[i].first;
        wide[2][i] = rows.times[i].reached;
    }
    free(rows.times);
    Column *columns[] = {column_of("i", count, narrow[0]), column_of("i", count, narrow[1]),
                         column_of("l", count, wide[0]), column_of("l", count, wide[1]),
                         column_of("l", count, wide[2])};
    return arrow_tuple(columns, 5);
}

static PyMethodDef busy_methods[] = {
    {"add", busy_add, METH_VARARGS,
     "add(node, device, start, end): add GPU activities and return whether their starts ascend. Node -1 is skipped."},
    {"result", busy_result, METH_NOARGS,
     "Return columns with a row per key and device: key, device, busy_ns, first_ns, last_ns."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot busy_slots[] = {
    {Py_tp_doc, "Busy(node_parent, node_key, keys): busy time of each device by key. Parallel activities count once."},
    {Py_tp_new, busy_new},
    {Py_tp_dealloc, busy_dealloc},
    {Py_tp_methods, busy_methods},
    {0, NULL},
};

static PyType_Spec busy_spec = {"annot.native._tables.Busy", sizeof(Busy), 0, Py_TPFLAGS_DEFAULT, busy_slots};

int annot_add_busy(PyObject *module) { return add_type(module, "Busy", &busy_spec); }
