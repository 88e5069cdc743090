/* The file of the recorder: a header page, then chunks of records. annot/read/recording/files.py reads it.
 *
 * Chunks are memory-mapped, so that written records survive a crash of the process. The kind of a record is stored
 * last: readers never see an incomplete record. The blocks of a chunk are allocated before it is mapped, because a full
 * disk would raise SIGBUS. If the allocation fails, lost events are counted in the header, which stays mapped. Where a
 * sandbox or file system refuses shared mappings, chunks are memory, and each event is copied to the file by pwrite. */
#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "annotrec"

_Static_assert(sizeof(record) == 32, "the reader expects records of 32 bytes");
_Static_assert(sizeof(header) <= PAGE, "the header is one page");

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* A descriptor that stays open, because after chroot or setuid a path may not work. The program may close it and reuse
 * its number: device and inode tell. */
typedef struct {
    int descriptor;
    dev_t device;
    ino_t inode;
} kept;

static struct {
    char path[PATH_MAX];
    kept kept;
} folder = {.kept = {.descriptor = -1}};

static struct {
    char path[PATH_MAX + 64];
    kept kept;
    off_t size;
    int open, error; /* `error`: of the first failure of the recording, or 0 */
    header *header; /* address where the header of each file is mapped, as any thread may count in it; NULL: none yet */
    int copies;     /* the header is not mapped: `save_header` copies it to the file */
} file = {.kept = {.descriptor = -1}};

static uint64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

void put_text(record *r, const char *text, uint32_t length) {
    for (; length; r++) {
        uint32_t part = length < TEXT_ROOM ? length : TEXT_ROOM;
        memcpy((char *)r + 1, text, part);
        r->kind = TEXT;
        text += part;
        length -= part;
    }
}

static int is_kept(const kept *k) {
    struct stat status;
    return k->descriptor >= 0 && !fstat(k->descriptor, &status) && status.st_dev == k->device &&
           status.st_ino == k->inode;
}

/* Moves a descriptor away from the low numbers, which the program expects for its own files. */
static int move_up(int fd) {
    struct rlimit limit;
    int lowest = getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > 1024 ? 512 : (int)limit.rlim_cur / 2;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, lowest);
    close(fd);
    return moved;
}

/* Keeps a new descriptor. Returns an errno. */
static int keep(kept *k, int fd) {
    struct stat status;
    if (fstat(fd, &status)) {
        int error = errno;
        close(fd);
        return error;
    }
    *k = (kept){move_up(fd), status.st_dev, status.st_ino};
    return k->descriptor < 0 ? errno : 0;
}

static void close_kept(kept *k) {
    if (is_kept(k))
        close(k->descriptor);
    k->descriptor = -1;
}

/* Returns a descriptor of the file, or -1 with errno set. If the program has closed it, the file is opened again. */
static int descriptor(void) {
    if (is_kept(&file.kept))
        return file.kept.descriptor;
    int fd = open(file.path, O_RDWR | O_CLOEXEC);
    file.kept.descriptor = fd < 0 ? -1 : move_up(fd);
    if (file.kept.descriptor < 0 || is_kept(&file.kept))
        return file.kept.descriptor;
    close(file.kept.descriptor);
    errno = ESTALE;
    return file.kept.descriptor = -1;
}

/* Returns a descriptor of the folder, or -1 with errno set. A process that forks after chroot inherits the one that was
 * opened before. Each recording opens its folder: one of the same name may have been removed. */
static int open_folder(const char *path) {
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 ? errno : 0;
    if (error && is_kept(&folder.kept) && !strcmp(folder.path, path))
        return folder.kept.descriptor;
    if (!error) {
        close_kept(&folder.kept);
        error = keep(&folder.kept, fd);
    }
    if (error) {
        errno = error;
        return -1;
    }
    snprintf(folder.path, sizeof folder.path, "%s", path);
    return folder.kept.descriptor;
}

/* Writes all bytes. Returns an errno. */
static int write_at(int fd, const void *bytes, size_t count, off_t offset) {
    for (const char *from = bytes; count;) {
        ssize_t written = pwrite(fd, from, count, offset);
        if (written <= 0 && (!written || errno != EINTR))
            return written ? errno : ENOSPC;
        if (written > 0)
            from += written, offset += written, count -= (size_t)written;
    }
    return 0;
}

/* Allocates blocks; writes zeros where fallocate is refused. Returns an errno. Checks RLIMIT_FSIZE first: exceeding it
 * would kill the process (SIGXFSZ). */
static int reserve(int fd, off_t offset, size_t bytes) {
    static const char zeros[PAGE];
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && (rlim_t)offset + bytes > limit.rlim_cur)
        return EFBIG;
    int error;
    do
        error = posix_fallocate(fd, offset, (off_t)bytes);
    while (error == EINTR);
    if (!error || error == ENOSPC || error == EDQUOT)
        return error;
    for (size_t at = 0; at < bytes; at += PAGE)
        if ((error = write_at(fd, zeros, PAGE, offset + (off_t)at)))
            return error;
    return 0;
}

/* Maps zeroed memory, at `at` in place of a file: later writes go to this memory, not to the file. */
static void *map_zeros(void *at, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    at = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Maps part of the file at `at`, or anywhere if NULL; where this is refused, memory, and sets `copies`. Returns NULL and
 * sets errno without space. */
static void *map(void *at, off_t offset, size_t bytes, int *copies) {
    int fd = descriptor();
    int error = fd < 0 ? errno : reserve(fd, offset, bytes);
    if (error) {
        errno = error;
        return NULL;
    }
    void *mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, offset);
    *copies = mapped == MAP_FAILED;
    return *copies ? map_zeros(at, bytes) : mapped;
}

/* Writes the header unless it is mapped, except for `retired`, which the reader sets. */
static void save_header(void) {
    int fd = file.copies ? descriptor() : -1;
    if (fd >= 0)
        write_at(fd, file.header, offsetof(header, retired), 0);
}

void note_failure(int error) {
    if (!file.error)
        file.error = error;
    if (file.open)
        file.header->error = (uint32_t)file.error;
}

int is_open(void) { return file.open; }

int first_error(void) { return file.error; }

static void describe(header *h) {
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
static int create(const char *path) {
    int parent = open_folder(path);
    for (unsigned attempt = 0; parent >= 0 && attempt < 1000; attempt++) {
        int name = snprintf(file.path, sizeof file.path, "%s/", path);
        snprintf(file.path + name, sizeof file.path - (size_t)name, "%d-%u.part", (int)getpid(), attempt);
        int fd = openat(parent, file.path + name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* Returns an errno. */
static int map_header(void) {
    header *h = file.header;
    if (!h && !(h = map_zeros(NULL, PAGE)))
        return ENOMEM;
    uint64_t unreported = __atomic_load_n(&h->lost_events, __ATOMIC_RELAXED);
    int error = map(h, 0, PAGE, &file.copies) ? 0 : errno;
    if (error)
        h = map_zeros(h, PAGE); /* the failed mmap may have unmapped it */
    __atomic_store_n(&file.header, h, __ATOMIC_RELEASE);
    lost(unreported);
    return error;
}

/* Returns an errno. */
static int make_file(const char *path) {
    int fd = create(path);
    if (fd < 0)
        return errno;
    int error = keep(&file.kept, fd);
    if (!error)
        error = map_header();
    if (error) {
        close_kept(&file.kept);
        unlink(file.path);
    }
    return error;
}

int have_file(const char *path) {
    int error = file.open ? 0 : make_file(path);
    if (error)
        note_failure(error);
    if (error || file.open)
        return error;
    describe(file.header);
    file.size = PAGE;
    file.open = 1;
    file.header->error = (uint32_t)file.error;
    save_header();
    return 0;
}

void end_file(void) {
    if (!file.open)
        return;
    file.header->stopped = now();
    save_header();
}

void leave_file(int inherited) {
    if (!inherited) {
        end_file();
        close_kept(&folder.kept);
    }
    close_kept(&file.kept);
    if (file.header)
        __atomic_store_n(&file.header, map_zeros(file.header, PAGE), __ATOMIC_RELEASE);
    file.open = file.copies = file.error = 0;
}

int is_retired(void) {
    if (!file.open)
        return 0;
    uint32_t *retired = &file.header->retired;
    int fd = file.copies ? descriptor() : -1;
    if (fd >= 0 && pread(fd, retired, sizeof *retired, offsetof(header, retired)) < 0)
        note_failure(errno);
    return __atomic_load_n(retired, __ATOMIC_RELAXED) != 0;
}

void lost(uint64_t events) {
    header *h = __atomic_load_n(&file.header, __ATOMIC_ACQUIRE);
    if (h)
        __atomic_fetch_add(&h->lost_events, events, __ATOMIC_RELAXED);
}

void note_lost_names(uint32_t names) {
    file.header->lost_names = names;
    save_header();
}

static size_t size_of(const chunk *c) { return (size_t)((char *)c->end - (char *)c->base); }

int map_chunk(chunk *c, size_t bytes) {
    int copies = 0;
    record *base = map(NULL, file.size, bytes, &copies);
    if (!base) {
        note_failure(errno);
        return 0;
    }
    *c = (chunk){base, base + 1, base + bytes / sizeof(record), copies ? base : NULL, file.size, NULL};
    base->payload = bytes;
    memcpy(&base->time, MAGIC, sizeof base->time);
    publish(base, CHUNK);
    if (save_chunk(c, c->next)) {
        unmap_chunk(c);
        return 0;
    }
    file.size += (off_t)bytes;
    return 1;
}

int save_chunk(chunk *c, record *end) {
    if (!c->saved || c->saved == end)
        return 0;
    size_t begin = (size_t)((char *)c->saved - (char *)c->base), bytes = (size_t)((char *)end - (char *)c->saved);
    int fd = descriptor();
    int error = fd < 0 ? errno : write_at(fd, c->saved, bytes, c->offset + (off_t)begin);
    if (error)
        note_failure(error);
    else
        c->saved = end;
    return error != 0;
}

void unmap_chunk(chunk *c) {
    if (c->base)
        munmap(c->base, size_of(c));
    *c = (chunk){0};
}

void detach_chunk(chunk *c) {
    if (!c->saved)
        map_zeros(c->base, size_of(c));
}
