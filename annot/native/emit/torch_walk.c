/* Walk through an autograd graph from its roots: all nodes by descending sequence number, with the calls that created
 * them. */
#include "torch_walk.h"
#include "torch_names.h"

#include <stdlib.h>

/* Graphs with more nodes count as deep. Freeing a graph recursively takes about 150 bytes of C stack per node. */
#define DEEP 1000

static size_t slot_of(const Walk *walk, PyObject *node) {
    size_t mask = walk->seen_size - 1;
    size_t slot = ((uintptr_t)node >> 4) * 0x9E3779B97F4A7C15ull >> 20 & mask;
    while (walk->seen[slot] && walk->visits[walk->seen[slot] - 1].node != node)
        slot = (slot + 1) & mask;
    return slot;
}

/* Twice as many slots as visits. */
static int grow(Walk *walk) {
    size_t size = walk->seen_size ? 2 * walk->seen_size : 512;
    Visit *visits = realloc(walk->visits, size / 2 * sizeof *visits);
    if (!visits)
        return -1;
    walk->visits = visits;
    size_t *seen = calloc(size, sizeof *seen);
    if (!seen)
        return -1;
    free(walk->seen);
    walk->seen = seen;
    walk->seen_size = size;
    for (size_t i = 0; i < walk->count; i++)
        seen[slot_of(walk, visits[i].node)] = i + 1;
    return 0;
}

/* Adds a node unless it was visited, and returns its number. -1 with an exception set or when out of memory. */
static int visit(Walk *walk, PyObject *node, uint64_t *number) {
    if (2 * (walk->count + 1) > walk->seen_size && grow(walk) < 0)
        return -1;
    size_t slot = slot_of(walk, node);
    if (walk->seen[slot]) {
        *number = walk->visits[walk->seen[slot] - 1].number;
        return 0;
    }
    uint64_t thread;
    if (annot_read_node(node, number, &thread) < 0)
        return -1;
    walk->visits[walk->count] = (Visit){Py_NewRef(node), NULL, *number, thread, walk->count};
    walk->seen[slot] = ++walk->count;
    return 0;
}

void annot_free_walk(Walk *walk) {
    for (size_t i = 0; i < walk->count; i++) {
        Py_DECREF(walk->visits[i].node);
        Py_XDECREF((PyObject *)walk->visits[i].owner);
    }
    free(walk->visits);
    free(walk->seen);
}

static void find_owner(Walk *walk, Visit *here, Notes *own) {
    walk->unordered |= walk->thread && walk->thread != here->thread;
    walk->thread = here->thread;
    here->owner = (Invocation *)Py_XNewRef((PyObject *)annot_owner_of(own, here->thread, here->number));
}

/* Sequence numbers usually decrease along an edge, but not always: if the base of a view is modified through another
 * view, the view gets its node when it is next read, and the reading operation may have its number already. */
static int visit_next(Walk *walk, size_t index) {
    uint64_t number = walk->visits[index].number, below;
    PyObject *edges = PyObject_GetAttr(walk->visits[index].node, annot_its.next_functions);
    int failed = !edges;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_Size(edges); i++) {
        PyObject *next = PyTuple_GetItem(PyTuple_GetItem(edges, i), 0);
        if (next == Py_None)
            continue;
        failed = visit(walk, next, &below) < 0;
        walk->unordered |= !failed && below >= number && below != ANNOT_ACCUMULATE_GRAD;
    }
    Py_XDECREF(edges);
    return failed ? -1 : 0;
}

/* Checks the type first: annot_read_node reads the memory of autograd nodes. */
static int visit_root(Walk *walk, PyObject *root) {
    uint64_t number;
    PyObject *node =
        PyTuple_Check(root) ? Py_XNewRef(PyTuple_GetItem(root, 0)) : PyObject_GetAttr(root, annot_its.grad_fn);
    PyObject *known = node && node != Py_None ? PyObject_CallFunctionObjArgs(annot_its.is_node, node, NULL) : NULL;
    int failed = PyErr_Occurred() || (known == Py_True && visit(walk, node, &number) < 0);
    Py_XDECREF(known);
    Py_XDECREF(node);
    return failed ? -1 : 0;
}

/* Since PyTorch 2.13, a node keeps its Python object, and nodes with one free each other recursively: a long chain of
 * operations overflows the C stack. Python's containers do not, because CPython's trashcan limits their recursion.
 * Therefore the metadata of each node hold the tuple of its edges, so that the nodes below it are freed through it. */
static int keep_edges(const Walk *walk) {
    int failed = 0;
    for (size_t i = 0; !failed && i < walk->count; i++) {
        PyObject *node = walk->visits[i].node;
        PyObject *edges = PyObject_GetAttr(node, annot_its.next_functions);
        PyObject *metadata = edges ? PyObject_GetAttr(node, annot_its.metadata) : NULL;
        failed = !metadata || PyDict_SetItem(metadata, annot_its.edges, edges) < 0;
        Py_XDECREF(metadata);
        Py_XDECREF(edges);
    }
    return failed ? -1 : 0;
}

static int visit_all(Walk *walk, PyObject *roots) {
    Notes *own = annot_my_notes();
    for (Py_ssize_t i = 0; i < PyTuple_Size(roots); i++)
        if (visit_root(walk, PyTuple_GetItem(roots, i)) < 0)
            return -1;
    int failed = 0;
    for (size_t index = 0; !failed && index < walk->count; index++) {
        if (walk->visits[index].number == ANNOT_ACCUMULATE_GRAD)
            continue;
        find_owner(walk, &walk->visits[index], own);
        failed = visit_next(walk, index) < 0;
    }
    return walk->count > DEEP && keep_edges(walk) < 0 ? -1 : -failed;
}

static int later_first(const void *left, const void *right) {
    const Visit *a = left, *b = right;
    if (a->number != b->number)
        return a->number < b->number ? 1 : -1;
    return a->order < b->order ? 1 : -1;
}

int annot_walk(Walk *walk, PyObject *roots) {
    if (visit_all(walk, roots) < 0)
        return -1;
    if (walk->count)
        qsort(walk->visits, walk->count, sizeof(Visit), later_first);
    return 0;
}
