/* Hash table of pairs with open addressing. */
#include "pair_table.h"

#include <stdlib.h>
#include <string.h>

static int grow(PairTable *table) {
    size_t capacity = table->capacity ? 2 * table->capacity : 256;
    Pair *pairs = realloc(table->pairs, capacity / 2 * sizeof *pairs);
    if (!pairs)
        return -1;
    table->pairs = pairs;
    int64_t *slots = malloc(capacity * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0xFF, capacity * sizeof *slots);
    free(table->slots);
    table->slots = slots;
    table->capacity = capacity;
    table->pair_room = (int64_t)(capacity / 2);
    for (int64_t id = 0; id < table->count; id++)
        *slot_of_pair(table, pairs[id].first, pairs[id].second) = id;
    return 0;
}

int64_t add_pair(PairTable *table, int64_t first, int32_t second) {
    if (table->count == table->pair_room && grow(table) < 0)
        return NONE;
    table->pairs[table->count] = (Pair){first, second};
    return *slot_of_pair(table, first, second) = table->count++;
}

void free_pairs(PairTable *table) {
    free(table->pairs);
    free(table->slots);
}
