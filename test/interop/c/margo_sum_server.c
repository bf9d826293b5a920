/*
 * margo_sum_server: the server of Margo's bulk tutorial.
 *
 *     margo_sum_server [ADDRESS [CONFIG]]
 *
 * It logs "Server running at address ADDRESS" and an empty line to standard
 * error, sums what clients expose, and ends itself after the 16th call.
 * ADDRESS is tcp by default, CONFIG is Margo's JSON.
 */
#include <stdio.h>
#include <stdlib.h>

#include <margo.h>

#include "margo_sum.h"

enum { CALLS = 16 };

static int calls;

static void fatal(const char *what, hg_return_t ret)
{
    fprintf(stderr, "margo_sum_server: %s: %s\n", what,
            HG_Error_to_string(ret));
    exit(1);
}

static void must(hg_return_t ret, const char *what)
{
    if (ret != HG_SUCCESS)
        fatal(what, ret);
}

static void sum(hg_handle_t h)
{
    margo_instance_id mid = margo_hg_handle_get_instance(h);
    sum_in_t          in;
    sum_out_t         out = {0};
    int32_t *         values;
    hg_size_t         size;
    hg_bulk_t         local;
    int32_t           i;

    must(margo_get_input(h, &in), "margo_get_input");
    size   = (hg_size_t) in.n * sizeof(*values);
    values = malloc(size);
    if (values == NULL)
        fatal("malloc", HG_NOMEM);
    must(margo_bulk_create(mid, 1, (void **) &values, &size,
                           HG_BULK_WRITE_ONLY, &local),
         "margo_bulk_create");
    must(margo_bulk_transfer(mid, HG_BULK_PULL, margo_get_info(h)->addr,
                             in.bulk, 0, local, 0, size),
         "margo_bulk_transfer");
    for (i = 0; i < in.n; i++)
        out.ret += values[i];
    must(margo_respond(h, &out), "margo_respond");
    must(margo_bulk_free(local), "margo_bulk_free");
    free(values);
    must(margo_free_input(h, &in), "margo_free_input");
    must(margo_destroy(h), "margo_destroy");
    if (++calls == CALLS)
        margo_finalize(mid);
}
static DECLARE_MARGO_RPC_HANDLER(sum)
static DEFINE_MARGO_RPC_HANDLER(sum)

int main(int argc, char **argv)
{
    const char *           address = argc > 1 ? argv[1] : "tcp";
    struct margo_init_info info    = MARGO_INIT_INFO_INITIALIZER;
    char                   self[128];
    size_t                 size = sizeof(self);
    margo_instance_id      mid;
    hg_addr_t              addr;

    info.json_config = argc > 2 ? argv[2] : NULL;
    mid              = margo_init_ext(address, MARGO_SERVER_MODE, &info);
    if (mid == MARGO_INSTANCE_NULL)
        fatal("margo_init_ext", HG_OTHER_ERROR);
    margo_set_log_level(mid, MARGO_LOG_INFO);
    must(margo_addr_self(mid, &addr), "margo_addr_self");
    must(margo_addr_to_string(mid, self, &size, addr), "margo_addr_to_string");
    must(margo_addr_free(mid, addr), "margo_addr_free");
    MARGO_REGISTER(mid, "sum", sum_in_t, sum_out_t, sum);
    margo_info(mid, "Server running at address %s\n", self);
    margo_wait_for_finalize(mid);
    return 0;
}
