//go:build linux

// Package ucm speaks to the kernel's RDMA connection manager, the character device
// /dev/infiniband/rdma_cm, without librdmacm. The commands are the structures of the
// kernel's header rdma/rdma_user_cm.h, ABI version 4, which Linux has had since 2.6.20;
// RDMA_USER_CM_CMD_BIND, _RESOLVE_ADDR and _QUERY came with Linux 3.12.
//
// A [Channel] is an open file of that device: it takes the commands and gives the events of
// its identifiers. An [ID] is an identifier, as struct rdma_cm_id of librdmacm: it listens, or
// it is one end of a connection. The caller makes the queue pairs and changes their states
// itself, with the attributes that [ID.QPAttr] gives; so the events are those that librdmacm
// reports for an identifier without a queue pair, among them CONNECT_RESPONSE on the side that dials.
//
// Errors are syscall.Errno values of the kernel. All methods are safe for concurrent use, but
// for Close and for Next, which one goroutine calls.
package ucm
