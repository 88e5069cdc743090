/* annot.native._tables.Scan: read columns of an SQLite table in batches, directly from the pages of the file.
 *
 * Batches are read without the GIL, so that threads can scan tables in parallel. Files that must be read through SQLite
 * raise `Unsupported`; annot/read/sqlite.py, the Python fallback, then uses SQLite. */
#include "column_ops.h"
#include "parts.h"
#include "sqlite_records.h"
#include "sqlite_texts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_ROWS (1 << 26)
#define MOST_COLUMNS 32767

typedef struct {
    char *name;
    Kind kind;
    void *values; /* int64_t or View */
    uint8_t *valid;
    int64_t nulls;
} Output;

typedef struct {
    PyObject_HEAD
    int busy, ended;
    Trouble trouble;
    Pages pages;
    Layout layout;
    Texts texts;
    Output *outputs;
    int output_count;
    int filter; /* selected column that selects rows; -1: all rows are read */
    int64_t *allowed;
    Py_ssize_t allowed_count;
    int64_t batch_rows;
} Scan;

static PyObject *unsupported = NULL;

static int allocate(Scan *self) {
    size_t rows = (size_t)self->batch_rows;
    for (int i = 0; i < self->output_count; i++) {
        Output *output = &self->outputs[i];
        output->nulls = 0;
        output->values = malloc(rows * (output->kind == TEXT ? sizeof(View) : sizeof(int64_t)));
        output->valid = output->kind == TEXT ? NULL : malloc(rows / 8 + 1);
        if (!output->values || (output->kind != TEXT && !output->valid))
            return scan_fail(&self->trouble, NO_MEMORY, "memory");
        if (output->valid)
            memset(output->valid, 0xFF, rows / 8 + 1);
    }
    return 0;
}

static void discard(Scan *self) {
    for (int i = 0; i < self->output_count; i++) {
        free(self->outputs[i].values);
        free(self->outputs[i].valid);
        self->outputs[i].values = self->outputs[i].valid = NULL;
    }
}

static int passes(Scan *self, const uint8_t *record, int64_t rowid) {
    int64_t value;
    int found = layout_integer(&self->layout.selected[self->filter], record, rowid, &value, &self->trouble);
    if (found <= 0)
        return found;
    for (Py_ssize_t i = 0; i < self->allowed_count; i++)
        if (self->allowed[i] == value)
            return 1;
    return 0;
}

static int put_text(Scan *self, const Selected *selected, const uint8_t *record, View *view) {
    const uint8_t *text;
    size_t length;
    if (layout_text(selected, record, &text, &length, &self->trouble) < 0)
        return -1;
    if (length > INT32_MAX / 3)
        return scan_fail(&self->trouble, UNSUPPORTED, "a text of %zu bytes is too long", length);
    if (texts_view(&self->texts, text, length, view) < 0)
        return scan_fail(&self->trouble, NO_MEMORY, "memory");
    return 0;
}

static int put_row(Scan *self, const uint8_t *record, int64_t rowid, int64_t row) {
    const Selected *selected = self->layout.selected, *end = selected + self->layout.selected_count;
    for (; selected < end; selected++) {
        if (selected->output < 0)
            continue;
        Output *output = &self->outputs[selected->output];
        if (selected->kind == TEXT) {
            if (put_text(self, selected, record, (View *)output->values + row) < 0)
                return -1;
            continue;
        }
        int64_t *value = (int64_t *)output->values + row;
        int found = layout_integer(selected, record, rowid, value, &self->trouble);
        if (found < 0)
            return -1;
        if (found == 0) {
            *value = 0;
            output->valid[row >> 3] &= (uint8_t)~(1 << (row & 7));
            output->nulls++;
        }
    }
    return 0;
}

/* Fills the outputs. Returns the number of rows, or -1 on failure. */
static int64_t fill(Scan *self) {
    Cell cell;
    int64_t row = 0;
    texts_refresh(&self->texts);
    if (allocate(self) < 0)
        return -1;
    while (row < self->batch_rows) {
        int found = pages_next(&self->pages, &cell);
        if (found < 0)
            return -1;
        if (found == 0) {
            self->ended = 1;
            break;
        }
        const uint8_t *record = layout_find(&self->layout, &self->pages, &cell);
        if (!record)
            return -1;
        int kept = self->filter < 0 ? 1 : passes(self, record, cell.rowid);
        if (kept < 0 || (kept && put_row(self, record, cell.rowid, row) < 0))
            return -1;
        row += kept;
    }
    return row;
}

static Column *integers(Output *output, int64_t rows) {
    Column *column = column_of("l", rows, output->values);
    output->values = NULL;
    if (column && output->nulls) {
        column->nulls = output->nulls;
        column->buffers[0] = column->owned[1] = output->valid;
        output->valid = NULL;
    }
    return column;
}

static Column *texts(Scan *self, Output *output, int64_t rows) {
    View *views = output->values;
    output->values = NULL;
    return texts_column(&self->texts, views, rows);
}

/* Converts the outputs to columns; NULL when out of memory. */
static void finish(Scan *self, int64_t rows, Column **columns) {
    for (int i = 0; i < self->output_count; i++) {
        Output *output = &self->outputs[i];
        columns[i] = output->kind == TEXT ? texts(self, output, rows) : integers(output, rows);
    }
}

static void raise(const Trouble *trouble, int error) {
    errno = error;
    if (trouble->verdict == NO_MEMORY)
        PyErr_NoMemory();
    else if (trouble->verdict == UNREADABLE)
        PyErr_SetFromErrno(PyExc_OSError);
    else
        PyErr_SetString(trouble->verdict == UNSUPPORTED ? unsupported : PyExc_ValueError, trouble->message);
}

/* Returns the columns by name and takes ownership of them. They are separate arrays: the columns of one table would
 * stay in memory as long as any of them is used. */
static PyObject *by_name(const Scan *self, Column **columns) {
    PyObject *batch = PyDict_New(), *arrays = arrow_tuple(columns, self->output_count);
    int failed = !batch || !arrays;
    for (int i = 0; !failed && i < self->output_count; i++)
        failed = PyDict_SetItemString(batch, self->outputs[i].name, PyTuple_GetItem(arrays, i)) < 0;
    Py_XDECREF(arrays);
    if (failed)
        Py_CLEAR(batch);
    return batch;
}

static PyObject *scan_next(PyObject *object) {
    Scan *self = (Scan *)object;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is reading this scan");
        return NULL;
    }
    if (self->ended)
        return NULL;
    Column **columns = malloc(((size_t)self->output_count + 1) * sizeof *columns);
    PyObject *batch = NULL;
    if (!columns) {
        PyErr_NoMemory();
    } else {
        int64_t rows;
        int failed, error;
        self->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        rows = fill(self);
        failed = rows < 0;
        error = errno;
        if (rows > 0)
            finish(self, rows, columns);
        discard(self);
        Py_END_ALLOW_THREADS
        self->busy = 0;
        if (failed) {
            self->ended = 1;
            raise(&self->trouble, error);
        } else if (rows > 0) {
            batch = by_name(self, columns);
            self->ended |= !batch;
        }
    }
    free(columns);
    return batch;
}

static void scan_dealloc(PyObject *object) {
    Scan *self = (Scan *)object;
    pages_close(&self->pages);
    texts_free(&self->texts);
    free(self->layout.selected);
    free(self->layout.joined);
    for (int i = 0; i < self->output_count; i++)
        free(self->outputs[i].name);
    free(self->outputs);
    free(self->allowed);
    free_object(object);
}

/* Sets the index and the kind of a column; -1 with a ValueError. */
static int choose(Selected *selected, int index, const char *kind) {
    static const char *const kinds[] = {[INTEGER] = "integer", [ALIAS] = "alias", [TEXT] = "text"};
    if (index < ROWID || index >= MOST_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "the index of a column must be from -1 to %d, got %d", MOST_COLUMNS - 1, index);
        return -1;
    }
    int i = 0;
    while (i <= TEXT && strcmp(kind, kinds[i]) != 0)
        i++;
    if (i > TEXT)
        PyErr_Format(PyExc_ValueError, "the kind of a column must be integer, alias or text, got %s", kind);
    *selected = (Selected){.index = index, .kind = (Kind)i, .output = -1};
    return i > TEXT ? -1 : 0;
}

static int add_output(Scan *self, PyObject *spec) {
    int index;
    const char *name, *kind;
    Output *output = &self->outputs[self->output_count];
    Selected *selected = &self->layout.selected[self->layout.selected_count];
    if (!PyArg_ParseTuple(spec, "sis;a column must be (name, index, kind)", &name, &index, &kind) ||
        choose(selected, index, kind) < 0)
        return -1;
    if (!(output->name = strdup(name))) {
        PyErr_NoMemory();
        return -1;
    }
    selected->output = self->output_count++;
    self->layout.selected_count++;
    output->kind = selected->kind;
    return 0;
}

static int add_outputs(Scan *self, PyObject *specs) {
    Py_ssize_t count = PySequence_Size(specs);
    if (count < 0)
        return -1;
    if (count > MOST_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "at most %d columns can be read, got %zd", MOST_COLUMNS, count);
        return -1;
    }
    self->outputs = calloc((size_t)count + 1, sizeof *self->outputs);
    self->layout.selected = calloc((size_t)count + 1, sizeof *self->layout.selected); /* one more for the filter */
    if (!self->outputs || !self->layout.selected) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *spec = PySequence_GetItem(specs, i);
        int added = !spec ? -1 : PyTuple_Check(spec) ? add_output(self, spec) : -2;
        if (added == -2)
            PyErr_Format(PyExc_TypeError, "a column must be a tuple (name, index, kind), got %R", spec);
        Py_XDECREF(spec);
        if (added < 0)
            return -1;
    }
    return 0;
}

static int add_filter(Scan *self, PyObject *filter) {
    int index;
    const char *kind;
    PyObject *values;
    Selected *selected = &self->layout.selected[self->layout.selected_count];
    if (filter == Py_None)
        return 0;
    if (!PyTuple_Check(filter)) {
        PyErr_Format(PyExc_TypeError, "the filter must be a tuple (index, kind, values), got %R", filter);
        return -1;
    }
    if (!PyArg_ParseTuple(filter, "isO;the filter must be (index, kind, values)", &index, &kind, &values) ||
        choose(selected, index, kind) < 0 || (self->allowed_count = PySequence_Size(values)) < 0)
        return -1;
    if (selected->kind == TEXT) {
        PyErr_SetString(PyExc_ValueError, "the filter column must be an integer column");
        return -1;
    }
    if (!(self->allowed = calloc((size_t)self->allowed_count + 1, sizeof *self->allowed))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->allowed_count; i++) {
        PyObject *value = PySequence_GetItem(values, i);
        self->allowed[i] = value ? PyLong_AsLongLong(value) : -1;
        Py_XDECREF(value);
        if (PyErr_Occurred())
            return -1;
    }
    self->layout.selected_count++;
    return 0;
}

static int by_index(const void *left, const void *right) {
    return ((const Selected *)left)->index - ((const Selected *)right)->index;
}

static void sort_selected(Scan *self) {
    Layout *layout = &self->layout;
    qsort(layout->selected, (size_t)layout->selected_count, sizeof *layout->selected, by_index);
    self->filter = -1;
    for (int i = 0; i < layout->selected_count; i++)
        if (layout->selected[i].output < 0)
            self->filter = i;
}

static int open_file(Scan *self, PyObject *path, unsigned int root) {
    const char *name = PyBytes_AsString(path);
    int failed, error;
    if (!name)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    failed = pages_open(&self->pages, name, root, &self->trouble);
    error = errno;
    Py_END_ALLOW_THREADS
    if (failed)
        raise(&self->trouble, error);
    return failed;
}

static PyObject *scan_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"path", "root", "columns", "batch_rows", "filter", NULL};
    PyObject *path = NULL, *columns, *filter = Py_None;
    unsigned int root;
    long long batch_rows;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&IOL|O", names, PyUnicode_FSConverter, &path, &root, &columns,
                                     &batch_rows, &filter))
        return NULL;
    Scan *self = NULL;
    if (batch_rows < 1 || batch_rows > MOST_ROWS)
        PyErr_Format(PyExc_ValueError, "batch_rows must be from 1 to %d, got %lld", MOST_ROWS, batch_rows);
    else
        self = new_object(type);
    if (self) {
        self->pages.file = -1;
        self->batch_rows = batch_rows;
        self->texts.seed = (uint64_t)(uintptr_t)self ^ (uint64_t)time(NULL) << 32;
        if (add_outputs(self, columns) < 0 || add_filter(self, filter) < 0 || open_file(self, path, root) < 0)
            Py_CLEAR(self);
        else
            sort_selected(self);
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static PyType_Slot scan_slots[] = {
    {Py_tp_doc, "Scan(path, root, columns, batch_rows, filter=None): iterator over batches of rows of a table.\n\n"
                "root: first page of the table. columns: tuples (name, index in the table, kind); index -1 is the\n"
                "rowid; kind is \"integer\", \"alias\" (INTEGER PRIMARY KEY) or \"text\". batch_rows: rows per batch.\n"
                "filter: (index, kind, values) reads only rows with one of the values. Columns added after a row was\n"
                "written are NULL in it; their defaults are ignored.\n\n"
                "Raises ValueError for a damaged file and Unsupported for a file that must be read through SQLite."},
    {Py_tp_new, scan_new},
    {Py_tp_dealloc, scan_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, scan_next},
    {0, NULL},
};

static PyType_Spec scan_spec = {"annot.native._tables.Scan", sizeof(Scan), 0, Py_TPFLAGS_DEFAULT, scan_slots};

int annot_add_scan(PyObject *module) {
    unsupported = PyErr_NewExceptionWithDoc("annot.native._tables.Unsupported",
                                            "The file is valid but must be read through SQLite.", NULL, NULL);
    return unsupported && PyModule_AddObjectRef(module, "Unsupported", unsupported) == 0
               ? add_type(module, "Scan", &scan_spec)
               : -1;
}
