/* Threads, sessions and forks. Each thread owns one chunk of the file and fills it.
 *
 * Only the owner unmaps a chunk, because a thread may be writing while another one stops the session. Stopping instead
 * maps memory over the chunks, so that idle threads do not keep the file mapped. */
#define _GNU_SOURCE
#include "thread.h"
#include "names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RETRY_AFTER 1024 /* events to lose before asking for space again */
#define WORTH_KEEPING 8  /* free records that make a chunk worth passing on to another thread */

__attribute__((aligned(PAGE))) own own_page;
__thread thread *mine;

/* Guarded by `mutex`, except `detects_children`, which is set once. */
static uint32_t session, sessions, threads_seen; /* `session`: as own_page.active, but inherited by children */
static int detects_children;
static char directory[PATH_MAX];
static thread *threads;
static chunk *spare;
static pthread_key_t exit_key;
static int has_key;

static void switch_to(uint32_t number) {
    session = number;
    __atomic_store_n(&own_page.active, number, __ATOMIC_RELEASE);
}

static void drop_spare(void) {
    while (spare) {
        chunk *c = spare;
        spare = c->link;
        unmap_chunk(c);
        free(c);
    }
}

static void release_chunk(thread *t) {
    chunk *c = t->chunk;
    if (!c)
        return;
    c->next = t->next;
    t->chunk = NULL;
    t->next = t->end = NULL;
    if (t->session == session && c->end - c->next >= WORTH_KEEPING) {
        c->link = spare;
        spare = c;
        return;
    }
    unmap_chunk(c);
    free(c);
}

/* The first chunk of a thread is small and may be shared with short-lived threads; later chunks are larger. */
static chunk *new_chunk(const thread *t, uint32_t slots) {
    chunk **from = &spare;
    for (int tried = 0; *from && t->sections == 0 && tried < 8; from = &(*from)->link, tried++)
        if ((*from)->end - (*from)->next >= (ptrdiff_t)slots) {
            chunk *c = *from;
            *from = c->link;
            return c;
        }
    size_t bytes = t->sections == 0 ? 2 * PAGE : t->sections == 1 ? 16 * PAGE : 64 * PAGE;
    size_t needed = page_up((slots + 1) * sizeof(record));
    chunk *c = malloc(sizeof *c);
    if (!c)
        note_failure(ENOMEM);
    if (c && map_chunk(c, needed > bytes ? needed : bytes))
        return c;
    free(c);
    return NULL;
}

static uint32_t open_domains(const thread *t) {
    uint32_t count = 0;
    for (uint32_t d = 0; d < t->domains; d++)
        count += t->depths[d].level != 0;
    return count;
}

/* Starts a section: names the thread of the records after it and their nesting levels, so that each section can be read
 * by itself. */
static void begin_section(thread *t) {
    record *r = t->next;
    char name[16] = "";
    if (t->sections == 0)
        prctl(PR_GET_NAME, name);
    uint32_t length = (uint32_t)strnlen(name, sizeof name);
    put_text(r + 1, name, length);
    t->next += 1 + text_records(length);
    for (uint32_t d = 0; d < t->domains; d++)
        if (t->depths[d].level) {
            record *level = t->next++;
            level->domain = (uint16_t)d;
            level->text = t->gap ? t->depths[d].floor : t->depths[d].level;
            level->category = t->depths[d].level;
            publish(level, LEVEL);
        }
    r->flags = t->gap ? GAP | HAS_TEXT : HAS_TEXT;
    r->text = length;
    r->time = now();
    r->category = t->serial;
    r->color = t->sections++;
    r->payload = (uint64_t)t->id;
    publish(r, THREAD);
    t->gap = 0;
}

static record *start_chunk(thread *t, uint32_t slots) {
    if (t->session != session)
        t->sections = 0, t->gap = 0;
    release_chunk(t);
    t->session = session;
    if (have_file(directory))
        return NULL;
    save_names();
    t->chunk = new_chunk(t, slots + 2 + open_domains(t));
    if (!t->chunk)
        return NULL;
    t->next = t->chunk->next;
    t->end = t->chunk->end;
    t->copies = t->chunk->saved != NULL;
    begin_section(t);
    record *r = t->next;
    t->next += slots;
    return r;
}

static void leave(void *self) {
    thread *t = self;
    if (is_copy() && !adopt_process())
        return;
    pthread_mutex_lock(&mutex);
    release_chunk(t);
    *(t->before ? &t->before->after : &threads) = t->after;
    if (t->after)
        t->after->before = t->before;
    pthread_mutex_unlock(&mutex);
    mine = NULL;
    free(t->depths);
    free(t);
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }

static void after_fork(void) { pthread_mutex_unlock(&mutex); }

/* The child shares the parent's mappings and must not write to them. Its own file is created at its first event. */
static void in_child(void) {
    for (thread *t = threads, *after; t; t = after) {
        after = t->after;
        if (t->chunk)
            unmap_chunk(t->chunk);
        free(t->chunk);
        if (t != mine)
            free(t); /* `depths` leaks: the thread may have been inside realloc during the fork */
    }
    threads = mine;
    if (mine) {
        mine->before = mine->after = NULL;
        mine->chunk = NULL;
        mine->next = mine->end = NULL;
        mine->session = 0;
        mine->gap = mine->copies = 0;
        mine->id = (int32_t)syscall(SYS_gettid);
    }
    drop_spare();
    leave_names();
    leave_file(1);
    adopt_names((int32_t)getpid());
    switch_to(session ? ++sessions : 0);
    own_page.original = 1;
    pthread_mutex_init(&mutex, NULL);
}

/* Fails if another thread of the parent held the mutex during the fork: the guarded data may be inconsistent. */
__attribute__((cold, noinline)) int adopt_process(void) {
    if (pthread_mutex_trylock(&mutex))
        return 0;
    if (is_copy())
        in_child();
    else
        pthread_mutex_unlock(&mutex);
    return 1;
}

/* Detects children. Linux before 4.14 lacks MADV_WIPEONFORK; there, children of clone are not detected. Without memory for
 * the handlers of fork, a child of fork is detected as a child of clone is. */
__attribute__((constructor)) static void set_up(void) {
    int wiped = !madvise(&own_page, sizeof own_page, MADV_WIPEONFORK);
    int handled = !pthread_atfork(before_fork, after_fork, in_child);
    detects_children = wiped || handled;
    own_page.original = 1;
}

__attribute__((destructor)) static void note_exit(void) {
    if (!is_copy())
        end_file();
}

__attribute__((cold, noinline)) thread *enter(void) {
    thread *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->id = (int32_t)syscall(SYS_gettid);
    pthread_mutex_lock(&mutex);
    t->serial = ++threads_seen;
    t->after = threads;
    if (threads)
        threads->before = t;
    threads = t;
    /* The program may use all keys. Then a thread that ends leaves its chunk mapped until the recording ends. */
    has_key = has_key || !pthread_key_create(&exit_key, leave);
    int has_exit = has_key;
    pthread_mutex_unlock(&mutex);
    if (has_exit)
        (void)pthread_setspecific(exit_key, t); /* out of memory: as without a key */
    return mine = t;
}

__attribute__((cold, noinline)) depth *deeper(thread *t, uint32_t domain) {
    uint32_t domains = (domain + 8) / 8 * 8;
    depth *depths = realloc(t->depths, domains * sizeof *depths);
    if (!depths)
        return NULL;
    memset(depths + t->domains, 0, (domains - t->domains) * sizeof *depths);
    t->depths = depths;
    t->domains = domains;
    return depths + domain;
}

static void lose(thread *t) {
    if (!t->gap)
        for (uint32_t d = 0; d < t->domains; d++)
            t->depths[d].floor = t->depths[d].level;
    t->gap = 1;
    lost(1);
}

/* If the event cannot be written, it is lost, and a later chunk notes the gap. */
void save_event(thread *t) {
    pthread_mutex_lock(&mutex);
    chunk *c = t->session == session ? t->chunk : NULL;
    if (c && save_chunk(c, t->next)) {
        memset(c->saved, 0, (size_t)((char *)t->next - (char *)c->saved));
        t->next = c->saved;
        release_chunk(t);
        lose(t);
    }
    pthread_mutex_unlock(&mutex);
}

static void end_session(void) {
    switch_to(0);
    drop_spare();
    if (mine)
        release_chunk(mine);
    for (thread *t = threads; t; t = t->after)
        if (t->chunk)
            detach_chunk(t->chunk);
    leave_names();
    leave_file(0);
}

static void end_if_retired(void) {
    if (is_retired())
        end_session();
}

__attribute__((cold, noinline)) record *more_room(thread *t, uint32_t slots) {
    uint32_t number = __atomic_load_n(&own_page.active, __ATOMIC_ACQUIRE);
    if (!number)
        return NULL;
    record *r = NULL;
    if (t->session == number && t->patience)
        t->patience--;
    else {
        pthread_mutex_lock(&mutex);
        end_if_retired();
        number = session;
        r = number ? start_chunk(t, slots) : NULL;
        pthread_mutex_unlock(&mutex);
        if (!number)
            return NULL;
        t->patience = r ? 0 : RETRY_AFTER;
    }
    if (!r)
        lose(t);
    return r;
}

int start_session(const char *folder, int must_open) {
    if (is_copy() && !adopt_process())
        return EBUSY;
    char *path = realpath(folder, NULL);
    int error = !path || strlen(path) >= sizeof directory ? (path ? ENAMETOOLONG : errno) : 0;
    if (!detects_children)
        error = ENOMEM;
    pthread_mutex_lock(&mutex);
    end_if_retired();
    if (session) {
        error = EALREADY;
    } else if (error) {
        note_failure(error);
    } else {
        strcpy(directory, path);
        leave_names();
        leave_file(0);
        error = have_file(directory);
        if (!error || !must_open)
            switch_to(++sessions);
        save_names();
    }
    pthread_mutex_unlock(&mutex);
    free(path);
    return error;
}

void stop_session(void) {
    if (is_copy() && !adopt_process())
        return;
    pthread_mutex_lock(&mutex);
    end_session();
    pthread_mutex_unlock(&mutex);
}

int is_recorded(void) {
    if (is_copy() && !adopt_process())
        return 0;
    pthread_mutex_lock(&mutex);
    end_if_retired();
    int recorded = session != 0;
    pthread_mutex_unlock(&mutex);
    return recorded;
}
