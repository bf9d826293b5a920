/*
 * mixed.h: what the files of mixed share. See mixed.c for what it does and
 * test/rdmavm/mixedpeer/doc.go for the protocol, which both programs speak.
 */
#ifndef MIXED_H
#define MIXED_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    MAX_SIZE = 1 << 20, /* bytes of one message */
    SLOTS    = 16,      /* messages of one turn */
    GUARD    = 64,      /* bytes behind a message that nobody may touch */
    STRIDE   = MAX_SIZE + GUARD,
    CONTROL  = 48, /* bytes of a control message */
    SHORT    = 8,  /* bytes of the receive of a bad case */
    PATIENCE = 60, /* seconds that a peer may take */
};

/* Operations of a turn. */
enum op { OP_SEND, OP_WRITE, OP_READ, OPS };

/* Kinds of control messages. */
enum kind { KIND_HELLO = 1, KIND_READY, KIND_DONE, KIND_BYE };

/* control is a control message, of which each kind uses a part. */
struct control {
    uint32_t kind;
    uint32_t bad;  /* HELLO: number of the bad case, 0 for none */
    uint64_t turn; /* READY, DONE; BYE: wrong messages; HELLO: messages in all */
    uint64_t addr; /* HELLO, READY: of the sender's slots */
    uint32_t rkey;
    uint64_t seed; /* HELLO */
};

/* message is one message of a turn. */
struct message {
    enum op  op;
    uint32_t size;
};

/* side is one end of the conversation. */
struct side {
    struct rdma_event_channel *events;
    struct rdma_cm_id         *listener, *id;
    struct ibv_pd             *pd;
    struct ibv_comp_channel   *channel[2];
    struct ibv_cq             *cq[2]; /* of sends and of receives */
    uint8_t                   *data, *local, *ctl;
    struct ibv_mr             *data_mr, *local_mr, *ctl_mr;
    unsigned                   ctl_next;
    bool                       ended; /* the connection is over */

    uint64_t peer_addr;
    uint32_t peer_rkey;

    uint64_t seed, count;
    uint64_t random; /* state of the generator of turns */
    uint64_t wrong, bytes[OPS], messages[OPS];
};

/* The queues, as indices of side.channel and side.cq. */
enum queue { SENDS, RECVS };

/* wr_id of a control message; those of messages are their slots. */
#define ID_CONTROL 100

/* mixed_rdma.c: the connection. A failure ends the program. */
void           die(const char *what, ...) __attribute__((format(printf, 1, 2), noreturn));
void           die_errno(const char *what) __attribute__((noreturn));
void           side_serve(struct side *s, struct sockaddr *addr);
void           side_dial(struct side *s, struct sockaddr *addr);
void           side_accept(struct side *s);
void           side_connect(struct side *s);
void           side_await_end(struct side *s);
void           side_close(struct side *s);
struct ibv_wc  side_wait(struct side *s, enum queue q);
struct ibv_wc  side_fate(struct side *s, enum queue q);
void           side_post_recv(struct side *s, uint64_t id, void *buf, uint32_t size, struct ibv_mr *mr);
void           side_post_send(struct side *s, struct ibv_send_wr *list);
void           side_expect_control(struct side *s);
void           side_send_control(struct side *s, struct control c);
struct control side_recv_control(struct side *s, enum kind want);
/* side_control_wr is the request that sends c; sge lives as long as the request. */
struct ibv_send_wr side_control_wr(struct side *s, struct control c, struct ibv_sge *sge);

#endif
