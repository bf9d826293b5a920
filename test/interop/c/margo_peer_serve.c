/*
 * margo_peer_serve.c: the handlers, each a user-level thread of Margo's.
 */
#include <stdatomic.h>

#include "margo_peer.h"

static atomic_int notified;

/* input decodes the arguments; when it fails, the handle is gone. */
static bool input(hg_handle_t h, void *in, const char *name)
{
    hg_return_t ret = margo_get_input(h, in);

    if (ret == HG_SUCCESS)
        return true;
    report("event %s input=%d", name, ret);
    margo_destroy(h);
    return false;
}

/* answer responds, reports a failure to do so, and drops the handle. */
static void answer(hg_handle_t h, void *out)
{
    hg_return_t ret = margo_respond(h, out);

    if (ret != HG_SUCCESS)
        report("event respond ret=%d", ret);
    margo_destroy(h);
}

static void on_sum(hg_handle_t h)
{
    sum_in_t  in;
    sum_out_t out;

    if (!input(h, &in, "sum"))
        return;
    out.ret = (int32_t) ((uint32_t) in.a + (uint32_t) in.b);
    margo_free_input(h, &in);
    answer(h, &out);
}
static DEFINE_MARGO_RPC_HANDLER(on_sum)

/* on_which tells under which id the call came. */
static void on_which(hg_handle_t h)
{
    id_out_t out = {margo_get_info(h)->id};

    answer(h, &out);
}
static DEFINE_MARGO_RPC_HANDLER(on_which)

static void on_void(hg_handle_t h)
{
    answer(h, NULL);
}
static DEFINE_MARGO_RPC_HANDLER(on_void)

static void on_echo(hg_handle_t h)
{
    all_t v;

    if (!input(h, &v, "echo"))
        return;
    margo_respond(h, &v);
    margo_free_input(h, &v);
    margo_destroy(h);
}
static DEFINE_MARGO_RPC_HANDLER(on_echo)

static void on_notify(hg_handle_t h)
{
    note_in_t in;
    size_t    n;

    if (!input(h, &in, "notify"))
        return;
    atomic_fetch_add(&notified, 1);
    n = in.text == NULL ? 0 : strlen(in.text);
    report("event notify seq=%d len=%zu hash=%016llx", in.seq, n,
           (unsigned long long) fnv1a(in.text, n));
    margo_free_input(h, &in);
    margo_destroy(h);
}
static DEFINE_MARGO_RPC_HANDLER(on_notify)

static void on_notified(hg_handle_t h)
{
    count_out_t out = {atomic_load(&notified)};

    answer(h, &out);
}
static DEFINE_MARGO_RPC_HANDLER(on_notified)

static void on_blob(hg_handle_t h)
{
    blob_in_t  in;
    blob_out_t out = {1, {0, NULL}};
    uint64_t   i;

    if (!input(h, &in, "blob"))
        return;
    for (i = 0; i < in.bytes.len; i++)
        if (((uint8_t *) in.bytes.bytes)[i] != pattern_byte(in.seed, i))
            out.ok = 0;
    out.bytes.len   = in.reply;
    out.bytes.bytes = malloc(in.reply + 1);
    if (out.bytes.bytes == NULL)
        fatal("malloc", HG_NOMEM);
    pattern_fill(out.bytes.bytes, in.reply, in.seed + 1);
    margo_free_input(h, &in);
    answer(h, &out);
    free(out.bytes.bytes);
}
static DEFINE_MARGO_RPC_HANDLER(on_blob)

hg_return_t bulk_create(uint32_t segments, void **base, const hg_size_t *len,
                        uint8_t mode, hg_bulk_t *bulk)
{
    return margo_bulk_create(peer.mid, segments, base, len, mode, bulk);
}

/* move_run does the transfer that m asks for; Margo's blocking transfer does
 * not tell how much it moved, so count is what was asked for. */
static hg_return_t move_run(hg_handle_t h, hg_bulk_op_t op, const move_in_t *m,
                            hg_bulk_t local)
{
    hg_addr_t   origin = margo_get_info(h)->addr;
    bool        named  = m->origin != NULL && *m->origin != '\0';
    hg_return_t ret;

    if (named && strcmp(m->origin, "bound") == 0)
        return margo_bulk_transfer(peer.mid, op, HG_ADDR_NULL, m->bulk,
                                   m->offset, local, m->local_offset, m->size);
    if (named) {
        ret = margo_addr_lookup(peer.mid, m->origin, &origin);
        if (ret != HG_SUCCESS)
            return ret;
    }
    ret = margo_bulk_transfer(peer.mid, op, origin, m->bulk, m->offset, local,
                              m->local_offset, m->size);
    if (named)
        margo_addr_free(peer.mid, origin);
    return ret;
}

static void move(hg_handle_t h, hg_bulk_op_t op, const char *name)
{
    bool       pull = op == HG_BULK_PULL;
    move_in_t  in;
    move_out_t out    = {HG_INVALID_ARG, 0, 0};
    void *     memory = NULL;
    hg_bulk_t  local  = HG_BULK_NULL;

    if (!input(h, &in, name))
        return;
    if (in.bulk != HG_BULK_NULL && in.local_segments > 0)
        out.ret = local_bulk(in.local_size, in.local_segments,
                             pull ? HG_BULK_WRITE_ONLY : HG_BULK_READ_ONLY,
                             &memory, &local);
    if (out.ret == HG_SUCCESS) {
        if (pull)
            memset(memory, 0, in.local_size);
        else
            pattern_fill(memory, in.local_size, in.seed);
        out.ret   = move_run(h, op, &in, local);
        out.count = out.ret == HG_SUCCESS ? in.size : 0;
        out.hash  = fnv1a(memory, in.local_size);
    }
    margo_free_input(h, &in);
    answer(h, &out);
    if (local != HG_BULK_NULL)
        margo_bulk_free(local);
    free(memory);
}

static void on_pull(hg_handle_t h)
{
    move(h, HG_BULK_PULL, "pull");
}
static DEFINE_MARGO_RPC_HANDLER(on_pull)

static void on_push(hg_handle_t h)
{
    move(h, HG_BULK_PUSH, "push");
}
static DEFINE_MARGO_RPC_HANDLER(on_push)

/* nested_call calls sum; its request carries nested's id as parent. An empty
 * address is the caller's. That one must be copied: Mercury uses the address
 * of a request again for the next, and Margo a handle that still points to
 * it. */
static hg_return_t nested_call(hg_handle_t h, nested_in_t *in, sum_out_t *out)
{
    hg_addr_t   addr = HG_ADDR_NULL;
    hg_handle_t call;
    hg_return_t ret;

    if (in->to == NULL || *in->to == '\0')
        ret = margo_addr_dup(peer.mid, margo_get_info(h)->addr, &addr);
    else
        ret = margo_addr_lookup(peer.mid, in->to, &addr);
    if (ret != HG_SUCCESS)
        return ret;
    ret = margo_create(peer.mid, addr, peer.sum, &call);
    if (ret == HG_SUCCESS) {
        ret = margo_provider_forward_timed(in->provider, call, &in->sum,
                                           peer.timeout_ms);
        if (ret == HG_SUCCESS)
            ret = margo_get_output(call, out);
        if (ret == HG_SUCCESS)
            margo_free_output(call, out);
        margo_destroy(call);
    }
    margo_addr_free(peer.mid, addr);
    return ret;
}

static void on_nested(hg_handle_t h)
{
    nested_in_t  in;
    nested_out_t out;
    sum_out_t    sum = {0};

    if (!input(h, &in, "nested"))
        return;
    out.code = nested_call(h, &in, &sum);
    out.ret  = sum.ret;
    margo_free_input(h, &in);
    answer(h, &out);
}
static DEFINE_MARGO_RPC_HANDLER(on_nested)

/* on_slow answers after ms milliseconds, for callers that do not wait. */
static void on_slow(hg_handle_t h)
{
    slow_in_t in;

    if (!input(h, &in, "slow"))
        return;
    margo_thread_sleep(peer.mid, in.ms);
    margo_free_input(h, &in);
    answer(h, NULL);
    report("event slow answered=1");
}
static DEFINE_MARGO_RPC_HANDLER(on_slow)

/* on_quit finalizes from inside a handler; its answer must still arrive. */
static void on_quit(hg_handle_t h)
{
    answer(h, NULL);
    margo_finalize(peer.mid);
}
static DEFINE_MARGO_RPC_HANDLER(on_quit)

static void register_providers(void)
{
    static const uint16_t providers[] = {0, PROVIDER};
    size_t                i;
    hg_return_t           ret;

    for (i = 0; i < sizeof(providers) / sizeof(*providers); i++) {
        MARGO_REGISTER_PROVIDER(peer.mid, "sum", sum_in_t, sum_out_t, on_sum,
                                providers[i], ABT_POOL_NULL);
        MARGO_REGISTER_PROVIDER(peer.mid, "which", void, id_out_t, on_which,
                                providers[i], ABT_POOL_NULL);
    }
    ret = margo_provider_register_identity(peer.mid, PROVIDER, IDENTITY);
    if (ret != HG_SUCCESS)
        fatal("margo_provider_register_identity", ret);
}

void serve_register(void)
{
    margo_instance_id mid = peer.mid;

    peer.sum   = MARGO_REGISTER(mid, "sum", sum_in_t, sum_out_t, on_sum);
    peer.which = MARGO_REGISTER(mid, "which", void, id_out_t, on_which);
    peer.none  = MARGO_REGISTER(mid, "void", void, void, on_void);
    peer.echo  = MARGO_REGISTER(mid, "echo", all_t, all_t, on_echo);
    peer.notify = MARGO_REGISTER(mid, "notify", note_in_t, void, on_notify);
    peer.notified =
        MARGO_REGISTER(mid, "notified", void, count_out_t, on_notified);
    peer.blob = MARGO_REGISTER(mid, "blob", blob_in_t, blob_out_t, on_blob);
    peer.pull = MARGO_REGISTER(mid, "pull", move_in_t, move_out_t, on_pull);
    peer.push = MARGO_REGISTER(mid, "push", move_in_t, move_out_t, on_push);
    peer.nested =
        MARGO_REGISTER(mid, "nested", nested_in_t, nested_out_t, on_nested);
    peer.slow = MARGO_REGISTER(mid, "slow", slow_in_t, void, on_slow);
    peer.quit = MARGO_REGISTER(mid, "quit", void, void, on_quit);
    peer.null = MARGO_REGISTER(mid, "null", void, void, NULL);
    margo_registered_disable_response(mid, peer.notify, HG_TRUE);
    if (margo_is_listening(mid))
        register_providers();
}
