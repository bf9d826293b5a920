/*
 * hg_peer_call.c: the commands, which call the RPCs at the target.
 */
#include "hg_peer.h"

#include <time.h>

/* call is one forwarded RPC. */
struct call {
    hg_handle_t handle;
    hg_return_t ret;
    bool        done;
};

static hg_return_t on_reply(const struct hg_cb_info *info)
{
    struct call *c = info->arg;

    c->ret  = info->ret;
    c->done = true;
    return HG_SUCCESS;
}

/* call_start forwards; a failure counts as the call's end. */
static void call_start(struct call *c, hg_id_t id, void *in)
{
    c->done   = false;
    c->handle = HG_HANDLE_NULL;
    c->ret    = HG_Create(peer.context, peer.target, id, &c->handle);
    if (c->ret == HG_SUCCESS)
        c->ret = HG_Forward(c->handle, on_reply, c, in);
    if (c->ret != HG_SUCCESS)
        c->done = true;
}

/* call_wait waits for the reply; after ms milliseconds it cancels the call,
 * and waits for the callback that Mercury then owes. */
static hg_return_t call_wait(struct call *c, int ms)
{
    if (!wait_for(&c->done, ms)) {
        hg_return_t ret = HG_Cancel(c->handle);
        if (ret != HG_SUCCESS)
            fatal("HG_Cancel", ret);
        wait_for(&c->done, -1);
    }
    return c->ret;
}

static void call_end(struct call *c)
{
    if (c->handle != HG_HANDLE_NULL)
        HG_Destroy(c->handle);
}

/* call_once does all of it for RPCs whose result, if any, the caller reads
 * with HG_Get_output before call_end. */
static hg_return_t call_once(struct call *c, enum rpc rpc, void *in)
{
    call_start(c, peer.id[rpc], in);
    return call_wait(c, peer.timeout_ms);
}

static void do_target(const struct words *w)
{
    const char *addr = words_text(w, "addr", peer.self);
    hg_return_t ret;

    if (peer.target != HG_ADDR_NULL)
        HG_Addr_free(peer.cls, peer.target);
    peer.target = HG_ADDR_NULL;
    ret         = HG_Addr_lookup2(peer.cls, addr, &peer.target);
    report("target ret=%d", ret);
}

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* idle keeps the processor for a random time below us microseconds: who sleeps
 * is woken later than that. */
static void idle(int64_t us)
{
    int64_t end;

    if (us <= 0)
        return;
    for (end = now_us() + random() % us; now_us() < end;)
        ;
}

/* do_sum calls count times, inflight at once with random gaps below gap
 * microseconds, and counts what became of them; ret is the last error, longest
 * the longest wait for one in microseconds. */
static void do_sum(const struct words *w)
{
    int          count    = (int) words_number(w, "count", 1);
    int          inflight = (int) words_number(w, "inflight", 1);
    int64_t      gap      = words_number(w, "gap", 0), longest = 0, begin;
    sum_in_t     in       = {(int32_t) words_number(w, "a", 0),
                             (int32_t) words_number(w, "b", 0)};
    struct call *calls    = calloc((size_t) inflight, sizeof(*calls));
    sum_out_t    out      = {0};
    hg_return_t  ret      = HG_SUCCESS;
    int          sent = 0, done = 0, ok = 0, again = 0, canceled = 0;

    if (calls == NULL)
        fatal("calloc", HG_NOMEM);
    for (; done < count; done++) {
        struct call *c = &calls[done % inflight];
        idle(gap);
        begin = now_us();
        for (; sent < count && sent < done + inflight; sent++)
            call_start(&calls[sent % inflight], peer.id[RPC_SUM], &in);
        if (call_wait(c, peer.timeout_ms) == HG_SUCCESS)
            c->ret = HG_Get_output(c->handle, &out);
        if (now_us() - begin > longest)
            longest = now_us() - begin;
        if (c->ret == HG_SUCCESS) {
            ok += out.ret == (int32_t) ((uint32_t) in.a + (uint32_t) in.b);
            HG_Free_output(c->handle, &out);
        } else {
            ret = c->ret;
            again += ret == HG_AGAIN;
            canceled += ret == HG_CANCELED;
        }
        call_end(c);
    }
    free(calls);
    report("sum ret=%d value=%d count=%d ok=%d again=%d canceled=%d longest=%lld",
           ret, out.ret, done, ok, again, canceled, (long long) longest);
}

/* do_plain calls an RPC without argument or result. */
static void do_plain(enum rpc rpc, const char *name)
{
    struct call c;

    report("%s ret=%d", name, call_once(&c, rpc, NULL));
    call_end(&c);
}

static void do_void(const struct words *w)
{
    (void) w;
    do_plain(RPC_VOID, "void");
}

static void do_null(const struct words *w)
{
    (void) w;
    do_plain(RPC_NULL, "null");
}

static void do_quit(const struct words *w)
{
    (void) w;
    do_plain(RPC_QUIT, "quit");
}

static void do_unknown(const struct words *w)
{
    const char *name = words_text(w, "name", "no_such_rpc");
    struct call c;

    call_start(&c, HG_Register_name(peer.cls, name, NULL, NULL, NULL), NULL);
    report("unknown ret=%d", call_wait(&c, peer.timeout_ms));
    call_end(&c);
}

static void do_echo(const struct words *w)
{
    struct call c;
    all_t       in, out;
    bool        equal = false;
    hg_return_t ret;

    all_set(&in, (int) words_number(w, "variant", 0));
    ret = call_once(&c, RPC_ECHO, &in);
    if (ret == HG_SUCCESS)
        ret = HG_Get_output(c.handle, &out);
    if (ret == HG_SUCCESS) {
        equal = all_equal(&in, &out);
        HG_Free_output(c.handle, &out);
    }
    report("echo ret=%d equal=%d", ret, equal);
    call_end(&c);
}

/* do_notify sends text, or size bytes 'x' of it. */
static void do_notify(const struct words *w)
{
    size_t    size = (size_t) words_number(w, "size", -1);
    note_in_t in   = {(int32_t) words_number(w, "seq", 0), NULL};
    char *    made = NULL;

    if (size == (size_t) -1) {
        in.text = (hg_string_t) words_text(w, "text", NULL);
    } else {
        in.text = made = malloc(size + 1);
        if (made == NULL)
            fatal("malloc", HG_NOMEM);
        memset(made, 'x', size);
        made[size] = '\0';
    }
    struct call c;
    report("notify-sent ret=%d", call_once(&c, RPC_NOTIFY, &in));
    call_end(&c);
    free(made);
}

/* do_count calls an RPC that returns a count. */
static void do_count(enum rpc rpc, const char *name)
{
    struct call c;
    count_out_t out = {-1};
    hg_return_t ret = call_once(&c, rpc, NULL);

    if (ret == HG_SUCCESS)
        ret = HG_Get_output(c.handle, &out);
    if (ret == HG_SUCCESS)
        HG_Free_output(c.handle, &out);
    report("%s ret=%d count=%d", name, ret, out.count);
    call_end(&c);
}

static void do_notified(const struct words *w)
{
    (void) w;
    do_count(RPC_NOTIFIED, "notified");
}

static void do_release(const struct words *w)
{
    (void) w;
    do_count(RPC_RELEASE, "release");
}

static void do_blob(const struct words *w)
{
    uint64_t    size = (uint64_t) words_number(w, "size", 0), i;
    blob_in_t   in   = {(uint32_t) words_number(w, "seed", 1),
                        (uint64_t) words_number(w, "reply", 0),
                        {size, malloc(size + 1)}};
    blob_out_t  out  = {0, {0, NULL}};
    bool        good = true;
    uint64_t    got  = 0;
    struct call c;
    hg_return_t ret;

    if (in.bytes.bytes == NULL)
        fatal("malloc", HG_NOMEM);
    pattern_fill(in.bytes.bytes, size, in.seed);
    ret = call_once(&c, RPC_BLOB, &in);
    free(in.bytes.bytes);
    if (ret == HG_SUCCESS)
        ret = HG_Get_output(c.handle, &out);
    if (ret == HG_SUCCESS) {
        got = out.bytes.len;
        for (i = 0; i < got; i++)
            if (((uint8_t *) out.bytes.bytes)[i] != pattern_byte(in.seed + 1, i))
                good = false;
        HG_Free_output(c.handle, &out);
    }
    report("blob ret=%d sent-ok=%d reply=%llu reply-ok=%d", ret, out.ok,
           (unsigned long long) got, good);
    call_end(&c);
}

/* move_words fills in from the words of a pull or push. */
static void move_words(const struct words *w, move_in_t *in, uint64_t total)
{
    uint64_t offset = (uint64_t) words_number(w, "offset", 0);
    uint64_t size   = (uint64_t) words_number(w, "size", (int64_t) (total - offset));
    uint64_t local_offset = (uint64_t) words_number(w, "local-offset", 0);

    in->origin       = (hg_string_t) words_text(w, "origin", "");
    in->offset       = offset;
    in->size         = size;
    in->local_offset = local_offset;
    in->local_size =
        (uint64_t) words_number(w, "local-size", (int64_t) (local_offset + size));
    in->local_segments = (uint32_t) words_number(w, "local-segments", 1);
    in->seed           = (uint32_t) words_number(w, "seed", 1);
    in->cancel         = (uint8_t) words_number(w, "cancel", 0);
}

/* move_expected is the hash that the server must have found in its memory:
 * zeros but for the bytes it pulled. */
static uint64_t move_expected(const move_in_t *in, const uint8_t *memory)
{
    uint8_t *want = calloc(1, in->local_size + 1);
    uint64_t h;

    if (want == NULL)
        fatal("calloc", HG_NOMEM);
    memcpy(want + in->local_offset, memory + in->offset, in->size);
    h = fnv1a(want, in->local_size);
    free(want);
    return h;
}

/* move_check tells whether a push changed what it should and nothing else. */
static bool move_check(const move_in_t *in, const uint8_t *memory,
                       uint64_t total)
{
    uint64_t i;

    for (i = 0; i < total; i++) {
        bool    inside = i >= in->offset && i < in->offset + in->size;
        uint8_t want   = inside ? pattern_byte(in->seed, in->local_offset + i
                                                             - in->offset)
                                : 0;
        if (memory[i] != want)
            return false;
    }
    return true;
}

/* move_call sends in, through a relay if the command names one. */
static hg_return_t move_call(const struct words *w, bool push, move_in_t *in,
                             move_out_t *out)
{
    const char *via = words_text(w, "via", NULL);
    relay_in_t  relay;
    struct call c;
    hg_return_t ret;

    if (via != NULL) {
        relay.to   = (hg_string_t) via;
        relay.push = push;
        relay.move = *in;
        ret        = call_once(&c, RPC_RELAY, &relay);
    } else {
        ret = call_once(&c, push ? RPC_PUSH : RPC_PULL, in);
    }
    if (ret == HG_SUCCESS)
        ret = HG_Get_output(c.handle, out);
    if (ret == HG_SUCCESS)
        HG_Free_output(c.handle, out);
    call_end(&c);
    return ret;
}

/* do_move exposes total bytes in segments pieces and has the target, or the
 * process via through the target, pull or push. */
static void do_move(const struct words *w, bool push)
{
    uint64_t    total    = (uint64_t) words_number(w, "total", 16);
    uint32_t    segments = (uint32_t) words_number(w, "segments", 1);
    uint8_t     mode     = (uint8_t) words_number(w, "mode", push ? 2 : 1);
    const char *name     = push ? "push" : "pull";
    move_in_t   in;
    move_out_t  out = {-1, 0, 0};
    void *      memory;
    bool        good;
    hg_return_t ret;

    move_words(w, &in, total);
    ret = local_bulk(total, segments, mode, &memory, &in.bulk);
    if (ret != HG_SUCCESS)
        fatal("HG_Bulk_create", ret);
    if (push)
        memset(memory, 0, total);
    else
        pattern_fill(memory, total, in.seed);
    if (words_number(w, "bind", 0) != 0) {
        ret = HG_Bulk_bind(in.bulk, peer.context);
        if (ret != HG_SUCCESS)
            fatal("HG_Bulk_bind", ret);
    }
    ret = move_call(w, push, &in, &out);
    good = ret == HG_SUCCESS && out.ret == HG_SUCCESS
        && (push ? move_check(&in, memory, total)
                 : out.hash == move_expected(&in, memory));
    report("%s ret=%d moved=%d count=%llu ok=%d", name, ret, out.ret,
           (unsigned long long) out.count, good);
    HG_Bulk_free(in.bulk);
    free(memory);
}

static void do_pull(const struct words *w)
{
    do_move(w, false);
}

static void do_push(const struct words *w)
{
    do_move(w, true);
}

/* do_hold calls hold and cancels it after ms milliseconds. */
static void do_hold(const struct words *w)
{
    struct call c;

    call_start(&c, peer.id[RPC_HOLD], NULL);
    report("hold ret=%d",
           call_wait(&c, (int) words_number(w, "cancel", peer.timeout_ms)));
    call_end(&c);
}

static void do_callback(const struct words *w)
{
    sum_in_t    in  = {(int32_t) words_number(w, "a", 0),
                       (int32_t) words_number(w, "b", 0)};
    sum_out_t   out = {0};
    struct call c;
    hg_return_t ret = call_once(&c, RPC_CALLBACK, &in);

    if (ret == HG_SUCCESS)
        ret = HG_Get_output(c.handle, &out);
    if (ret == HG_SUCCESS)
        HG_Free_output(c.handle, &out);
    report("callback ret=%d value=%d", ret, out.ret);
    call_end(&c);
}

static const struct command commands[] = {
    {"target", do_target},     {"sum", do_sum},
    {"void", do_void},         {"null", do_null},
    {"unknown", do_unknown},   {"echo", do_echo},
    {"notify", do_notify},     {"notified", do_notified},
    {"blob", do_blob},         {"pull", do_pull},
    {"push", do_push},         {"hold", do_hold},
    {"release", do_release},   {"callback", do_callback},
    {"quit", do_quit},
};

void command(const struct words *w)
{
    command_run(commands, sizeof(commands) / sizeof(*commands), peer.target, w);
}
