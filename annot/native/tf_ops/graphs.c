/* Custom graph optimizer. TensorFlow runs it after its own optimizers; it passes each graph to Python.
 *
 * annot/tf/library.py returns a graph in which the operations of operations.c open and close ranges. */
#include "operations.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* From tensorflow/c/experimental/grappler/grappler.h and c_api.h. `struct_size` keeps versions compatible. */
typedef struct {
    const void *data;
    size_t length;
    void (*data_deallocator)(void *data, size_t length);
} Buffer;

typedef struct {
    size_t struct_size;
    void *ext;
    void *(*create_func)(void);
    void (*optimize_func)(void *, const Buffer *, const void *, Buffer *, void *);
    void (*destroy_func)(void *);
} Optimizer;

typedef struct {
    size_t struct_size;
    void *ext;
    int32_t states[19]; /* of TensorFlow's own optimizers; left at their defaults */
} OptimizerConfigs;

typedef struct {
    size_t struct_size;
    void *ext;
    int32_t major_version, minor_version, patch_version;
    const char *device_type;
    OptimizerConfigs *optimizer_configs;
    Optimizer *optimizer;
} OptimizerRegistration;

/* Stores the new graph, allocated by malloc, in `result` and returns its length; 0 to keep the graph. Takes the GIL. A
 * call with a NULL graph reports that the optimizer was destroyed. */
typedef size_t (*Rewrite)(void *optimizer, const void *graph, size_t length, const void *item, void **result);

/* PyGILState_GetThisThreadState: NULL on a thread unknown to Python. Works without the GIL. */
typedef void *(*ThreadState)(void);

static volatile Rewrite rewrite_graph = NULL;
static ThreadState thread_state = NULL;

EXPORT void annot_tf_rewrite(Rewrite rewrite, ThreadState state) {
    thread_state = state;
    rewrite_graph = rewrite;
}

/* Returns the callback while ranges are on, and on threads known to Python only. A thread of TensorFlow must not wait
 * for the GIL, because its holder may wait for this thread (the TFLite converter does). Functions called from Python are
 * optimized on the calling thread. */
static Rewrite rewrite_here(void) {
    Rewrite rewrite = ranges_on ? rewrite_graph : NULL;
    return rewrite && thread_state && thread_state() ? rewrite : NULL;
}

/* ---------------------------------------------------------------- graphs that the callback does not get */

enum { MAX_MISSED_BYTES = 1 << 24 };

/* A copy of a graph that TensorFlow optimized on a thread of its own. */
typedef struct Missed {
    struct Missed *next;
    size_t length;
    unsigned char graph[];
} Missed;

/* A stack without a lock: a child of a fork can use it at any time. */
static _Atomic(Missed *) missed_graphs;
static atomic_size_t missed_bytes;

static void keep_missed(const Buffer *graph) {
    if (atomic_fetch_add(&missed_bytes, graph->length) > MAX_MISSED_BYTES)
        return;
    Missed *copy = malloc(sizeof *copy + graph->length);
    if (!copy)
        return;
    copy->length = graph->length;
    memcpy(copy->graph, graph->data, graph->length);
    copy->next = atomic_load(&missed_graphs);
    while (!atomic_compare_exchange_weak(&missed_graphs, &copy->next, copy))
        ;
}

/* Passes each graph that TensorFlow optimized on a thread of its own to `visit`, and forgets it. */
EXPORT void annot_tf_visit_missed(void (*visit)(const void *graph, size_t length)) {
    Missed *copy = atomic_exchange(&missed_graphs, NULL);
    atomic_store(&missed_bytes, 0);
    while (copy) {
        Missed *next = copy->next;
        visit(copy->graph, copy->length);
        free(copy);
        copy = next;
    }
}

/* ---------------------------------------------------------------- the optimizer */

static void *create_optimizer(void) { return malloc(1); }

static void destroy_optimizer(void *optimizer) {
    Rewrite rewrite = rewrite_here();
    if (rewrite)
        rewrite(optimizer, NULL, 0, NULL, NULL);
    free(optimizer);
}

static void free_data(void *data, size_t length) { free(data); }

/* TensorFlow reads `out` before it frees `graph`, so an unchanged graph needs no copy. */
static void optimize(void *optimizer, const Buffer *graph, const void *item, Buffer *out, void *status) {
    enum { OK = 0 };
    Rewrite rewrite = rewrite_here();
    if (!rewrite && ranges_on && rewrite_graph)
        keep_missed(graph);
    void *data = NULL;
    size_t length = rewrite ? rewrite(optimizer, graph->data, graph->length, item, &data) : 0;
    *out = length ? (Buffer){data, length, free_data} : (Buffer){graph->data, graph->length, NULL};
    set_status(status, OK, "");
}

/* Called by TensorFlow when it loads the library as a plug-in. */
EXPORT void TF_InitGraph(OptimizerRegistration *registration, void *status) {
    enum { OK = 0 };
    registration->struct_size = sizeof *registration;
    registration->device_type = "CPU";
    registration->optimizer_configs->struct_size = sizeof *registration->optimizer_configs;
    registration->optimizer->struct_size = sizeof *registration->optimizer;
    registration->optimizer->create_func = create_optimizer;
    registration->optimizer->optimize_func = optimize;
    registration->optimizer->destroy_func = destroy_optimizer;
    set_status(status, OK, "");
}
