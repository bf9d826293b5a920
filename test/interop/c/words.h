/*
 * words.h: arguments of the form key=value, test patterns and hashes, shared by
 * the peer programs and mirrored by the Go tests that drive them.
 */
#ifndef WORDS_H
#define WORDS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The longest command line and the most words on it. */
#define MAX_LINE  4096
#define MAX_WORDS 64

/* A command: its name and the key=value words behind it. */
struct words {
    int         n;
    const char *word[MAX_WORDS];
};

/* words_split cuts line at blanks, in place. Words beyond MAX_WORDS are an
 * error of the driver and end the program. */
static inline void words_split(struct words *w, char *line)
{
    char *save = NULL, *s;

    w->n = 0;
    for (s = strtok_r(line, " \t\r\n", &save); s != NULL;
         s = strtok_r(NULL, " \t\r\n", &save)) {
        if (w->n == MAX_WORDS) {
            fprintf(stderr, "a command has at most %d words\n", MAX_WORDS);
            exit(2);
        }
        w->word[w->n++] = s;
    }
}

/* words_text returns the value of key, or dflt when the command lacks it. */
static inline const char *
words_text(const struct words *w, const char *key, const char *dflt)
{
    size_t len = strlen(key);
    int    i;

    for (i = 1; i < w->n; i++)
        if (strncmp(w->word[i], key, len) == 0 && w->word[i][len] == '=')
            return w->word[i] + len + 1;
    return dflt;
}

/* words_number is words_text for numbers, decimal or 0x hexadecimal. */
static inline int64_t
words_number(const struct words *w, const char *key, int64_t dflt)
{
    const char *s = words_text(w, key, NULL);

    return s == NULL ? dflt : (int64_t) strtoll(s, NULL, 0);
}

/* pattern_byte is byte i of the test pattern number seed. It changes along
 * the pages of a large transfer, so that a misplaced piece is seen. */
static inline uint8_t pattern_byte(uint32_t seed, uint64_t i)
{
    return (uint8_t) (seed + i * 31 + (i >> 8) * 17 + (i >> 16) * 5);
}

static inline void pattern_fill(void *buf, uint64_t n, uint32_t seed)
{
    uint8_t *p = (uint8_t *) buf;
    uint64_t i;

    for (i = 0; i < n; i++)
        p[i] = pattern_byte(seed, i);
}

/* fnv1a is the 64-bit FNV-1a hash. */
static inline uint64_t fnv1a(const void *buf, uint64_t n)
{
    const uint8_t *p = (const uint8_t *) buf;
    uint64_t       h = 0xcbf29ce484222325u, i;

    for (i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

#endif /* WORDS_H */
