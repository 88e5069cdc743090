/* LaunchTable: value and step of the launch with each correlation id.
 *
 * Profilers number the API calls of a process consecutively, and files have some of them. The table therefore stores
 * the launches in pages of PAGE_IDS ids: a hash table of pages, each with the bits of its ids and their launches. */
#include "pair_table.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BITS 6
#define PAGE_IDS (1 << PAGE_BITS)
#define ABSENT INT32_MIN

typedef struct {
    int32_t value, step;
} Launch;

/* `launches` has room for the number of ids rounded up to a power of two. */
typedef struct {
    uint64_t ids; /* a bit for each id of the page that has a launch */
    Launch *launches;
} Page;

typedef struct {
    PyObject_HEAD
    PairTable pages; /* of Page; the pairs are the ids without their low PAGE_BITS, and the process */
} LaunchTable;

static uint64_t flag_of(int64_t id) { return (uint64_t)1 << (id & (PAGE_IDS - 1)); }

/* Position of an id among those of its page. */
static int place_of(const Page *page, int64_t id) { return __builtin_popcountll(page->ids & (flag_of(id) - 1)); }

/* Returns 1 if the launch is new, 0 if the id is known already, -1 when out of memory. */
static int put_one(LaunchTable *self, int32_t process, int64_t id, Launch launch) {
    Page *page = value_of(&self->pages, id >> PAGE_BITS, process, sizeof *page);
    if (!page)
        return -1;
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
    page->ids |= flag_of(id);
    return 1;
}

static Launch get_one(const LaunchTable *self, int32_t process, int64_t id) {
    int64_t number = find_pair(&self->pages, id >> PAGE_BITS, process);
    const Page *page = number == NONE ? NULL : (const Page *)self->pages.values + number;
    return page && page->ids & flag_of(id) ? page->launches[place_of(page, id)] : (Launch){ABSENT, ABSENT};
}

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

static PyObject *launches_put(PyObject *object, PyObject *args) {
    static const Expected expected[] = {
        {"i", "process", 0}, {"l", "correlation", 1}, {"i", "value", 0}, {"i", "step", 0}};
    Input inputs[4];
    if (read_all(args, "put", expected, 4, inputs) < 0)
        return NULL;
    int64_t known =
        check_values(&inputs[2], "value", ABSENT + 1, INT32_MAX) < 0 ? -1 : put_rows((LaunchTable *)object, inputs);
    free_all(inputs, 4);
    if (known < 0)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return PyLong_FromLongLong(known);
}

static PyObject *launches_get(PyObject *object, PyObject *args) {
    static const Expected expected[] = {{"i", "process", 0}, {"l", "correlation", 1}};
    const LaunchTable *self = (LaunchTable *)object;
    Input inputs[2];
    if (read_all(args, "get", expected, 2, inputs) < 0)
        return NULL;
    int64_t count = inputs[0].length;
    int32_t *value = new_values(count, sizeof *value), *step = new_values(count, sizeof *step);
    for (int64_t row = 0; value && step && row < count; row++) {
        Launch launch = {ABSENT, ABSENT};
        if (!is_null(&inputs[1], row))
            launch = get_one(self, ints(&inputs[0])[row], longs(&inputs[1])[row]);
        value[row] = launch.value;
        step[row] = launch.step;
    }
    free_all(inputs, 2);
    return arrow_tuple((Column *[]){column_of("i", count, value), column_of("i", count, step)}, 2);
}

static PyObject *launches_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "", names))
        return NULL;
    LaunchTable *self = new_object(type);
    if (self)
        self->pages.seed = hash_seed();
    return (PyObject *)self;
}

static void launches_dealloc(PyObject *object) {
    LaunchTable *self = (LaunchTable *)object;
    for (int64_t i = 0; i < self->pages.count; i++)
        free(((Page *)self->pages.values)[i].launches);
    free(self->pages.values);
    free_pairs(&self->pages);
    free_object(object);
}

static PyMethodDef launches_methods[] = {
    {"put", launches_put, METH_VARARGS,
     "put(process, correlation, value, step): store launches and return how many ids were known already.\n"
     "The first launch of an id is kept."},
    {"get", launches_get, METH_VARARGS,
     "get(process, correlation): return the values and the steps of the launches; -2^31 for unknown ids."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot launches_slots[] = {
    {Py_tp_doc, "LaunchTable(): value and step of each launch, by process and correlation id."},
    {Py_tp_new, launches_new},
    {Py_tp_dealloc, launches_dealloc},
    {Py_tp_methods, launches_methods},
    {0, NULL},
};

static PyType_Spec launches_spec = {"annot.native._tables.LaunchTable", sizeof(LaunchTable), 0, Py_TPFLAGS_DEFAULT,
                                    launches_slots};

int annot_add_launches(PyObject *module) { return add_type(module, "LaunchTable", &launches_spec); }
