/* LaunchTable: value and step of the launch with each correlation id.
 *
 * Profilers number the launches of a process nearly consecutively. The table therefore stores them in pages, at eight
 * bytes per id. If the ids of a file are scattered, the remaining launches go into a hash table. */
#include "column_ops.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BITS 8
#define PAGE_IDS (1 << PAGE_BITS)
#define FEW_PAGES 4096 /* pages that may be nearly empty */
#define MOST_WASTE 8   /* beyond FEW_PAGES, at least one entry in eight must be in use */
#define ABSENT INT32_MIN

typedef struct {
    int32_t value, step;
} Launch;

/* Slot of an open-addressing hash table. */
typedef struct {
    int64_t id; /* in the table of pages: the id without its low PAGE_BITS */
    int32_t process, taken;
    union {
        Launch launch;
        Launch *page;
    };
} Slot;

typedef struct {
    Slot *slots;
    size_t capacity, used;
} Table;

typedef struct {
    PyObject_HEAD
    Table pages, scattered;
    int64_t paged;    /* launches stored in pages */
    int is_scattered; /* new launches go into the hash table unless their page exists */
    uint64_t seed;
} LaunchTable;

/* ---------------------------------------------------------------- the two tables */

static Slot *find(const Table *table, uint64_t seed, int32_t process, int64_t id) {
    size_t mask = table->capacity - 1;
    size_t at = (size_t)mix((uint64_t)id ^ seed ^ mix((uint32_t)process)) & mask;
    while (table->slots[at].taken && (table->slots[at].id != id || table->slots[at].process != process))
        at = (at + 1) & mask;
    return &table->slots[at];
}

static int grow(Table *table, uint64_t seed) {
    Table grown = {.capacity = table->capacity ? 2 * table->capacity : 256, .used = table->used};
    if (!(grown.slots = calloc(grown.capacity, sizeof *grown.slots)))
        return -1;
    for (size_t i = 0; i < table->capacity; i++)
        if (table->slots[i].taken)
            *find(&grown, seed, table->slots[i].process, table->slots[i].id) = table->slots[i];
    free(table->slots);
    *table = grown;
    return 0;
}

/* Returns the slot of an id, which it adds if missing; NULL when out of memory. */
static Slot *find_or_add(Table *table, uint64_t seed, int32_t process, int64_t id, int *added) {
    if (2 * table->used >= table->capacity && grow(table, seed) < 0)
        return NULL;
    Slot *slot = find(table, seed, process, id);
    *added = !slot->taken;
    if (*added) {
        *slot = (Slot){.id = id, .process = process, .taken = 1};
        table->used++;
    }
    return slot;
}

static Launch *new_page(void) {
    Launch *page = malloc(PAGE_IDS * sizeof *page);
    for (int i = 0; page && i < PAGE_IDS; i++)
        page[i].value = ABSENT;
    return page;
}

/* ---------------------------------------------------------------- one launch */

static Launch *page_of(const LaunchTable *self, int32_t process, int64_t id) {
    Slot *slot = self->pages.used ? find(&self->pages, self->seed, process, id >> PAGE_BITS) : NULL;
    return slot && slot->taken ? slot->page : NULL;
}

static Launch *add_page(LaunchTable *self, int32_t process, int64_t id) {
    int added;
    Launch *page = new_page();
    Slot *slot = page ? find_or_add(&self->pages, self->seed, process, id >> PAGE_BITS, &added) : NULL;
    if (!slot) {
        free(page);
        return NULL;
    }
    int64_t pages = (int64_t)self->pages.used;
    self->is_scattered = pages > FEW_PAGES && self->paged < (pages - FEW_PAGES) * PAGE_IDS / MOST_WASTE;
    return slot->page = page;
}

/* Returns 1 if the launch is new, 0 if the id is known already, -1 when out of memory. */
static int put_one(LaunchTable *self, int32_t process, int64_t id, Launch launch, Launch **page) {
    if (*page || (*page = page_of(self, process, id)) ||
        (!self->is_scattered && (*page = add_page(self, process, id)))) {
        Launch *entry = &(*page)[id & (PAGE_IDS - 1)];
        if (entry->value != ABSENT)
            return 0;
        *entry = launch;
        self->paged++;
        return 1;
    }
    int added;
    Slot *slot = self->is_scattered ? find_or_add(&self->scattered, self->seed, process, id, &added) : NULL;
    if (!slot)
        return -1;
    if (added)
        slot->launch = launch;
    return added;
}

static Launch get_one(const LaunchTable *self, int32_t process, int64_t id, const Launch *page) {
    if (page)
        return page[id & (PAGE_IDS - 1)];
    Slot *slot = self->scattered.used ? find(&self->scattered, self->seed, process, id) : NULL;
    return slot && slot->taken ? slot->launch : (Launch){ABSENT, ABSENT};
}

/* ---------------------------------------------------------------- the Python type */

/* Page of the previous row. Most rows are on the same page as the row before them. */
typedef struct {
    int32_t process;
    int64_t id;
    Launch *page;
} Recent;

static Launch *recent_page(const Recent *recent, int32_t process, int64_t id) {
    return recent->process == process && recent->id >> PAGE_BITS == id >> PAGE_BITS ? recent->page : NULL;
}

static int64_t put_rows(LaunchTable *self, const Input *inputs) {
    const int32_t *process = ints(&inputs[0]), *value = ints(&inputs[2]), *step = ints(&inputs[3]);
    const int64_t *id = longs(&inputs[1]);
    Recent recent = {0};
    int64_t known = 0;
    for (int64_t row = 0; row < inputs[0].length; row++) {
        if (is_null(&inputs[1], row))
            continue;
        Launch *page = recent_page(&recent, process[row], id[row]);
        int added = put_one(self, process[row], id[row], (Launch){value[row], step[row]}, &page);
        if (added < 0)
            return -1;
        known += !added;
        recent = (Recent){process[row], id[row], page};
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
    Recent recent = {0};
    for (int64_t row = 0; row < inputs[0].length; row++) {
        Launch launch = {ABSENT, ABSENT};
        if (!is_null(&inputs[1], row)) {
            Launch *page = recent_page(&recent, process[row], id[row]);
            page = page ? page : page_of(self, process[row], id[row]);
            launch = get_one(self, process[row], id[row], page);
            recent = (Recent){process[row], id[row], page};
        }
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
    LaunchTable *self = (LaunchTable *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self)
        self->seed = hash_seed();
    return (PyObject *)self;
}

static void launches_dealloc(PyObject *object) {
    LaunchTable *self = (LaunchTable *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (size_t i = 0; i < self->pages.capacity; i++)
        if (self->pages.slots[i].taken)
            free(self->pages.slots[i].page);
    free(self->pages.slots);
    free(self->scattered.slots);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
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

int annot_add_launches(PyObject *module) {
    PyObject *type = PyType_FromSpec(&launches_spec);
    if (!type || PyModule_AddObjectRef(module, "LaunchTable", type) < 0)
        return -1;
    Py_DECREF(type);
    return 0;
}
