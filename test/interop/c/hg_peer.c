/*
 * hg_peer: a Mercury process that serves the RPCs of hg_peer.h and calls them
 * at others, as told on its command line and standard input.
 *
 *     hg_peer [OPTION]... [COMMAND [KEY=VALUE]... [, COMMAND ...]...]
 *
 * It prints "ready addr=ADDRESS checksums=0|1", runs the commands of its
 * arguments, then one command per line of standard input, serving requests all
 * the while, and ends with status 0 at end of file or when a peer calls quit,
 * saying "bye ret=CODE". Every command prints one line "COMMAND ret=CODE
 * KEY=VALUE...", handlers may print "event NAME KEY=VALUE...". CODE is always
 * Mercury's return code; logs go to standard error.
 *
 * Options:
 *     --init STRING        information string; ofi+tcp://127.0.0.1
 *     --ipv6               of an interface's addresses take those of IPv6
 *     --client             do not listen for requests
 *     --busy               never wait in the kernel (NA_NO_BLOCK)
 *     --checksum LEVEL     none, headers or payload; none
 *     --no-eager           embed no data in bulk handles
 *     --no-overflow        refuse messages that do not fit instead
 *     --no-multi-recv      one receive buffer per request
 *     --max-unexpected N   largest request message, bytes
 *     --max-expected N     largest response message, bytes
 *     --timeout MS         cancel a command's call after this; 20000
 */
#include "hg_peer.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

struct peer peer = {.target = HG_ADDR_NULL, .timeout_ms = 20000};

void fatal(const char *what, hg_return_t ret)
{
    fprintf(stderr, "hg_peer: %s: %s\n", what, HG_Error_to_string(ret));
    exit(1);
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t) t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* run_callbacks makes what progress is possible without blocking and runs the
 * callbacks that are due. */
static void run_callbacks(void)
{
    unsigned int due = 0, ran = 0;
    hg_return_t  ret = HG_Event_progress(peer.context, &due);

    if (ret != HG_SUCCESS)
        fatal("HG_Event_progress", ret);
    do {
        ret = HG_Event_trigger(peer.context, 1, &ran);
    } while (ret == HG_SUCCESS && ran > 0);
    if (ret != HG_SUCCESS)
        fatal("HG_Event_trigger", ret);
}

bool wait_for(const bool *done, int ms)
{
    int64_t deadline = ms < 0 ? -1 : now_ms() + ms;

    for (;;) {
        struct pollfd fds[2] = {{peer.wait_fd, POLLIN, 0},
                                {STDIN_FILENO, POLLIN, 0}};
        int           left   = -1;

        run_callbacks();
        if (done != NULL ? *done : peer.quit)
            return true;
        if (deadline >= 0) {
            left = (int) (deadline - now_ms());
            if (left <= 0)
                return false;
        }
        if (peer.wait_fd < 0 || HG_Event_ready(peer.context))
            left = 0;
        poll(fds, done == NULL ? 2 : 1, left);
        if (done == NULL && fds[1].revents != 0)
            return false;
    }
}

/* read_line reads one line from standard input without the stdio buffer, so
 * that poll sees what is still unread. It returns false at end of file. */
static bool read_line(char *line)
{
    size_t n = 0;
    char   c;

    while (read(STDIN_FILENO, &c, 1) == 1) {
        if (c == '\n') {
            line[n] = '\0';
            return true;
        }
        if (n == MAX_LINE - 1)
            fatal("a command line is too long", HG_MSGSIZE);
        line[n++] = c;
    }
    return false;
}

static void run_lines(void)
{
    static char  line[MAX_LINE];
    struct words w;

    for (;;) {
        if (wait_for(NULL, -1) || !read_line(line))
            return;
        words_split(&w, line);
        if (w.n > 0)
            command(&w);
    }
}

static hg_checksum_level_t checksum_level(const char *name)
{
    if (strcmp(name, "none") == 0)
        return HG_CHECKSUM_NONE;
    if (strcmp(name, "headers") == 0)
        return HG_CHECKSUM_RPC_HEADERS;
    if (strcmp(name, "payload") == 0)
        return HG_CHECKSUM_RPC_PAYLOAD;
    fatal("--checksum takes none, headers or payload", HG_INVALID_ARG);
    return HG_CHECKSUM_NONE;
}

/* options reads the options into info and returns the index of the first
 * argument that is none. */
static int options(int argc, char **argv, struct hg_init_info *info,
                   const char **init, bool *listen)
{
    int i;

    for (i = 1; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        const char *name = argv[i] + 2;
        const char *next = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(name, "client") == 0)
            *listen = false;
        else if (strcmp(name, "ipv6") == 0)
            info->na_init_info.addr_format = NA_ADDR_IPV6;
        else if (strcmp(name, "busy") == 0)
            info->na_init_info.progress_mode = NA_NO_BLOCK;
        else if (strcmp(name, "auto-sm") == 0)
            info->auto_sm = true;
        else if (strcmp(name, "no-eager") == 0)
            info->no_bulk_eager = 1;
        else if (strcmp(name, "no-overflow") == 0)
            info->no_overflow = true;
        else if (strcmp(name, "no-multi-recv") == 0)
            info->no_multi_recv = 1;
        else if (strcmp(name, "init") == 0)
            *init = next, i++;
        else if (strcmp(name, "checksum") == 0)
            info->checksum_level = checksum_level(next), i++;
        else if (strcmp(name, "max-unexpected") == 0)
            info->na_init_info.max_unexpected_size = (size_t) atol(next), i++;
        else if (strcmp(name, "max-expected") == 0)
            info->na_init_info.max_expected_size = (size_t) atol(next), i++;
        else if (strcmp(name, "timeout") == 0)
            peer.timeout_ms = atoi(next), i++;
        else
            fatal(argv[i], HG_INVALID_ARG);
    }
    return i;
}

static void start(const char *init, bool listen, struct hg_init_info *info)
{
    hg_size_t   size = sizeof(peer.self);
    hg_addr_t   addr;
    hg_return_t ret;

    peer.cls = HG_Init_opt2(init, listen, HG_VERSION(2, 4), info);
    if (peer.cls == NULL)
        fatal("HG_Init_opt2", HG_OTHER_ERROR);
    peer.context = HG_Context_create(peer.cls);
    if (peer.context == NULL)
        fatal("HG_Context_create", HG_OTHER_ERROR);
    peer.wait_fd = HG_Event_get_wait_fd(peer.context);
    if (peer.wait_fd < 0 && info->na_init_info.progress_mode != NA_NO_BLOCK)
        fatal("HG_Event_get_wait_fd", HG_OPNOTSUPPORTED);
    ret = HG_Addr_self(peer.cls, &addr);
    if (ret != HG_SUCCESS)
        fatal("HG_Addr_self", ret);
    ret = HG_Addr_to_string(peer.cls, peer.self, &size, addr);
    if (ret != HG_SUCCESS)
        fatal("HG_Addr_to_string", ret);
    HG_Addr_free(peer.cls, addr);
    serve_register();
}

/* finish ends the Mercury instance and returns what Mercury says: HG_BUSY if
 * handles, addresses or bulk memory are still in use. */
static hg_return_t finish(void)
{
    hg_return_t ret;

    serve_finish();
    run_callbacks();
    if (peer.target != HG_ADDR_NULL)
        HG_Addr_free(peer.cls, peer.target);
    ret = HG_Context_destroy(peer.context);
    return ret != HG_SUCCESS ? ret : HG_Finalize(peer.cls);
}

int main(int argc, char **argv)
{
    struct hg_init_info info   = HG_INIT_INFO_INITIALIZER;
    const char *        init   = "ofi+tcp://127.0.0.1";
    bool                listen = true;
    int                 first;

    HG_Set_log_stream("error", stderr);
    HG_Set_log_stream("warning", stderr);
    first = options(argc, argv, &info, &init, &listen);
    start(init, listen, &info);
    report("ready addr=%s checksums=%d", peer.self, CHECKSUMS);
    run_arguments(argc - first, argv + first);
    if (!peer.quit)
        run_lines();
    report("bye ret=%d", finish());
    return 0;
}
