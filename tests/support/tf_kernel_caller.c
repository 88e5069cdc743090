/* Calls the operation and the graph optimizer of annot/native/tf_ops/operations.c as TensorFlow does, with hostile attributes and
 * from many threads; built with a sanitizer and operations.c by tests/tensorflow/test_library.py. The functions below stand in the place
 * of TensorFlow's C API, for what they are given and what they free is what the sanitizer watches. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef void *(*Create)(void *construction);
typedef void (*Compute)(void *kernel, void *context);
typedef void (*Delete)(void *kernel);
typedef uint32_t (*Start)(void *, uint64_t *);
typedef void (*End)(void *, uint32_t, uint64_t);
typedef void *(*Size)(void *, const int32_t *, int);
typedef size_t (*Rewrite)(void *, const void *, size_t, const void *, void **);

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
    int32_t major_version, minor_version, patch_version;
    const char *device_type;
    size_t *optimizer_configs;
    Optimizer *optimizer;
} OptimizerRegistration;

extern const char *annot_tf_register(void *, Start, End, Size);
extern int64_t annot_tf_range(void *);
extern int annot_tf_close_all(void);
extern void annot_tf_rewrite(Rewrite, void *(*)(void));
extern void TF_InitGraph(OptimizerRegistration *, void *);

static Create create_kernel;
static Compute compute_kernel;
static Delete delete_kernel;

typedef struct {
    int64_t values[64];
    int count, fails;
} List;

typedef struct {
    List close, open;
} Construction;

typedef struct {
    int64_t step;
    int32_t shape[4];
    int rank, inputs;
} Context;

typedef struct {
    int code;
} Status;

EXPORT void *TF_NewStatus(void) { return calloc(1, sizeof(Status)); }
EXPORT void TF_DeleteStatus(void *status) { free(status); }
EXPORT int TF_GetCode(const void *status) { return ((const Status *)status)->code; }
EXPORT void TF_SetStatus(void *status, int code, const char *text) { (void)text, ((Status *)status)->code = code; }
EXPORT void *TF_NewOpDefinitionBuilder(const char *name) {
    (void)name;
    return malloc(1);
}
EXPORT void TF_OpDefinitionBuilderAddAttr(void *builder, const char *text) { (void)builder, (void)text; }
EXPORT void TF_OpDefinitionBuilderAddInput(void *builder, const char *text) { (void)builder, (void)text; }
EXPORT void TF_OpDefinitionBuilderSetIsStateful(void *builder, _Bool on) { (void)builder, (void)on; }
EXPORT void TF_RegisterOpDefinition(void *builder, void *status) { (void)status, free(builder); }
EXPORT void *TF_NewKernelBuilder(const char *name, const char *device, Create a, Compute b, Delete c) {
    (void)name, (void)device;
    create_kernel = a, compute_kernel = b, delete_kernel = c;
    return malloc(1);
}
EXPORT void TF_KernelBuilder_HostMemory(void *builder, const char *name) { (void)builder, (void)name; }
EXPORT void TF_RegisterKernelBuilder(const char *name, void *builder, void *status) {
    (void)name, (void)status, free(builder);
}
static List *list_of(void *construction, const char *name) {
    Construction *one = construction;
    return name[0] == 'c' ? &one->close : &one->open;
}
EXPORT void TF_OpKernelConstruction_GetAttrSize(void *construction, const char *name, int32_t *items, int32_t *size,
                                                void *status) {
    List *list = list_of(construction, name);
    *items = list->count, *size = -1, ((Status *)status)->code = list->fails;
}
EXPORT void TF_OpKernelConstruction_GetAttrInt64List(void *construction, const char *name, int64_t *values, int most,
                                                     void *status) {
    (void)status;
    memcpy(values, list_of(construction, name)->values, (size_t)most * sizeof *values);
}
EXPORT void TF_GetInput(void *context, int i, void **tensor, void *status) {
    Context *one = context;
    ((Status *)status)->code = i < 0 || i >= one->inputs ? 3 : 0;
    *tensor = ((Status *)status)->code ? NULL : one;
}
EXPORT int64_t TF_StepId(void *context) { return ((Context *)context)->step; }
EXPORT uint64_t TF_GetFrameId(void *context) {
    (void)context;
    return 0;
}
EXPORT int64_t TF_GetIterId(void *context) {
    (void)context;
    return 0;
}
EXPORT void *TF_TensorData(const void *tensor) { return ((Context *)tensor)->shape; }
EXPORT size_t TF_TensorByteSize(const void *tensor) {
    return (size_t)((const Context *)tensor)->rank * sizeof(int32_t);
}
EXPORT void TF_DeleteTensor(void *tensor) { (void)tensor; }

static int started, ended, event;
static volatile int forks, finished;

static uint32_t start(void *of, uint64_t *id) {
    (void)of;
    *id = 7;
    __sync_fetch_and_add(&started, 1);
    return 1;
}
static void end(void *of, uint32_t generation, uint64_t id) {
    (void)of, (void)generation, (void)id;
    __sync_fetch_and_add(&ended, 1);
}
static void *sized(void *of, const int32_t *numbers, int count) {
    (void)numbers, (void)count;
    return of;
}
static size_t rewrite(void *optimizer, const void *graph, size_t length, const void *item, void **result) {
    (void)optimizer, (void)item;
    if (!graph || length < 3)
        return 0;
    *result = malloc(length);
    memcpy(*result, graph, length);
    return length;
}
static void *python_thread(void) { return &event; }

static void *steps(void *arguments) {
    void **kernels = arguments;
    unsigned seed = (unsigned)(uintptr_t)&arguments;
    for (int step = 0; forks ? !finished : step < 2000; step++) {
        Context context = {.step = (int64_t)(uintptr_t)&arguments + step, .rank = rand_r(&seed) % 5, .inputs = 2};
        for (int i = 0; i < 4; i++)
            context.shape[i] = rand_r(&seed) % 90;
        for (int i = 0; i < 8; i++)
            compute_kernel(kernels[i], &context);
        if (step % 500 == 0)
            annot_tf_close_all();
    }
    return NULL;
}

/* Forks while threads run graphs. Each child closes ranges, runs a graph, makes and deletes a kernel, as a program may
 * that leaves its block of ranges. Returns the number of children that did not end by themselves. */
static int fork_again_and_again(int times, void **kernels) {
    int stuck = 0;
    for (; times && stuck < 2; times--) {
        int status;
        pid_t child = fork();
        if (!child) {
            Context context = {.step = -times, .inputs = 2};
            Construction made = {.close.count = 1};
            alarm(20);
            started = ended = 0;
            annot_tf_close_all();
            for (int i = 0; i < 8; i++)
                compute_kernel(kernels[i], &context);
            made.close.values[0] = annot_tf_range(&event);
            delete_kernel(create_kernel(&made));
            annot_tf_close_all();
            _exit(!started || started != ended);
        }
        waitpid(child, &status, 0);
        stuck += status != 0;
    }
    return stuck;
}

int main(int count, char **arguments) {
    void *here = dlopen(NULL, RTLD_NOW);
    forks = count > 1;
    if (annot_tf_register(here, start, end, sized))
        return 2;
    void *kernels[8];
    int64_t first = annot_tf_range(&event);
    for (int i = 1; i < 4; i++)
        annot_tf_range(&event);
    for (int i = 0; i < 8; i++) {
        Construction made = {0};
        made.open.count = i == 6 ? 5 : 6; /* five numbers are no two ranges */
        for (int j = 0; j < made.open.count; j++)
            made.open.values[j] = j % 3 == 0 ? first + (i + j) % 5 : i == 5 ? -1 - j : j % 3; /* one is unknown */
        made.close.count = i == 7 ? -4 : 2, made.close.fails = i == 4 ? 3 : 0;
        made.close.values[0] = first + i % 4, made.close.values[1] = INT64_MIN + i;
        kernels[i] = create_kernel(&made);
    }
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, steps, kernels);
    int stuck = count > 1 ? fork_again_and_again(atoi(arguments[1]), kernels) : 0;
    finished = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 8; i++)
        delete_kernel(kernels[i]);
    delete_kernel(NULL);
    size_t configs[16];
    Optimizer optimizer;
    OptimizerRegistration registration = {.optimizer = &optimizer, .optimizer_configs = configs};
    Status status = {0};
    TF_InitGraph(&registration, &status);
    for (int round = 0; round < 3; round++) {
        annot_tf_rewrite(round == 1 ? rewrite : NULL, round ? python_thread : NULL);
        void *made = optimizer.create_func();
        for (size_t length = 0; length < 9; length += 4) {
            Buffer graph = {"abcdefgh", length, NULL}, out = {0};
            optimizer.optimize_func(made, &graph, NULL, &out, &status);
            if (status.code || out.length != length || memcmp(out.data, graph.data, length))
                return 3;
            if (out.data_deallocator)
                out.data_deallocator((void *)out.data, out.length);
        }
        optimizer.destroy_func(made);
    }
    printf("%d %d\n", started, ended);
    return stuck || started == 0 || started != ended;
}
