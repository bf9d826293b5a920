/*
 * peer.c: the parts of hg_peer and margo_peer that need only Mercury's types.
 */
#include "peer.h"

#include <stdarg.h>

void report(const char *format, ...)
{
    char    line[4 * MAX_LINE];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    printf("%s\n", line);
    fflush(stdout);
}

void run_arguments(int argc, char **argv)
{
    struct words w = {0, {NULL}};
    int          i;

    for (i = 0; i <= argc; i++) {
        if (i == argc || strcmp(argv[i], ",") == 0) {
            if (w.n > 0)
                command(&w);
            w.n = 0;
        } else if (w.n < MAX_WORDS) {
            w.word[w.n++] = argv[i];
        }
    }
}

void command_run(const struct command *table, size_t count, hg_addr_t target,
                 const struct words *w)
{
    size_t i;

    for (i = 0; i < count; i++) {
        if (strcmp(w->word[0], table[i].name) != 0)
            continue;
        if (target == HG_ADDR_NULL && strcmp(w->word[0], "target") != 0)
            fatal("a command needs a target first", HG_INVALID_ARG);
        table[i].run(w);
        return;
    }
    fatal(w->word[0], HG_INVALID_ARG);
}

hg_return_t local_bulk(uint64_t size, uint32_t segments, uint8_t mode,
                       void **memory, hg_bulk_t *bulk)
{
    uint64_t    each = size / segments;
    void **     base = calloc(segments, sizeof(*base));
    hg_size_t * len  = calloc(segments, sizeof(*len));
    uint32_t    i;
    hg_return_t ret;

    *memory = malloc(size + 1);
    if (base == NULL || len == NULL || *memory == NULL)
        fatal("malloc", HG_NOMEM);
    for (i = 0; i < segments; i++) {
        base[i] = (char *) *memory + i * each;
        len[i]  = i + 1 < segments ? each : size - i * each;
    }
    ret = bulk_create(segments, base, len, mode, bulk);
    free(base);
    free(len);
    return ret;
}
