/*
 * mixed.c: one side of a conversation on rdma-core, to see whether another
 * implementation moves every byte. Two programs take turns; in a turn one of
 * them has up to 16 messages: sends, RDMA writes and RDMA reads of 0 bytes to
 * 1 MiB, all drawn from one seed that both know. Who receives a message checks
 * each of its bytes, its length, and that the bytes behind it are as before.
 *
 *   mixed -s | -c -a ADDRESS [-p PORT] [-n MESSAGES] [-r SEED] [-b CASE]
 *
 * Only the client needs -n, -r and -b. -b has the client violate the server's
 * rights in one of the ways of bad_cases instead; then both print what they see
 * of it. The last line is the verdict, the exit status 0 if it is "ok".
 */
#include "mixed.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GOLDEN 0x9e3779b97f4a7c15u
#define GUARD_BYTE 0xa5

static const char *const op_names[OPS] = {"sends", "writes", "reads"};

/* Ways of violating the server's rights, numbered from 1 as control.bad has them. */
static const char *const bad_cases[] = {NULL, "write-key", "read-key", "write-range", "send-long"};

enum { BAD_WRITE_KEY = 1, BAD_READ_KEY, BAD_WRITE_RANGE, BAD_SEND_LONG, BAD_CASES };

/* mix is the output function of splitmix64. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t next(struct side *s) { return mix(s->random += GOLDEN); }

/* draw draws the next turn's messages, at most left. Sizes have every order of magnitude. Reads have a byte at least: siw answers one of nothing that
 * waits behind another with as many bytes as that one (siw_activate_tx). */
static int draw(struct side *s, uint64_t left, struct message *m)
{
    uint64_t n = 1 + next(s) % SLOTS;

    if (n > left)
        n = left;
    for (uint64_t k = 0; k < n; k++) {
        m[k].op   = next(s) % OPS;
        m[k].size = next(s) % 21;
        m[k].size = next(s) % ((1u << m[k].size) + 1);
        if (m[k].op == OP_READ && m[k].size == 0)
            m[k].size = 1;
    }
    return n;
}

/* word is word j of a message with that start. */
static uint64_t word(uint64_t start, uint64_t j) { return htole64(mix(start + j * GOLDEN)); }

static uint64_t start_of(const struct side *s, uint64_t number) { return mix(s->seed ^ (number + 1) * GOLDEN); }

/* guard marks the bytes behind a message that is expected at b. */
static void guard(uint8_t *b, uint32_t size) { memset(b + size, GUARD_BYTE, GUARD); }

/* fill makes message number at b. */
static void fill(const struct side *s, uint64_t number, uint8_t *b, uint32_t size)
{
    uint64_t start = start_of(s, number), j = 0, w;

    for (; (j + 1) * 8 <= size; j++) {
        w = word(start, j);
        memcpy(b + j * 8, &w, 8);
    }
    w = word(start, j);
    memcpy(b + j * 8, &w, size % 8);
}

/* check compares message number at b with what it must be. */
static void check(struct side *s, uint64_t number, const struct message *m, const uint8_t *b)
{
    uint64_t start = start_of(s, number), j = 0, w;
    bool     good  = true;

    for (; (j + 1) * 8 <= m->size && good; j++) {
        w    = word(start, j);
        good = memcmp(b + j * 8, &w, 8) == 0;
    }
    w = word(start, m->size / 8);
    if (memcmp(b + m->size / 8 * 8, &w, m->size % 8))
        good = false;
    for (int i = 0; i < GUARD; i++)
        if (b[m->size + i] != GUARD_BYTE)
            good = false;
    if (!good) {
        fprintf(stderr, "mixed: message %" PRIu64 " of %u bytes (%s) is wrong\n", number, m->size, op_names[m->op]);
        s->wrong++;
    }
}

/* act has the turn: it waits for the peer, posts all its messages at once, and checks what it has read. */
static void act(struct side *s, uint64_t turn, uint64_t first, const struct message *m, int n)
{
    struct ibv_send_wr wr[SLOTS + 1];
    struct ibv_sge     sge[SLOTS + 1];
    static const enum ibv_wr_opcode opcodes[OPS] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    if (side_recv_control(s, KIND_READY).turn != turn)
        die("the peer is ready for another turn than %" PRIu64, turn);
    for (int k = 0; k < n; k++) {
        uint8_t *b = s->local + (size_t)k * STRIDE;

        if (m[k].op == OP_READ)
            guard(b, m[k].size);
        else
            fill(s, first + k, b, m[k].size);
        sge[k] = (struct ibv_sge){.addr = (uintptr_t)b, .length = m[k].size, .lkey = s->local_mr->lkey};
        wr[k]  = (struct ibv_send_wr){
             .wr_id = k, .next = &wr[k + 1], .sg_list = &sge[k], .num_sge = 1, .opcode = opcodes[m[k].op], .send_flags = IBV_SEND_SIGNALED};
        wr[k].wr.rdma.remote_addr = s->peer_addr + (uint64_t)k * STRIDE;
        wr[k].wr.rdma.rkey        = s->peer_rkey;
    }
    wr[n] = side_control_wr(s, (struct control){.kind = KIND_DONE, .turn = turn}, &sge[n]);
    side_post_send(s, wr);
    for (int k = 0; k <= n; k++) {
        struct ibv_wc wc = side_wait(s, SENDS);

        if (wc.status != IBV_WC_SUCCESS)
            die("request %" PRIu64 " of turn %" PRIu64 " failed: %s", wc.wr_id, turn, ibv_wc_status_str(wc.status));
    }
    for (int k = 0; k < n; k++)
        if (m[k].op == OP_READ)
            check(s, first + k, &m[k], s->local + (size_t)k * STRIDE);
}

/* observe lets the peer have its turn, and checks what it has sent and written. */
static void observe(struct side *s, uint64_t turn, uint64_t first, const struct message *m, int n)
{
    for (int k = 0; k < n; k++) {
        uint8_t *b = s->data + (size_t)k * STRIDE;

        if (m[k].op == OP_READ)
            fill(s, first + k, b, m[k].size);
        else
            guard(b, m[k].size);
        if (m[k].op == OP_SEND)
            side_post_recv(s, k, b, MAX_SIZE, s->data_mr);
    }
    side_expect_control(s); /* DONE */
    side_expect_control(s); /* READY of the next turn, or BYE */
    side_send_control(s, (struct control){.kind = KIND_READY, .turn = turn});
    for (int k = 0; k < n; k++) {
        if (m[k].op != OP_SEND)
            continue;
        struct ibv_wc wc = side_wait(s, RECVS);
        if (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)k || wc.byte_len != m[k].size)
            die("receive %" PRIu64 ", %s, %u bytes; want receive %d with %u bytes", wc.wr_id, ibv_wc_status_str(wc.status), wc.byte_len, k,
                m[k].size);
    }
    if (side_recv_control(s, KIND_DONE).turn != turn)
        die("the peer has done another turn than %" PRIu64, turn);
    for (int k = 0; k < n; k++)
        if (m[k].op != OP_READ)
            check(s, first + k, &m[k], s->data + (size_t)k * STRIDE);
}

/* converse takes all turns; the client begins. The sides then tell each other how many messages were wrong. */
static void converse(struct side *s, bool client)
{
    struct message m[SLOTS];
    bool           mine  = client;
    time_t         begin = time(NULL);
    uint64_t       done = 0, turn = 0, theirs;

    for (; done < s->count; turn++, mine = !mine) {
        int n = draw(s, s->count - done, m);

        (mine ? act : observe)(s, turn, done, m, n);
        for (int k = 0; k < n; k++) {
            s->messages[m[k].op]++;
            s->bytes[m[k].op] += m[k].size;
        }
        if (done / 1000 != (done + n) / 1000)
            printf("%" PRIu64 " messages, %ld s\n", done + n, (long)(time(NULL) - begin));
        done += n;
    }
    if (mine) { /* observed last, so that a receive is posted */
        theirs = side_recv_control(s, KIND_BYE).turn;
        side_send_control(s, (struct control){.kind = KIND_BYE, .turn = s->wrong});
    } else {
        side_expect_control(s);
        side_send_control(s, (struct control){.kind = KIND_BYE, .turn = s->wrong});
        theirs = side_recv_control(s, KIND_BYE).turn;
    }
    for (int op = 0; op < OPS; op++)
        printf("%s: %" PRIu64 ", %" PRIu64 " bytes\n", op_names[op], s->messages[op], s->bytes[op]);
    printf("%" PRIu64 " turns, wrong here %" PRIu64 ", at the peer %" PRIu64 "\n", turn, s->wrong, theirs);
    s->wrong += theirs;
}

/* violate posts the request of a bad case and prints its completion. */
static void violate(struct side *s, uint32_t bad)
{
    struct ibv_sge     sge = {.addr = (uintptr_t)s->local, .length = 64, .lkey = s->local_mr->lkey};
    struct ibv_send_wr wr  = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};

    side_recv_control(s, KIND_READY);
    wr.wr.rdma.remote_addr = s->peer_addr;
    wr.wr.rdma.rkey        = s->peer_rkey;
    switch (bad) {
    case BAD_READ_KEY:
        wr.opcode = IBV_WR_RDMA_READ;
        /* fall through */
    case BAD_WRITE_KEY:
        wr.wr.rdma.rkey ^= 1 << 20;
        break;
    case BAD_WRITE_RANGE:
        wr.wr.rdma.remote_addr += (uint64_t)SLOTS * STRIDE - 8;
        break;
    case BAD_SEND_LONG:
        wr.opcode = IBV_WR_SEND;
        break;
    }
    side_post_send(s, &wr);
    printf("completion: %s\n", ibv_wc_status_str(side_fate(s, SENDS).status));
}

/* endure offers the peer what it is going to misuse, and prints what becomes of the receive. */
static void endure(struct side *s)
{
    side_post_recv(s, 0, s->data, SHORT, s->data_mr);
    side_send_control(s, (struct control){.kind = KIND_READY});
    printf("completion: %s\n", ibv_wc_status_str(side_fate(s, RECVS).status));
}

/* tell_end waits for the connection's end after a violation and prints the events. */
static void tell_end(struct side *s)
{
    struct ibv_context    *c = s->id->verbs;
    struct pollfd          p = {.fd = c->async_fd, .events = POLLIN};
    struct ibv_async_event ev;

    side_await_end(s);
    printf("end: %s\n", rdma_event_str(RDMA_CM_EVENT_DISCONNECTED));
    fcntl(c->async_fd, F_SETFL, fcntl(c->async_fd, F_GETFL) | O_NONBLOCK);
    while (poll(&p, 1, 300) > 0 && ibv_get_async_event(c, &ev) == 0) {
        printf("event: %s\n", ibv_event_type_str(ev.event_type));
        ibv_ack_async_event(&ev);
    }
}

/* serve is the server. */
static void serve(struct side *s, struct sockaddr *addr)
{
    struct control hello;

    side_serve(s, addr);
    side_expect_control(s);
    side_accept(s);
    hello     = side_recv_control(s, KIND_HELLO);
    s->count  = hello.turn;
    s->seed   = hello.seed;
    s->random = mix(s->seed);
    if (hello.bad) {
        endure(s);
        tell_end(s);
        return;
    }
    converse(s, false);
    side_await_end(s);
}

/* call is the client. */
static void call(struct side *s, struct sockaddr *addr, uint32_t bad)
{
    s->random = mix(s->seed);
    side_dial(s, addr);
    side_expect_control(s);
    side_connect(s);
    side_send_control(s, (struct control){.kind = KIND_HELLO, .bad = bad, .turn = s->count, .seed = s->seed});
    if (bad) {
        violate(s, bad);
        tell_end(s);
        return;
    }
    converse(s, true);
    if (rdma_disconnect(s->id))
        die_errno("rdma_disconnect");
    side_await_end(s);
}

static uint32_t bad_case(const char *name)
{
    for (uint32_t i = 1; i < BAD_CASES; i++)
        if (strcmp(bad_cases[i], name) == 0)
            return i;
    die("-b %s is no bad case", name);
}

int main(int argc, char **argv)
{
    struct side      s    = {.seed = 1, .count = 10000};
    const char      *host = NULL, *port = "7200";
    bool             server = false, client = false;
    uint32_t         bad = 0;
    struct addrinfo *to, hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    int              c, rc;

    while ((c = getopt(argc, argv, "sca:p:n:r:b:")) != -1) {
        switch (c) {
        case 's': server = true; break;
        case 'c': client = true; break;
        case 'a': host = optarg; break;
        case 'p': port = optarg; break;
        case 'n': s.count = strtoull(optarg, NULL, 10); break;
        case 'r': s.seed = strtoull(optarg, NULL, 10); break;
        case 'b': bad = bad_case(optarg); break;
        default: return 2;
        }
    }
    if (server == client || !host)
        die("usage: mixed -s | -c -a ADDRESS [-p PORT] [-n MESSAGES] [-r SEED] [-b CASE]");
    if ((rc = getaddrinfo(host, port, &hints, &to)))
        die("%s: %s", host, gai_strerror(rc));
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (server)
        serve(&s, to->ai_addr);
    else
        call(&s, to->ai_addr, bad);
    freeaddrinfo(to);
    side_close(&s);
    printf("mixed: %s\n", s.wrong ? "WRONG" : "ok");
    return s.wrong != 0;
}
