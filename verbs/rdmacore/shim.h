//go:build rdma && linux && cgo

// The border between Go and libibverbs/librdmacm: flat arrays of integers, no
// pointers inside them. Objects cross as 64-bit integers. Every function returns
// 0 or a count, and on failure a negative errno.

#ifndef CINNABAR_SHIM_H
#define CINNABAR_SHIM_H

#include <stdint.h>

enum { CN_BATCH = 64 }; // work requests or completions of one crossing

struct cn_dev {
	char name[64];
	uint64_t guid; // host byte order
	int32_t node_type, transport;
};

struct cn_attr {
	char fw[64];
	uint64_t node_guid, sys_guid, max_mr_size, page_size_cap, cap_flags;
	uint32_t vendor, part, hw;
	int32_t max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_rd_atom, max_init_rd_atom;
	int32_t max_srq, max_srq_wr, max_srq_sge, max_ah, max_mw, atomic_cap, ports;
};

struct cn_port {
	uint32_t state, max_mtu, active_mtu, max_msg, gids, lid, sm_lid, link_layer;
};

struct cn_gid {
	uint8_t raw[16];
	uint32_t index, port, type, netdev; // type: IBV_GID_TYPE_*; netdev: index of the interface, 0 for none
};

struct cn_async {
	uint64_t id; // what the object was created with; the port for port events
	uint32_t type;
};

struct cn_qp_init {
	uint64_t pd, send_cq, recv_cq, srq, id;
	uint32_t type, sig_all;
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_size; // in: wanted; out: granted
	uint32_t num;                                               // out
	uint64_t qp;                                                // out
};

// The way to a peer.
struct cn_path {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint16_t dlid;
	uint8_t sl, path_bits, port, sgid_index, traffic_class, hop_limit, global;
};

struct cn_qp_attr {
	struct cn_path path;
	uint32_t mask, state, cur_state, access, qkey, rq_psn, sq_psn, dest_qpn, path_mtu;
	uint16_t pkey_index;
	uint8_t port, timeout, retry, rnr_retry, min_rnr, rd_atomic, dest_rd_atomic, sqd_notify;
};

struct cn_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct cn_send {
	uint64_t id, remote, compare, swap;
	uint64_t ah; // of a datagram, whose destination is qpn with qkey; 0: it is none
	uint32_t op, flags, imm, rkey, qpn, qkey;
	uint32_t sge, n; // sge: index of the first of n entries
	struct cn_bind {
		uint64_t mw, mr; // mw 0: the request binds none
		uint64_t addr, len; // len 0: the window is bound to nothing
		uint32_t access, rkey; // rkey: the new key
	} bind;
};

struct cn_recv {
	uint64_t id;
	uint32_t sge, n;
};

struct cn_wc {
	uint64_t id;
	uint32_t status, op, flags, imm, len, qpn, src_qp, vendor;
	uint16_t slid;
	uint8_t sl, path_bits;
};

struct cn_addr {
	uint8_t ip[16];
	uint32_t scope;
	uint16_t family, port; // family 4 or 6, 0: none; port in host byte order
};

struct cn_param {
	uint8_t data[256];
	uint32_t qpn;
	uint8_t len, responder, depth, retry, rnr_retry, srq;
};

struct cn_cm_event {
	uint64_t ctx;   // of the identifier concerned; of the listener for a request
	uint64_t child; // the new identifier of a request
	int32_t status;
	uint32_t type;
	char device[64]; // of a removal: its name
	struct cn_param param;
};

// What the connection manager's attributes are overridden with before a step.
struct cn_step {
	uint32_t state, access;
	uint8_t responder, depth, min_rnr;
};

// cn_load fails with ENOENT for a library that is missing and with ENOSYS for one that is too old; err gets the loader's words.
int cn_load(char *err, int n);
int cn_devices(struct cn_dev *out, int max);
int cn_open(const char *name, uint64_t *ctx, int *async_fd);
int cn_close(uint64_t ctx);
int cn_query_device(uint64_t ctx, struct cn_attr *out);
int cn_query_port(uint64_t ctx, int port, struct cn_port *out);
int cn_query_gids(uint64_t ctx, struct cn_gid *out, int max);
int cn_async_get(uint64_t ctx, struct cn_async *out);

int cn_alloc_pd(uint64_t ctx, uint64_t *pd);
int cn_dealloc_pd(uint64_t pd);
int cn_reg_mr(uint64_t pd, uint64_t addr, uint64_t iova, uint64_t len, uint32_t access, uint64_t *mr, uint32_t *keys);
// cn_rereg_mr sets lost if it fails and the region can only be closed.
int cn_rereg_mr(uint64_t mr, int flags, uint64_t pd, uint64_t addr, uint64_t len, uint32_t access, uint32_t *keys, int *lost);
int cn_dereg_mr(uint64_t mr);

int cn_create_channel(uint64_t ctx, uint64_t *ch, int *fd);
int cn_destroy_channel(uint64_t ch);
int cn_create_cq(uint64_t ctx, int depth, uint64_t id, uint64_t ch, uint64_t *cq, int *granted);
int cn_resize_cq(uint64_t cq, int depth, int *granted);
int cn_moderate_cq(uint64_t cq, uint16_t count, uint16_t period); // period in microseconds
int cn_destroy_cq(uint64_t cq);
int cn_arm_cq(uint64_t cq, int solicited);
int cn_cq_event(uint64_t ch);
int cn_poll_cq(uint64_t cq, struct cn_wc *out, int n);

int cn_create_srq(uint64_t pd, uint64_t id, uint32_t *wr, uint32_t *sge, uint32_t limit, uint64_t *srq);
int cn_modify_srq(uint64_t srq, uint32_t limit);
int cn_destroy_srq(uint64_t srq);

int cn_create_qp(struct cn_qp_init *init);
int cn_modify_qp(uint64_t qp, const struct cn_qp_attr *attr);
int cn_query_qp(uint64_t qp, struct cn_qp_attr *attr);
int cn_destroy_qp(uint64_t qp);
int cn_create_ah(uint64_t pd, const struct cn_path *path, uint64_t *ah);
int cn_destroy_ah(uint64_t ah);

// cn_post_* post n requests whose entries are in sge, in one call of the library.
// They return how many were accepted; err is the errno about the next one.
int cn_post_send(uint64_t qp, const struct cn_send *wr, int n, const struct cn_sge *sge, int *err);
int cn_bind_mw1(uint64_t qp, const struct cn_send *wr, uint32_t *rkey);
int cn_alloc_mw(uint64_t pd, uint32_t type, uint64_t *mw, uint32_t *rkey);
int cn_dealloc_mw(uint64_t mw);
int cn_post_recv(uint64_t qp, int shared, const struct cn_recv *wr, int n, const struct cn_sge *sge, int *err);

int cn_cm_channel(uint64_t *ch, int *fd);
int cn_cm_destroy_channel(uint64_t ch);
int cn_cm_event_get(uint64_t ch, struct cn_cm_event *out);
int cn_cm_create(uint64_t ch, uint64_t ctx, uint64_t *id);
int cn_cm_adopt(uint64_t id, uint64_t ctx);
int cn_cm_destroy(uint64_t id);
int cn_cm_option(uint64_t id, int option, int value);
int cn_cm_bind(uint64_t id, const struct cn_addr *addr);
int cn_cm_listen(uint64_t id, int backlog);
int cn_cm_resolve_addr(uint64_t id, const struct cn_addr *from, const struct cn_addr *to, int ms);
int cn_cm_resolve_route(uint64_t id, int ms);
int cn_cm_device(uint64_t id, char *name, int n);
int cn_cm_addrs(uint64_t id, struct cn_addr *local, struct cn_addr *remote);
int cn_cm_connect(uint64_t id, const struct cn_param *p);
int cn_cm_accept(uint64_t id, const struct cn_param *p);
int cn_cm_reject(uint64_t id, const struct cn_param *p);
int cn_cm_establish(uint64_t id);
int cn_cm_disconnect(uint64_t id);
int cn_cm_step(uint64_t id, uint64_t qp, const struct cn_step *s);

#endif
