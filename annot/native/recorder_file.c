/* The recorder's file: a header page, then chunks of records; annot/collect/parts.py reads it.
 *
 * Chunks are mapped, so what was written is in the file whatever becomes of the process. A record's kind is
 * stored last: a torn record does not exist. The blocks of a chunk are reserved before it is mapped, so that a
 * full disk raises no SIGBUS; where that fails, events are counted in the header, which is mapped all along. */
#define _GNU_SOURCE
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "annotrec"

typedef struct definition {
    uint8_t kind;
    uint16_t domain;
    uint32_t number, length;
    int32_t thread;
    uint64_t time;
    char *text;
} definition;

_Static_assert(sizeof(record) == 32, "the reader expects records of 32 bytes");
_Static_assert(sizeof(header) <= PAGE, "the header is one page");

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static definition *definitions;
static uint32_t defined, allocated, ids;
static uint64_t unreported; /* events lost while there is no file to count them in */

static struct {
    char path[PATH_MAX + 64];
    off_t size;
    header *header; /* never unmapped but in a forked child: a thread may be counting in it */
    uint32_t written; /* how many of the definitions are in the file */
    chunk names;
} file;

static uint64_t read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

void put_text(record *r, const char *text, uint32_t length)
{
    for (; length; r++) {
        uint32_t part = length < TEXT_ROOM ? length : TEXT_ROOM;
        memcpy((char *)r + 1, text, part);
        r->kind = TEXT;
        text += part;
        length -= part;
    }
}

/* A file that outgrows RLIMIT_FSIZE would kill the process by a signal. */
static int reserve(int fd, off_t offset, size_t bytes)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY
        && (rlim_t)offset + bytes > limit.rlim_cur)
        return EFBIG;
    int error;
    do
        error = posix_fallocate(fd, offset, (off_t)bytes);
    while (error == EINTR);
    return error;
}

/* Returns NULL and sets errno if there is no space. */
static void *map(int fd, off_t offset, size_t bytes)
{
    if ((errno = reserve(fd, offset, bytes)))
        return NULL;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    return at == MAP_FAILED ? NULL : at;
}

static void describe(header *h)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, h->program, sizeof h->program - 1);
        h->program[got > 0 ? got : 0] = 0;
        close(fd);
    }
    h->version = 1;
    h->pid = (uint32_t)getpid();
    h->started = now();
    h->started_utc = read_clock(CLOCK_REALTIME);
    h->lost_events = __atomic_exchange_n(&unreported, 0, __ATOMIC_RELAXED);
    memcpy(h->magic, MAGIC, sizeof h->magic);
}

/* A process that replaced itself by exec has the same number: the file's name has a second one. */
static int create(const char *folder)
{
    for (unsigned attempt = 0; attempt < 1000; attempt++) {
        snprintf(file.path, sizeof file.path, "%s/%d-%u.part", folder, (int)getpid(), attempt);
        int fd = open(file.path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

int have_file(const char *folder)
{
    if (file.header)
        return 0;
    int fd = create(folder);
    if (fd < 0)
        return errno;
    header *h = map(fd, 0, PAGE);
    int error = errno;
    close(fd);
    if (!h) {
        unlink(file.path);
        return error;
    }
    describe(h);
    file.size = PAGE;
    file.written = 0;
    __atomic_store_n(&file.header, h, __ATOMIC_RELEASE);
    return 0;
}

void leave_file(int inherited)
{
    unmap_chunk(&file.names);
    if (file.header && inherited)
        munmap(file.header, PAGE);
    else if (file.header)
        file.header->stopped = now();
    __atomic_store_n(&unreported, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&file.header, NULL, __ATOMIC_RELEASE);
}

__attribute__((destructor)) static void note_exit(void)
{
    if (file.header)
        file.header->stopped = now();
}

void lost(void)
{
    header *h = __atomic_load_n(&file.header, __ATOMIC_ACQUIRE);
    __atomic_fetch_add(h ? &h->lost_events : &unreported, 1, __ATOMIC_RELAXED);
}

/* The file is opened anew for each chunk: a program that closes every descriptor, or is short of them, is safe. */
int map_chunk(chunk *c, size_t bytes)
{
    int fd = open(file.path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return 0;
    record *base = map(fd, file.size, bytes);
    close(fd);
    if (!base)
        return 0;
    file.size += (off_t)bytes;
    *c = (chunk){base, base + 1, base + bytes / sizeof(record), NULL};
    base->payload = bytes;
    memcpy(&base->time, MAGIC, sizeof base->time);
    publish(base, CHUNK);
    return 1;
}

void unmap_chunk(chunk *c)
{
    if (c->base)
        munmap(c->base, (size_t)((char *)c->end - (char *)c->base));
    c->base = c->next = c->end = NULL;
}

static int write_definition(const definition *d)
{
    uint32_t slots = 1 + text_records(d->length);
    if (file.names.end - file.names.next < (ptrdiff_t)slots) {
        chunk fresh;
        if (!map_chunk(&fresh, page_up((slots + 256) * sizeof(record))))
            return 0;
        unmap_chunk(&file.names);
        file.names = fresh;
    }
    record *r = file.names.next;
    file.names.next += slots;
    put_text(r + 1, d->text, d->length);
    r->flags = HAS_TEXT;
    r->domain = d->domain;
    r->text = d->length;
    r->time = d->time;
    r->category = d->number;
    r->payload = (uint64_t)d->thread;
    publish(r, (enum kind)d->kind);
    return 1;
}

void write_definitions(void)
{
    if (!file.header)
        return;
    while (file.written < defined && write_definition(&definitions[file.written]))
        file.written++;
    file.header->lost_names = defined - file.written;
}

static int more_definitions(void)
{
    if (defined < allocated)
        return 1;
    uint32_t larger = allocated ? 2 * allocated : 256;
    definition *moved = realloc(definitions, larger * sizeof *moved);
    if (!moved)
        return 0;
    definitions = moved;
    allocated = larger;
    return 1;
}

uint32_t define(enum kind kind, uint32_t domain, uint32_t number, int32_t thread, const char *text, uint32_t length)
{
    char *copy = more_definitions() ? malloc(length + 1) : NULL;
    if (!copy)
        return 0;
    memcpy(copy, text, length);
    uint32_t id = ++ids;
    if (kind == STRING)
        number = id;
    definitions[defined++] = (definition){(uint8_t)kind, (uint16_t)domain, number, length, thread, now(), copy};
    write_definitions();
    return id;
}

uint32_t find_domain(const char *name, uint32_t length)
{
    for (uint32_t i = 0; i < defined; i++)
        if (definitions[i].kind == DOMAIN_NAME && definitions[i].length == length
            && !memcmp(definitions[i].text, name, length))
            return definitions[i].domain;
    return 0;
}

void adopt_definitions(int32_t thread)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < defined; i++) {
        if (definitions[i].kind == THREAD_NAME) { /* the parent's threads are not here */
            free(definitions[i].text);
            continue;
        }
        definitions[kept] = definitions[i];
        definitions[kept++].thread = thread;
    }
    defined = kept;
}
