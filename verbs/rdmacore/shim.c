//go:build rdma && linux && cgo

#include "shim.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The headers turn some names into macros for inline functions; the table wants the functions' own names.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_query_gid

// What is called by name. Everything else of verbs.h goes through the context's table of operations.
#define FUNCTIONS(X)                                                                                                  \
	X(ibv_get_device_list, struct ibv_device **, (int *))                                                         \
	X(ibv_free_device_list, void, (struct ibv_device **))                                                         \
	X(ibv_get_device_name, const char *, (struct ibv_device *))                                                   \
	X(ibv_get_device_guid, __be64, (struct ibv_device *))                                                         \
	X(ibv_open_device, struct ibv_context *, (struct ibv_device *))                                               \
	X(ibv_close_device, int, (struct ibv_context *))                                                              \
	X(ibv_query_device, int, (struct ibv_context *, struct ibv_device_attr *))                                    \
	X(ibv_query_port, int, (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *))                       \
	X(ibv_get_async_event, int, (struct ibv_context *, struct ibv_async_event *))                                 \
	X(ibv_ack_async_event, void, (struct ibv_async_event *))                                                      \
	X(ibv_alloc_pd, struct ibv_pd *, (struct ibv_context *))                                                      \
	X(ibv_dealloc_pd, int, (struct ibv_pd *))                                                                     \
	X(ibv_reg_mr, struct ibv_mr *, (struct ibv_pd *, void *, size_t, int))                                        \
	X(ibv_reg_mr_iova2, struct ibv_mr *, (struct ibv_pd *, void *, size_t, uint64_t, unsigned int))               \
	X(ibv_rereg_mr, int, (struct ibv_mr *, int, struct ibv_pd *, void *, size_t, int))                            \
	X(ibv_dereg_mr, int, (struct ibv_mr *))                                                                       \
	X(ibv_create_comp_channel, struct ibv_comp_channel *, (struct ibv_context *))                                 \
	X(ibv_destroy_comp_channel, int, (struct ibv_comp_channel *))                                                 \
	X(ibv_create_cq, struct ibv_cq *, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))        \
	X(ibv_resize_cq, int, (struct ibv_cq *, int))                                                                 \
	X(ibv_destroy_cq, int, (struct ibv_cq *))                                                                     \
	X(ibv_get_cq_event, int, (struct ibv_comp_channel *, struct ibv_cq **, void **))                              \
	X(ibv_ack_cq_events, void, (struct ibv_cq *, unsigned int))                                                   \
	X(ibv_create_srq, struct ibv_srq *, (struct ibv_pd *, struct ibv_srq_init_attr *))                            \
	X(ibv_modify_srq, int, (struct ibv_srq *, struct ibv_srq_attr *, int))                                        \
	X(ibv_destroy_srq, int, (struct ibv_srq *))                                                                   \
	X(ibv_create_qp, struct ibv_qp *, (struct ibv_pd *, struct ibv_qp_init_attr *))                               \
	X(ibv_modify_qp, int, (struct ibv_qp *, struct ibv_qp_attr *, int))                                           \
	X(ibv_query_qp, int, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *))                 \
	X(ibv_destroy_qp, int, (struct ibv_qp *))                                                                     \
	X(ibv_create_ah, struct ibv_ah *, (struct ibv_pd *, struct ibv_ah_attr *))                                    \
	X(ibv_destroy_ah, int, (struct ibv_ah *))

#define CM_FUNCTIONS(X)                                                                                               \
	X(rdma_create_event_channel, struct rdma_event_channel *, (void))                                             \
	X(rdma_destroy_event_channel, void, (struct rdma_event_channel *))                                            \
	X(rdma_get_cm_event, int, (struct rdma_event_channel *, struct rdma_cm_event **))                             \
	X(rdma_ack_cm_event, int, (struct rdma_cm_event *))                                                           \
	X(rdma_create_id, int, (struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space))     \
	X(rdma_destroy_id, int, (struct rdma_cm_id *))                                                                \
	X(rdma_set_option, int, (struct rdma_cm_id *, int, int, void *, size_t))                                      \
	X(rdma_bind_addr, int, (struct rdma_cm_id *, struct sockaddr *))                                              \
	X(rdma_listen, int, (struct rdma_cm_id *, int))                                                               \
	X(rdma_resolve_addr, int, (struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int))                   \
	X(rdma_resolve_route, int, (struct rdma_cm_id *, int))                                                        \
	X(rdma_connect, int, (struct rdma_cm_id *, struct rdma_conn_param *))                                         \
	X(rdma_accept, int, (struct rdma_cm_id *, struct rdma_conn_param *))                                          \
	X(rdma_reject, int, (struct rdma_cm_id *, const void *, uint8_t))                                             \
	X(rdma_establish, int, (struct rdma_cm_id *))                                                                 \
	X(rdma_disconnect, int, (struct rdma_cm_id *))                                                                \
	X(rdma_init_qp_attr, int, (struct rdma_cm_id *, struct ibv_qp_attr *, int *))

// What older libraries lack.
#define OPTIONAL(X) X(_ibv_query_gid_table, ssize_t, (struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t))

static struct {
#define FIELD(name, result, args) result(*name) args;
	FUNCTIONS(FIELD)
	CM_FUNCTIONS(FIELD)
	OPTIONAL(FIELD)
#undef FIELD
} lib;

#define P(type, h) ((struct type *)(uintptr_t)(h))
#define H(p) ((uint64_t)(uintptr_t)(p))

// fail turns the result of a function that sets errno into ours.
static int fail(int rc) { return rc == 0 ? 0 : errno ? -errno : -EIO; }

// code turns the result of a function that returns an errno, or -1 and sets it, into ours.
static int code(int rc) { return rc > 0 ? -rc : fail(rc); }

// missing keeps the loader's words; rc tells a library that is missing from one that lacks a function.
static int missing(char *err, int n, int rc) {
	snprintf(err, n, "%s", dlerror());
	return rc;
}

int cn_load(char *err, int n) {
	// Without it the objects of a device that is gone could not be freed. The library reads it when it first lists devices.
	setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 0);
	void *from = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!from)
		return missing(err, n, -ENOENT);
#define LOAD(name, result, args)                                                                                      \
	if (!(*(void **)&lib.name = dlsym(from, #name)))                                                              \
		return missing(err, n, -ENOSYS);
#define TRY(name, result, args) *(void **)&lib.name = dlsym(from, #name);
	FUNCTIONS(LOAD)
	OPTIONAL(TRY)
	from = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!from)
		return missing(err, n, -ENOENT);
	CM_FUNCTIONS(LOAD)
	return 0;
}

int cn_devices(struct cn_dev *out, int max) {
	int n = 0;
	errno = 0;
	struct ibv_device **list = lib.ibv_get_device_list(&n);
	if (!list)
		return fail(-1);
	if (n > max)
		n = max;
	for (int i = 0; i < n; i++) {
		snprintf(out[i].name, sizeof out[i].name, "%s", lib.ibv_get_device_name(list[i]));
		out[i].guid = be64toh(lib.ibv_get_device_guid(list[i]));
		out[i].node_type = list[i]->node_type;
		out[i].transport = list[i]->transport_type;
	}
	lib.ibv_free_device_list(list);
	return n;
}

int cn_open(const char *name, uint64_t *ctx, int *async_fd) {
	int n = 0, rc = -ENODEV;
	errno = 0;
	struct ibv_device **list = lib.ibv_get_device_list(&n);
	if (!list)
		return fail(-1);
	for (int i = 0; i < n; i++) {
		if (strcmp(name, lib.ibv_get_device_name(list[i])) != 0)
			continue;
		errno = 0;
		struct ibv_context *c = lib.ibv_open_device(list[i]);
		if (c) {
			*ctx = H(c);
			*async_fd = c->async_fd;
			rc = 0;
		} else {
			rc = fail(-1);
		}
		break;
	}
	lib.ibv_free_device_list(list);
	return rc;
}

int cn_close(uint64_t ctx) { return code(lib.ibv_close_device(P(ibv_context, ctx))); }

int cn_query_device(uint64_t ctx, struct cn_attr *out) {
	struct ibv_device_attr a = {0};
	int rc = code(lib.ibv_query_device(P(ibv_context, ctx), &a));
	if (rc)
		return rc;
	snprintf(out->fw, sizeof out->fw, "%s", a.fw_ver);
	out->node_guid = be64toh(a.node_guid);
	out->sys_guid = be64toh(a.sys_image_guid);
	out->max_mr_size = a.max_mr_size;
	out->page_size_cap = a.page_size_cap;
	out->cap_flags = a.device_cap_flags;
	out->vendor = a.vendor_id;
	out->part = a.vendor_part_id;
	out->hw = a.hw_ver;
	out->max_qp = a.max_qp;
	out->max_qp_wr = a.max_qp_wr;
	out->max_sge = a.max_sge;
	out->max_sge_rd = a.max_sge_rd;
	out->max_cq = a.max_cq;
	out->max_cqe = a.max_cqe;
	out->max_mr = a.max_mr;
	out->max_pd = a.max_pd;
	out->max_rd_atom = a.max_qp_rd_atom;
	out->max_init_rd_atom = a.max_qp_init_rd_atom;
	out->max_srq = a.max_srq;
	out->max_srq_wr = a.max_srq_wr;
	out->max_srq_sge = a.max_srq_sge;
	out->max_ah = a.max_ah;
	out->max_mw = a.max_mw;
	out->atomic_cap = a.atomic_cap;
	out->ports = a.phys_port_cnt;
	return 0;
}

int cn_query_port(uint64_t ctx, int port, struct cn_port *out) {
	struct ibv_context *c = P(ibv_context, ctx);
	struct ibv_port_attr a;
	memset(&a, 0, sizeof a);
	// What the header does in ibv_query_port: the named function is for programs that know fewer fields.
	struct verbs_context *v = verbs_get_ctx_op(c, query_port);
	int rc = v ? code(v->query_port(c, port, &a, sizeof a))
		   : code(lib.ibv_query_port(c, port, (struct _compat_ibv_port_attr *)&a));
	if (rc)
		return rc;
	out->state = a.state;
	out->max_mtu = a.max_mtu;
	out->active_mtu = a.active_mtu;
	out->max_msg = a.max_msg_sz;
	out->gids = a.gid_tbl_len;
	out->lid = a.lid;
	out->sm_lid = a.sm_lid;
	out->link_layer = a.link_layer;
	return 0;
}

int cn_query_gids(uint64_t ctx, struct cn_gid *out, int max) {
	struct ibv_gid_entry e[256];
	if (!lib._ibv_query_gid_table)
		return -ENOSYS;
	if (max > 256)
		max = 256;
	errno = 0;
	ssize_t n = lib._ibv_query_gid_table(P(ibv_context, ctx), e, max, 0, sizeof e[0]);
	if (n < 0)
		return code((int)n);
	for (ssize_t i = 0; i < n; i++) {
		memcpy(out[i].raw, e[i].gid.raw, sizeof out[i].raw);
		out[i].index = e[i].gid_index;
		out[i].port = e[i].port_num;
		out[i].type = e[i].gid_type;
		out[i].netdev = e[i].ndev_ifindex;
	}
	return (int)n;
}

int cn_async_get(uint64_t ctx, struct cn_async *out) {
	struct ibv_async_event ev;
	errno = 0;
	int rc = fail(lib.ibv_get_async_event(P(ibv_context, ctx), &ev));
	if (rc)
		return rc;
	out->type = ev.event_type;
	switch (ev.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->id = H(ev.element.cq->cq_context);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->id = H(ev.element.qp->qp_context);
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		out->id = H(ev.element.srq->srq_context);
		break;
	case IBV_EVENT_WQ_FATAL:
		out->id = 0;
		break;
	default:
		out->id = ev.element.port_num;
	}
	lib.ibv_ack_async_event(&ev);
	return 0;
}

int cn_alloc_pd(uint64_t ctx, uint64_t *pd) {
	errno = 0;
	*pd = H(lib.ibv_alloc_pd(P(ibv_context, ctx)));
	return *pd ? 0 : fail(-1);
}

int cn_dealloc_pd(uint64_t pd) { return code(lib.ibv_dealloc_pd(P(ibv_pd, pd))); }

int cn_reg_mr(uint64_t pd, uint64_t addr, uint64_t iova, uint64_t len, uint32_t access, uint64_t *mr, uint32_t *keys) {
	void *p = (void *)(uintptr_t)addr;
	errno = 0;
	// As in the header: the older function does not know that optional rights may be ignored.
	struct ibv_mr *m = access & IBV_ACCESS_OPTIONAL_RANGE || iova != addr
				   ? lib.ibv_reg_mr_iova2(P(ibv_pd, pd), p, len, iova, access)
				   : lib.ibv_reg_mr(P(ibv_pd, pd), p, len, access);
	if (!m)
		return fail(-1);
	*mr = H(m);
	keys[0] = m->lkey;
	keys[1] = m->rkey;
	return 0;
}

int cn_rereg_mr(uint64_t mr, int flags, uint64_t pd, uint64_t addr, uint64_t len, uint32_t access, uint32_t *keys, int *lost) {
	struct ibv_mr *m = P(ibv_mr, mr);
	errno = 0;
	int rc = lib.ibv_rereg_mr(m, flags, P(ibv_pd, pd), (void *)(uintptr_t)addr, len, access);
	if (rc && rc != IBV_REREG_MR_ERR_DO_FORK_OLD) { // DO_FORK_OLD: the change is made, and only madvise(MADV_DOFORK) of the old memory has failed
		*lost = rc == IBV_REREG_MR_ERR_CMD || rc == IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW;
		return fail(rc);
	}
	keys[0] = m->lkey;
	keys[1] = m->rkey;
	return 0;
}

int cn_dereg_mr(uint64_t mr) { return code(lib.ibv_dereg_mr(P(ibv_mr, mr))); }

int cn_create_channel(uint64_t ctx, uint64_t *ch, int *fd) {
	errno = 0;
	struct ibv_comp_channel *c = lib.ibv_create_comp_channel(P(ibv_context, ctx));
	if (!c)
		return fail(-1);
	*ch = H(c);
	*fd = c->fd;
	return 0;
}

int cn_destroy_channel(uint64_t ch) { return code(lib.ibv_destroy_comp_channel(P(ibv_comp_channel, ch))); }

int cn_create_cq(uint64_t ctx, int depth, uint64_t id, uint64_t ch, uint64_t *cq, int *granted) {
	errno = 0;
	struct ibv_cq *c = lib.ibv_create_cq(P(ibv_context, ctx), depth, (void *)(uintptr_t)id, P(ibv_comp_channel, ch), 0);
	if (!c)
		return fail(-1);
	*cq = H(c);
	*granted = c->cqe;
	return 0;
}

int cn_resize_cq(uint64_t cq, int depth, int *granted) {
	errno = 0;
	int rc = code(lib.ibv_resize_cq(P(ibv_cq, cq), depth));
	*granted = P(ibv_cq, cq)->cqe;
	return rc;
}

int cn_moderate_cq(uint64_t cq, uint16_t count, uint16_t period) {
	struct ibv_modify_cq_attr attr = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = count, .cq_period = period}};
	return code(ibv_modify_cq(P(ibv_cq, cq), &attr));
}

int cn_destroy_cq(uint64_t cq) { return code(lib.ibv_destroy_cq(P(ibv_cq, cq))); }

int cn_arm_cq(uint64_t cq, int solicited) { return code(ibv_req_notify_cq(P(ibv_cq, cq), solicited)); }

int cn_cq_event(uint64_t ch) {
	struct ibv_cq *cq;
	void *ctx;
	errno = 0;
	int rc = fail(lib.ibv_get_cq_event(P(ibv_comp_channel, ch), &cq, &ctx));
	if (!rc)
		lib.ibv_ack_cq_events(cq, 1);
	return rc;
}

int cn_poll_cq(uint64_t cq, struct cn_wc *out, int n) {
	struct ibv_wc wc[CN_BATCH];
	if (n > CN_BATCH)
		n = CN_BATCH;
	int got = ibv_poll_cq(P(ibv_cq, cq), n, wc);
	for (int i = 0; i < got; i++) {
		out[i].id = wc[i].wr_id;
		out[i].status = wc[i].status;
		out[i].op = wc[i].opcode;
		out[i].flags = wc[i].wc_flags;
		out[i].imm = wc[i].wc_flags & IBV_WC_WITH_INV ? wc[i].invalidated_rkey : ntohl(wc[i].imm_data);
		out[i].len = wc[i].byte_len;
		out[i].qpn = wc[i].qp_num;
		out[i].src_qp = wc[i].src_qp;
		out[i].vendor = wc[i].vendor_err;
		out[i].slid = wc[i].slid;
		out[i].sl = wc[i].sl;
		out[i].path_bits = wc[i].dlid_path_bits;
	}
	return got < 0 ? -EIO : got;
}

int cn_create_srq(uint64_t pd, uint64_t id, uint32_t *wr, uint32_t *sge, uint32_t limit, uint64_t *srq) {
	struct ibv_srq_init_attr a = {.srq_context = (void *)(uintptr_t)id, .attr = {.max_wr = *wr, .max_sge = *sge}};
	errno = 0;
	struct ibv_srq *s = lib.ibv_create_srq(P(ibv_pd, pd), &a);
	if (!s)
		return fail(-1);
	int rc = limit ? cn_modify_srq(H(s), limit) : 0;
	if (rc) {
		lib.ibv_destroy_srq(s); // rc is the news
		return rc;
	}
	*srq = H(s);
	*wr = a.attr.max_wr;
	*sge = a.attr.max_sge;
	return 0;
}

int cn_modify_srq(uint64_t srq, uint32_t limit) {
	struct ibv_srq_attr a = {.srq_limit = limit};
	return code(lib.ibv_modify_srq(P(ibv_srq, srq), &a, IBV_SRQ_LIMIT));
}

int cn_destroy_srq(uint64_t srq) { return code(lib.ibv_destroy_srq(P(ibv_srq, srq))); }

int cn_create_qp(struct cn_qp_init *init) {
	struct ibv_qp_init_attr a = {
		.qp_context = (void *)(uintptr_t)init->id,
		.send_cq = P(ibv_cq, init->send_cq),
		.recv_cq = P(ibv_cq, init->recv_cq),
		.srq = P(ibv_srq, init->srq),
		.cap = {init->send_wr, init->recv_wr, init->send_sge, init->recv_sge, init->inline_size},
		.qp_type = init->type,
		.sq_sig_all = init->sig_all,
	};
	errno = 0;
	struct ibv_qp *qp = lib.ibv_create_qp(P(ibv_pd, init->pd), &a);
	if (!qp)
		return fail(-1);
	init->qp = H(qp);
	init->num = qp->qp_num;
	init->send_wr = a.cap.max_send_wr;
	init->recv_wr = a.cap.max_recv_wr;
	init->send_sge = a.cap.max_send_sge;
	init->recv_sge = a.cap.max_recv_sge;
	init->inline_size = a.cap.max_inline_data;
	return 0;
}

static struct ibv_ah_attr to_ah_attr(const struct cn_path *in) {
	struct ibv_ah_attr a = {
		.dlid = in->dlid,
		.sl = in->sl,
		.src_path_bits = in->path_bits,
		.is_global = in->global,
		.port_num = in->port,
		.grh = {.flow_label = in->flow_label, .sgid_index = in->sgid_index, .hop_limit = in->hop_limit, .traffic_class = in->traffic_class},
	};
	memcpy(a.grh.dgid.raw, in->dgid, sizeof in->dgid);
	return a;
}

int cn_modify_qp(uint64_t qp, const struct cn_qp_attr *in) {
	struct ibv_qp_attr a = {
		.qp_state = in->state,
		.cur_qp_state = in->cur_state,
		.path_mtu = in->path_mtu,
		.qkey = in->qkey,
		.rq_psn = in->rq_psn,
		.sq_psn = in->sq_psn,
		.dest_qp_num = in->dest_qpn,
		.qp_access_flags = in->access,
		.pkey_index = in->pkey_index,
		.en_sqd_async_notify = in->sqd_notify,
		.max_rd_atomic = in->rd_atomic,
		.max_dest_rd_atomic = in->dest_rd_atomic,
		.min_rnr_timer = in->min_rnr,
		.port_num = in->port,
		.timeout = in->timeout,
		.retry_cnt = in->retry,
		.rnr_retry = in->rnr_retry,
		.ah_attr = to_ah_attr(&in->path),
	};
	return code(lib.ibv_modify_qp(P(ibv_qp, qp), &a, in->mask));
}

// What queue pairs of a type have to tell.
static int query_mask(enum ibv_qp_type type) {
	int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_UD)
		return mask | IBV_QP_QKEY;
	mask |= IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN | IBV_QP_DEST_QPN;
	if (type == IBV_QPT_UC)
		return mask;
	return mask | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
	       IBV_QP_MIN_RNR_TIMER;
}

int cn_query_qp(uint64_t qp, struct cn_qp_attr *out) {
	struct ibv_qp_attr a = {0};
	struct ibv_qp_init_attr init;
	int mask = query_mask(P(ibv_qp, qp)->qp_type);
	int rc = code(lib.ibv_query_qp(P(ibv_qp, qp), &a, mask, &init));
	if (rc)
		return rc;
	out->mask = mask;
	memcpy(out->path.dgid, a.ah_attr.grh.dgid.raw, sizeof out->path.dgid);
	out->path.flow_label = a.ah_attr.grh.flow_label;
	out->path.dlid = a.ah_attr.dlid;
	out->path.sl = a.ah_attr.sl;
	out->path.path_bits = a.ah_attr.src_path_bits;
	out->path.port = a.ah_attr.port_num;
	out->path.sgid_index = a.ah_attr.grh.sgid_index;
	out->path.traffic_class = a.ah_attr.grh.traffic_class;
	out->path.hop_limit = a.ah_attr.grh.hop_limit;
	out->path.global = a.ah_attr.is_global;
	out->state = a.qp_state;
	out->access = a.qp_access_flags;
	out->qkey = a.qkey;
	out->rq_psn = a.rq_psn;
	out->sq_psn = a.sq_psn;
	out->dest_qpn = a.dest_qp_num;
	out->path_mtu = a.path_mtu;
	out->port = a.port_num;
	out->timeout = a.timeout;
	out->retry = a.retry_cnt;
	out->rnr_retry = a.rnr_retry;
	out->min_rnr = a.min_rnr_timer;
	out->rd_atomic = a.max_rd_atomic;
	out->dest_rd_atomic = a.max_dest_rd_atomic;
	return 0;
}

int cn_destroy_qp(uint64_t qp) { return code(lib.ibv_destroy_qp(P(ibv_qp, qp))); }

int cn_create_ah(uint64_t pd, const struct cn_path *path, uint64_t *ah) {
	struct ibv_ah_attr a = to_ah_attr(path);
	errno = 0;
	*ah = H(lib.ibv_create_ah(P(ibv_pd, pd), &a));
	return *ah ? 0 : fail(-1);
}

int cn_destroy_ah(uint64_t ah) { return code(lib.ibv_destroy_ah(P(ibv_ah, ah))); }

// entries views n flat entries from i on as the library's, which are laid out alike.
_Static_assert(sizeof(struct cn_sge) == sizeof(struct ibv_sge) && offsetof(struct cn_sge, length) == offsetof(struct ibv_sge, length) &&
		       offsetof(struct cn_sge, lkey) == offsetof(struct ibv_sge, lkey),
	       "cn_sge is laid out as ibv_sge");

static struct ibv_sge *entries(const struct cn_sge *sge, uint32_t i) { return (struct ibv_sge *)(sge + i); }

static struct ibv_mw_bind_info to_bind(const struct cn_bind *b) {
	return (struct ibv_mw_bind_info){.mr = P(ibv_mr, b->mr), .addr = b->addr, .length = b->len, .mw_access_flags = b->access};
}

int cn_post_send(uint64_t qp, const struct cn_send *in, int n, const struct cn_sge *sge, int *err) {
	struct ibv_send_wr wr[CN_BATCH], *bad = NULL;
	for (int i = 0; i < n; i++) {
		wr[i] = (struct ibv_send_wr){
			.wr_id = in[i].id,
			.next = i + 1 < n ? &wr[i + 1] : NULL,
			.sg_list = entries(sge, in[i].sge),
			.num_sge = in[i].n,
			.opcode = in[i].op,
			.send_flags = in[i].flags,
			.imm_data = htonl(in[i].imm),
		};
		if (in[i].op == IBV_WR_LOCAL_INV || in[i].op == IBV_WR_SEND_WITH_INV)
			wr[i].invalidate_rkey = in[i].imm;
		if (in[i].bind.mw) {
			wr[i].bind_mw.mw = P(ibv_mw, in[i].bind.mw);
			wr[i].bind_mw.rkey = in[i].bind.rkey;
			wr[i].bind_mw.bind_info = to_bind(&in[i].bind);
		} else if (in[i].ah) {
			wr[i].wr.ud.ah = P(ibv_ah, in[i].ah);
			wr[i].wr.ud.remote_qpn = in[i].qpn;
			wr[i].wr.ud.remote_qkey = in[i].qkey;
		} else if (in[i].op == IBV_WR_ATOMIC_CMP_AND_SWP || in[i].op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr[i].wr.atomic.remote_addr = in[i].remote;
			wr[i].wr.atomic.compare_add = in[i].compare;
			wr[i].wr.atomic.swap = in[i].swap;
			wr[i].wr.atomic.rkey = in[i].rkey;
		} else {
			wr[i].wr.rdma.remote_addr = in[i].remote;
			wr[i].wr.rdma.rkey = in[i].rkey;
		}
	}
	errno = 0;
	int rc = code(ibv_post_send(P(ibv_qp, qp), wr, &bad));
	*err = -rc;
	// ibv_post_send does not change mw->rkey. The program sets it, because drivers read the present key from there at the next bind.
	if (rc == 0 && in[0].bind.mw)
		P(ibv_mw, in[0].bind.mw)->rkey = in[0].bind.rkey;
	return rc == 0 ? n : bad ? (int)(bad - wr) : 0;
}

int cn_bind_mw1(uint64_t qp, const struct cn_send *in, uint32_t *rkey) {
	struct ibv_mw_bind b = {.wr_id = in->id, .send_flags = in->flags, .bind_info = to_bind(&in->bind)};
	struct ibv_mw *mw = P(ibv_mw, in->bind.mw);
	errno = 0;
	int rc = code(ibv_bind_mw(P(ibv_qp, qp), mw, &b));
	*rkey = mw->rkey;
	return rc;
}

int cn_alloc_mw(uint64_t pd, uint32_t type, uint64_t *mw, uint32_t *rkey) {
	errno = 0;
	struct ibv_mw *w = ibv_alloc_mw(P(ibv_pd, pd), type);
	if (!w)
		return fail(-1);
	*mw = H(w);
	*rkey = w->rkey;
	return 0;
}

int cn_dealloc_mw(uint64_t mw) { return code(ibv_dealloc_mw(P(ibv_mw, mw))); }

int cn_post_recv(uint64_t q, int shared, const struct cn_recv *in, int n, const struct cn_sge *sge, int *err) {
	struct ibv_recv_wr wr[CN_BATCH], *bad = NULL;
	for (int i = 0; i < n; i++)
		wr[i] = (struct ibv_recv_wr){
			.wr_id = in[i].id,
			.next = i + 1 < n ? &wr[i + 1] : NULL,
			.sg_list = entries(sge, in[i].sge),
			.num_sge = in[i].n,
		};
	errno = 0;
	int rc = shared ? code(ibv_post_srq_recv(P(ibv_srq, q), wr, &bad)) : code(ibv_post_recv(P(ibv_qp, q), wr, &bad));
	*err = -rc;
	return rc == 0 ? n : bad ? (int)(bad - wr) : 0;
}

// The connection manager.

static socklen_t to_sockaddr(const struct cn_addr *in, struct sockaddr_storage *out) {
	memset(out, 0, sizeof *out);
	if (in->family == 4) {
		struct sockaddr_in *a = (struct sockaddr_in *)out;
		a->sin_family = AF_INET;
		a->sin_port = htons(in->port);
		memcpy(&a->sin_addr, in->ip, 4);
		return sizeof *a;
	}
	struct sockaddr_in6 *a = (struct sockaddr_in6 *)out;
	a->sin6_family = AF_INET6;
	a->sin6_port = htons(in->port);
	a->sin6_scope_id = in->scope;
	memcpy(&a->sin6_addr, in->ip, 16);
	return sizeof *a;
}

static void from_sockaddr(const struct sockaddr *in, struct cn_addr *out) {
	memset(out, 0, sizeof *out);
	if (in->sa_family == AF_INET) {
		const struct sockaddr_in *a = (const struct sockaddr_in *)in;
		out->family = 4;
		out->port = ntohs(a->sin_port);
		memcpy(out->ip, &a->sin_addr, 4);
	} else if (in->sa_family == AF_INET6) {
		const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)in;
		out->family = 6;
		out->port = ntohs(a->sin6_port);
		out->scope = a->sin6_scope_id;
		memcpy(out->ip, &a->sin6_addr, 16);
	}
}

static struct rdma_conn_param to_param(const struct cn_param *p) {
	return (struct rdma_conn_param){
		.private_data = p->len ? p->data : NULL,
		.private_data_len = p->len,
		.responder_resources = p->responder,
		.initiator_depth = p->depth,
		.retry_count = p->retry,
		.rnr_retry_count = p->rnr_retry,
		.srq = p->srq,
		.qp_num = p->qpn,
	};
}

int cn_cm_channel(uint64_t *ch, int *fd) {
	errno = 0;
	struct rdma_event_channel *c = lib.rdma_create_event_channel();
	if (!c)
		return fail(-1);
	*ch = H(c);
	*fd = c->fd;
	return 0;
}

int cn_cm_destroy_channel(uint64_t ch) {
	lib.rdma_destroy_event_channel(P(rdma_event_channel, ch));
	return 0;
}

int cn_cm_event_get(uint64_t ch, struct cn_cm_event *out) {
	struct rdma_cm_event *ev;
	errno = 0;
	int rc = fail(lib.rdma_get_cm_event(P(rdma_event_channel, ch), &ev));
	if (rc)
		return rc;
	memset(out, 0, sizeof *out);
	out->type = ev->event;
	out->status = ev->status;
	out->ctx = H((ev->listen_id ? ev->listen_id : ev->id)->context);
	if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		out->child = H(ev->id);
	if (ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL && ev->id->verbs)
		snprintf(out->device, sizeof out->device, "%s", lib.ibv_get_device_name(ev->id->verbs->device));
	const struct rdma_conn_param *p = &ev->param.conn;
	out->param.len = p->private_data ? p->private_data_len : 0;
	if (out->param.len)
		memcpy(out->param.data, p->private_data, out->param.len);
	out->param.responder = p->responder_resources;
	out->param.depth = p->initiator_depth;
	out->param.retry = p->retry_count;
	out->param.rnr_retry = p->rnr_retry_count;
	out->param.qpn = p->qp_num;
	lib.rdma_ack_cm_event(ev);
	return 0;
}

int cn_cm_create(uint64_t ch, uint64_t ctx, uint64_t *id) {
	struct rdma_cm_id *p;
	errno = 0;
	int rc = fail(lib.rdma_create_id(P(rdma_event_channel, ch), &p, (void *)(uintptr_t)ctx, RDMA_PS_TCP));
	if (!rc)
		*id = H(p);
	return rc;
}

// cn_cm_adopt gives the identifier of a request a context of its own.
int cn_cm_adopt(uint64_t id, uint64_t ctx) {
	P(rdma_cm_id, id)->context = (void *)(uintptr_t)ctx;
	return 0;
}

int cn_cm_destroy(uint64_t id) {
	errno = 0;
	return fail(lib.rdma_destroy_id(P(rdma_cm_id, id)));
}

// cn_cm_option sets an option of level RDMA_OPTION_ID. The value of some options is an octet in C, and that of others an int.
int cn_cm_option(uint64_t id, int option, int value) {
	uint8_t octet = value;
	int is_octet = option == RDMA_OPTION_ID_TOS || option == RDMA_OPTION_ID_ACK_TIMEOUT;
	errno = 0;
	return fail(lib.rdma_set_option(P(rdma_cm_id, id), RDMA_OPTION_ID, option, is_octet ? (void *)&octet : (void *)&value,
	                                is_octet ? sizeof octet : sizeof value));
}

int cn_cm_bind(uint64_t id, const struct cn_addr *addr) {
	struct sockaddr_storage a;
	to_sockaddr(addr, &a);
	errno = 0;
	return fail(lib.rdma_bind_addr(P(rdma_cm_id, id), (struct sockaddr *)&a));
}

int cn_cm_listen(uint64_t id, int backlog) {
	errno = 0;
	return fail(lib.rdma_listen(P(rdma_cm_id, id), backlog));
}

int cn_cm_resolve_addr(uint64_t id, const struct cn_addr *from, const struct cn_addr *to, int ms) {
	struct sockaddr_storage a, source;
	to_sockaddr(to, &a);
	if (from)
		to_sockaddr(from, &source);
	errno = 0;
	return fail(lib.rdma_resolve_addr(P(rdma_cm_id, id), from ? (struct sockaddr *)&source : NULL, (struct sockaddr *)&a, ms));
}

int cn_cm_resolve_route(uint64_t id, int ms) {
	errno = 0;
	return fail(lib.rdma_resolve_route(P(rdma_cm_id, id), ms));
}

int cn_cm_device(uint64_t id, char *name, int n) {
	struct ibv_context *c = P(rdma_cm_id, id)->verbs;
	snprintf(name, n, "%s", c ? lib.ibv_get_device_name(c->device) : "");
	return 0;
}

int cn_cm_addrs(uint64_t id, struct cn_addr *local, struct cn_addr *remote) {
	from_sockaddr(rdma_get_local_addr(P(rdma_cm_id, id)), local);
	from_sockaddr(rdma_get_peer_addr(P(rdma_cm_id, id)), remote);
	return 0;
}

int cn_cm_connect(uint64_t id, const struct cn_param *p) {
	struct rdma_conn_param c = to_param(p);
	errno = 0;
	return fail(lib.rdma_connect(P(rdma_cm_id, id), &c));
}

int cn_cm_accept(uint64_t id, const struct cn_param *p) {
	struct rdma_conn_param c = to_param(p);
	errno = 0;
	return fail(lib.rdma_accept(P(rdma_cm_id, id), &c));
}

int cn_cm_reject(uint64_t id, const struct cn_param *p) {
	errno = 0;
	return fail(lib.rdma_reject(P(rdma_cm_id, id), p->len ? p->data : NULL, p->len));
}

int cn_cm_establish(uint64_t id) {
	errno = 0;
	return fail(lib.rdma_establish(P(rdma_cm_id, id)));
}

int cn_cm_disconnect(uint64_t id) {
	errno = 0;
	return fail(lib.rdma_disconnect(P(rdma_cm_id, id)));
}

int cn_cm_step(uint64_t id, uint64_t qp, const struct cn_step *s) {
	struct ibv_qp_attr a = {.qp_state = s->state};
	int mask = 0;
	errno = 0;
	int rc = fail(lib.rdma_init_qp_attr(P(rdma_cm_id, id), &a, &mask));
	if (rc)
		return rc;
	if (mask & IBV_QP_ACCESS_FLAGS)
		a.qp_access_flags = s->access;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		a.max_dest_rd_atomic = s->responder;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		a.max_rd_atomic = s->depth;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		a.min_rnr_timer = s->min_rnr;
	return code(lib.ibv_modify_qp(P(ibv_qp, qp), &a, mask));
}
