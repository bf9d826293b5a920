/*
 * margo_peer.h: what the files of margo_peer share.
 *
 * Commands run in the main execution stream, which may block in reading the
 * next one; progress and handlers have streams of their own. So what commands
 * and handlers touch is atomic or written before the first request can come.
 */
#ifndef MARGO_PEER_H
#define MARGO_PEER_H

#include <margo.h>

#include "peer.h"

MERCURY_GEN_PROC(id_out_t, ((uint64_t)(id)))
MERCURY_GEN_PROC(nested_in_t,
    ((hg_string_t)(to))((uint16_t)(provider))((sum_in_t)(sum)))
MERCURY_GEN_PROC(nested_out_t, ((int32_t)(code))((int32_t)(ret)))
MERCURY_GEN_PROC(slow_in_t, ((uint32_t)(ms)))

/* The provider besides the default one and 0, and its identity. */
enum { PROVIDER = 42 };
#define IDENTITY "myprov"

/* The RPCs, registered with the default provider id; sum and which also with
 * 0 and PROVIDER. */
struct peer {
    margo_instance_id mid;
    hg_addr_t         target; /* whom commands call */
    double            timeout_ms;
    hg_id_t           sum, which, none, echo, notify, notified, blob, pull,
        push, nested, slow, quit, null;
};

extern struct peer peer;

#endif /* MARGO_PEER_H */
