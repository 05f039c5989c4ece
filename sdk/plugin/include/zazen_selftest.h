/* zazen_selftest.h: what generated round-trip and fuzz tests stand on: a digest, random bytes,
 * memory that is checked.
 *
 * Not for plug-ins. Everything is a function of a seed. */
#ifndef ZAZEN_SELFTEST_H
#define ZAZEN_SELFTEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define ZAZEN_CLEAR_PADDING(pointer) __builtin_clear_padding(pointer)
#define ZAZEN_BY_VALUE 1
#endif
#endif
#ifndef ZAZEN_BY_VALUE
/* Padding may change when a struct is passed by value: without a way to clear it, such structs
 * are not compared. */
#define ZAZEN_CLEAR_PADDING(pointer) ((void)(pointer))
#define ZAZEN_BY_VALUE 0
#endif

/* FNV-1a, continued. */
static inline uint64_t zazen_digest(uint64_t digest, const void *memory, uint64_t bytes) {
    const unsigned char *at = (const unsigned char *)memory;
    for (uint64_t i = 0; i < bytes; i++)
        digest = (digest ^ at[i]) * UINT64_C(0x100000001b3);
    return (digest ^ bytes) * UINT64_C(0x100000001b3);
}

/* splitmix64. */
static inline uint64_t zazen_random(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline uint64_t zazen_below(uint64_t *state, uint64_t end) { return zazen_random(state) % end; }

static inline void zazen_fill(uint64_t *state, void *memory, uint64_t bytes) {
    unsigned char *at = (unsigned char *)memory;
    for (uint64_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(zazen_random(state) >> 56);
}

/* A string of fewer than `room` letters. */
static inline void zazen_letters(uint64_t *state, char *text, uint64_t room) {
    uint64_t length = zazen_below(state, room < 48 ? room : 48);
    for (uint64_t i = 0; i < length; i++)
        text[i] = (char)('a' + zazen_below(state, 26));
    text[length] = 0;
}

/* How many elements: mostly few, sometimes many, at most `max`. */
static inline uint64_t zazen_some(uint64_t *state, uint64_t max) {
    uint64_t end = zazen_below(state, 32) == 0 ? 5000 : 20;
    return zazen_below(state, (end < max ? end : max) + 1);
}

/* Blocks that are freed together; each exactly as large as asked for, so that a sanitizer sees a
 * step beyond.
 */
struct zazen_blocks {
    void **pointers;
    size_t count;
};

static inline void *zazen_block(struct zazen_blocks *blocks, uint64_t bytes) {
    void *block = calloc(1, bytes == 0 ? 1 : (size_t)bytes);
    blocks->pointers = (void **)realloc(blocks->pointers, (blocks->count + 1) * sizeof *blocks->pointers);
    if (block == NULL || blocks->pointers == NULL)
        abort();
    blocks->pointers[blocks->count++] = block;
    return block;
}

static inline void *zazen_duplicate(struct zazen_blocks *blocks, const void *memory, uint64_t bytes) {
    void *block;
    if (memory == NULL)
        return NULL;
    block = zazen_block(blocks, bytes);
    if (bytes != 0)
        memcpy(block, memory, (size_t)bytes);
    return block;
}

static inline void zazen_blocks_free(struct zazen_blocks *blocks) {
    for (size_t i = 0; i < blocks->count; i++)
        free(blocks->pointers[i]);
    free(blocks->pointers);
    blocks->pointers = NULL;
    blocks->count = 0;
}

/* Set while replies are lies: nothing needs to be as expected then. */
static int zazen_tolerant;

/* Stops the test where two things differ. */
#define ZAZEN_SAME(condition, what)                                                                          \
    do {                                                                                                     \
        if (!(condition) && !zazen_tolerant) {                                                               \
            fprintf(stderr, "%s:%d: %s differs (seed %llu)\n", __FILE__, __LINE__, what,                     \
                    (unsigned long long)zazen_seed);                                                         \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static inline int zazen_equal(const void *left, const void *right, uint64_t bytes) {
    return left == right || bytes == 0 ||
           (left != NULL && right != NULL && memcmp(left, right, (size_t)bytes) == 0);
}

#endif
