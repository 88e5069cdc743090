/* Names: registered strings, and names of domains, categories and threads.
 *
 * A process stores each name once, although clients register their strings again for each recording. A later name of
 * the same object replaces the earlier one. Each file contains all names. */
#define _GNU_SOURCE
#include "names.h"

#include <stdlib.h>
#include <string.h>

typedef struct definition {
    uint8_t kind; /* NONE: replaced by another name */
    uint16_t domain;
    uint32_t number, length;
    int32_t thread;
    uint64_t key, time;
    char *text;
} definition;

/* Guarded by `mutex`. */
static definition *definitions;
static uint32_t defined, allocated, ids;
static uint32_t written; /* number of definitions in the file */
static uint32_t *table;  /* hash table by key and text, of 2 * allocated slots: 1 + index in `definitions`; 0: free */
static chunk names;

static int known_by_text(uint64_t key) { return (key & 0xFF) == STRING || (key & 0xFF) == DOMAIN_NAME; }

/* Identifies the named object. Strings and domains are identified by their text as well. */
static uint64_t key_of(enum kind kind, uint32_t domain, uint32_t number, int32_t thread) {
    uint64_t key = kind == DOMAIN_NAME || kind == THREAD_NAME ? kind : kind | (uint64_t)domain << 8;
    return key | (uint64_t)(kind == CATEGORY ? number : kind == THREAD_NAME ? (uint32_t)thread : 0) << 32;
}

static uint64_t hash(uint64_t key, const char *text, uint32_t length) {
    uint64_t h = (key ^ 0xCBF29CE484222325u) * 0x100000001B3u;
    for (uint32_t i = 0; known_by_text(key) && i < length; i++)
        h = (h ^ (uint8_t)text[i]) * 0x100000001B3u;
    return h ^ h >> 32;
}

static int has_text(const definition *d, const char *text, uint32_t length) {
    return d->length == length && !memcmp(d->text, text, length);
}

/* Returns the slot of the definition in the table, or the free slot for it. */
static uint32_t *find(uint64_t key, const char *text, uint32_t length) {
    uint32_t mask = 2 * allocated - 1;
    for (uint32_t at = (uint32_t)hash(key, text, length) & mask;; at = (at + 1) & mask) {
        const definition *d = table[at] ? &definitions[table[at] - 1] : NULL;
        if (!d || (d->kind && d->key == key && (!known_by_text(key) || has_text(d, text, length))))
            return &table[at];
    }
}

static void drop(definition *d) {
    free(d->text);
    d->text = NULL;
    d->kind = NONE;
}

/* Removes dropped definitions and rebuilds the table. */
static void compact(void) {
    uint32_t kept = 0, before = written;
    memset(table, 0, 2 * (size_t)allocated * sizeof *table);
    for (uint32_t i = 0; i < defined; i++) {
        const definition *d = &definitions[i];
        written -= i < before && !d->kind;
        if (d->kind)
            definitions[kept++] = *d;
    }
    defined = kept;
    for (uint32_t i = 0; i < defined; i++)
        *find(definitions[i].key, definitions[i].text, definitions[i].length) = i + 1;
}

static int grow(void) {
    uint32_t larger = allocated ? 2 * allocated : 256;
    definition *moved = larger > allocated ? realloc(definitions, larger * sizeof *moved) : NULL;
    if (!moved)
        return 0;
    definitions = moved;
    uint32_t *grown = realloc(table, 2 * (size_t)larger * sizeof *grown);
    if (!grown)
        return 0;
    table = grown;
    allocated = larger;
    return 1;
}

static int make_room(void) {
    if (defined < allocated)
        return 1;
    if (allocated)
        compact();
    if (defined >= allocated - allocated / 4 && !grow())
        return defined < allocated;
    compact();
    return 1;
}

static int write_definition(const definition *d) {
    uint32_t slots = 1 + text_records(d->length);
    if (names.end - names.next < (ptrdiff_t)slots) {
        chunk fresh;
        if (!map_chunk(&fresh, page_up((slots + 256) * sizeof(record))))
            return 0;
        unmap_chunk(&names);
        names = fresh;
    }
    record *r = names.next;
    names.next += slots;
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

void save_names(void) {
    if (!is_open())
        return;
    while (written < defined && (!definitions[written].kind || write_definition(&definitions[written])))
        written++;
    save_chunk(&names, names.next);
    note_lost_names(defined - written); /* for lack of space */
}

void leave_names(void) {
    unmap_chunk(&names);
    written = 0;
}

uint32_t define(enum kind kind, uint32_t domain, uint32_t number, int32_t thread, const char *text, uint32_t length) {
    uint64_t key = key_of(kind, domain, number, thread);
    uint32_t *slot = allocated ? find(key, text, length) : NULL;
    if (slot && *slot && has_text(&definitions[*slot - 1], text, length))
        return kind == STRING ? definitions[*slot - 1].number : 1;
    char *copy = make_room() ? malloc(length + 1) : NULL;
    if (!copy)
        return 0;
    memcpy(copy, text, length);
    if (kind == STRING)
        number = ++ids;
    slot = find(key, text, length);
    if (*slot)
        drop(&definitions[*slot - 1]);
    definitions[defined] = (definition){(uint8_t)kind, (uint16_t)domain, number, length, thread, key, now(), copy};
    *slot = ++defined;
    save_names();
    return kind == STRING ? number : 1;
}

uint32_t find_domain(const char *name, uint32_t length) {
    uint32_t found = allocated ? *find(key_of(DOMAIN_NAME, 0, 0, 0), name, length) : 0;
    return found ? definitions[found - 1].domain : 0;
}

void adopt_names(int32_t thread) {
    for (uint32_t i = 0; i < defined; i++) {
        if (definitions[i].kind == THREAD_NAME) /* the parent's threads do not exist in the child */
            drop(&definitions[i]);
        definitions[i].thread = thread;
    }
    if (allocated)
        compact();
}
