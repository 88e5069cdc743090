/* TensorFlow operations that open and close NVTX ranges, against TensorFlow's C kernel API.
 *
 * A plain shared library: it needs neither TensorFlow nor Python nor NVTX to be built. Python hands over where
 * TensorFlow's functions are to be found and which functions open and close a range (annot/tf/library.py), so one
 * binary serves TensorFlow 2.12 to 2.21. annot/tf/by_ctypes.py is the Python twin.
 *
 * AnnotStart and AnnotEnd pass up to one tensor through, AnnotGate always one: every tensor that is on its way to a
 * gradient has an operation of its own, because TensorFlow makes up zeros for the missing gradients of an operation
 * with several outputs. These are pure on purpose: a stateful one would keep alive what nobody asks for. AnnotEnter and
 * AnnotLeave are stateful on purpose: they stand beside reads of data sets and assignments, which run anyway. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { TF_INT32 = 3, TF_STRING = 7 }; /* tensorflow/c/tf_datatype.h */

typedef void (*Shape)(void *context, void *status);
typedef void *(*Create)(void *construction);
typedef void (*Compute)(void *kernel, void *context);
typedef void (*Delete)(void *kernel);

/* ---------------------------------------------------------------- what TensorFlow offers, found at run time */

/* From tensorflow/c/kernels.h, ops.h, tf_status.h and tf_tensor.h, with every handle as void *. */
#define FUNCTIONS(X)                                                                                        \
    X(void *, TF_NewStatus, (void))                                                                         \
    X(void, TF_DeleteStatus, (void *))                                                                      \
    X(int, TF_GetCode, (const void *))                                                                      \
    X(void *, TF_NewOpDefinitionBuilder, (const char *))                                                    \
    X(void, TF_OpDefinitionBuilderAddAttr, (void *, const char *))                                          \
    X(void, TF_OpDefinitionBuilderAddInput, (void *, const char *))                                         \
    X(void, TF_OpDefinitionBuilderAddOutput, (void *, const char *))                                        \
    X(void, TF_OpDefinitionBuilderSetIsStateful, (void *, _Bool))                                           \
    X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (void *, Shape))                               \
    X(void, TF_RegisterOpDefinition, (void *, void *))                                                      \
    X(int64_t, TF_ShapeInferenceContextNumInputs, (void *))                                                 \
    X(void *, TF_NewShapeHandle, (void))                                                                    \
    X(void, TF_DeleteShapeHandle, (void *))                                                                 \
    X(void *, TF_ShapeInferenceContextScalar, (void *))                                                     \
    X(void, TF_ShapeInferenceContextGetInput, (void *, int, void *, void *))                                \
    X(void, TF_ShapeInferenceContextSetOutput, (void *, int, void *, void *))                               \
    X(void *, TF_NewKernelBuilder, (const char *, const char *, Create, Compute, Delete))                   \
    X(void, TF_KernelBuilder_TypeConstraint, (void *, const char *, int, void *))                           \
    X(void, TF_KernelBuilder_HostMemory, (void *, const char *))                                            \
    X(void, TF_KernelBuilder_Priority, (void *, int32_t))                                                   \
    X(void, TF_RegisterKernelBuilder, (const char *, void *, void *))                                       \
    X(void, TF_OpKernelConstruction_GetAttrSize, (void *, const char *, int32_t *, int32_t *, void *))      \
    X(void, TF_OpKernelConstruction_GetAttrString, (void *, const char *, char *, size_t, void *))          \
    X(void, TF_OpKernelConstruction_GetAttrInt32, (void *, const char *, int32_t *, void *))                \
    X(int, TF_NumInputs, (void *))                                                                          \
    X(int, TF_NumOutputs, (void *))                                                                         \
    X(void, TF_GetInput, (void *, int, void **, void *))                                                    \
    X(void, TF_SetOutput, (void *, int, const void *, void *))                                              \
    X(void *, TF_AllocateTensor, (int, const int64_t *, int, size_t))                                       \
    X(void *, TF_TensorData, (const void *))                                                                \
    X(size_t, TF_TensorByteSize, (const void *))                                                            \
    X(void, TF_DeleteTensor, (void *))                                                                      \
    X(void, TF_OpKernelContext_Failure, (void *, void *))

#define DECLARE(result, name, arguments) static result(*name) arguments;
FUNCTIONS(DECLARE)

/* Returns the name of a function that is missing, or NULL. */
static const char *find_functions(void *library) {
#define FIND(result, name, arguments)                      \
    *(void **)&name = dlsym(library, #name);               \
    if (!name)                                             \
        return #name;
    FUNCTIONS(FIND)
    return NULL;
}

/* ---------------------------------------------------------------- open ranges */

/* Opens the range of an event; returns the generation of the tool that saw it (0: none did), and what the tool calls
 * the range in `id`. Both functions are called from TensorFlow's threads. */
typedef uint32_t (*StartRange)(void *event, uint64_t *id);
typedef void (*EndRange)(void *event, uint32_t generation, uint64_t id);

static StartRange start_range;
static EndRange end_range;

/* A slot holds one open range. A token is the number of a slot, from 1 on, or 0 for none, as a tensor that is made once
 * and given to TensorFlow for each range of the slot. Tokens are of type int32, because those stay in the host's memory
 * also where they leave a function that runs on a GPU. */
typedef struct {
    void *event; /* NULL: no range is open */
    uint64_t id;
    uint32_t generation;
    uint32_t next_free; /* number of a slot */
    void *token;
} Slot;

enum { MAX_SLOTS = 1 << 20 };

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static Slot *slots = NULL;
static uint32_t slot_count = 0, slot_capacity = 0, first_free = 0;
static void *no_range = NULL; /* the token 0 */

static void *new_token(int32_t number) {
    void *tensor = TF_AllocateTensor(TF_INT32, NULL, 0, sizeof number);
    if (tensor)
        memcpy(TF_TensorData(tensor), &number, sizeof number);
    return tensor;
}

static Slot *new_slot(void) {
    if (first_free) {
        Slot *slot = &slots[first_free - 1];
        first_free = slot->next_free;
        return slot;
    }
    if (slot_count == MAX_SLOTS)
        return NULL;
    if (slot_count == slot_capacity) {
        uint32_t capacity = slot_capacity ? 2 * slot_capacity : 256;
        Slot *grown = realloc(slots, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        slots = grown;
        slot_capacity = capacity;
    }
    void *token = new_token((int32_t)slot_count + 1);
    if (!token)
        return NULL;
    slots[slot_count] = (Slot){.token = token};
    return &slots[slot_count++];
}

/* Returns the token of the range, which the slot keeps. */
static void *open_range(void *event) {
    uint64_t id = 0;
    uint32_t generation = event ? start_range(event, &id) : 0;
    if (!generation)
        return no_range;
    pthread_mutex_lock(&slots_lock);
    Slot *slot = new_slot();
    void *token = slot ? slot->token : no_range;
    if (slot)
        slot->event = event, slot->id = id, slot->generation = generation;
    pthread_mutex_unlock(&slots_lock);
    if (!slot)
        end_range(event, generation, id);
    return token;
}

/* Closes the range in a slot; returns whether there was one. Where the operation that would have closed it may still
 * run, the slot must not be used again. */
static int close_slot(uint32_t number, int use_again) {
    Slot slot = {0};
    pthread_mutex_lock(&slots_lock);
    if (number && number <= slot_count && slots[number - 1].event) {
        slot = slots[number - 1];
        slots[number - 1].event = NULL;
        if (use_again) {
            slots[number - 1].next_free = first_free;
            first_free = number;
        }
    }
    pthread_mutex_unlock(&slots_lock);
    if (slot.event)
        end_range(slot.event, slot.generation, slot.id);
    return slot.event != NULL;
}

EXPORT int annot_tf_close_all(void) {
    pthread_mutex_lock(&slots_lock);
    uint32_t count = slot_count;
    pthread_mutex_unlock(&slots_lock);
    int closed = 0;
    for (uint32_t number = 1; number <= count; number++)
        closed += close_slot(number, 0);
    return closed;
}

/* ---------------------------------------------------------------- the texts that this process knows */

typedef struct {
    char *key;
    void *event;
} Known;

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static Known *known = NULL; /* open addressing */
static size_t known_count = 0, known_capacity = 0;

static Known *find_known(Known *table, size_t capacity, const char *key) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *at = key; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    size_t place = hash & (capacity - 1);
    while (table[place].key && strcmp(table[place].key, key) != 0)
        place = (place + 1) & (capacity - 1);
    return &table[place];
}

static int grow_known(void) {
    size_t capacity = known_capacity ? 2 * known_capacity : 1024;
    Known *grown = calloc(capacity, sizeof *grown);
    if (!grown)
        return 0;
    for (size_t i = 0; i < known_capacity; i++)
        if (known[i].key)
            *find_known(grown, capacity, known[i].key) = known[i];
    free(known);
    known = grown;
    known_capacity = capacity;
    return 1;
}

/* Tells which event the attribute `event` of an operation stands for; the event must stay alive. */
EXPORT int annot_tf_know(const char *key, void *event) {
    int done = 0;
    pthread_mutex_lock(&known_lock);
    if (2 * known_count < known_capacity || grow_known()) {
        Known *place = find_known(known, known_capacity, key);
        if (!place->key && (place->key = strdup(key)))
            known_count++;
        if (place->key)
            place->event = event, done = 1;
    }
    pthread_mutex_unlock(&known_lock);
    return done;
}

static void *event_of(const char *key) {
    pthread_mutex_lock(&known_lock);
    void *event = known_capacity ? find_known(known, known_capacity, key)->event : NULL;
    pthread_mutex_unlock(&known_lock);
    return event;
}

/* ---------------------------------------------------------------- texts whose sizes are known while the graph runs */

enum { MAX_SIZED = 64, MAX_NUMBERS = 64 };

/* The event of a text for one set of shapes. */
typedef struct {
    void *event;
    int count;
    int32_t numbers[]; /* of each shape its rank, then its sizes */
} Sized;

/* The kernel of AnnotStart and AnnotEnter; there is none where another process made the graph: then it opens nothing. */
typedef struct {
    void *event;
    int32_t shapes; /* how many inputs, the last ones, are shapes that the text of `event` leaves open */
    pthread_mutex_t lock;
    int count;
    Sized *sized[MAX_SIZED]; /* the one that was used last comes first */
} Start;

/* Returns the event for these shapes, which stays alive; called on TensorFlow's threads, it takes the GIL. */
typedef void *(*Size)(void *event, const int32_t *numbers, int count);

static Size size_event;

/* Reads the shapes as `Sized` holds them; returns how many numbers, or 0 if they cannot be had. */
static int read_shapes(int shapes, void *context, int32_t *numbers, void *status) {
    int count = 0, inputs = TF_NumInputs(context);
    for (int i = inputs - shapes; i < inputs; i++) {
        void *tensor = NULL;
        TF_GetInput(context, i, &tensor, status);
        int rank = tensor ? (int)(TF_TensorByteSize(tensor) / sizeof *numbers) : MAX_NUMBERS;
        int fits = count + 1 + rank <= MAX_NUMBERS;
        if (fits) {
            numbers[count] = rank;
            memcpy(&numbers[count + 1], TF_TensorData(tensor), (size_t)rank * sizeof *numbers);
            count += 1 + rank;
        }
        if (tensor)
            TF_DeleteTensor(tensor);
        if (!fits)
            return 0;
    }
    return count;
}

/* Returns the event for these shapes, or NULL if they are new; `full` tells whether there is no room for more. */
static void *find_sized(Start *start, const int32_t *numbers, int count, int *full) {
    void *event = NULL;
    pthread_mutex_lock(&start->lock);
    for (int i = 0; i < start->count && !event; i++) {
        Sized *one = start->sized[i];
        if (one->count == count && memcmp(one->numbers, numbers, (size_t)count * sizeof *numbers) == 0) {
            event = one->event;
            start->sized[i] = start->sized[0];
            start->sized[0] = one;
        }
    }
    *full = start->count == MAX_SIZED;
    pthread_mutex_unlock(&start->lock);
    return event;
}

static void keep_sized(Start *start, const int32_t *numbers, int count, void *event) {
    Sized *made = malloc(sizeof *made + (size_t)count * sizeof *numbers);
    if (!made)
        return;
    made->event = event, made->count = count;
    memcpy(made->numbers, numbers, (size_t)count * sizeof *numbers);
    pthread_mutex_lock(&start->lock);
    if (start->count < MAX_SIZED)
        start->sized[start->count++] = made, made = NULL;
    pthread_mutex_unlock(&start->lock);
    free(made);
}

static void *event_to_open(Start *start, void *context, void *status) {
    if (!start || !start->shapes)
        return start ? start->event : NULL;
    int32_t numbers[MAX_NUMBERS];
    int full, count = read_shapes(start->shapes, context, numbers, status);
    if (!count)
        return start->event;
    void *event = find_sized(start, numbers, count, &full);
    if (event || full)
        return event ? event : start->event;
    event = size_event(start->event, numbers, count); /* with no lock held, since it waits for the GIL */
    keep_sized(start, numbers, count, event);
    return event;
}

/* ---------------------------------------------------------------- kernels */

static void *create_start(void *construction) {
    void *status = TF_NewStatus();
    int32_t items = 0, size = 0, shapes = 0;
    void *event = NULL;
    TF_OpKernelConstruction_GetAttrSize(construction, "event", &items, &size, status);
    char *key = TF_GetCode(status) == 0 && size >= 0 ? calloc((size_t)size + 1, 1) : NULL;
    if (key) {
        TF_OpKernelConstruction_GetAttrString(construction, "event", key, (size_t)size, status);
        if (TF_GetCode(status) == 0)
            event = event_of(key);
        free(key);
    }
    TF_OpKernelConstruction_GetAttrInt32(construction, "S", &shapes, status);
    Start *start = event ? calloc(1, sizeof *start) : NULL;
    if (start) {
        pthread_mutex_init(&start->lock, NULL);
        start->event = event;
        start->shapes = TF_GetCode(status) == 0 ? shapes : 0; /* AnnotEnter has none */
    }
    TF_DeleteStatus(status);
    return start;
}

static void delete_start(void *kernel) {
    Start *start = kernel;
    if (!start)
        return;
    for (int i = 0; i < start->count; i++)
        free(start->sized[i]);
    pthread_mutex_destroy(&start->lock);
    free(start);
}

static void pass_through(void *context, int input, int output, void *status) {
    void *tensor = NULL;
    TF_GetInput(context, input, &tensor, status);
    if (TF_GetCode(status) == 0)
        TF_SetOutput(context, output, tensor, status);
    if (tensor)
        TF_DeleteTensor(tensor);
}

/* The status of this thread, kept from one kernel to the next while all is well; it goes with the process. */
static _Thread_local void *kept_status = NULL;

static void *own_status(void) {
    if (!kept_status)
        kept_status = TF_NewStatus();
    return kept_status;
}

static void fail_if_bad(void *context, void *status) {
    if (TF_GetCode(status) == 0)
        return;
    TF_OpKernelContext_Failure(context, status);
    TF_DeleteStatus(status);
    kept_status = NULL;
}

static void compute_start(void *kernel, void *context) {
    void *status = own_status();
    int tensors = TF_NumOutputs(context) - 1;
    for (int i = 0; i < tensors && TF_GetCode(status) == 0; i++)
        pass_through(context, i, i + 1, status);
    void *event = event_to_open(kernel, context, status);
    if (TF_GetCode(status) == 0)
        TF_SetOutput(context, 0, open_range(event), status);
    fail_if_bad(context, status);
}

/* `done` is the token, whose value says nothing there: a new tensor would cost an allocation. */
static void compute_end(void *kernel, void *context) {
    (void)kernel;
    void *status = own_status(), *token = NULL;
    int tensors = TF_NumOutputs(context) - 1;
    TF_GetInput(context, tensors, &token, status);
    if (token) {
        int32_t number;
        memcpy(&number, TF_TensorData(token), sizeof number);
        close_slot((uint32_t)number, 1);
        TF_SetOutput(context, 0, token, status);
        TF_DeleteTensor(token);
    }
    for (int i = 0; i < tensors && TF_GetCode(status) == 0; i++)
        pass_through(context, i, i + 1, status);
    fail_if_bad(context, status);
}

static void compute_gate(void *kernel, void *context) {
    (void)kernel;
    void *status = own_status();
    pass_through(context, 0, 0, status);
    fail_if_bad(context, status);
}

/* ---------------------------------------------------------------- registration */

/* Output `first + i` has the shape of input i. How many tensors pass through cannot be asked here, so trailing inputs
 * end the loop: there is no output for them. */
static void follow_inputs(void *context, int first, void *status) {
    void *shape = TF_NewShapeHandle(), *beyond = TF_NewStatus();
    int64_t inputs = TF_ShapeInferenceContextNumInputs(context);
    for (int i = 0; i < inputs && TF_GetCode(status) == 0 && TF_GetCode(beyond) == 0; i++) {
        TF_ShapeInferenceContextGetInput(context, i, shape, status);
        if (TF_GetCode(status) == 0)
            TF_ShapeInferenceContextSetOutput(context, first + i, shape, beyond);
    }
    TF_DeleteStatus(beyond);
    TF_DeleteShapeHandle(shape);
}

static void shapes_after_token(void *context, void *status) {
    void *scalar = TF_ShapeInferenceContextScalar(context);
    TF_ShapeInferenceContextSetOutput(context, 0, scalar, status);
    TF_DeleteShapeHandle(scalar);
    follow_inputs(context, 1, status);
}

static void shapes_of_gate(void *context, void *status) { follow_inputs(context, 0, status); }

typedef struct {
    const char *name;
    const char *attributes[7], *inputs[4], *outputs[3];
    const char *host[4];   /* arguments in host memory */
    const char *follow[3]; /* arguments of type T */
    Shape shapes;
    Create create;
    Compute compute;
    int stateful; /* runs though nothing needs its outputs, in the order of what works on the same resource */
} Operation;

static const Operation operations[] = {
    {"AnnotStart",
     {"event: string", "group: int = 0", "N: int >= 0", "T: type = DT_FLOAT", "A: int >= 0", "S: int >= 0"},
     {"tensors: N * T", "after: A * int32", "shapes: S * int32"},
     {"token: int32", "outputs: N * T"},
     {"after", "shapes", "token"},
     {"tensors", "outputs"},
     shapes_after_token, create_start, compute_start},
    {"AnnotEnd",
     {"grad_event: string = ''", "group: int = 0", "N: int >= 0", "T: type = DT_FLOAT", "D: list(type) >= 0"},
     {"tensors: N * T", "token: int32", "deps: D"},
     {"done: int32", "outputs: N * T"},
     {"token", "done"},
     {"tensors", "outputs"},
     shapes_after_token, NULL, compute_end},
    {"AnnotGate",
     {"grad_event: string = ''", "group: int = 0", "role: string = ''", "T: type"},
     {"tensor: T", "token: int32"},
     {"output: T"},
     {"token"},
     {"tensor", "output"},
     shapes_of_gate, NULL, compute_gate},
    {"AnnotEnter",
     {"event: string", "D: list(type) >= 0"},
     {"deps: D"},
     {"token: int32"},
     {"token"},
     {NULL},
     shapes_after_token, create_start, compute_start, 1},
    {"AnnotLeave",
     {"D: list(type) >= 0"},
     {"token: int32", "deps: D"},
     {"done: int32"},
     {"token", "done"},
     {NULL},
     shapes_after_token, NULL, compute_end, 1},
};

static int define(const Operation *operation, void *status) {
    void *builder = TF_NewOpDefinitionBuilder(operation->name);
    for (const char *const *spec = operation->attributes; *spec; spec++)
        TF_OpDefinitionBuilderAddAttr(builder, *spec);
    for (const char *const *spec = operation->inputs; *spec; spec++)
        TF_OpDefinitionBuilderAddInput(builder, *spec);
    for (const char *const *spec = operation->outputs; *spec; spec++)
        TF_OpDefinitionBuilderAddOutput(builder, *spec);
    if (operation->stateful)
        TF_OpDefinitionBuilderSetIsStateful(builder, 1); /* which sets the flag whatever it is given */
    TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, operation->shapes);
    TF_RegisterOpDefinition(builder, status);
    return TF_GetCode(status) == 0;
}

/* `host_type`: 0, or the type of tensors that live in host memory on every device. */
static int add_kernel(const Operation *operation, const char *device, int host_type, void *status) {
    void *builder = TF_NewKernelBuilder(operation->name, device, operation->create, operation->compute,
                                        operation->create ? delete_start : NULL);
    for (const char *const *name = operation->host; *name; name++)
        TF_KernelBuilder_HostMemory(builder, *name);
    if (host_type) {
        TF_KernelBuilder_TypeConstraint(builder, "T", host_type, status);
        TF_KernelBuilder_Priority(builder, 1);
        for (const char *const *name = operation->follow; *name; name++)
            TF_KernelBuilder_HostMemory(builder, *name);
    }
    TF_RegisterKernelBuilder(operation->name, builder, status);
    return TF_GetCode(status) == 0;
}

/* Registers the operations with the TensorFlow whose C API `library` (a handle of dlopen) holds.
 * Returns NULL, or what is missing there. */
EXPORT const char *annot_tf_register(void *library, StartRange start, EndRange end, Size size) {
    const char *missing = find_functions(library);
    if (missing)
        return missing;
    start_range = start;
    end_range = end;
    size_event = size;
    no_range = new_token(0);
    void *status = TF_NewStatus();
    const char *refused = NULL;
    for (size_t i = 0; i < sizeof operations / sizeof *operations && !refused; i++) {
        const Operation *one = &operations[i];
        if (!define(one, status) || !add_kernel(one, "CPU", 0, status) || !add_kernel(one, "GPU", 0, status) ||
            (*one->follow && (!add_kernel(one, "GPU", TF_INT32, status) || !add_kernel(one, "GPU", TF_STRING, status))))
            refused = one->name;
    }
    TF_DeleteStatus(status);
    return refused;
}
