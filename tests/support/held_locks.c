/* LD_PRELOAD: fork() begins while another thread holds a lock of a library, whose path contains HELD_LOCKS_OF.
 *
 * A thread that takes such a lock waits for the next fork(), and then holds the lock while fork() is at work. Both waits
 * end after some milliseconds, because fork() may wait for the lock. At exit, the parent writes the number of
 * forks that began while a lock was held to the file HELD_LOCKS_COUNT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int (*lock_really)(pthread_mutex_t *);
static pid_t (*fork_really)(void);
static const char *library;
static pid_t parent;
static int held, forking, forks_while_held;

__attribute__((constructor)) static void begin(void) {
    lock_really = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    fork_really = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    parent = getpid();
    library = getenv("HELD_LOCKS_OF");
}

__attribute__((destructor)) static void count(void) {
    FILE *out = parent == getpid() ? fopen(getenv("HELD_LOCKS_COUNT"), "w") : NULL;
    if (out) {
        fprintf(out, "%d", forks_while_held);
        fclose(out);
    }
}

static int load(int *flag) { return __atomic_load_n(flag, __ATOMIC_SEQ_CST); }

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void wait_while(int *flag, int value, int limit_ms) {
    for (int64_t end = now_ms() + limit_ms; load(flag) == value && now_ms() < end;)
        sched_yield();
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
    Dl_info caller;
    int result =
        lock_really ? lock_really(mutex) : ((int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock"))(mutex);
    if (!library || getpid() != parent || syscall(SYS_gettid) == parent ||
        !dladdr(__builtin_return_address(0), &caller) || !strstr(caller.dli_fname, library))
        return result;
    __atomic_store_n(&held, 1, __ATOMIC_SEQ_CST);
    wait_while(&forking, 0, 2);
    wait_while(&forking, 1, 20);
    __atomic_store_n(&held, 0, __ATOMIC_SEQ_CST);
    return result;
}

pid_t fork(void) {
    wait_while(&held, 0, 1000);
    forks_while_held += load(&held);
    __atomic_store_n(&forking, 1, __ATOMIC_SEQ_CST);
    pid_t child = fork_really();
    __atomic_store_n(&forking, 0, __ATOMIC_SEQ_CST);
    return child;
}
