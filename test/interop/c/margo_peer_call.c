/*
 * margo_peer_call.c: the commands, which call the RPCs at the target.
 */
#include "margo_peer.h"

/* provider_of is the provider that a command addresses. */
static uint16_t provider_of(const struct words *w)
{
    return (uint16_t) words_number(w, "provider", MARGO_DEFAULT_PROVIDER_ID);
}

/* timeout_of is the time that a command gives its call. */
static double timeout_of(const struct words *w)
{
    return (double) words_number(w, "timeout", (int64_t) peer.timeout_ms);
}

/* call forwards and, when out is given, decodes the result into it. The
 * caller hands both to call_end. */
static hg_return_t call(const struct words *w, hg_id_t id, void *in, void *out,
                        hg_handle_t *h)
{
    hg_return_t ret;

    *h  = HG_HANDLE_NULL;
    ret = margo_create(peer.mid, peer.target, id, h);
    if (ret == HG_SUCCESS)
        ret = margo_provider_forward_timed(provider_of(w), *h, in,
                                           timeout_of(w));
    /* Even a result without fields is fetched: the code of Margo's response
     * header is looked at nowhere else. */
    if (ret == HG_SUCCESS && out != NULL)
        ret = margo_get_output(*h, out);
    return ret;
}

/* call_end frees the result, if ret says that there is one, and the handle. */
static void call_end(hg_handle_t h, hg_return_t ret, void *out)
{
    if (ret == HG_SUCCESS && out != NULL)
        margo_free_output(h, out);
    if (h != HG_HANDLE_NULL)
        margo_destroy(h);
}

static void do_target(const struct words *w)
{
    const char *addr = words_text(w, "addr", "");
    hg_return_t ret;

    if (peer.target != HG_ADDR_NULL)
        margo_addr_free(peer.mid, peer.target);
    peer.target = HG_ADDR_NULL;
    if (strcmp(addr, "self") == 0)
        ret = margo_addr_self(peer.mid, &peer.target);
    else
        ret = margo_addr_lookup(peer.mid, addr, &peer.target);
    report("target ret=%d", ret);
}

/* do_sum calls count times, one after the other. */
static void do_sum(const struct words *w)
{
    int         count = (int) words_number(w, "count", 1), i;
    sum_in_t    in    = {(int32_t) words_number(w, "a", 0),
                         (int32_t) words_number(w, "b", 0)};
    sum_out_t   out   = {0};
    hg_return_t ret   = HG_SUCCESS;
    hg_handle_t h;

    for (i = 0; i < count && ret == HG_SUCCESS; i++) {
        ret = call(w, peer.sum, &in, &out, &h);
        call_end(h, ret, &out);
    }
    report("sum ret=%d value=%d count=%d", ret, out.ret, i);
}

/* do_async has count calls in flight at once. */
static void do_async(const struct words *w)
{
    int            count = (int) words_number(w, "count", 1), i, ok = 0;
    hg_handle_t *  h     = calloc((size_t) count, sizeof(*h));
    margo_request *req   = calloc((size_t) count, sizeof(*req));
    sum_in_t       in    = {0, 1};
    hg_return_t    ret   = HG_SUCCESS;
    sum_out_t      out;

    if (h == NULL || req == NULL)
        fatal("calloc", HG_NOMEM);
    for (i = 0; i < count && ret == HG_SUCCESS; i++) {
        in.a = i;
        ret  = margo_create(peer.mid, peer.target, peer.sum, &h[i]);
        if (ret == HG_SUCCESS)
            ret = margo_provider_iforward_timed(provider_of(w), h[i], &in,
                                                timeout_of(w), &req[i]);
    }
    if (ret != HG_SUCCESS)
        fatal("margo_provider_iforward_timed", ret);
    for (i = 0; i < count; i++) {
        hg_return_t one = margo_wait(req[i]);
        if (one == HG_SUCCESS)
            one = margo_get_output(h[i], &out);
        if (one == HG_SUCCESS)
            ok += out.ret == i + 1;
        else
            ret = one;
        call_end(h[i], one, &out);
    }
    free(h);
    free(req);
    report("async ret=%d count=%d ok=%d", ret, count, ok);
}

static void do_which(const struct words *w)
{
    id_out_t    out = {0};
    hg_handle_t h;
    hg_return_t ret = call(w, peer.which, NULL, &out, &h);

    report("which ret=%d id=%016llx", ret, (unsigned long long) out.id);
    call_end(h, ret, &out);
}

/* do_plain calls an RPC without argument or result. */
static void do_plain(const struct words *w, hg_id_t id)
{
    hg_handle_t h;
    char        nothing;
    hg_return_t sent = call(w, id, NULL, NULL, &h);
    hg_return_t ret  = sent;

    if (sent == HG_SUCCESS)
        ret = margo_get_output(h, &nothing);
    report("%s ret=%d forward=%d", w->word[0], ret, sent);
    call_end(h, ret, &nothing);
}

static void do_void(const struct words *w)
{
    do_plain(w, peer.none);
}

static void do_null(const struct words *w)
{
    do_plain(w, peer.null);
}

static void do_quit(const struct words *w)
{
    do_plain(w, peer.quit);
}

static void do_unknown(const struct words *w)
{
    const char *name = words_text(w, "name", "no_such_rpc");
    hg_id_t     id   = MARGO_REGISTER(peer.mid, name, void, void, NULL);

    do_plain(w, id);
}

static void do_echo(const struct words *w)
{
    int         equal = 0;
    all_t       in, out;
    hg_handle_t h;
    hg_return_t ret;

    all_set(&in, (int) words_number(w, "variant", 0));
    ret = call(w, peer.echo, &in, &out, &h);
    if (ret == HG_SUCCESS)
        equal = all_equal(&in, &out);
    report("echo ret=%d equal=%d", ret, equal);
    call_end(h, ret, &out);
}

/* do_notify sends text, or size bytes 'x' of it. */
static void do_notify(const struct words *w)
{
    size_t      size = (size_t) words_number(w, "size", -1);
    note_in_t   in   = {(int32_t) words_number(w, "seq", 0), NULL};
    char *      made = NULL;
    hg_handle_t h;
    hg_return_t ret;

    if (size == (size_t) -1) {
        in.text = (hg_string_t) words_text(w, "text", NULL);
    } else {
        in.text = made = malloc(size + 1);
        if (made == NULL)
            fatal("malloc", HG_NOMEM);
        memset(made, 'x', size);
        made[size] = '\0';
    }
    ret = call(w, peer.notify, &in, NULL, &h);
    report("notify-sent ret=%d", ret);
    call_end(h, ret, NULL);
    free(made);
}

static void do_notified(const struct words *w)
{
    count_out_t out = {-1};
    hg_handle_t h;
    hg_return_t ret = call(w, peer.notified, NULL, &out, &h);

    report("notified ret=%d count=%d", ret, out.count);
    call_end(h, ret, &out);
}

static void do_blob(const struct words *w)
{
    uint64_t    size = (uint64_t) words_number(w, "size", 0), i, got = 0;
    blob_in_t   in   = {(uint32_t) words_number(w, "seed", 1),
                        (uint64_t) words_number(w, "reply", 0),
                        {size, malloc(size + 1)}};
    blob_out_t  out  = {0, {0, NULL}};
    int         good = 1;
    hg_handle_t h;
    hg_return_t ret;

    if (in.bytes.bytes == NULL)
        fatal("malloc", HG_NOMEM);
    pattern_fill(in.bytes.bytes, size, in.seed);
    ret = call(w, peer.blob, &in, &out, &h);
    free(in.bytes.bytes);
    if (ret == HG_SUCCESS)
        got = out.bytes.len;
    for (i = 0; i < got; i++)
        if (((uint8_t *) out.bytes.bytes)[i] != pattern_byte(in.seed + 1, i))
            good = 0;
    report("blob ret=%d sent-ok=%d reply=%llu reply-ok=%d", ret, out.ok,
           (unsigned long long) got, good);
    call_end(h, ret, &out);
}

/* moved_right tells whether the server's hash, after a pull, or our memory,
 * after a push, is what it should be. Both sides start with zeros. */
static int moved_right(const move_in_t *in, const move_out_t *out, int push,
                       const uint8_t *memory, uint64_t total)
{
    uint64_t n    = push ? total : in->local_size;
    uint8_t *want = calloc(1, n + 1);
    int      same;

    if (want == NULL)
        fatal("calloc", HG_NOMEM);
    if (push) {
        uint64_t i;
        for (i = 0; i < in->size; i++)
            want[in->offset + i] = pattern_byte(in->seed, in->local_offset + i);
        same = memcmp(want, memory, total) == 0;
    } else {
        memcpy(want + in->local_offset, memory + in->offset, in->size);
        same = fnv1a(want, n) == out->hash;
    }
    free(want);
    return same;
}

/* do_move exposes total bytes in segments pieces and has the target pull or
 * push. */
static void do_move(const struct words *w, int push)
{
    uint64_t    total    = (uint64_t) words_number(w, "total", 16);
    uint32_t    segments = (uint32_t) words_number(w, "segments", 1);
    uint8_t     mode     = (uint8_t) words_number(w, "mode", push ? 2 : 1);
    move_in_t   in       = {0};
    move_out_t  out      = {-1, 0, 0};
    void *      memory;
    hg_handle_t h;
    hg_return_t ret;
    int         ok;

    in.origin = (hg_string_t) words_text(w, "origin", "");
    in.offset = (uint64_t) words_number(w, "offset", 0);
    in.size = (uint64_t) words_number(w, "size", (int64_t) (total - in.offset));
    in.local_offset = (uint64_t) words_number(w, "local-offset", 0);
    in.local_size   = (uint64_t) words_number(
        w, "local-size", (int64_t) (in.local_offset + in.size));
    in.local_segments = (uint32_t) words_number(w, "local-segments", 1);
    in.seed           = (uint32_t) words_number(w, "seed", 1);
    ret = local_bulk(total, segments, mode, &memory, &in.bulk);
    if (ret != HG_SUCCESS)
        fatal("margo_bulk_create", ret);
    if (push)
        memset(memory, 0, total);
    else
        pattern_fill(memory, total, in.seed);
    ret = call(w, push ? peer.push : peer.pull, &in, &out, &h);
    ok  = ret == HG_SUCCESS && out.ret == HG_SUCCESS
      && moved_right(&in, &out, push, memory, total);
    report("%s ret=%d moved=%d count=%llu ok=%d", w->word[0], ret, out.ret,
           (unsigned long long) out.count, ok);
    call_end(h, ret, &out);
    margo_bulk_free(in.bulk);
    free(memory);
}

static void do_pull(const struct words *w)
{
    do_move(w, 0);
}

static void do_push(const struct words *w)
{
    do_move(w, 1);
}

/* do_nested has the target call sum at to, or at ourselves, at provider
 * inner. */
static void do_nested(const struct words *w)
{
    nested_in_t in = {
        (hg_string_t) words_text(w, "to", ""),
        (uint16_t) words_number(w, "inner", MARGO_DEFAULT_PROVIDER_ID),
        {(int32_t) words_number(w, "a", 0), (int32_t) words_number(w, "b", 0)}};
    nested_out_t out = {-1, 0};
    hg_handle_t  h;
    hg_return_t  ret = call(w, peer.nested, &in, &out, &h);

    report("nested ret=%d code=%d value=%d", ret, out.code, out.ret);
    call_end(h, ret, &out);
}

static void do_slow(const struct words *w)
{
    slow_in_t   in = {(uint32_t) words_number(w, "ms", 0)};
    hg_handle_t h;
    hg_return_t ret = call(w, peer.slow, &in, NULL, &h);

    report("slow ret=%d", ret);
    call_end(h, ret, NULL);
}

static void do_identity(const struct words *w)
{
    char        name[256] = "";
    size_t      size      = (size_t) words_number(w, "size", sizeof(name));
    hg_return_t ret;

    if (size > sizeof(name))
        fatal("size", HG_INVALID_ARG);
    ret = margo_provider_get_identity(peer.mid, peer.target, provider_of(w),
                                      name, &size);
    report("identity ret=%d name=%s size=%zu", ret,
           ret == HG_SUCCESS ? name : "", size);
}

static void do_shutdown(const struct words *w)
{
    (void) w;
    report("shutdown ret=%d",
           margo_shutdown_remote_instance(peer.mid, peer.target));
}

static const struct command commands[] = {
    {"target", do_target},     {"sum", do_sum},
    {"async", do_async},       {"which", do_which},
    {"void", do_void},         {"null", do_null},
    {"unknown", do_unknown},   {"echo", do_echo},
    {"notify", do_notify},     {"notified", do_notified},
    {"blob", do_blob},         {"pull", do_pull},
    {"push", do_push},         {"nested", do_nested},
    {"slow", do_slow},         {"identity", do_identity},
    {"shutdown", do_shutdown}, {"quit", do_quit},
};

void command(const struct words *w)
{
    command_run(commands, sizeof(commands) / sizeof(*commands), peer.target, w);
}
