/*
 * hg_peer_serve.c: the handlers.
 *
 * A handler owns its handle until it has destroyed it. Handlers that need a
 * transfer or a call of their own first keep it in a struct job.
 */
#include "hg_peer.h"

/* The most calls that hold keeps. */
#define MAX_HELD 1024

static struct {
    hg_handle_t handle[MAX_HELD];
    int         n;
} held;

/* job is a request that waits for a transfer or a call. */
struct job {
    hg_handle_t request;
    hg_handle_t call; /* ours, HG_HANDLE_NULL if none */
    hg_addr_t   addr; /* ours, HG_ADDR_NULL if none */
    hg_bulk_t   bulk;
    void *      memory;
    uint64_t    size;
    union {
        move_in_t  move;
        relay_in_t relay;
    } in;
};

static void job_free(struct job *j)
{
    if (j->call != HG_HANDLE_NULL)
        HG_Destroy(j->call);
    if (j->addr != HG_ADDR_NULL)
        HG_Addr_free(peer.cls, j->addr);
    if (j->bulk != HG_BULK_NULL)
        HG_Bulk_free(j->bulk);
    free(j->memory);
    HG_Destroy(j->request);
    free(j);
}

static struct job *job_new(hg_handle_t request)
{
    struct job *j = calloc(1, sizeof(*j));

    if (j == NULL)
        fatal("calloc", HG_NOMEM);
    j->request = request;
    j->call    = HG_HANDLE_NULL;
    j->addr    = HG_ADDR_NULL;
    j->bulk    = HG_BULK_NULL;
    return j;
}

/* input decodes the arguments; a failure is reported and answered by nothing,
 * as Mercury programs do. */
static bool input(hg_handle_t h, void *in, const char *name)
{
    hg_return_t ret = HG_Get_input(h, in);

    if (ret == HG_SUCCESS)
        return true;
    report("event %s input=%d", name, ret);
    HG_Destroy(h);
    return false;
}

/* answer responds and reports a response that could not be sent. */
static void answer(hg_handle_t h, void *out)
{
    hg_return_t ret = HG_Respond(h, NULL, NULL, out);

    if (ret != HG_SUCCESS)
        report("event respond ret=%d", ret);
}

static hg_return_t on_sum(hg_handle_t h)
{
    sum_in_t  in;
    sum_out_t out;

    if (!input(h, &in, "sum"))
        return HG_SUCCESS;
    out.ret = (int32_t) ((uint32_t) in.a + (uint32_t) in.b);
    HG_Free_input(h, &in);
    answer(h, &out);
    return HG_Destroy(h);
}

static hg_return_t on_void(hg_handle_t h)
{
    answer(h, NULL);
    return HG_Destroy(h);
}

static hg_return_t on_echo(hg_handle_t h)
{
    all_t v;

    if (!input(h, &v, "echo"))
        return HG_SUCCESS;
    answer(h, &v);
    HG_Free_input(h, &v);
    return HG_Destroy(h);
}

static hg_return_t on_notify(hg_handle_t h)
{
    note_in_t in;
    size_t    n;

    if (!input(h, &in, "notify"))
        return HG_SUCCESS;
    peer.notified++;
    n = in.text == NULL ? 0 : strlen(in.text);
    report("event notify seq=%d len=%zu hash=%016llx", in.seq, n,
           (unsigned long long) fnv1a(in.text, n));
    HG_Free_input(h, &in);
    return HG_Destroy(h);
}

static hg_return_t on_notified(hg_handle_t h)
{
    count_out_t out = {peer.notified};

    answer(h, &out);
    return HG_Destroy(h);
}

static hg_return_t on_blob(hg_handle_t h)
{
    blob_in_t  in;
    blob_out_t out = {1, {0, NULL}};
    uint64_t   i;

    if (!input(h, &in, "blob"))
        return HG_SUCCESS;
    for (i = 0; i < in.bytes.len; i++)
        if (((uint8_t *) in.bytes.bytes)[i] != pattern_byte(in.seed, i))
            out.ok = 0;
    out.bytes.len   = in.reply;
    out.bytes.bytes = malloc(in.reply + 1);
    if (out.bytes.bytes == NULL)
        fatal("malloc", HG_NOMEM);
    pattern_fill(out.bytes.bytes, in.reply, in.seed + 1);
    HG_Free_input(h, &in);
    answer(h, &out);
    free(out.bytes.bytes);
    return HG_Destroy(h);
}

hg_return_t bulk_create(uint32_t segments, void **base, const hg_size_t *len,
                        uint8_t mode, hg_bulk_t *bulk)
{
    return HG_Bulk_create(peer.cls, segments, base, len, mode, bulk);
}

/* move_answer ends a pull or push. count is what Mercury says it moved. */
static void move_answer(struct job *j, hg_return_t ret, uint64_t count)
{
    move_out_t out = {ret, count, 0};

    if (j->memory != NULL)
        out.hash = fnv1a(j->memory, j->size);
    HG_Free_input(j->request, &j->in.move);
    answer(j->request, &out);
    job_free(j);
}

static hg_return_t on_moved(const struct hg_cb_info *info)
{
    move_answer(info->arg, info->ret, info->info.bulk.size);
    return HG_SUCCESS;
}

/* move_origin finds the process that holds the memory. */
static hg_return_t move_origin(struct job *j, hg_addr_t *origin)
{
    const char *text = j->in.move.origin;

    if (text == NULL || *text == '\0') {
        *origin = HG_Get_info(j->request)->addr;
        return HG_SUCCESS;
    }
    if (strcmp(text, "bound") == 0) {
        *origin = HG_ADDR_NULL;
        return HG_SUCCESS;
    }
    hg_return_t ret = HG_Addr_lookup2(peer.cls, text, &j->addr);
    *origin         = j->addr;
    return ret;
}

static hg_return_t move_start(struct job *j, hg_bulk_op_t op)
{
    move_in_t * m      = &j->in.move;
    hg_addr_t   origin = HG_ADDR_NULL;
    hg_op_id_t  op_id;
    hg_return_t ret;

    if (m->bulk == HG_BULK_NULL || m->local_segments == 0)
        return HG_INVALID_ARG;
    j->size = m->local_size;
    ret     = local_bulk(m->local_size, m->local_segments,
                         op == HG_BULK_PULL ? HG_BULK_WRITE_ONLY
                                            : HG_BULK_READ_ONLY,
                         &j->memory, &j->bulk);
    if (ret != HG_SUCCESS)
        return ret;
    if (op == HG_BULK_PUSH)
        pattern_fill(j->memory, j->size, m->seed);
    else
        memset(j->memory, 0, j->size);
    ret = move_origin(j, &origin);
    if (ret != HG_SUCCESS)
        return ret;
    if (origin == HG_ADDR_NULL)
        ret = HG_Bulk_bind_transfer(peer.context, on_moved, j, op, m->bulk,
                                    m->offset, j->bulk, m->local_offset,
                                    m->size, &op_id);
    else
        ret = HG_Bulk_transfer(peer.context, on_moved, j, op, origin, m->bulk,
                               m->offset, j->bulk, m->local_offset, m->size,
                               &op_id);
    if (ret == HG_SUCCESS && m->cancel)
        HG_Bulk_cancel(op_id);
    return ret;
}

static hg_return_t on_move(hg_handle_t h, hg_bulk_op_t op, const char *name)
{
    struct job *j = job_new(h);
    hg_return_t ret;

    if (!input(h, &j->in.move, name)) {
        free(j);
        return HG_SUCCESS;
    }
    ret = move_start(j, op);
    if (ret != HG_SUCCESS)
        move_answer(j, ret, 0);
    else
        report("event %s", name);
    return HG_SUCCESS;
}

static hg_return_t on_pull(hg_handle_t h)
{
    return on_move(h, HG_BULK_PULL, "pull");
}

static hg_return_t on_push(hg_handle_t h)
{
    return on_move(h, HG_BULK_PUSH, "push");
}

/* relay_answer passes the third process's result, or our failure, back. */
static void relay_answer(struct job *j, hg_return_t ret)
{
    move_out_t out  = {ret, 0, 0};
    bool       have = false;

    if (ret == HG_SUCCESS) {
        out.ret = HG_Get_output(j->call, &out);
        have    = out.ret == HG_SUCCESS;
    }
    answer(j->request, &out);
    if (have)
        HG_Free_output(j->call, &out);
    HG_Free_input(j->request, &j->in.relay);
    job_free(j);
}

static hg_return_t on_relayed(const struct hg_cb_info *info)
{
    relay_answer(info->arg, info->ret);
    return HG_SUCCESS;
}

static hg_return_t relay_start(struct job *j)
{
    hg_id_t     id  = peer.id[j->in.relay.push ? RPC_PUSH : RPC_PULL];
    hg_return_t ret = HG_Addr_lookup2(peer.cls, j->in.relay.to, &j->addr);

    if (ret != HG_SUCCESS)
        return ret;
    ret = HG_Create(peer.context, j->addr, id, &j->call);
    if (ret != HG_SUCCESS)
        return ret;
    return HG_Forward(j->call, on_relayed, j, &j->in.relay.move);
}

static hg_return_t on_relay(hg_handle_t h)
{
    struct job *j = job_new(h);
    hg_return_t ret;

    if (!input(h, &j->in.relay, "relay")) {
        free(j);
        return HG_SUCCESS;
    }
    ret = relay_start(j);
    if (ret != HG_SUCCESS)
        relay_answer(j, ret);
    return HG_SUCCESS;
}

static hg_return_t on_hold(hg_handle_t h)
{
    if (held.n == MAX_HELD)
        fatal("too many held calls", HG_OVERFLOW);
    held.handle[held.n++] = h;
    report("event hold held=%d", held.n);
    return HG_SUCCESS;
}

static hg_return_t on_release(hg_handle_t h)
{
    count_out_t out = {held.n};

    while (held.n > 0) {
        hg_handle_t waiting = held.handle[--held.n];
        answer(waiting, NULL);
        HG_Destroy(waiting);
    }
    answer(h, &out);
    return HG_Destroy(h);
}

void serve_finish(void)
{
    while (held.n > 0)
        HG_Destroy(held.handle[--held.n]);
}

static hg_return_t on_called_back(const struct hg_cb_info *info)
{
    struct job *j    = info->arg;
    sum_out_t   out  = {-1};
    bool        have = false;

    if (info->ret == HG_SUCCESS)
        have = HG_Get_output(j->call, &out) == HG_SUCCESS;
    else
        report("event callback ret=%d", info->ret);
    answer(j->request, &out);
    if (have)
        HG_Free_output(j->call, &out);
    job_free(j);
    return HG_SUCCESS;
}

static hg_return_t on_callback(hg_handle_t h)
{
    struct job *j = job_new(h);
    sum_in_t    in;
    hg_return_t ret;

    if (!input(h, &in, "callback")) {
        free(j);
        return HG_SUCCESS;
    }
    /* Mercury uses the address of a request again for the next. */
    ret = HG_Addr_dup(peer.cls, HG_Get_info(h)->addr, &j->addr);
    if (ret == HG_SUCCESS)
        ret = HG_Create(peer.context, j->addr, peer.id[RPC_SUM], &j->call);
    if (ret == HG_SUCCESS)
        ret = HG_Forward(j->call, on_called_back, j, &in);
    HG_Free_input(h, &in);
    if (ret != HG_SUCCESS) {
        report("event callback ret=%d", ret);
        job_free(j);
    }
    return HG_SUCCESS;
}

static hg_return_t on_quit_sent(const struct hg_cb_info *info)
{
    (void) info;
    peer.quit = true;
    return HG_SUCCESS;
}

static hg_return_t on_quit(hg_handle_t h)
{
    hg_return_t ret = HG_Respond(h, on_quit_sent, NULL, NULL);

    if (ret != HG_SUCCESS)
        fatal("HG_Respond", ret);
    return HG_Destroy(h);
}

static const struct {
    const char *  name;
    hg_proc_cb_t  in, out;
    hg_rpc_cb_t   handler;
} table[RPC_COUNT] = {
    {"sum", hg_proc_sum_in_t, hg_proc_sum_out_t, on_sum},
    {"void", NULL, NULL, on_void},
    {"echo", hg_proc_all_t, hg_proc_all_t, on_echo},
    {"notify", hg_proc_note_in_t, NULL, on_notify},
    {"notified", NULL, hg_proc_count_out_t, on_notified},
    {"blob", hg_proc_blob_in_t, hg_proc_blob_out_t, on_blob},
    {"pull", hg_proc_move_in_t, hg_proc_move_out_t, on_pull},
    {"push", hg_proc_move_in_t, hg_proc_move_out_t, on_push},
    {"relay", hg_proc_relay_in_t, hg_proc_move_out_t, on_relay},
    {"hold", NULL, NULL, on_hold},
    {"release", NULL, hg_proc_count_out_t, on_release},
    {"callback", hg_proc_sum_in_t, hg_proc_sum_out_t, on_callback},
    {"quit", NULL, NULL, on_quit},
    {"null", NULL, NULL, NULL},
};

void serve_register(void)
{
    hg_return_t ret;
    int         i;

    for (i = 0; i < RPC_COUNT; i++)
        peer.id[i] = HG_Register_name(peer.cls, table[i].name, table[i].in,
                                      table[i].out, table[i].handler);
    ret = HG_Registered_disable_response(peer.cls, peer.id[RPC_NOTIFY], 1);
    if (ret != HG_SUCCESS)
        fatal("HG_Registered_disable_response", ret);
}
