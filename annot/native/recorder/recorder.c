/* Recorder: an NVTX tool that writes the ranges, marks and names of a process to a file.
 *
 * The NVTX library loads it through NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2 once. If ANNOT_RECORD_DIR
 * is set, this call starts the recording. Otherwise annot_recorder_start and annot_recorder_stop start and stop it.
 * Names are collected at all times. Handles are numbers, not pointers, so that a stale handle reads no memory. */
#define _GNU_SOURCE
#define NVTX_NO_IMPL
#include "names.h"
#include "thread.h"

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- names ---- */

__attribute__((noinline)) static uint32_t text_length(const char *text) {
    uint32_t length = (uint32_t)strnlen(text, MAX_TEXT + 1);
    if (length > MAX_TEXT) /* do not cut a UTF-8 character */
        for (length = MAX_TEXT; length > MAX_TEXT - 4 && (text[length] & 0xC0) == 0x80; length--)
            ;
    return length;
}

static char *narrow(const wchar_t *wide) {
    size_t length = wide ? wcslen(wide) : 0;
    char *text = wide ? malloc(4 * length + 1) : NULL, *to = text;
    for (size_t i = 0; text && i < length; i++) {
        uint32_t c = (uint32_t)wide[i] > 0x10FFFF ? 0xFFFD : (uint32_t)wide[i];
        int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        static const uint8_t lead[] = {0, 0xC0, 0xE0, 0xF0};
        *to++ = (char)(lead[more] | c >> 6 * more);
        while (more--)
            *to++ = (char)(0x80 | (c >> 6 * more & 0x3F));
    }
    if (text)
        *to = 0;
    return text;
}

static uint32_t add(enum kind kind, uint32_t domain, uint32_t number, int32_t thread_id, const char *text) {
    if (is_copy() && !adopt_process())
        return 0;
    if (!text)
        text = "";
    uint32_t length = text_length(text);
    pthread_mutex_lock(&mutex);
    uint32_t id = define(kind, domain, number, thread_id, text, length);
    pthread_mutex_unlock(&mutex);
    return id;
}

static uint32_t add_wide(enum kind kind, uint32_t domain, uint32_t number, int32_t thread_id, const wchar_t *wide) {
    char *text = narrow(wide);
    uint32_t id = add(kind, domain, number, thread_id, text);
    free(text);
    return id;
}

static uint32_t domain_id(nvtxDomainHandle_t domain) {
    uintptr_t id = (uintptr_t)domain;
    return id <= MAX_DOMAIN ? (uint32_t)id : 0;
}

static int32_t thread_id(void) {
    thread *t = self();
    return t ? t->id : 0;
}

static nvtxDomainHandle_t create_domain(const char *name) {
    static uint32_t seen;
    if (is_copy() && !adopt_process())
        return NULL;
    int32_t creator = thread_id();
    if (!name)
        name = "";
    uint32_t length = text_length(name);
    pthread_mutex_lock(&mutex);
    uint32_t id = find_domain(name, length);
    if (!id && seen < MAX_DOMAIN && define(DOMAIN_NAME, seen + 1, 0, creator, name, length))
        id = ++seen;
    pthread_mutex_unlock(&mutex);
    return (nvtxDomainHandle_t)(uintptr_t)id;
}

static nvtxDomainHandle_t create_domain_w(const wchar_t *name) {
    char *text = narrow(name);
    nvtxDomainHandle_t domain = create_domain(text);
    free(text);
    return domain;
}

static void destroy_domain(nvtxDomainHandle_t domain) { add(DOMAIN_END, domain_id(domain), 0, thread_id(), NULL); }

static nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char *text) {
    return (nvtxStringHandle_t)(uintptr_t)add(STRING, domain_id(domain), 0, 0, text);
}

static nvtxStringHandle_t register_string_w(nvtxDomainHandle_t domain, const wchar_t *wide) {
    return (nvtxStringHandle_t)(uintptr_t)add_wide(STRING, domain_id(domain), 0, 0, wide);
}

static void name_domain_category(nvtxDomainHandle_t domain, uint32_t category, const char *name) {
    add(CATEGORY, domain_id(domain), category, thread_id(), name);
}

static void name_domain_category_w(nvtxDomainHandle_t domain, uint32_t category, const wchar_t *wide) {
    add_wide(CATEGORY, domain_id(domain), category, thread_id(), wide);
}

static void name_category(uint32_t category, const char *name) { name_domain_category(NULL, category, name); }

static void name_category_w(uint32_t category, const wchar_t *name) { name_domain_category_w(NULL, category, name); }

static void name_thread(uint32_t id, const char *name) { add(THREAD_NAME, 0, 0, (int32_t)id, name); }

static void name_thread_w(uint32_t id, const wchar_t *wide) { add_wide(THREAD_NAME, 0, 0, (int32_t)id, wide); }

/* ---- ranges and marks ---- */

static uint64_t range_ids;

static int recording(void) { return active() || (is_copy() && adopt_process() && active()); }

static uint8_t payload_type(const nvtxEventAttributes_t *e) {
    return e->payloadType > 0 && e->payloadType <= NVTX_PAYLOAD_TYPE_FLOAT ? (uint8_t)e->payloadType : 0;
}

/* Reads the clock last, just before the record becomes visible, to keep the cost of recording out of the range. */
static inline void fill(thread *t, record *r, enum kind kind, uint32_t domain, const nvtxEventAttributes_t *e,
                        uint8_t flags) {
    r->flags = (uint8_t)(flags | (e->colorType == NVTX_COLOR_ARGB ? HAS_COLOR : 0));
    r->domain = (uint16_t)domain;
    r->category = e->category;
    r->color = e->color;
    r->time = now();
    finish(t, r, kind);
}

static uint32_t registered(const nvtxEventAttributes_t *e) {
    return e->messageType == NVTX_MESSAGE_TYPE_REGISTERED ? (uint32_t)(uintptr_t)e->message.registered : 0;
}

/* Events of several records: with an unregistered text, or with both a range id and a payload. */
__attribute__((noinline)) static void record_long(thread *t, enum kind kind, uint32_t domain,
                                                  const nvtxEventAttributes_t *e, uint64_t id) {
    char *made = e->messageType == NVTX_MESSAGE_TYPE_UNICODE ? narrow(e->message.unicode) : NULL;
    const char *text = e->messageType == NVTX_MESSAGE_TYPE_ASCII ? e->message.ascii : made;
    uint32_t length = text ? text_length(text) : 0;
    uint8_t flags = payload_type(e);
    uint32_t extra = id && flags;
    record *r = room(t, 1 + extra + text_records(length));
    if (r) {
        if (extra) {
            r[1].payload = e->payload.ullValue;
            publish(r + 1, EXTRA);
        }
        put_text(r + 1 + extra, text, length);
        r->text = text ? length : registered(e);
        r->payload = id ? id : e->payload.ullValue;
        fill(t, r, kind, domain, e, (uint8_t)(flags | (text ? HAS_TEXT : 0) | (extra ? HAS_EXTRA : 0)));
    }
    free(made);
}

static inline void record_event(thread *t, enum kind kind, uint32_t domain, const nvtxEventAttributes_t *e,
                                uint64_t id) {
    if (id || e->messageType != NVTX_MESSAGE_TYPE_REGISTERED) {
        record_long(t, kind, domain, e, id);
        return;
    }
    record *r = room(t, 1);
    if (!r)
        return;
    r->text = registered(e);
    r->payload = e->payload.ullValue;
    fill(t, r, kind, domain, e, payload_type(e));
}

static int push(nvtxDomainHandle_t handle, const nvtxEventAttributes_t *e) {
    uint32_t domain = domain_id(handle);
    thread *t = self();
    depth *d = t ? depth_of(t, domain) : NULL;
    if (!d)
        return NVTX_NO_PUSH_POP_TRACKING;
    if (recording())
        record_event(t, PUSH, domain, e, 0);
    return (int)d->level++;
}

static int pop(nvtxDomainHandle_t handle) {
    uint64_t time = recording() ? now() : 0;
    uint32_t domain = domain_id(handle);
    thread *t = self();
    depth *d = t ? depth_of(t, domain) : NULL;
    if (!d)
        return NVTX_NO_PUSH_POP_TRACKING;
    record *r = time ? room(t, 1) : NULL;
    int stray = d->level == 0;
    if (!stray && --d->level < d->floor)
        d->floor = d->level;
    if (r) {
        r->domain = (uint16_t)domain;
        r->time = time;
        finish(t, r, stray ? STRAY_POP : POP);
    }
    return stray ? NVTX_NO_PUSH_POP_TRACKING : (int)d->level;
}

static nvtxRangeId_t start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *e) {
    uint64_t id = __atomic_add_fetch(&range_ids, 1, __ATOMIC_RELAXED);
    thread *t = recording() ? self() : NULL;
    if (t)
        record_event(t, START, domain_id(domain), e, id);
    return id;
}

static void end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
    uint64_t time = now();
    thread *t = recording() ? self() : NULL;
    record *r = t ? room(t, 1) : NULL;
    if (r) {
        r->time = time;
        r->payload = id;
        finish(t, r, END);
    }
}

static void mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *e) {
    thread *t = recording() ? self() : NULL;
    if (t)
        record_event(t, MARK, domain_id(domain), e, 0);
}

static nvtxEventAttributes_t plain(const char *text) {
    return (nvtxEventAttributes_t){.messageType = NVTX_MESSAGE_TYPE_ASCII, .message.ascii = text};
}

static nvtxEventAttributes_t wide(const wchar_t *text) {
    return (nvtxEventAttributes_t){.messageType = NVTX_MESSAGE_TYPE_UNICODE, .message.unicode = text};
}

#define IN_DEFAULT_DOMAIN(type, name)                                                                                  \
    static type name##_ex(const nvtxEventAttributes_t *e) { return name(NULL, e); }                                    \
    static type name##_a(const char *s) {                                                                              \
        nvtxEventAttributes_t e = plain(s);                                                                            \
        return name(NULL, &e);                                                                                         \
    }                                                                                                                  \
    static type name##_w(const wchar_t *s) {                                                                           \
        nvtxEventAttributes_t e = wide(s);                                                                             \
        return name(NULL, &e);                                                                                         \
    }
IN_DEFAULT_DOMAIN(int, push)
IN_DEFAULT_DOMAIN(nvtxRangeId_t, start)
IN_DEFAULT_DOMAIN(void, mark)

static int pop_default(void) { return pop(NULL); }

static void end_default(nvtxRangeId_t id) { end(NULL, id); }

/* ---- entry points for NVTX and Python ---- */

typedef struct callback {
    unsigned id;
    NvtxFunctionPointer function;
} callback;
#define CALLBACK(module, name, function) {NVTX_CBID_##module##_##name, (NvtxFunctionPointer)function}

static const callback core[] = {
    CALLBACK(CORE, MarkEx, mark_ex),
    CALLBACK(CORE, MarkA, mark_a),
    CALLBACK(CORE, MarkW, mark_w),
    CALLBACK(CORE, RangeStartEx, start_ex),
    CALLBACK(CORE, RangeStartA, start_a),
    CALLBACK(CORE, RangeStartW, start_w),
    CALLBACK(CORE, RangeEnd, end_default),
    CALLBACK(CORE, RangePushEx, push_ex),
    CALLBACK(CORE, RangePushA, push_a),
    CALLBACK(CORE, RangePushW, push_w),
    CALLBACK(CORE, RangePop, pop_default),
    CALLBACK(CORE, NameCategoryA, name_category),
    CALLBACK(CORE, NameCategoryW, name_category_w),
    CALLBACK(CORE, NameOsThreadA, name_thread),
    CALLBACK(CORE, NameOsThreadW, name_thread_w),
};
static const callback core2[] = {
    CALLBACK(CORE2, DomainMarkEx, mark),
    CALLBACK(CORE2, DomainRangeStartEx, start),
    CALLBACK(CORE2, DomainRangeEnd, end),
    CALLBACK(CORE2, DomainRangePushEx, push),
    CALLBACK(CORE2, DomainRangePop, pop),
    CALLBACK(CORE2, DomainNameCategoryA, name_domain_category),
    CALLBACK(CORE2, DomainNameCategoryW, name_domain_category_w),
    CALLBACK(CORE2, DomainRegisterStringA, register_string),
    CALLBACK(CORE2, DomainRegisterStringW, register_string_w),
    CALLBACK(CORE2, DomainCreateA, create_domain),
    CALLBACK(CORE2, DomainCreateW, create_domain_w),
    CALLBACK(CORE2, DomainDestroy, destroy_domain),
};

static int fill_table(const NvtxExportTableCallbacks *client, NvtxCallbackModule module, const callback *callbacks,
                      size_t count) {
    NvtxFunctionTable table;
    unsigned size;
    if (!client->GetModuleFunctionTable(module, &table, &size))
        return 0;
    for (size_t i = 0; i < count; i++)
        if (callbacks[i].id < size && table[callbacks[i].id])
            *table[callbacks[i].id] = callbacks[i].function;
    return 1;
}

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
    const NvtxExportTableCallbacks *client = get_table(NVTX_ETID_CALLBACKS);
    if (!client)
        return 0;
    int filled = fill_table(client, NVTX_CB_MODULE_CORE, core, COUNT(core));
    filled |= fill_table(client, NVTX_CB_MODULE_CORE2, core2, COUNT(core2));
    const char *folder = secure_getenv("ANNOT_RECORD_DIR");
    if (filled && folder && *folder)
        start_session(folder, 0);
    return filled;
}

static uint8_t domain_is_enabled(nvtxDomainHandle_t domain) {
    return 1; /* clients ask once, and a recording may start later */
}

/* Clients compiled with some NVTX headers treat all domains as disabled unless a tool implements this. */
EXPORT int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module) {
    if (module->moduleId == NVTX_EXT_PAYLOAD_MODULEID && module->segmentsCount &&
        module->segments[0].slotCount > NVTX3EXT_CBID_nvtxDomainIsEnabled)
        module->segments[0].functionSlots[NVTX3EXT_CBID_nvtxDomainIsEnabled] = (intptr_t)domain_is_enabled;
    return 1;
}

/* Starts recording into `folder`. Returns 0 or an errno. */
EXPORT int annot_recorder_start(const char *folder) { return start_session(folder, 1); }

EXPORT void annot_recorder_stop(void) { stop_session(); }

/* Returns the number of start/end ranges so far, recorded or not. Shows whether the calls of a client arrive here. */
EXPORT uint32_t annot_recorder_starts(void) { return (uint32_t)__atomic_load_n(&range_ids, __ATOMIC_RELAXED); }

/* Returns the errno of the first failure of this recording, or 0. */
EXPORT int annot_recorder_error(void) {
    pthread_mutex_lock(&mutex);
    int error = first_error();
    pthread_mutex_unlock(&mutex);
    return error;
}

EXPORT int annot_recorder_active(void) { return is_recorded(); }
