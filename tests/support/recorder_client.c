/* A program that makes the NVTX calls that its arguments spell out, and prints what they return. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <locale.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char **at;
static nvtxDomainHandle_t domain;
static nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
static nvtxRangeId_t started[64];
static int starts;
static long ranges, rounds;
static int finished;

static char *word(void) { return *at ? *at++ : ""; }

static int is(const char *name) { return !strcmp(*at, name) && at++; }

static wchar_t *wide(const char *text) {
    wchar_t *result = calloc(strlen(text) + 1, sizeof *result);
    mbstowcs(result, text, strlen(text) + 1);
    return result;
}

static const nvtxEventAttributes_t *plain(void) {
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = word();
    return &event;
}

static const nvtxEventAttributes_t *spelt_wide(void) {
    event.messageType = NVTX_MESSAGE_TYPE_UNICODE;
    event.message.unicode = wide(word());
    return &event;
}

static const nvtxEventAttributes_t *registered(nvtxStringHandle_t text) {
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = text;
    return &event;
}

static void set_payload(void) {
    const char *type = word(), *value = word();
    event.payloadType = atoi(type);
    memset(&event.payload, 0xAB, sizeof event.payload);
    switch (event.payloadType) {
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT64:
        event.payload.ullValue = strtoull(value, NULL, 0);
        break;
    case NVTX_PAYLOAD_TYPE_INT64:
        event.payload.llValue = atoll(value);
        break;
    case NVTX_PAYLOAD_TYPE_DOUBLE:
        event.payload.dValue = atof(value);
        break;
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT32:
        event.payload.uiValue = (uint32_t)strtoul(value, NULL, 0);
        break;
    case NVTX_PAYLOAD_TYPE_INT32:
        event.payload.iValue = atoi(value);
        break;
    case NVTX_PAYLOAD_TYPE_FLOAT:
        event.payload.fValue = (float)atof(value);
        break;
    }
}

static void *end_elsewhere(void *number) {
    nvtxDomainRangeEnd(domain, started[(long)number]);
    return NULL;
}

static void *work(void *number) {
    char name[32], inner[32];
    snprintf(name, sizeof name, "thread %ld", (long)number);
    snprintf(inner, sizeof inner, "inner %ld", (long)number);
    nvtxEventAttributes_t e = event;
    e.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    e.message.registered = nvtxDomainRegisterStringA(domain, name);
    for (long i = 0; i < ranges; i++) {
        nvtxDomainRangePushEx(domain, &e);
        if (i % 2) {
            nvtxRangePushA(inner);
            nvtxRangePop();
        }
        nvtxDomainRangePop(domain);
    }
    return NULL;
}

static void run_threads(long count, int together) {
    pthread_t threads[512];
    for (long i = 0; i < count; i++) {
        pthread_create(&threads[i], NULL, work, (void *)i);
        if (!together)
            pthread_join(threads[i], NULL);
    }
    for (long i = 0; together && i < count; i++)
        pthread_join(threads[i], NULL);
}

static void call_recorder(const char *name, const char *folder) {
    void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_NOW);
    if (folder)
        printf("%d\n", ((int (*)(const char *))dlsym(library, name))(folder));
    else
        ((void (*)(void))dlsym(library, name))();
}

static void *work_on(void *number) {
    while (!__atomic_load_n(&finished, __ATOMIC_RELAXED)) {
        work(number);
        __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Starts and stops recording again and again while threads are making ranges. */
static void flap(const char *folder, int times) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work_on, (void *)i);
    for (; times; times--) {
        call_recorder("annot_recorder_start", folder);
        for (long before = __atomic_load_n(&rounds, __ATOMIC_RELAXED);
             __atomic_load_n(&rounds, __ATOMIC_RELAXED) < before + 20;)
            sched_yield();
        call_recorder("annot_recorder_stop", NULL);
    }
    __atomic_store_n(&finished, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* Forks while threads make ranges and names. Prints the number of children that did not end by themselves. */
static void fork_again_and_again(int times) {
    pthread_t threads[2];
    int stuck = 0;
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, work_on, (void *)i);
    for (; times && stuck < 2; times--) {
        pid_t child = fork();
        if (!child) {
            alarm(20);
            work((void *)7L);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        stuck += status != 0;
    }
    __atomic_store_n(&finished, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("%d\n", stuck);
}

/* From now on, the kernel refuses shared mappings, allocation of disk space, or the opening of files. */
static void refuse(const char *what) {
    int maps = !strcmp(what, "mmap");
    uint32_t call = maps ? SYS_mmap : !strcmp(what, "fallocate") ? SYS_fallocate : SYS_openat;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, maps ? MAP_SHARED : ~0u, 0, (uint8_t)maps),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        exit(77);
}

/* Uses all keys, each with a value. `check_keys` prints the number of values that others changed. */
static pthread_key_t first_key, keys;

static void use_keys(void) {
    for (pthread_key_t key; !pthread_key_create(&key, NULL); keys++) {
        first_key = keys ? first_key : key;
        pthread_setspecific(key, &keys);
    }
}

static void check_keys(void) {
    int changed = 0;
    for (pthread_key_t key = first_key; key < first_key + keys; key++)
        changed += pthread_getspecific(key) != &keys;
    printf("%d\n", changed);
}

static void say_and_wait(void) {
    puts("ready");
    fflush(stdout);
    getchar();
}

/* Without glibc's fork, as a sandbox makes a process: no handler of pthread_atfork runs. */
static long clone_process(void) { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static void run_in_child(long child) {
    if (child) {
        wait(NULL);
        while (*at && strcmp(*at++, "joined"))
            ;
    }
}

static void step(void) {
    if (is("domain"))
        domain = **at ? nvtxDomainCreateA(word()) : (word(), NULL);
    else if (is("domain-w"))
        domain = nvtxDomainCreateW(wide(word()));
    else if (is("destroy"))
        nvtxDomainDestroy(domain);
    else if (is("category"))
        event.category = (uint32_t)atoi(word());
    else if (is("color"))
        event.colorType = NVTX_COLOR_ARGB, event.color = (uint32_t)strtoul(word(), NULL, 16);
    else if (is("payload"))
        set_payload();
    else if (is("push"))
        printf("%d\n", nvtxDomainRangePushEx(domain, plain()));
    else if (is("push-wide"))
        printf("%d\n", nvtxDomainRangePushEx(domain, spelt_wide()));
    else if (is("push-registered"))
        printf("%d\n", nvtxDomainRangePushEx(domain, registered(nvtxDomainRegisterStringA(domain, word()))));
    else if (is("push-registered-w"))
        printf("%d\n", nvtxDomainRangePushEx(domain, registered(nvtxDomainRegisterStringW(domain, wide(word())))));
    else if (is("push-bad-handle"))
        printf("%d\n", nvtxDomainRangePushEx(domain, registered((void *)0x7fffffff0000)));
    else if (is("push-long")) {
        size_t length = (size_t)atol(word());
        char *text = malloc(length + 1);
        memset(text, 'x', length);
        text[length] = 0;
        printf("%d\n", nvtxRangePushA(text));
    } else if (is("pop"))
        printf("%d\n", nvtxDomainRangePop(domain));
    else if (is("start"))
        printf("%d\n", (started[starts++] = nvtxDomainRangeStartEx(domain, plain())) != 0);
    else if (is("end"))
        nvtxDomainRangeEnd(domain, started[atoi(word())]);
    else if (is("end-elsewhere")) {
        pthread_t thread;
        pthread_create(&thread, NULL, end_elsewhere, (void *)atol(word()));
        pthread_join(thread, NULL);
    } else if (is("mark"))
        nvtxDomainMarkEx(domain, plain());
    else if (is("push-a"))
        printf("%d\n", nvtxRangePushA(word()));
    else if (is("push-w"))
        printf("%d\n", nvtxRangePushW(wide(word())));
    else if (is("push-ex"))
        printf("%d\n", nvtxRangePushEx(plain()));
    else if (is("pop-default"))
        printf("%d\n", nvtxRangePop());
    else if (is("start-a"))
        nvtxRangeEnd(nvtxRangeStartA(word()));
    else if (is("start-w"))
        nvtxRangeEnd(nvtxRangeStartW(wide(word())));
    else if (is("start-ex"))
        nvtxRangeEnd(nvtxRangeStartEx(plain()));
    else if (is("mark-a"))
        nvtxMarkA(word());
    else if (is("mark-w"))
        nvtxMarkW(wide(word()));
    else if (is("mark-ex"))
        nvtxMarkEx(plain());
    else if (is("name-category")) {
        uint32_t number = (uint32_t)atoi(word());
        nvtxDomainNameCategoryA(domain, number, word());
    } else if (is("name-category-w")) {
        uint32_t number = (uint32_t)atoi(word());
        nvtxNameCategoryW(number, wide(word()));
    } else if (is("name-thread"))
        nvtxNameOsThreadA((uint32_t)syscall(SYS_gettid), word());
    else if (is("ranges"))
        ranges = atol(word());
    else if (is("threads"))
        run_threads(atol(word()), 1);
    else if (is("short-threads"))
        run_threads(atol(word()), 0);
    else if (is("here"))
        work(NULL);
    else if (is("flap")) {
        const char *folder = word();
        flap(folder, atoi(word()));
    } else if (is("fork"))
        fflush(stdout), run_in_child(fork());
    else if (is("clone"))
        fflush(stdout), run_in_child(clone_process());
    else if (is("joined"))
        exit(0);
    else if (is("forks"))
        fork_again_and_again(atoi(word()));
    else if (is("refuse"))
        refuse(word());
    else if (is("use-keys"))
        use_keys();
    else if (is("check-keys"))
        check_keys();
    else if (is("chroot")) {
        if (chroot(word()) || chdir("/"))
            exit(77);
    } else if (is("setuid")) {
        if (setuid((uid_t)atoi(word())))
            exit(77);
    } else if (is("close-files"))
        syscall(SYS_close_range, 3u, ~0u, 0);
    else if (is("wait"))
        say_and_wait();
    else if (is("leave"))
        fflush(stdout), _exit(7);
    else if (is("exec"))
        execv("/proc/self/exe", at - 1);
    else if (is("record"))
        call_recorder("annot_recorder_start", word());
    else if (is("stop"))
        call_recorder("annot_recorder_stop", NULL);
    else
        abort();
}

int main(int count, char **arguments) {
    (void)count;
    setlocale(LC_ALL, "C.UTF-8");
    for (at = arguments + 1; *at;)
        step();
    return 0;
}
