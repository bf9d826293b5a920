/*
 * mixed_rdma.c: a connection of librdmacm with the objects that it needs.
 */
#include "mixed.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC 0x4d495845 /* "MIXE" */

enum { CTL_SLOTS = 8, DEPTH = SLOTS + 4 };

void die(const char *what, ...)
{
    va_list args;

    va_start(args, what);
    fprintf(stderr, "mixed: ");
    vfprintf(stderr, what, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

void die_errno(const char *what) { die("%s: %s", what, strerror(errno)); }

/* readable waits until fd has something to read. */
static void readable(int fd, const char *what)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int           n = poll(&p, 1, PATIENCE * 1000);

    if (n < 0)
        die_errno("poll");
    if (n == 0)
        die("no %s within %d s", what, PATIENCE);
}

/* cm_wait takes the next event of the connection manager, which must be want. */
static struct rdma_cm_id *cm_wait(struct side *s, enum rdma_cm_event_type want)
{
    struct rdma_cm_event   *ev;
    struct rdma_cm_id      *id;
    enum rdma_cm_event_type got;
    int                     status;

    readable(s->events->fd, rdma_event_str(want));
    if (rdma_get_cm_event(s->events, &ev))
        die_errno("rdma_get_cm_event");
    got    = ev->event;
    status = ev->status;
    id     = ev->id;
    rdma_ack_cm_event(ev);
    if (got != want)
        die("%s (status %d) instead of %s", rdma_event_str(got), status, rdma_event_str(want));
    return id;
}

static struct ibv_mr *reg(struct side *s, uint8_t **buf, size_t size, int access)
{
    struct ibv_mr *mr;

    if (posix_memalign((void **)buf, 4096, size))
        die("no memory");
    memset(*buf, 0, size);
    if (!(mr = ibv_reg_mr(s->pd, *buf, size, access)))
        die_errno("ibv_reg_mr");
    return mr;
}

/* make makes the objects on the device that the identifier is bound to. */
static void make(struct side *s)
{
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC,
        .cap     = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };

    if (!(s->pd = ibv_alloc_pd(s->id->verbs)))
        die_errno("ibv_alloc_pd");
    for (int q = SENDS; q <= RECVS; q++) {
        if (!(s->channel[q] = ibv_create_comp_channel(s->id->verbs)))
            die_errno("ibv_create_comp_channel");
        if (!(s->cq[q] = ibv_create_cq(s->id->verbs, DEPTH, NULL, s->channel[q], 0)))
            die_errno("ibv_create_cq");
    }
    s->data_mr  = reg(s, &s->data, (size_t)SLOTS * STRIDE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    s->local_mr = reg(s, &s->local, (size_t)SLOTS * STRIDE, IBV_ACCESS_LOCAL_WRITE);
    s->ctl_mr   = reg(s, &s->ctl, CTL_SLOTS * CONTROL, IBV_ACCESS_LOCAL_WRITE);
    attr.send_cq = s->cq[SENDS];
    attr.recv_cq = s->cq[RECVS];
    if (rdma_create_qp(s->id, s->pd, &attr))
        die_errno("rdma_create_qp");
}

static void open_events(struct side *s, struct rdma_cm_id **id)
{
    if (!(s->events = rdma_create_event_channel()))
        die_errno("rdma_create_event_channel");
    if (rdma_create_id(s->events, id, NULL, RDMA_PS_TCP))
        die_errno("rdma_create_id");
}

/* side_serve waits for a client and makes the objects for it. */
void side_serve(struct side *s, struct sockaddr *addr)
{
    open_events(s, &s->listener);
    if (rdma_bind_addr(s->listener, addr) || rdma_listen(s->listener, 1))
        die_errno("listen");
    s->id = cm_wait(s, RDMA_CM_EVENT_CONNECT_REQUEST);
    make(s);
}

/* side_dial resolves the server's address and makes the objects. */
void side_dial(struct side *s, struct sockaddr *addr)
{
    open_events(s, &s->id);
    if (rdma_resolve_addr(s->id, NULL, addr, 2000))
        die_errno("rdma_resolve_addr");
    cm_wait(s, RDMA_CM_EVENT_ADDR_RESOLVED);
    if (rdma_resolve_route(s->id, 2000))
        die_errno("rdma_resolve_route");
    cm_wait(s, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make(s);
}

static struct rdma_conn_param param(void)
{
    return (struct rdma_conn_param){.responder_resources = SLOTS, .initiator_depth = SLOTS, .retry_count = 7, .rnr_retry_count = 7};
}

void side_accept(struct side *s)
{
    struct rdma_conn_param p = param();

    if (rdma_accept(s->id, &p))
        die_errno("rdma_accept");
    cm_wait(s, RDMA_CM_EVENT_ESTABLISHED);
}

void side_connect(struct side *s)
{
    struct rdma_conn_param p = param();

    if (rdma_connect(s->id, &p))
        die_errno("rdma_connect");
    cm_wait(s, RDMA_CM_EVENT_ESTABLISHED);
}

/* side_await_end waits for the end of the connection and takes part in it. */
void side_await_end(struct side *s)
{
    if (s->ended)
        return;
    cm_wait(s, RDMA_CM_EVENT_DISCONNECTED);
    rdma_disconnect(s->id); /* answers; it is too late where there is nothing to answer */
    s->ended = true;
}

void side_close(struct side *s)
{
    rdma_destroy_qp(s->id);
    for (int q = SENDS; q <= RECVS; q++)
        if (ibv_destroy_cq(s->cq[q]) || ibv_destroy_comp_channel(s->channel[q]))
            die("a completion queue cannot be destroyed");
    if (ibv_dereg_mr(s->data_mr) || ibv_dereg_mr(s->local_mr) || ibv_dereg_mr(s->ctl_mr) || ibv_dealloc_pd(s->pd))
        die("memory or protection domain cannot be given back");
    rdma_destroy_id(s->id);
    if (s->listener)
        rdma_destroy_id(s->listener);
    rdma_destroy_event_channel(s->events);
    free(s->data);
    free(s->local);
    free(s->ctl);
}

/* side_wait takes one completion, of whatever status. */
struct ibv_wc side_wait(struct side *s, enum queue q)
{
    struct ibv_wc  wc;
    struct ibv_cq *cq;
    void          *context;

    for (;;) {
        if (ibv_req_notify_cq(s->cq[q], 0))
            die("ibv_req_notify_cq failed");
        int n = ibv_poll_cq(s->cq[q], 1, &wc);
        if (n < 0)
            die("ibv_poll_cq failed");
        if (n > 0)
            return wc;
        readable(s->channel[q]->fd, q == SENDS ? "completion of a request" : "message");
        if (ibv_get_cq_event(s->channel[q], &cq, &context))
            die_errno("ibv_get_cq_event");
        ibv_ack_cq_events(cq, 1);
    }
}

/* side_fate takes one completion of a connection that is about to end. siw may tell of the end first, and completes what is left when the queue pair
 * is moved to ERR; rxe has a failed completion at both sides and leaves the end to them. */
struct ibv_wc side_fate(struct side *s, enum queue q)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    struct ibv_wc      wc;
    int                n;

    for (;;) {
        struct pollfd p[] = {{.fd = s->channel[q]->fd, .events = POLLIN}, {.fd = s->events->fd, .events = s->ended ? 0 : POLLIN}};
        struct ibv_cq *cq;
        void          *context;

        if (ibv_req_notify_cq(s->cq[q], 0) || (n = ibv_poll_cq(s->cq[q], 1, &wc)) < 0)
            die("a completion queue failed");
        if (n > 0)
            break;
        if ((n = poll(p, 2, PATIENCE * 1000)) <= 0)
            die("neither a completion nor the end within %d s", PATIENCE);
        if (p[0].revents && !ibv_get_cq_event(s->channel[q], &cq, &context))
            ibv_ack_cq_events(cq, 1);
        if (p[1].revents) {
            side_await_end(s);
            if ((errno = ibv_modify_qp(s->id->qp, &attr, IBV_QP_STATE)))
                die_errno("ibv_modify_qp");
        }
    }
    if (wc.status != IBV_WC_SUCCESS)
        rdma_disconnect(s->id); /* it may be over */
    return wc;
}

void side_post_recv(struct side *s, uint64_t id, void *buf, uint32_t size, struct ibv_mr *mr)
{
    struct ibv_sge      sge = {.addr = (uintptr_t)buf, .length = size, .lkey = mr->lkey};
    struct ibv_recv_wr  wr  = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;

    if ((errno = ibv_post_recv(s->id->qp, &wr, &bad)))
        die_errno("ibv_post_recv");
}

void side_post_send(struct side *s, struct ibv_send_wr *list)
{
    struct ibv_send_wr *bad;

    if ((errno = ibv_post_send(s->id->qp, list, &bad)))
        die_errno("ibv_post_send");
}

/* ctl_slot gives the next slot for a control message, of which few are in use at a time. */
static uint8_t *ctl_slot(struct side *s) { return s->ctl + s->ctl_next++ % CTL_SLOTS * CONTROL; }

/* side_expect_control posts a receive for a control message. */
void side_expect_control(struct side *s)
{
    uint8_t *slot = ctl_slot(s);

    side_post_recv(s, ID_CONTROL + (slot - s->ctl) / CONTROL, slot, CONTROL, s->ctl_mr);
}

/* On the wire all is big-endian: magic, kind, bad, key, turn, address, seed, nothing. */
static void put(uint8_t *b, const struct control *c)
{
    uint32_t head[4] = {htobe32(MAGIC), htobe32(c->kind), htobe32(c->bad), htobe32(c->rkey)};
    uint64_t tail[4] = {htobe64(c->turn), htobe64(c->addr), htobe64(c->seed)};

    memcpy(b, head, sizeof head);
    memcpy(b + sizeof head, tail, sizeof tail);
}

static struct control get(const uint8_t *b)
{
    uint32_t head[4];
    uint64_t tail[4];

    memcpy(head, b, sizeof head);
    memcpy(tail, b + sizeof head, sizeof tail);
    if (be32toh(head[0]) != MAGIC)
        die("a control message begins with %#x", be32toh(head[0]));
    return (struct control){.kind = be32toh(head[1]), .bad = be32toh(head[2]), .rkey = be32toh(head[3]),
                            .turn = be64toh(tail[0]), .addr = be64toh(tail[1]), .seed = be64toh(tail[2])};
}

struct ibv_send_wr side_control_wr(struct side *s, struct control c, struct ibv_sge *sge)
{
    uint8_t *slot = ctl_slot(s);

    c.addr = (uintptr_t)s->data;
    c.rkey = s->data_mr->rkey;
    put(slot, &c);
    *sge = (struct ibv_sge){.addr = (uintptr_t)slot, .length = CONTROL, .lkey = s->ctl_mr->lkey};
    return (struct ibv_send_wr){.wr_id = ID_CONTROL, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
}

/* side_send_control sends a control message and waits until it is sent. */
void side_send_control(struct side *s, struct control c)
{
    struct ibv_sge     sge;
    struct ibv_send_wr wr = side_control_wr(s, c, &sge);

    side_post_send(s, &wr);
    struct ibv_wc wc = side_wait(s, SENDS);
    if (wc.status != IBV_WC_SUCCESS)
        die("a control message of kind %u failed: %s", c.kind, ibv_wc_status_str(wc.status));
}

/* side_recv_control waits for a control message, which must be of that kind. */
struct control side_recv_control(struct side *s, enum kind want)
{
    struct ibv_wc  wc = side_wait(s, RECVS);
    struct control c;

    if (wc.status != IBV_WC_SUCCESS)
        die("a receive failed: %s", ibv_wc_status_str(wc.status));
    if (wc.wr_id < ID_CONTROL || wc.byte_len != CONTROL)
        die("receive %lu got %u bytes instead of a control message", (unsigned long)wc.wr_id, wc.byte_len);
    c = get(s->ctl + (wc.wr_id - ID_CONTROL) * CONTROL);
    if (c.kind != want)
        die("control message of kind %u instead of %u", c.kind, want);
    s->peer_addr = c.addr;
    s->peer_rkey = c.rkey;
    return c;
}
