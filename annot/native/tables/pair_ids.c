/* Hash table of pairs with open addressing. */
#include "pair_ids.h"

#include <stdlib.h>
#include <string.h>

static int grow(PairIds *ids) {
    size_t capacity = ids->capacity ? 2 * ids->capacity : 256;
    Pair *pairs = realloc(ids->pairs, capacity / 2 * sizeof *pairs);
    if (!pairs)
        return -1;
    ids->pairs = pairs;
    int64_t *slots = malloc(capacity * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0xFF, capacity * sizeof *slots);
    free(ids->slots);
    ids->slots = slots;
    ids->capacity = capacity;
    ids->room = (int64_t)(capacity / 2);
    for (int64_t id = 0; id < ids->count; id++)
        *slot_of_pair(ids, pairs[id].first, pairs[id].second) = id;
    return 0;
}

int64_t add_pair(PairIds *ids, int32_t first, int32_t second) {
    if (ids->count == ids->room && grow(ids) < 0)
        return NONE;
    ids->pairs[ids->count] = (Pair){first, second};
    return *slot_of_pair(ids, first, second) = ids->count++;
}

void free_pair_ids(PairIds *ids) {
    free(ids->pairs);
    free(ids->slots);
}
