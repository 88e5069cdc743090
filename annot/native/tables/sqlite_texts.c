/* Texts of a table: valid UTF-8, deduplicated, in Arrow's string view layout. */
#include "sqlite_texts.h"
#include "column_ops.h"

#include <stdlib.h>
#include <string.h>

#define INLINE 12
#define FIRST_CHUNK ((size_t)64 << 10)
#define LAST_CHUNK ((size_t)8 << 20)
#define MUCH ((size_t)32 << 20)

typedef struct {
    char *bytes;
    int64_t used; /* bytes */
} Chunk;

struct Arena {
    atomic_int references;
    int64_t count, capacity;
    Chunk *chunks;
    size_t room;  /* bytes free in the last chunk */
    size_t total; /* bytes of all texts */
};

static void arena_drop(void *kept) {
    Arena *arena = kept;
    if (!arena || --arena->references)
        return;
    for (int64_t i = 0; i < arena->count; i++)
        free(arena->chunks[i].bytes);
    free(arena->chunks);
    free(arena);
}

static Arena *arena_new(void) {
    Arena *arena = calloc(1, sizeof *arena);
    if (arena)
        arena->references = 1;
    return arena;
}

static int add_chunk(Arena *arena, size_t least) {
    Chunk *chunks = make_room(arena->chunks, arena->count, &arena->capacity, sizeof *chunks);
    if (!chunks)
        return -1;
    arena->chunks = chunks;
    size_t room = arena->count < 8 ? FIRST_CHUNK << arena->count : LAST_CHUNK;
    room = room > least ? room : least;
    char *bytes = malloc(room);
    if (!bytes)
        return -1;
    chunks[arena->count++] = (Chunk){bytes, 0};
    arena->room = room;
    return 0;
}

/* Stores a text that is too long for a view. */
static int arena_keep(Arena *arena, const char *bytes, size_t length, View *view) {
    if (arena->room < length && add_chunk(arena, length) < 0)
        return -1;
    Chunk *last = &arena->chunks[arena->count - 1];
    view->length = (int32_t)length;
    memcpy(view->far.prefix, bytes, sizeof view->far.prefix);
    view->far.chunk = (int32_t)(arena->count - 1);
    view->far.offset = (int32_t)last->used;
    memcpy(last->bytes + last->used, bytes, length);
    last->used += (int64_t)length;
    arena->room -= length;
    arena->total += length;
    return 0;
}

/* ---------------------------------------------------------------- UTF-8 */

static size_t ascii_prefix(const uint8_t *bytes, size_t length) {
    size_t at = 0;
    for (uint64_t eight; at + 8 <= length; at += 8) {
        memcpy(&eight, bytes + at, 8);
        if (eight & 0x8080808080808080u)
            break;
    }
    while (at < length && bytes[at] < 0x80)
        at++;
    return at;
}

/* Returns the length of the character at `bytes`; -n if the first n bytes are an invalid sequence. */
static int character(const uint8_t *bytes, size_t length) {
    uint8_t first = bytes[0], least = 0x80, most = 0xBF;
    int size = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (size == 0)
        return -1;
    least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : least;
    most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : most;
    for (int i = 1; i < size; i++, least = 0x80, most = 0xBF)
        if ((size_t)i == length || bytes[i] < least || bytes[i] > most)
            return -i;
    return size;
}

static size_t valid_prefix(const uint8_t *bytes, size_t length) {
    size_t at = ascii_prefix(bytes, length);
    while (at < length) {
        int size = character(bytes + at, length - at);
        if (size < 0)
            return at;
        at += (size_t)size;
        at += ascii_prefix(bytes + at, length - at);
    }
    return at;
}

/* Writes valid UTF-8 to `repaired`. Returns its length, or -1 when out of memory. */
static int64_t repair(Texts *texts, const uint8_t *bytes, size_t length) {
    if (texts->repaired_room < 3 * length) {
        char *grown = realloc(texts->repaired, 3 * length);
        if (!grown)
            return -1;
        texts->repaired = grown;
        texts->repaired_room = 3 * length;
    }
    char *to = texts->repaired;
    for (size_t at = 0; at < length;) {
        int size = character(bytes + at, length - at);
        if (size > 0) {
            memcpy(to, bytes + at, (size_t)size);
            to += size;
        } else {
            memcpy(to, "\xEF\xBF\xBD", 3);
            to += 3;
        }
        at += (size_t)abs(size);
    }
    return to - texts->repaired;
}

/* ---------------------------------------------------------------- distinct texts */

static uint64_t hash_bytes(const char *bytes, size_t length, uint64_t seed) {
    uint64_t hash = seed ^ (length * 0x9E3779B97F4A7C15u), word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        __uint128_t product = (__uint128_t)(hash ^ word) * 0xA0761D6478BD642Fu;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    word = 0;
    memcpy(&word, bytes, length);
    __uint128_t product = (__uint128_t)(hash ^ word) * 0xE7037ED1A0B428DBu;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static int grow(Texts *texts) {
    size_t capacity = texts->capacity ? 2 * texts->capacity : 1024;
    View *slots = calloc(capacity, sizeof *slots);
    uint32_t *hashes = calloc(capacity, sizeof *hashes);
    if (!slots || !hashes) {
        free(slots);
        free(hashes);
        return -1;
    }
    for (size_t i = 0; i < texts->capacity; i++) {
        if (!texts->slots[i].length)
            continue;
        size_t at = texts->hashes[i] & (capacity - 1);
        while (slots[at].length)
            at = (at + 1) & (capacity - 1);
        slots[at] = texts->slots[i];
        hashes[at] = texts->hashes[i];
    }
    free(texts->slots);
    free(texts->hashes);
    texts->slots = slots;
    texts->hashes = hashes;
    texts->capacity = capacity;
    return 0;
}

static int same(const Texts *texts, const View *view, const char *bytes, size_t length) {
    return (size_t)view->length == length &&
           memcmp(texts->arena->chunks[view->far.chunk].bytes + view->far.offset, bytes, length) == 0;
}

static int find_or_keep(Texts *texts, const char *bytes, size_t length, View *view) {
    if (!texts->arena && !(texts->arena = arena_new()))
        return -1;
    if (2 * texts->used >= texts->capacity && grow(texts) < 0)
        return -1;
    uint32_t hash = (uint32_t)hash_bytes(bytes, length, texts->seed);
    size_t at = hash & (texts->capacity - 1);
    for (; texts->slots[at].length; at = (at + 1) & (texts->capacity - 1))
        if (texts->hashes[at] == hash && same(texts, &texts->slots[at], bytes, length)) {
            *view = texts->slots[at];
            return 0;
        }
    if (arena_keep(texts->arena, bytes, length, view) < 0)
        return -1;
    texts->slots[at] = *view;
    texts->hashes[at] = hash;
    texts->used++;
    return 0;
}

int texts_view(Texts *texts, const uint8_t *bytes, size_t length, View *view) {
    const char *text = (const char *)bytes;
    if (length > INT32_MAX / 3)
        return -1;
    if (valid_prefix(bytes, length) < length) {
        int64_t repaired = repair(texts, bytes, length);
        if (repaired < 0)
            return -1;
        text = texts->repaired;
        length = (size_t)repaired;
    }
    if (length > INLINE)
        return find_or_keep(texts, text, length, view);
    *view = (View){.length = (int32_t)length};
    memcpy(view->all, text, length);
    return 0;
}

Column *texts_column(Texts *texts, View *views, int64_t length) {
    Arena *arena = texts->arena;
    int64_t chunks = arena ? arena->count : 0;
    Column *column = column_new("vu", length, 3 + chunks);
    int64_t *sizes = column ? malloc(((size_t)chunks + 1) * sizeof *sizes) : NULL;
    if (!sizes) {
        free(views);
        column_drop(column);
        return NULL;
    }
    column->owned[0] = views;
    column->owned[1] = sizes;
    column->buffers[1] = views;
    for (int64_t i = 0; i < chunks; i++) {
        column->buffers[2 + i] = arena->chunks[i].bytes;
        sizes[i] = arena->chunks[i].used;
    }
    column->buffers[2 + chunks] = sizes;
    if (arena) {
        arena->references++;
        column->release = arena_drop;
        column->kept = arena;
    }
    return column;
}

void texts_refresh(Texts *texts) {
    if (texts->arena && texts->arena->total > MUCH) {
        uint64_t seed = texts->seed;
        texts_free(texts);
        texts->seed = seed;
    }
}

void texts_free(Texts *texts) {
    arena_drop(texts->arena);
    free(texts->slots);
    free(texts->hashes);
    free(texts->repaired);
    *texts = (Texts){0};
}
