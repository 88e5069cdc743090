/* LaunchTable: value and step of the launch with each correlation id.
 *
 * Profilers number the API calls of a process consecutively, and files have some of them. The table therefore stores
 * the launches in pages of PAGE_IDS ids: a hash table of pages, each with the bits of its ids and their launches. */
#include "column_ops.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BITS 6
#define PAGE_IDS (1 << PAGE_BITS)
#define ABSENT INT32_MIN

typedef struct {
    int32_t value, step;
} Launch;

/* Slot of the open-addressing hash table. `launches` has room for the number of ids rounded up to a power of two. */
typedef struct {
    int64_t number; /* the ids without their low PAGE_BITS */
    uint64_t ids;   /* a bit for each id of the page that has a launch; 0: the slot is free */
    Launch *launches;
    int32_t process;
} Page;

typedef struct {
    PyObject_HEAD
    Page *pages;
    size_t capacity, used;
    uint64_t seed;
} LaunchTable;

/* ---------------------------------------------------------------- the pages */

/* Returns the page of an id, or the free slot for it. */
static Page *find(const LaunchTable *self, int32_t process, int64_t id) {
    int64_t number = id >> PAGE_BITS;
    size_t mask = self->capacity - 1;
    size_t at = (size_t)mix((uint64_t)number ^ self->seed ^ mix((uint32_t)process)) & mask;
    while (self->pages[at].ids && (self->pages[at].number != number || self->pages[at].process != process))
        at = (at + 1) & mask;
    return &self->pages[at];
}

static int grow(LaunchTable *self) {
    LaunchTable grown = *self;
    grown.capacity = self->capacity ? 2 * self->capacity : 256;
    if (!(grown.pages = calloc(grown.capacity, sizeof *grown.pages)))
        return -1;
    for (size_t i = 0; i < self->capacity; i++)
        if (self->pages[i].ids)
            *find(&grown, self->pages[i].process, self->pages[i].number * PAGE_IDS) = self->pages[i];
    free(self->pages);
    self->pages = grown.pages;
    self->capacity = grown.capacity;
    return 0;
}

/* ---------------------------------------------------------------- one launch */

static uint64_t flag_of(int64_t id) {
    return (uint64_t)1 << (id & (PAGE_IDS - 1));
}

/* Position of an id among those of its page. */
static int place_of(const Page *page, int64_t id) {
    return __builtin_popcountll(page->ids & (flag_of(id) - 1));
}

/* Returns 1 if the launch is new, 0 if the id is known already, -1 when out of memory. */
static int put_one(LaunchTable *self, int32_t process, int64_t id, Launch launch) {
    if (4 * self->used >= 3 * self->capacity && grow(self) < 0)
        return -1;
    Page *page = find(self, process, id);
    if (page->ids & flag_of(id))
        return 0;
    int count = __builtin_popcountll(page->ids), place = place_of(page, id);
    if (!(count & (count - 1))) { /* the room is used up */
        Launch *more = realloc(page->launches, (count ? 2 * (size_t)count : 1) * sizeof *more);
        if (!more)
            return -1;
        page->launches = more;
    }
    memmove(&page->launches[place + 1], &page->launches[place], (size_t)(count - place) * sizeof launch);
    page->launches[place] = launch;
    self->used += !count;
    page->number = id >> PAGE_BITS;
    page->process = process;
    page->ids |= flag_of(id);
    return 1;
}

static Launch get_one(const LaunchTable *self, int32_t process, int64_t id) {
    const Page *page = self->used ? find(self, process, id) : NULL;
    return page && page->ids & flag_of(id) ? page->launches[place_of(page, id)] : (Launch){ABSENT, ABSENT};
}

/* ---------------------------------------------------------------- the Python type */

static int64_t put_rows(LaunchTable *self, const Input *inputs) {
    const int32_t *process = ints(&inputs[0]), *value = ints(&inputs[2]), *step = ints(&inputs[3]);
    const int64_t *id = longs(&inputs[1]);
    int64_t known = 0;
    for (int64_t row = 0; row < inputs[0].length; row++) {
        if (is_null(&inputs[1], row))
            continue;
        int added = put_one(self, process[row], id[row], (Launch){value[row], step[row]});
        if (added < 0)
            return -1;
        known += !added;
    }
    return known;
}

static int check_values(const Input *values) {
    for (int64_t row = 0; row < values->length; row++)
        if (ints(values)[row] == ABSENT) {
            PyErr_Format(PyExc_ValueError, "value must be greater than -2^31, got -2^31 at row %lld", (long long)row);
            return -1;
        }
    return 0;
}

static PyObject *launches_put(PyObject *object, PyObject *args) {
    static const Expected expected[] = {
        {"i", "process", 0}, {"l", "correlation", 1}, {"i", "value", 0}, {"i", "step", 0}};
    Input inputs[4];
    if (read_all(args, "put", expected, 4, inputs) < 0)
        return NULL;
    int64_t known = check_values(&inputs[2]) < 0 ? -1 : put_rows((LaunchTable *)object, inputs);
    free_all(inputs, 4);
    if (known < 0)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return PyLong_FromLongLong(known);
}

typedef struct {
    int32_t *value, *step;
    uint8_t *valid;
    int64_t nulls;
} Found;

static void get_rows(const LaunchTable *self, const Input *inputs, Found *found) {
    const int32_t *process = ints(&inputs[0]);
    const int64_t *id = longs(&inputs[1]);
    for (int64_t row = 0; row < inputs[0].length; row++) {
        Launch launch = {ABSENT, ABSENT};
        if (!is_null(&inputs[1], row))
            launch = get_one(self, process[row], id[row]);
        int known = launch.value != ABSENT;
        found->value[row] = known ? launch.value : 0;
        found->step[row] = known ? launch.step : 0;
        found->valid[row >> 3] |= (uint8_t)(known << (row & 7));
        found->nulls += !known;
    }
}

/* Returns a column that is null for unknown ids. Takes ownership of `values`. */
static Column *found_column(const Found *found, int32_t *values, int64_t length) {
    Column *column = column_of("i", length, values);
    uint8_t *valid = column && found->nulls ? malloc((size_t)length / 8 + 1) : NULL;
    if (column && found->nulls) {
        if (!valid) {
            column_drop(column);
            return NULL;
        }
        memcpy(valid, found->valid, (size_t)length / 8 + 1);
        column->buffers[0] = column->owned[1] = valid;
        column->nulls = found->nulls;
    }
    return column;
}

static PyObject *launches_get(PyObject *object, PyObject *args) {
    static const Expected expected[] = {{"i", "process", 0}, {"l", "correlation", 1}};
    Input inputs[2];
    if (read_all(args, "get", expected, 2, inputs) < 0)
        return NULL;
    int64_t count = inputs[0].length;
    Column *columns[2] = {NULL, NULL};
    Found found = {new_values(count, 4), new_values(count, 4), calloc((size_t)count / 8 + 1, 1), 0};
    if (found.value && found.step && found.valid) {
        get_rows((LaunchTable *)object, inputs, &found);
        columns[0] = found_column(&found, found.value, count);
        columns[1] = found_column(&found, found.step, count);
    } else {
        free(found.value);
        free(found.step);
    }
    free(found.valid);
    free_all(inputs, 2);
    return arrow_tuple(columns, 2);
}

static PyObject *launches_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "", names))
        return NULL;
    LaunchTable *self = new_object(type);
    if (self)
        self->seed = hash_seed();
    return (PyObject *)self;
}

static void launches_dealloc(PyObject *object) {
    LaunchTable *self = (LaunchTable *)object;
    for (size_t i = 0; i < self->capacity; i++)
        free(self->pages[i].launches);
    free(self->pages);
    free_object(object);
}

/* ---------------------------------------------------------------- module */

static PyMethodDef launches_methods[] = {
    {"put", launches_put, METH_VARARGS,
     "put(process, correlation, value, step): store launches and return how many ids were known already.\n"
     "The first launch of an id is kept."},
    {"get", launches_get, METH_VARARGS,
     "get(process, correlation): return the values and the steps of the launches; null for unknown ids."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot launches_slots[] = {
    {Py_tp_doc, "LaunchTable(): value and step of each launch, by process and correlation id."},
    {Py_tp_new, launches_new},
    {Py_tp_dealloc, launches_dealloc},
    {Py_tp_methods, launches_methods},
    {0, NULL},
};

static PyType_Spec launches_spec = {
    "annot.native._tables.LaunchTable", sizeof(LaunchTable), 0, Py_TPFLAGS_DEFAULT, launches_slots};

int annot_add_launches(PyObject *module) { return add_type(module, "LaunchTable", &launches_spec); }
