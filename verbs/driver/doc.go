// Package driver is what an RDMA device implements, and the vocabulary that
// it shares with package verbs.
//
// Programs use package verbs; only the author of a device (or of a layer
// around one, such as verbs/fault) uses this package directly. The division
// is that of database/sql and database/sql/driver:
//
//   - values (work requests, completions, attributes, events, errors) are
//     declared here and aliased by verbs, so both sides speak of one type;
//   - handles (device, protection domain, queue pair) are interfaces here and
//     concrete types in verbs, which validates what is common to all devices,
//     counts references and pins memory before a driver is called.
//
// Numeric values of opcodes, flags, statuses, states and events are those of
// libibverbs' verbs.h, so that they can cross to C and be compared in traces.
//
// # Contract of a driver
//
// Every method may be called from any goroutine, as in libibverbs. The data
// path (PostSend, PostRecv, Poll, Arm) never blocks and does not allocate.
// Slices passed to a method belong to the caller again when it returns; a
// driver that needs them longer copies. Memory named by work requests stays
// in use until the completion says otherwise.
package driver
