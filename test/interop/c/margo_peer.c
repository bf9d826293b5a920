/*
 * margo_peer: a Margo process that serves the RPCs of margo_peer.h and calls
 * them at others, as told on its command line and standard input.
 *
 *     margo_peer [OPTION]... [COMMAND [KEY=VALUE]... [, COMMAND ...]...]
 *
 * It works as hg_peer does: it prints "ready addr=ADDRESS checksums=0|1", runs
 * the commands of its arguments, then one per line of standard input, and ends at end of
 * file, when a peer calls quit, or by Margo's remote shutdown.
 *
 * Options:
 *     --init STRING     address to listen at; ofi+tcp://127.0.0.1
 *     --client          do not listen for requests
 *     --config JSON     Margo's configuration
 *     --shutdown        allow the remote shutdown
 *     --callbacks       report finalize callbacks as they run
 *     --timeout MS      a command's call is given up after this; 20000
 */
#include "margo_peer.h"

#include <poll.h>
#include <stdbool.h>
#include <unistd.h>

struct peer peer = {.target = HG_ADDR_NULL, .timeout_ms = 20000};

/* The finalize callback writes here to end the wait for commands. */
static int ended[2];

void fatal(const char *what, hg_return_t ret)
{
    fprintf(stderr, "margo_peer: %s: %s\n", what, HG_Error_to_string(ret));
    exit(1);
}

static void on_finalize(void *arg)
{
    (void) arg;
    if (write(ended[1], "x", 1) != 1)
        fatal("write", HG_IO_ERROR);
}

static void on_step(void *arg)
{
    report("event %s", (const char *) arg);
}

/* push_callbacks pushes callbacks of each kind; their reports show in which
 * order Margo runs them. */
static void push_callbacks(void)
{
    static int owner;

    margo_push_prefinalize_callback(peer.mid, on_step, "prefinalize n=1");
    margo_push_finalize_callback(peer.mid, on_step, "finalize n=1");
    margo_provider_push_prefinalize_callback(peer.mid, &owner, on_step,
                                             "prefinalize n=2 owner=1");
    margo_provider_push_finalize_callback(peer.mid, &owner, on_step,
                                          "finalize n=2 owner=1");
    margo_push_prefinalize_callback(peer.mid, on_step, "prefinalize n=3");
    margo_push_finalize_callback(peer.mid, on_step, "finalize n=3");
}

/* read_line reads one line from standard input without the stdio buffer. It
 * returns false at end of file and when the instance has been finalized. */
static bool read_line(char *line)
{
    struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {ended[0], POLLIN, 0}};
    size_t        n      = 0;

    for (;;) {
        char c;

        if (poll(fds, 2, -1) < 0 || fds[1].revents != 0)
            return false;
        if (read(STDIN_FILENO, &c, 1) != 1)
            return false;
        if (c == '\n') {
            line[n] = '\0';
            return true;
        }
        if (n == MAX_LINE - 1)
            fatal("a command line is too long", HG_MSGSIZE);
        line[n++] = c;
    }
}

static void run_lines(void)
{
    static char  line[MAX_LINE];
    struct words w;

    while (read_line(line)) {
        words_split(&w, line);
        if (w.n > 0)
            command(&w);
    }
}

struct options {
    const char *init, *config;
    bool        client, shutdown, callbacks;
};

/* options_read returns the index of the first argument that is no option. */
static int options_read(int argc, char **argv, struct options *o)
{
    int i;

    for (i = 1; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        const char *name = argv[i] + 2;
        const char *next = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(name, "client") == 0)
            o->client = true;
        else if (strcmp(name, "shutdown") == 0)
            o->shutdown = true;
        else if (strcmp(name, "callbacks") == 0)
            o->callbacks = true;
        else if (strcmp(name, "init") == 0)
            o->init = next, i++;
        else if (strcmp(name, "config") == 0)
            o->config = next, i++;
        else if (strcmp(name, "timeout") == 0)
            peer.timeout_ms = atof(next), i++;
        else
            fatal(argv[i], HG_INVALID_ARG);
    }
    return i;
}

static void start(const struct options *o)
{
    struct margo_init_info info = MARGO_INIT_INFO_INITIALIZER;
    char                   self[256];
    size_t                 size = sizeof(self);
    hg_addr_t              addr;
    hg_return_t            ret;

    info.json_config = o->config;
    peer.mid         = margo_init_ext(
        o->init, o->client ? MARGO_CLIENT_MODE : MARGO_SERVER_MODE, &info);
    if (peer.mid == MARGO_INSTANCE_NULL)
        fatal("margo_init_ext", HG_OTHER_ERROR);
    margo_instance_ref_incr(peer.mid);
    if (pipe(ended) != 0)
        fatal("pipe", HG_IO_ERROR);
    if (o->callbacks)
        push_callbacks();
    margo_push_finalize_callback(peer.mid, on_finalize, NULL);
    if (o->shutdown)
        margo_enable_remote_shutdown(peer.mid);
    serve_register();
    ret = margo_addr_self(peer.mid, &addr);
    if (ret == HG_SUCCESS)
        ret = margo_addr_to_string(peer.mid, self, &size, addr);
    if (ret != HG_SUCCESS)
        fatal("margo_addr_self", ret);
    margo_addr_free(peer.mid, addr);
    report("ready addr=%s checksums=%d", self, CHECKSUMS);
}

/* finish finalizes the instance, unless a peer has done it. Our reference,
 * taken at the start, is what keeps it usable until then. */
static void finish(void)
{
    bool done = false;

    margo_instance_is_finalized(peer.mid, &done);
    if (!done) {
        if (peer.target != HG_ADDR_NULL)
            margo_addr_free(peer.mid, peer.target);
        margo_finalize_and_wait(peer.mid);
    } else {
        margo_wait_for_finalize(peer.mid);
    }
    margo_instance_release(peer.mid);
}

int main(int argc, char **argv)
{
    struct options o = {
        "ofi+tcp://127.0.0.1",
        "{\"use_progress_thread\":true,\"rpc_thread_count\":1}", false, false,
        false};
    int first;

    HG_Set_log_stream("error", stderr);
    HG_Set_log_stream("warning", stderr);
    first = options_read(argc, argv, &o);
    start(&o);
    run_arguments(argc - first, argv + first);
    run_lines();
    finish();
    report("bye ret=0");
    return 0;
}
