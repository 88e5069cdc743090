/* The smallest NVTX tool: it counts pushes and depth per thread, and what starts and ends anywhere, and writes nothing.
 *
 * With it attached, what a range costs is the cost of whoever emits it. */
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#define EXPORT __attribute__((visibility("default")))

static __thread int depth;
static __thread long pushes;
static char handle;

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes) {
    (void)domain, (void)attributes;
    pushes++;
    return depth++;
}

static int pop(nvtxDomainHandle_t domain) {
    (void)domain;
    return --depth;
}

static long starts, ends;

static nvtxRangeId_t start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes) {
    (void)domain, (void)attributes;
    return (nvtxRangeId_t)__atomic_add_fetch(&starts, 1, __ATOMIC_RELAXED);
}

static void end(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
    (void)domain, (void)range;
    __atomic_add_fetch(&ends, 1, __ATOMIC_RELAXED);
}

static void *make_handle(void) { return &handle; }

EXPORT long null_tool_pushes(void) { return pushes; }

EXPORT int null_tool_depth(void) { return depth; }

EXPORT long null_tool_starts(void) { return starts; }

EXPORT long null_tool_started(void) { return starts - ends; }

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
        return 0;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start;
    *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)make_handle;
    *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)make_handle;
    return 1;
}
