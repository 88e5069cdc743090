/* Arrow C data interface: its structs, the export and the import of columns. */
#include "arrow.h"

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

/* ---------------------------------------------------------------- columns */

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
    Column *column = column_new(format, length, 2);
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

/* ---------------------------------------------------------------- exported schemas and arrays */

static void release_schema(struct ArrowSchema *schema) {
    for (int64_t i = 0; i < schema->n_children; i++) {
        struct ArrowSchema *child = schema->children[i];
        if (child && child->release)
            child->release(child);
        free(child);
    }
    free(schema->children);
    free((char *)schema->name);
    schema->release = NULL;
}

static int fill_schema(struct ArrowSchema *schema, const char *format, const char *name) {
    *schema = (struct ArrowSchema){
        .format = format, .name = strdup(name), .flags = NULLABLE, .release = release_schema};
    return schema->name ? 0 : -1;
}

static int fill_table_schema(struct ArrowSchema *schema, Column **columns, char **names, int count) {
    if (fill_schema(schema, "+s", "") < 0 || !(schema->children = calloc((size_t)count + 1, sizeof(void *))))
        return -1;
    for (; schema->n_children < count; schema->n_children++) {
        struct ArrowSchema *child = calloc(1, sizeof *child);
        schema->children[schema->n_children] = child;
        if (!child || fill_schema(child, columns[schema->n_children]->format, names[schema->n_children]) < 0) {
            schema->n_children++;
            return -1;
        }
    }
    return 0;
}

static void release_array(struct ArrowArray *array) {
    for (int64_t i = 0; i < array->n_children; i++) {
        struct ArrowArray *child = array->children[i];
        if (child && child->release)
            child->release(child);
        free(child);
    }
    free(array->children);
    column_drop(array->private_data);
    array->release = NULL;
}

static void fill_array(struct ArrowArray *array, Column *column) {
    column->references++;
    *array = (struct ArrowArray){
        .length = column->length, .null_count = column->nulls, .n_buffers = column->buffer_count,
        .buffers = column->buffers, .release = release_array, .private_data = column};
}

static int fill_table_array(struct ArrowArray *array, Column **columns, int count, int64_t rows) {
    static const void *no_validity[1] = {NULL};
    *array = (struct ArrowArray){.length = rows, .n_buffers = 1, .buffers = no_validity, .release = release_array};
    if (!(array->children = calloc((size_t)count + 1, sizeof(void *))))
        return -1;
    for (; array->n_children < count; array->n_children++) {
        struct ArrowArray *child = calloc(1, sizeof *child);
        if (!child)
            return -1;
        fill_array(child, columns[array->n_children]);
        array->children[array->n_children] = child;
    }
    return 0;
}

/* ---------------------------------------------------------------- the Python object */

typedef struct {
    PyObject_HEAD
    int count;
    int64_t rows;
    Column **columns;
    char **names; /* NULL: a single column */
} Columns;

static PyTypeObject *columns_type = NULL;

static void free_schema_capsule(PyObject *capsule) {
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema->release)
        schema->release(schema);
    free(schema);
}

static void free_array_capsule(PyObject *capsule) {
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release)
        array->release(array);
    free(array);
}

static PyObject *schema_capsule(Columns *self) {
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    if (!schema)
        return PyErr_NoMemory();
    int failed = self->names ? fill_table_schema(schema, self->columns, self->names, self->count)
                             : fill_schema(schema, self->columns[0]->format, "");
    PyObject *capsule = failed ? PyErr_NoMemory() : PyCapsule_New(schema, "arrow_schema", free_schema_capsule);
    if (!capsule) {
        if (schema->release)
            schema->release(schema);
        free(schema);
    }
    return capsule;
}

static PyObject *array_capsule(Columns *self) {
    struct ArrowArray *array = calloc(1, sizeof *array);
    if (!array)
        return PyErr_NoMemory();
    int failed = 0;
    if (self->names)
        failed = fill_table_array(array, self->columns, self->count, self->rows);
    else
        fill_array(array, self->columns[0]);
    PyObject *capsule = failed ? PyErr_NoMemory() : PyCapsule_New(array, "arrow_array", free_array_capsule);
    if (!capsule) {
        array->release(array);
        free(array);
    }
    return capsule;
}

static PyObject *columns_export(PyObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"requested_schema", NULL};
    PyObject *requested = NULL; /* ignored: the protocol allows it */
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O", names, &requested))
        return NULL;
    PyObject *schema = schema_capsule((Columns *)self);
    PyObject *array = schema ? array_capsule((Columns *)self) : NULL;
    PyObject *pair = array ? PyTuple_Pack(2, schema, array) : NULL;
    Py_XDECREF(schema);
    Py_XDECREF(array);
    return pair;
}

static Py_ssize_t columns_length(PyObject *self) { return (Py_ssize_t)((Columns *)self)->rows; }

static void columns_dealloc(PyObject *object) {
    Columns *self = (Columns *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < self->count; i++) {
        column_drop(self->columns[i]);
        if (self->names)
            free(self->names[i]);
    }
    free(self->columns);
    free(self->names);
    PyObject_Free(object);
    Py_DECREF(type);
}

static void drop_all(Column **columns, int count) {
    for (int i = 0; i < count; i++)
        column_drop(columns[i]);
}

static PyObject *columns_object(Column **columns, const char *const *names, int count, int64_t rows) {
    Columns *self = PyObject_New(Columns, columns_type);
    if (!self) {
        drop_all(columns, count);
        return NULL;
    }
    self->count = 0;
    self->rows = rows;
    self->columns = calloc((size_t)count + 1, sizeof *self->columns);
    self->names = names ? calloc((size_t)count + 1, sizeof *self->names) : NULL;
    int failed = !self->columns || (names && !self->names);
    for (int i = 0; !failed && i < count; i++) {
        failed = names && !(self->names[i] = strdup(names[i]));
        if (!failed)
            self->columns[self->count++] = columns[i];
    }
    if (failed) {
        drop_all(columns + self->count, count - self->count);
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

PyObject *arrow_array(Column *column) {
    return column ? columns_object(&column, NULL, 1, column->length) : PyErr_NoMemory();
}

PyObject *arrow_batch(Column **columns, const char *const *names, int count, int64_t rows) {
    return columns_object(columns, names, count, rows);
}

/* ---------------------------------------------------------------- imported columns */

typedef struct {
    struct ArrowArray *chunks; /* owned; released in arrow_free */
    int64_t count, capacity;
    void *values;   /* several chunks joined; NULL if there is one chunk */
    uint8_t *valid;
} Holder;

/* Bytes per value; 0 for booleans, which take one bit. */
static size_t width(const char *format) { return format[0] == 'l' ? 8 : format[0] == 'i' ? 4 : 0; }

static const char *type_name(const char *format) {
    return format[0] == 'l' ? "64-bit integers" : format[0] == 'i' ? "32-bit integers" : "booleans";
}

static int check_format(const struct ArrowSchema *schema, const char *format, const char *name) {
    if (schema->dictionary || !schema->format || strcmp(schema->format, format) != 0) {
        PyErr_Format(PyExc_TypeError, "%s must be a column of %s (Arrow format %s), got Arrow format %s", name,
                     type_name(format), format, schema->format ? schema->format : "none");
        return -1;
    }
    return 0;
}

static struct ArrowArray *new_chunk(Holder *holder) {
    if (holder->count == holder->capacity) {
        int64_t capacity = holder->capacity ? 2 * holder->capacity : 1;
        struct ArrowArray *grown = realloc(holder->chunks, (size_t)capacity * sizeof *grown);
        if (!grown) {
            PyErr_NoMemory();
            return NULL;
        }
        holder->chunks = grown;
        holder->capacity = capacity;
    }
    memset(&holder->chunks[holder->count], 0, sizeof holder->chunks[0]);
    return &holder->chunks[holder->count];
}

static int take_array(PyObject *object, const char *format, const char *name, Holder *holder) {
    PyObject *pair = PyObject_CallMethod(object, "__arrow_c_array__", NULL);
    PyObject *schema_capsule = NULL, *array_capsule = NULL;
    int result = -1;
    if (pair && PyArg_ParseTuple(pair, "OO", &schema_capsule, &array_capsule)) {
        struct ArrowSchema *schema = PyCapsule_GetPointer(schema_capsule, "arrow_schema");
        struct ArrowArray *array = schema ? PyCapsule_GetPointer(array_capsule, "arrow_array") : NULL;
        struct ArrowArray *chunk = array && check_format(schema, format, name) == 0 ? new_chunk(holder) : NULL;
        if (chunk) {
            *chunk = *array;
            array->release = NULL; /* marks the array as moved */
            holder->count++;
            result = 0;
        }
    }
    Py_XDECREF(pair);
    return result;
}

static int take_chunks(struct ArrowArrayStream *stream, const char *name, Holder *holder) {
    for (;;) {
        struct ArrowArray *chunk = new_chunk(holder);
        if (!chunk)
            return -1;
        if (stream->get_next(stream, chunk) != 0) {
            const char *error = stream->get_last_error(stream);
            PyErr_Format(PyExc_ValueError, "%s cannot be read: %s", name, error ? error : "unknown error");
            return -1;
        }
        if (!chunk->release)
            return 0;
        holder->count++;
    }
}

static int take_stream(PyObject *object, const char *format, const char *name, Holder *holder) {
    PyObject *capsule = PyObject_CallMethod(object, "__arrow_c_stream__", NULL);
    struct ArrowArrayStream *stream = capsule ? PyCapsule_GetPointer(capsule, "arrow_array_stream") : NULL;
    struct ArrowSchema schema = {0};
    int result = -1;
    if (stream && stream->get_schema(stream, &schema) != 0)
        PyErr_Format(PyExc_ValueError, "the schema of %s cannot be read", name);
    else if (stream)
        result = check_format(&schema, format, name) < 0 ? -1 : take_chunks(stream, name, holder);
    if (schema.release)
        schema.release(&schema);
    Py_XDECREF(capsule);
    return result;
}

static const uint8_t *validity(const struct ArrowArray *chunk) { return chunk->null_count ? chunk->buffers[0] : NULL; }

/* Sets bits of `to`, from bit `at` on, where the `length` bits of `from` are set. NULL for `from` means all set. */
static void copy_bits(const uint8_t *from, int64_t shift, int64_t length, uint8_t *to, int64_t at) {
    for (int64_t i = 0; i < length; i++)
        if (!from || bit_of(from, shift + i))
            to[(at + i) >> 3] |= (uint8_t)(1 << ((at + i) & 7));
}

static void copy_values(const struct ArrowArray *chunk, size_t size, char *to, int64_t at) {
    if (!chunk->length)
        return;
    if (!size)
        copy_bits(chunk->buffers[1], chunk->offset, chunk->length, (uint8_t *)to, at);
    else
        memcpy(to + (size_t)at * size, (const char *)chunk->buffers[1] + (size_t)chunk->offset * size,
               (size_t)chunk->length * size);
}

static int join_chunks(Holder *holder, size_t size, Input *input) {
    int nulls = 0;
    int64_t length = 0, at = 0;
    for (int64_t i = 0; i < holder->count; i++) {
        length += holder->chunks[i].length;
        nulls |= validity(&holder->chunks[i]) != NULL;
    }
    holder->values = calloc((size_t)length + 1, size ? size : 1);
    holder->valid = nulls ? calloc((size_t)length / 8 + 1, 1) : NULL;
    if (!holder->values || (nulls && !holder->valid)) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < holder->count; i++) {
        const struct ArrowArray *chunk = &holder->chunks[i];
        copy_values(chunk, size, holder->values, at);
        if (nulls)
            copy_bits(validity(chunk), chunk->offset, chunk->length, holder->valid, at);
        at += chunk->length;
    }
    *input = (Input){.length = length, .values = holder->values, .valid = holder->valid, .holder = holder};
    return 0;
}

static int64_t count_nulls(const Input *input) {
    int64_t nulls = 0;
    for (int64_t row = 0; input->valid && row < input->length; row++)
        nulls += is_null(input, row);
    return nulls;
}

static int set_input(Holder *holder, const char *format, const char *name, int nulls, Input *input) {
    if (holder->count != 1) {
        if (join_chunks(holder, width(format), input) < 0)
            return -1;
    } else {
        const struct ArrowArray *chunk = holder->chunks;
        const char *values = chunk->buffers[1];
        if (values)
            values += (size_t)chunk->offset * width(format);
        *input = (Input){.length = chunk->length, .values = values, .valid = validity(chunk), .shift = chunk->offset,
                         .holder = holder};
    }
    if (!nulls && count_nulls(input)) {
        PyErr_Format(PyExc_ValueError, "%s must not contain nulls", name);
        return -1;
    }
    return 0;
}

int arrow_read(PyObject *object, const char *format, const char *name, int nulls, Input *input) {
    *input = (Input){0};
    Holder *holder = input->holder = calloc(1, sizeof *holder);
    if (!holder) {
        PyErr_NoMemory();
        return -1;
    }
    int result = -1;
    if (PyObject_HasAttrString(object, "__arrow_c_stream__"))
        result = take_stream(object, format, name, holder);
    else if (PyObject_HasAttrString(object, "__arrow_c_array__"))
        result = take_array(object, format, name, holder);
    else
        PyErr_Format(PyExc_TypeError, "%s must be an Arrow column such as pl.Series, got %R", name, Py_TYPE(object));
    if (result == 0)
        result = set_input(holder, format, name, nulls, input);
    if (result < 0) {
        input->holder = holder;
        arrow_free(input);
    }
    return result;
}

void arrow_free(Input *input) {
    Holder *holder = input->holder;
    if (!holder)
        return;
    for (int64_t i = 0; i < holder->count; i++)
        if (holder->chunks[i].release)
            holder->chunks[i].release(&holder->chunks[i]);
    free(holder->chunks);
    free(holder->values);
    free(holder->valid);
    free(holder);
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

/* ---------------------------------------------------------------- module */

static PyMethodDef columns_methods[] = {
    {"__arrow_c_array__", (PyCFunction)(void (*)(void))columns_export, METH_VARARGS | METH_KEYWORDS,
     "Return the schema and the array as capsules (Arrow PyCapsule interface)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot columns_slots[] = {
    {Py_tp_doc, "Column or table for Arrow libraries such as polars."},
    {Py_tp_dealloc, columns_dealloc},
    {Py_tp_methods, columns_methods},
    {Py_sq_length, columns_length},
    {0, NULL},
};

static PyType_Spec columns_spec = {
    "annot.native._tables.Columns", sizeof(Columns), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    columns_slots};

int annot_add_arrow(PyObject *module) {
    columns_type = (PyTypeObject *)PyType_FromSpec(&columns_spec);
    return columns_type ? PyModule_AddObjectRef(module, "Columns", (PyObject *)columns_type) : -1;
}
