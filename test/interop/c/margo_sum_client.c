/*
 * margo_sum_client: the client of Margo's bulk tutorial.
 *
 *     margo_sum_client ADDRESS [VALUES [SEGMENTS [CONFIG]]]
 *
 * It exposes values, calls sum four times and logs "Got response: SUM" to
 * standard error each time. Without VALUES the tutorial's ten are exposed,
 * which sum up to 36; with it value i is i mod 7. They lie in SEGMENTS pieces
 * of memory, one by default. CONFIG is Margo's JSON.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <margo.h>

#include "margo_sum.h"

enum { CALLS = 4, TUTORIAL_VALUES = 10 };

static const int32_t tutorial[TUTORIAL_VALUES] = {1, 4, 2, 5, 6,
                                                  3, 5, 3, 2, 5};

static void fatal(const char *what, hg_return_t ret)
{
    fprintf(stderr, "margo_sum_client: %s: %s\n", what,
            HG_Error_to_string(ret));
    exit(1);
}

static void must(hg_return_t ret, const char *what)
{
    if (ret != HG_SUCCESS)
        fatal(what, ret);
}

/* protocol is what to talk to a server over. The tutorial has "tcp" here. */
static const char *protocol(const char *address)
{
    if (strncmp(address, "ofi+verbs", 9) == 0)
        return "verbs";
    return strncmp(address, "na+sm:", 6) == 0 ? "na+sm" : "tcp";
}

/* expose exposes n values in the given number of segments; the last one takes
 * what the others leave. */
static hg_bulk_t expose(margo_instance_id mid, int32_t *values, int32_t n,
                        uint32_t segments)
{
    void **     base = calloc(segments, sizeof(*base));
    hg_size_t * size = calloc(segments, sizeof(*size));
    uint32_t    each = (uint32_t) n / segments, i;
    hg_bulk_t   bulk;

    if (base == NULL || size == NULL)
        fatal("calloc", HG_NOMEM);
    for (i = 0; i < segments; i++) {
        uint32_t count = i + 1 < segments ? each : (uint32_t) n - i * each;
        base[i]        = values + i * each;
        size[i]        = count * sizeof(*values);
    }
    must(margo_bulk_create(mid, segments, base, size, HG_BULK_READ_ONLY, &bulk),
         "margo_bulk_create");
    free(base);
    free(size);
    return bulk;
}

static void call(margo_instance_id mid, hg_addr_t server, hg_id_t id,
                 sum_in_t *in)
{
    hg_handle_t h;
    sum_out_t   out;

    must(margo_create(mid, server, id, &h), "margo_create");
    must(margo_forward(h, in), "margo_forward");
    must(margo_get_output(h, &out), "margo_get_output");
    margo_debug(mid, "Got response: %d", out.ret);
    must(margo_free_output(h, &out), "margo_free_output");
    must(margo_destroy(h), "margo_destroy");
}

int main(int argc, char **argv)
{
    struct margo_init_info info = MARGO_INIT_INFO_INITIALIZER;
    int32_t           n        = argc > 2 ? atoi(argv[2]) : TUTORIAL_VALUES;
    uint32_t          segments = argc > 3 ? (uint32_t) atoi(argv[3]) : 1;
    int32_t *         values   = calloc((size_t) n, sizeof(*values));
    margo_instance_id mid;
    hg_addr_t         server;
    hg_id_t           id;
    int32_t           i;

    if (argc < 2 || values == NULL || segments == 0) {
        fprintf(stderr, "usage: %s ADDRESS [VALUES [SEGMENTS [CONFIG]]]\n",
                argv[0]);
        return 2;
    }
    for (i = 0; i < n; i++)
        values[i] = argc > 2 ? i % 7 : tutorial[i];
    info.json_config = argc > 4 ? argv[4] : NULL;
    mid              = margo_init_ext(protocol(argv[1]), MARGO_CLIENT_MODE, &info);
    if (mid == MARGO_INSTANCE_NULL)
        fatal("margo_init_ext", HG_OTHER_ERROR);
    margo_set_log_level(mid, MARGO_LOG_DEBUG);
    id = MARGO_REGISTER(mid, "sum", sum_in_t, sum_out_t, NULL);
    must(margo_addr_lookup(mid, argv[1], &server), "margo_addr_lookup");
    for (i = 0; i < CALLS; i++) {
        sum_in_t in = {n, expose(mid, values, n, segments)};
        call(mid, server, id, &in);
        must(margo_bulk_free(in.bulk), "margo_bulk_free");
    }
    must(margo_addr_free(mid, server), "margo_addr_free");
    margo_finalize(mid);
    free(values);
    return 0;
}
