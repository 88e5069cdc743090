/* The file of the recorder: a header page, then chunks of records. annot/read/recording/files.py reads it.
 *
 * Chunks are memory-mapped, so that written records survive a crash of the process. The kind of a record is stored
 * last: readers never see an incomplete record. The blocks of a chunk are allocated before it is mapped, because a full
 * disk would raise SIGBUS. If the allocation fails, lost events are counted in the header, which stays mapped. */
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

_Static_assert(sizeof(record) == 32, "the reader expects records of 32 bytes");
_Static_assert(sizeof(header) <= PAGE, "the header is one page");

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct {
    char path[PATH_MAX + 64];
    off_t size;
    int open;
    header *header; /* address where the header of each file is mapped, as any thread may count in it; NULL: none yet */
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

/* Allocates blocks. Checks RLIMIT_FSIZE first: exceeding it would kill the process (SIGXFSZ). */
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

/* Maps part of the file at `at`, or anywhere if NULL. Returns NULL and sets errno without space. */
static void *map(void *at, int fd, off_t offset, size_t bytes)
{
    if ((errno = reserve(fd, offset, bytes)))
        return NULL;
    at = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, offset);
    return at == MAP_FAILED ? NULL : at;
}

/* Maps zeroed memory, at `at` in place of a file: later writes go to this memory, not to the file. */
static void *map_zeros(void *at, size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    at = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
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
    memcpy(h->magic, MAGIC, sizeof h->magic);
}

/* After exec, a process has the same pid; the second number in the file name tells the files apart. */
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

/* Returns an errno. */
static int map_header(int fd)
{
    header *h = file.header;
    if (!h && !(h = map_zeros(NULL, PAGE)))
        return ENOMEM;
    uint64_t unreported = __atomic_load_n(&h->lost_events, __ATOMIC_RELAXED);
    if (!map(h, fd, 0, PAGE)) {
        int error = errno;
        __atomic_store_n(&file.header, map_zeros(h, PAGE), __ATOMIC_RELEASE); /* the failed mmap may have unmapped it */
        lost(unreported);
        return error;
    }
    __atomic_store_n(&file.header, h, __ATOMIC_RELEASE);
    lost(unreported);
    return 0;
}

int have_file(const char *folder)
{
    if (file.open)
        return 0;
    int fd = create(folder);
    if (fd < 0)
        return errno;
    int error = map_header(fd);
    close(fd);
    if (error) {
        unlink(file.path);
        return error;
    }
    describe(file.header);
    file.size = PAGE;
    file.open = 1;
    return 0;
}

void leave_file(int inherited)
{
    leave_names();
    if (file.open && !inherited)
        file.header->stopped = now();
    if (file.header)
        __atomic_store_n(&file.header, map_zeros(file.header, PAGE), __ATOMIC_RELEASE);
    file.open = 0;
}

__attribute__((destructor)) static void note_exit(void)
{
    if (!is_copy() && file.open)
        file.header->stopped = now();
}

int is_retired(void)
{
    return file.open && __atomic_load_n(&file.header->retired, __ATOMIC_RELAXED);
}

void lost(uint64_t events)
{
    header *h = __atomic_load_n(&file.header, __ATOMIC_ACQUIRE);
    if (h)
        __atomic_fetch_add(&h->lost_events, events, __ATOMIC_RELAXED);
}

void save_names(void)
{
    if (file.open)
        file.header->lost_names = write_names();
}

/* Opens the file for each chunk, because the program may close all file descriptors or run out of them. */
int map_chunk(chunk *c, size_t bytes)
{
    int fd = open(file.path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return 0;
    record *base = map(NULL, fd, file.size, bytes);
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

static size_t size_of(const chunk *c)
{
    return (size_t)((char *)c->end - (char *)c->base);
}

void unmap_chunk(chunk *c)
{
    if (c->base)
        munmap(c->base, size_of(c));
    c->base = c->next = c->end = NULL;
}

void detach_chunk(chunk *c)
{
    map_zeros(c->base, size_of(c));
}
