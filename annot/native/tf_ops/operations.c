/* AnnotRange: operation that opens and closes NVTX ranges in TensorFlow graphs.
 *
 * A plain shared library, built without TensorFlow, Python or NVTX. annot/tf/library.py passes a handle of TensorFlow's
 * C API and the functions that open and close a range, so that one binary works with TensorFlow 2.16 to 2.21.
 *
 * The graph optimizer of graphs.c inserts AnnotRange operations and connects them by control edges. Their only data
 * inputs are the shapes of texts with sizes unknown until the graph runs. */
#include "operations.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*Create)(void *construction);
typedef void (*Compute)(void *kernel, void *context);
typedef void (*Delete)(void *kernel);

/* ---------------------------------------------------------------- TensorFlow's functions, resolved at run time */

/* From tensorflow/c/kernels.h, ops.h, tf_status.h and tf_tensor.h, with all handles as void *. */
#define FUNCTIONS(X)                                                                                                   \
    X(void *, TF_NewStatus, (void))                                                                                    \
    X(void, TF_DeleteStatus, (void *))                                                                                 \
    X(int, TF_GetCode, (const void *))                                                                                 \
    X(void, TF_SetStatus, (void *, int, const char *))                                                                 \
    X(void *, TF_NewOpDefinitionBuilder, (const char *))                                                               \
    X(void, TF_OpDefinitionBuilderAddAttr, (void *, const char *))                                                     \
    X(void, TF_OpDefinitionBuilderAddInput, (void *, const char *))                                                    \
    X(void, TF_OpDefinitionBuilderSetIsStateful, (void *, _Bool))                                                      \
    X(void, TF_RegisterOpDefinition, (void *, void *))                                                                 \
    X(void *, TF_NewKernelBuilder, (const char *, const char *, Create, Compute, Delete))                              \
    X(void, TF_KernelBuilder_HostMemory, (void *, const char *))                                                       \
    X(void, TF_RegisterKernelBuilder, (const char *, void *, void *))                                                  \
    X(void, TF_OpKernelConstruction_GetAttrSize, (void *, const char *, int32_t *, int32_t *, void *))                 \
    X(void, TF_OpKernelConstruction_GetAttrInt64List, (void *, const char *, int64_t *, int, void *))                  \
    X(void, TF_GetInput, (void *, int, void **, void *))                                                               \
    X(int64_t, TF_StepId, (void *))                                                                                    \
    X(uint64_t, TF_GetFrameId, (void *))                                                                               \
    X(int64_t, TF_GetIterId, (void *))                                                                                 \
    X(void *, TF_TensorData, (const void *))                                                                           \
    X(size_t, TF_TensorByteSize, (const void *))                                                                       \
    X(void, TF_DeleteTensor, (void *))

#define DECLARE(result, name, arguments) static result(*name) arguments;
FUNCTIONS(DECLARE)

/* Resolves the functions. Returns the name of a missing one, or NULL. */
static const char *find_functions(void *library) {
#define FIND(result, name, arguments)                                                                                  \
    *(void **)&name = dlsym(library, #name);                                                                           \
    if (!name)                                                                                                         \
        return #name;
    FUNCTIONS(FIND)
    return NULL;
}

/* ---------------------------------------------------------------- ranges */

/* Opens the range of an event. Returns the generation of the tool (0: no tool), and in `id` the tool's id of the range.
 * Both functions are called from TensorFlow's threads. */
typedef uint32_t (*StartRange)(void *event, uint64_t *id);
typedef void (*EndRange)(void *event, uint32_t generation, uint64_t id);
/* Returns the event for the text with these shapes. The caller of annot_tf_register keeps it alive. Takes the GIL. */
typedef void *(*SizeEvent)(void *event, const int32_t *numbers, int count);

static StartRange start_range;
static EndRange end_range;
static SizeEvent size_event;
volatile int ranges_on = 1;

/* One execution of a graph: a step and, in a loop, one iteration of one frame. */
typedef struct {
    int64_t step, iteration;
    uint64_t frame;
} Execution;

typedef struct {
    Execution execution;
    void *event;
    uint64_t id;
    uint32_t generation;
} Open;

enum { MAX_SIZED = 64 /* as in annot/tf/dynamic_sizes.py */, MAX_NUMBERS = 64 };

/* The event of a text for one set of shapes. */
typedef struct {
    void *event;
    int count;
    int32_t numbers[]; /* for each shape: rank, then sizes */
} Sized;

/* One range of one graph, opened and closed by several AnnotRange operations. It exists until the last of their kernels
 * is deleted; without kernels so far, it is kept for the first one. */
typedef struct Range {
    void *event;
    pthread_mutex_t lock;
    Open *open; /* open ranges, one per running execution */
    uint32_t open_count, open_capacity;
    uint32_t kernels;
    int sized_count;
    Sized *sized[MAX_SIZED]; /* the most recently used entry comes first */
} Range;

/* fork() waits until this lock is free. While it is held, no other lock is taken, as fork() also waits for other locks. */
static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;
static Range **ranges = NULL; /* by number */
static uint32_t range_count = 0, range_capacity = 0;

static void before_fork(void) { pthread_mutex_lock(&ranges_lock); }
static void after_fork(void) { pthread_mutex_unlock(&ranges_lock); }

/* The child lacks the threads that execute graphs. They may have held locks of ranges, whose data is then incomplete. */
static void in_child(void) {
    for (uint32_t number = 0; number < range_count; number++) {
        Range *range = ranges[number];
        if (!range)
            continue;
        pthread_mutex_init(&range->lock, NULL);
        range->open = NULL, range->open_count = range->open_capacity = 0;
        range->sized_count = 0;
    }
    pthread_mutex_unlock(&ranges_lock);
}

/* Creates a range for an event, which the caller keeps alive. Returns its number, or -1 when out of memory. */
EXPORT int64_t annot_tf_range(void *event) {
    Range *created = calloc(1, sizeof *created);
    int64_t number = -1;
    if (!created)
        return -1;
    created->event = event;
    pthread_mutex_init(&created->lock, NULL); /* glibc and musl: cannot fail for default attributes */
    pthread_mutex_lock(&ranges_lock);
    if (range_count == range_capacity) {
        uint32_t capacity = range_capacity ? 2 * range_capacity : 256;
        Range **grown = realloc(ranges, capacity * sizeof *grown);
        if (grown)
            ranges = grown, range_capacity = capacity;
    }
    if (range_count < range_capacity)
        ranges[number = range_count++] = created;
    pthread_mutex_unlock(&ranges_lock);
    if (number < 0) {
        pthread_mutex_destroy(&created->lock);
        free(created);
    }
    return number;
}

static void end_open(Open open) {
    if (open.generation)
        end_range(open.event, open.generation, open.id);
}

/* Returns the range with this number and adds a reference for a kernel; NULL if the number is unknown, or the range has
 * fewer kernels. */
static Range *hold_range(int64_t number, uint32_t least_kernels) {
    pthread_mutex_lock(&ranges_lock);
    Range *range = number >= 0 && number < range_count ? ranges[number] : NULL;
    if (range && range->kernels < least_kernels)
        range = NULL;
    if (range)
        range->kernels++;
    pthread_mutex_unlock(&ranges_lock);
    return range;
}

static void release_range(int64_t number) {
    pthread_mutex_lock(&ranges_lock);
    Range *range = ranges[number];
    int last = --range->kernels == 0;
    if (last)
        ranges[number] = NULL;
    pthread_mutex_unlock(&ranges_lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < range->open_count; i++)
        end_open(range->open[i]);
    for (int i = 0; i < range->sized_count; i++)
        free(range->sized[i]);
    free(range->open);
    pthread_mutex_destroy(&range->lock);
    free(range);
}

static int same_execution(const Execution *a, const Execution *b) {
    return a->step == b->step && a->frame == b->frame && a->iteration == b->iteration;
}

/* Returns the index of the open range of an execution, or `open_count`. */
static uint32_t find_open(const Range *range, const Execution *execution) {
    uint32_t i = 0;
    while (i < range->open_count && !same_execution(&range->open[i].execution, execution))
        i++;
    return i;
}

static int grow_open(Range *range) {
    if (range->open_count < range->open_capacity)
        return 1;
    uint32_t capacity = range->open_capacity ? 2 * range->open_capacity : 4;
    Open *grown = realloc(range->open, capacity * sizeof *grown);
    if (grown)
        range->open = grown, range->open_capacity = capacity;
    return grown != NULL;
}

/* Opens the range unless another operation of this execution has opened it. */
static void open_range(Range *range, void *event, const Execution *execution) {
    pthread_mutex_lock(&range->lock);
    if (find_open(range, execution) == range->open_count && grow_open(range)) {
        Open open = {.execution = *execution, .event = event};
        open.generation = start_range(event, &open.id);
        range->open[range->open_count++] = open;
    }
    pthread_mutex_unlock(&range->lock);
}

static void close_range(Range *range, const Execution *execution) {
    Open open = {.generation = 0};
    pthread_mutex_lock(&range->lock);
    uint32_t i = find_open(range, execution);
    if (i < range->open_count) {
        open = range->open[i];
        range->open[i] = range->open[--range->open_count];
    }
    pthread_mutex_unlock(&range->lock);
    end_open(open);
}

/* Closes the ranges that failed steps left open. Returns the number of those that a tool received. */
EXPORT int annot_tf_close_all(void) {
    int closed = 0;
    pthread_mutex_lock(&ranges_lock);
    uint32_t count = range_count;
    pthread_mutex_unlock(&ranges_lock);
    for (uint32_t number = 0; number < count; number++) {
        Range *range = hold_range(number, 1);
        if (!range)
            continue;
        pthread_mutex_lock(&range->lock);
        for (uint32_t i = 0; i < range->open_count; i++) {
            closed += range->open[i].generation != 0;
            end_open(range->open[i]);
        }
        range->open_count = 0;
        pthread_mutex_unlock(&range->lock);
        release_range(number);
    }
    return closed;
}

/* Enables or disables the ranges of all graphs. While they are disabled, operations only close ranges, and graphs stay
 * unread. */
EXPORT void annot_tf_switch(int on) { ranges_on = on; }

/* ---------------------------------------------------------------- texts with sizes known only at run time */

/* Reads `count` shapes from the inputs, starting at `first`, in the layout of `Sized`. Returns the number of values, or
 * 0 on failure. */
static int read_shapes(int first, int count, void *context, int32_t *numbers, void *status) {
    int used = 0;
    for (int i = first; i < first + count; i++) {
        void *tensor = NULL;
        TF_GetInput(context, i, &tensor, status);
        if (!tensor)
            return 0;
        int rank = (int)(TF_TensorByteSize(tensor) / sizeof *numbers), fits = used + 1 + rank <= MAX_NUMBERS;
        if (fits) {
            numbers[used] = rank;
            if (rank)
                memcpy(&numbers[used + 1], TF_TensorData(tensor), (size_t)rank * sizeof *numbers);
            used += 1 + rank;
        }
        TF_DeleteTensor(tensor);
        if (!fits)
            return 0;
    }
    return used;
}

/* Returns the event for these shapes, or NULL if they are new. Sets `full` if the table is full. */
static void *find_sized(Range *range, const int32_t *numbers, int count, int *full) {
    void *event = NULL;
    pthread_mutex_lock(&range->lock);
    for (int i = 0; i < range->sized_count && !event; i++) {
        Sized *one = range->sized[i];
        if (one->count == count && memcmp(one->numbers, numbers, (size_t)count * sizeof *numbers) == 0) {
            event = one->event;
            range->sized[i] = range->sized[0];
            range->sized[0] = one;
        }
    }
    *full = range->sized_count == MAX_SIZED;
    pthread_mutex_unlock(&range->lock);
    return event;
}

static void keep_sized(Range *range, const int32_t *numbers, int count, void *event) {
    Sized *created = malloc(sizeof *created + (size_t)count * sizeof *numbers);
    if (!created)
        return;
    created->event = event, created->count = count;
    memcpy(created->numbers, numbers, (size_t)count * sizeof *numbers);
    pthread_mutex_lock(&range->lock);
    if (range->sized_count < MAX_SIZED)
        range->sized[range->sized_count++] = created, created = NULL;
    pthread_mutex_unlock(&range->lock);
    free(created);
}

static void *event_to_open(Range *range, int first, int shapes, void *context, void *status) {
    int32_t numbers[MAX_NUMBERS];
    int full, count = shapes ? read_shapes(first, shapes, context, numbers, status) : 0;
    if (!count)
        return range->event;
    void *event = find_sized(range, numbers, count, &full);
    if (event || full)
        return event ? event : range->event;
    event = size_event(range->event, numbers, count); /* without holding a lock: this waits for the GIL */
    if (!event)                                       /* the callback raised */
        return range->event;
    keep_sized(range, numbers, count, event);
    return event;
}

/* ---------------------------------------------------------------- the operation */

typedef struct {
    Range *range; /* NULL if another process created the graph */
    int64_t number;
    int first, shapes; /* first input and number of inputs with shapes for the text */
} Use;

typedef struct {
    int close_count, open_count;
    Use uses[]; /* the ranges to close, then the ranges to open */
} Kernel;

static int64_t *read_list(void *construction, const char *name, int *count, void *status) {
    int32_t items = 0, size = 0;
    *count = 0;
    TF_OpKernelConstruction_GetAttrSize(construction, name, &items, &size, status);
    if (TF_GetCode(status) != 0 || items < 0)
        return NULL;
    int64_t *values = malloc(((size_t)items + 1) * sizeof *values);
    if (!values)
        return NULL;
    TF_OpKernelConstruction_GetAttrInt64List(construction, name, values, items, status);
    *count = TF_GetCode(status) == 0 ? items : 0;
    return values;
}

static Use make_use(int64_t number, int64_t first, int64_t shapes) {
    return (Use){hold_range(number, 0), number, (int)first, (int)shapes};
}

/* The attribute `open` has three values per range: its number, its first shape input, and the number of its shapes. */
static void *create_kernel(void *construction) {
    int closes = 0, numbers = 0;
    void *status = TF_NewStatus();
    int64_t *close = read_list(construction, "close", &closes, status);
    int64_t *open = read_list(construction, "open", &numbers, status);
    int opens = numbers / 3;
    Kernel *kernel = calloc(1, sizeof *kernel + (size_t)(closes + opens) * sizeof(Use));
    if (kernel) {
        kernel->close_count = closes, kernel->open_count = opens;
        for (int i = 0; i < closes; i++)
            kernel->uses[i] = make_use(close[i], 0, 0);
        for (int i = 0; i < opens; i++)
            kernel->uses[closes + i] = make_use(open[3 * i], open[3 * i + 1], open[3 * i + 2]);
    }
    free(close);
    free(open);
    TF_DeleteStatus(status);
    return kernel;
}

static void delete_kernel(void *self) {
    Kernel *kernel = self;
    if (!kernel)
        return;
    for (int i = 0; i < kernel->close_count + kernel->open_count; i++)
        if (kernel->uses[i].range)
            release_range(kernel->uses[i].number);
    free(kernel);
}

/* Errors do not fail the program's step: the range keeps its text without sizes. */
static void compute_kernel(void *self, void *context) {
    Kernel *kernel = self;
    if (!kernel)
        return;
    Execution execution = {TF_StepId(context), TF_GetIterId(context), TF_GetFrameId(context)};
    for (int i = 0; i < kernel->close_count; i++)
        if (kernel->uses[i].range)
            close_range(kernel->uses[i].range, &execution);
    if (!ranges_on)
        return;
    void *status = NULL;
    for (int i = kernel->close_count; i < kernel->close_count + kernel->open_count; i++) {
        Use *use = &kernel->uses[i];
        if (!use->range)
            continue;
        if (use->shapes && !status)
            status = TF_NewStatus();
        open_range(use->range, event_to_open(use->range, use->first, use->shapes, context, status), &execution);
    }
    if (status)
        TF_DeleteStatus(status);
}

static int register_operation(void *status) {
    void *builder = TF_NewOpDefinitionBuilder("AnnotRange");
    TF_OpDefinitionBuilderAddAttr(builder, "close: list(int) >= 0");
    TF_OpDefinitionBuilderAddAttr(builder, "open: list(int) >= 0");
    TF_OpDefinitionBuilderAddAttr(builder, "S: int >= 0");
    TF_OpDefinitionBuilderAddInput(builder, "shapes: S * int32");
    TF_OpDefinitionBuilderSetIsStateful(builder, 1); /* otherwise TensorFlow removes an operation without outputs */
    TF_RegisterOpDefinition(builder, status);
    const char *const devices[] = {"CPU", "GPU"};
    for (size_t i = 0; i < 2 && TF_GetCode(status) == 0; i++) {
        void *kernel = TF_NewKernelBuilder("AnnotRange", devices[i], create_kernel, compute_kernel, delete_kernel);
        TF_KernelBuilder_HostMemory(kernel, "shapes");
        TF_RegisterKernelBuilder("AnnotRange", kernel, status);
    }
    return TF_GetCode(status) == 0;
}

void set_status(void *status, int code, const char *message) { TF_SetStatus(status, code, message); }

/* Registers the operation with TensorFlow. `library` is a dlopen handle of its C API. Returns NULL, or the name of a
 * missing function or of the operation that could not be registered. */
EXPORT const char *annot_tf_register(void *library, StartRange start, EndRange end, SizeEvent size) {
    const char *missing = find_functions(library);
    if (missing)
        return missing;
    start_range = start, end_range = end, size_event = size;
    if (pthread_atfork(before_fork, after_fork, in_child) != 0)
        return "memory for pthread_atfork";
    void *status = TF_NewStatus();
    int done = register_operation(status);
    TF_DeleteStatus(status);
    return done ? NULL : "AnnotRange";
}
