/*
 * hg_peer.h: what the files of hg_peer share.
 *
 * The program has one thread. Everything below is touched by it alone: by the
 * main loop, and by Mercury's callbacks, which the main loop triggers.
 */
#ifndef HG_PEER_H
#define HG_PEER_H

#include <stdbool.h>

#include <mercury.h>
#include <mercury_bulk.h>

#include "peer.h"

/* The RPCs, by index into peer.id and in the order of the table in
 * hg_peer_serve.c. */
enum rpc {
    RPC_SUM,      /* adds two numbers */
    RPC_VOID,     /* neither argument nor result */
    RPC_ECHO,     /* returns its argument, which has every proc type */
    RPC_NOTIFY,   /* one-way */
    RPC_NOTIFIED, /* how many notifications came */
    RPC_BLOB,     /* large arguments and results */
    RPC_PULL,     /* the server reads the caller's memory */
    RPC_PUSH,     /* the server writes the caller's memory */
    RPC_RELAY,    /* the server sends the handle on to a third process */
    RPC_HOLD,     /* answered by the next release */
    RPC_RELEASE,  /* answers every held call, returns how many */
    RPC_CALLBACK, /* the server calls sum at its caller */
    RPC_QUIT,     /* ends the server */
    RPC_NULL,     /* registered without a handler */
    RPC_COUNT
};

struct peer {
    hg_class_t *  cls;
    hg_context_t *context;
    hg_addr_t     target; /* whom commands call; HG_ADDR_NULL until set */
    hg_id_t       id[RPC_COUNT];
    char          self[256];
    int           wait_fd;
    int           timeout_ms; /* after this a command cancels its call */
    bool          quit;       /* a peer asked us to end */
    int32_t       notified;
};

extern struct peer peer;

/* wait_for makes progress until *done or until ms milliseconds have passed
 * (negative: no limit); it returns *done. With done NULL it also returns when
 * standard input is readable or a peer asked us to quit. */
bool wait_for(const bool *done, int ms);

/* serve_finish drops the calls that are still held. */
void serve_finish(void);

#endif /* HG_PEER_H */
