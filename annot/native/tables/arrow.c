/* Arrow C data interface: its structs, the export and the import of columns. */
#include "arrow.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>

#define NULLABLE 2

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

Column *column_new(const char *format, int64_t length, int64_t buffer_count) {
    Column *column = calloc(1, sizeof *column + (size_t)buffer_count * sizeof column->buffers[0]);
    if (column) {
        column->references = 1;
        column->format = format;
        column->length = length;
        column->buffer_count = buffer_count;
    }
    return column;
}

Column *column_of(const char *format, int64_t length, void *values) {
    Column *column = values ? column_new(format, length, 2) : NULL;
    if (!column) {
        free(values);
        return NULL;
    }
    column->buffers[1] = column->owned[0] = values;
    return column;
}

void column_drop(Column *column) {
    if (!column || --column->references)
        return;
    for (int i = 0; i < 3; i++)
        free(column->owned[i]);
    if (column->release)
        column->release(column->kept);
    free(column);
}

typedef struct {
    PyObject_HEAD
    Column *column;
} ColumnObject;

static PyTypeObject *column_type = NULL;

static void release_schema(struct ArrowSchema *schema) { schema->release = NULL; }

static void release_array(struct ArrowArray *array) {
    column_drop(array->private_data);
    array->release = NULL;
}

static void free_schema_capsule(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, "arrow_schema")); }

static void free_array_capsule(PyObject *capsule) {
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release)
        array->release(array);
    free(array);
}

static PyObject *schema_capsule(const Column *column) {
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    if (!schema)
        return PyErr_NoMemory();
    *schema = (struct ArrowSchema){.format = column->format, .name = "", .flags = NULLABLE, .release = release_schema};
    PyObject *capsule = PyCapsule_New(schema, "arrow_schema", free_schema_capsule);
    if (!capsule)
        free(schema);
    return capsule;
}

static PyObject *array_capsule(Column *column) {
    struct ArrowArray *array = calloc(1, sizeof *array);
    if (!array)
        return PyErr_NoMemory();
    *array = (struct ArrowArray){.length = column->length,
                                 .null_count = column->nulls,
                                 .n_buffers = column->buffer_count,
                                 .buffers = column->buffers,
                                 .release = release_array,
                                 .private_data = column};
    PyObject *capsule = PyCapsule_New(array, "arrow_array", free_array_capsule);
    if (capsule)
        column->references++;
    else
        free(array);
    return capsule;
}

static PyObject *column_export(PyObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"requested_schema", NULL};
    PyObject *requested = NULL; /* ignored: the protocol allows it */
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O", names, &requested))
        return NULL;
    Column *column = ((ColumnObject *)self)->column;
    PyObject *schema = schema_capsule(column);
    PyObject *array = schema ? array_capsule(column) : NULL;
    PyObject *pair = array ? PyTuple_Pack(2, schema, array) : NULL;
    Py_XDECREF(schema);
    Py_XDECREF(array);
    return pair;
}

static Py_ssize_t column_length(PyObject *self) { return (Py_ssize_t)((ColumnObject *)self)->column->length; }

static void column_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    column_drop(((ColumnObject *)self)->column);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyObject *arrow_array(Column *column) {
    if (!column)
        return PyErr_NoMemory();
    ColumnObject *self = PyObject_New(ColumnObject, column_type);
    if (self)
        self->column = column;
    else
        column_drop(column);
    return (PyObject *)self;
}

/* Bytes per value; 0 for booleans, which take one bit. */
static size_t width(const char *format) { return format[0] == 'l' ? 8 : format[0] == 'i' ? 4 : 0; }

static const char *type_name(const char *format) {
    return format[0] == 'l' ? "64-bit integers" : format[0] == 'i' ? "32-bit integers" : "booleans";
}

static int check_format(struct ArrowArrayStream *stream, const char *format, const char *name) {
    struct ArrowSchema schema = {0};
    if (stream->get_schema(stream, &schema) != 0) {
        PyErr_Format(PyExc_ValueError, "the schema of %s cannot be read", name);
        return -1;
    }
    int matches = !schema.dictionary && schema.format && strcmp(schema.format, format) == 0;
    if (!matches)
        PyErr_Format(PyExc_TypeError, "%s must be a column of %s (Arrow format %s), got Arrow format %s", name,
                     type_name(format), format, schema.format ? schema.format : "none");
    if (schema.release)
        schema.release(&schema);
    return matches ? 0 : -1;
}

/* Reads the next chunk; `release` is NULL at the end. -1 with an exception set. */
static int next_chunk(struct ArrowArrayStream *stream, const char *name, struct ArrowArray *chunk) {
    *chunk = (struct ArrowArray){0};
    if (stream->get_next(stream, chunk) == 0)
        return 0;
    const char *error = stream->get_last_error(stream);
    PyErr_Format(PyExc_ValueError, "%s cannot be read: %s", name, error ? error : "unknown error");
    chunk->release = NULL;
    return -1;
}

/* Reads the only chunk of a stream; a stream without chunks has no rows. */
static int read_chunk(struct ArrowArrayStream *stream, const char *name, struct ArrowArray *chunk) {
    struct ArrowArray second;
    if (next_chunk(stream, name, chunk) < 0)
        return -1;
    if (!chunk->release)
        return 0;
    if (next_chunk(stream, name, &second) < 0)
        return -1;
    if (!second.release)
        return 0;
    second.release(&second);
    PyErr_Format(PyExc_ValueError, "%s must be one chunk of memory; rechunk it first", name);
    return -1;
}

static int check_nulls(const Input *input, const char *name) {
    for (int64_t row = 0; input->valid && row < input->length; row++)
        if (is_null(input, row)) {
            PyErr_Format(PyExc_ValueError, "%s must not contain nulls", name);
            return -1;
        }
    return 0;
}

static int read_stream(struct ArrowArrayStream *stream, const char *format, const char *name, Input *input) {
    struct ArrowArray *chunk = input->chunk;
    if (check_format(stream, format, name) < 0 || read_chunk(stream, name, chunk) < 0)
        return -1;
    if (!chunk->release)
        return 0;
    const char *values = chunk->buffers[1];
    input->length = chunk->length;
    input->values = values ? values + (size_t)chunk->offset * width(format) : NULL;
    input->valid = chunk->null_count ? chunk->buffers[0] : NULL;
    input->shift = chunk->offset;
    return 0;
}

int arrow_read(PyObject *object, const char *format, const char *name, int nulls, Input *input) {
    *input = (Input){0};
    if (!PyObject_HasAttrString(object, "__arrow_c_stream__")) {
        PyErr_Format(PyExc_TypeError, "%s must be an Arrow column such as pl.Series, got %R", name, Py_TYPE(object));
        return -1;
    }
    if (!(input->chunk = calloc(1, sizeof *input->chunk))) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *capsule = PyObject_CallMethod(object, "__arrow_c_stream__", NULL);
    struct ArrowArrayStream *stream = capsule ? PyCapsule_GetPointer(capsule, "arrow_array_stream") : NULL;
    int failed = !stream || read_stream(stream, format, name, input) < 0 || (!nulls && check_nulls(input, name) < 0);
    Py_XDECREF(capsule);
    if (failed)
        arrow_free(input);
    return failed ? -1 : 0;
}

void arrow_free(Input *input) {
    if (input->chunk && input->chunk->release)
        input->chunk->release(input->chunk);
    free(input->chunk);
    *input = (Input){0};
}

int same_lengths(const Input *inputs, int count) {
    for (int i = 1; i < count; i++)
        if (inputs[i].length != inputs[0].length) {
            PyErr_Format(PyExc_ValueError, "the columns must have the same length, got %lld and %lld rows",
                         (long long)inputs[0].length, (long long)inputs[i].length);
            return -1;
        }
    return 0;
}

static PyMethodDef column_methods[] = {
    {"__arrow_c_array__", (PyCFunction)(void (*)(void))column_export, METH_VARARGS | METH_KEYWORDS,
     "Return the schema and the array as capsules (Arrow PyCapsule interface)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot column_slots[] = {
    {Py_tp_doc, "Column for Arrow libraries such as polars."},
    {Py_tp_dealloc, column_dealloc},
    {Py_tp_methods, column_methods},
    {Py_sq_length, column_length},
    {0, NULL},
};

static PyType_Spec column_spec = {"annot.native._tables.Column", sizeof(ColumnObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, column_slots};

int annot_add_arrow(PyObject *module) {
    column_type = (PyTypeObject *)PyType_FromSpec(&column_spec);
    return column_type ? PyModule_AddObjectRef(module, "Column", (PyObject *)column_type) : -1;
}
