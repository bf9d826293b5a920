// Package iwarp is an RDMA device in software: standard iWARP over TCP (MPA,
// RFC 5044 and 6581; DDP, RFC 5041; RDMAP, RFC 5040; atomics and immediate data,
// RFC 7306) in user space, on any system that has TCP. Its peer may be another
// such device, a kernel's soft-iWARP driver, or an iWARP NIC.
//
//	dev, err := iwarp.Open(iwarp.Config{})
//	if err != nil {
//		return err
//	}
//	defer dev.Close()
//	pd, err := dev.AllocPD()
//	…
//
// The device comes with queue pairs of type RC; UC, UD and XRC do not exist in iWARP.
//
// # Limits of iWARP
//
// It acknowledges nothing. A write or send completes when it has been handed to
// TCP. If the peer refuses it later, its Terminate message puts the queue pair
// into ERR, and the oldest outstanding request completes with the cause, or an
// asynchronous event reports it if there is none. Reads and atomics carry exact statuses.
// Config.ConfirmWrites gives writes and sends exact statuses too, for a round
// trip each.
//
// It has no RNR NAK. A message without a posted receive is held here, in bounded
// memory, for as long as the receiving queue pair's MinRNRTimer and RNRRetry say (7, the
// default, is for ever); then the connection is terminated with "no buffer".
//
// Its passive side may not send first. The active side of this device sends an opening message that
// programs do not see (RFC 6581's peer-to-peer set-up), and the passive side holds
// sends back until the first message has come.
//
// Immediate data and atomics are extensions that nothing negotiates; see
// Config.NoImmediates and Config.NoAtomics. Send with immediate has no standard
// form and works between devices of this package only.
//
// # Progress
//
// A call of Poll reads the sockets of the queue's connections on the caller's goroutine,
// without blocking. When no call polls, a goroutine of the connection reads, because
// one-sided operations must make progress without the target's program. A poller that is
// about to park arms the queue, and the goroutines take over at once; when the
// polling stops without arming, they do so within a millisecond or two.
//
// A goroutine that parks in Wait on the queue of a single connection reads the socket itself, so a message
// wakes that goroutine and no other. A reader that has found input looks for more for a while before it
// sleeps, because a peer that reads or writes memory here usually continues.
//
// # Memory
//
// Payload goes from registered memory to the socket and from the socket to
// registered memory: no copy in user space (see the counters rx_staged_bytes and
// tx_staged_bytes of Device.Stats). Five things are copied all the same: messages that are
// held; the source of a read under CRC, because its owner may change it at any
// time, which would make the CRC wrong; up to 512 KiB of a peer's stream after this side guessed the size or
// the kind of the next FPDU of a read response wrongly, which only a peer of another make or of an older version, or a response that ends early, causes (docs/adr/0060); up to 256 bytes behind a run of equal small
// messages; and the last 8 bytes of a write, which are stored last and as one
// word where they are aligned, so that a program may poll them to learn that the write
// is complete (not counted as staged). A peer of another make may end a write with
// a segment of less than 8 bytes; then only those are stored last.
//
// A region that is closed while the peer reads or writes it ends the connection. A Write or an atomic of peer A to memory that is the sink of a
// read from peer B may end B's connection, because the sink may hold headers of B's stream that A could have changed.
//
// Memory may be a mapped file that is truncated meanwhile: an access to the part that
// is gone fails its connection.
//
// # Hosts
//
// The device counts, for each remote host, connections, unfinished handshakes and the
// bytes of messages that are held (package hostquota), so that one host leaves room for
// others:
//
//   - Of Config.MaxConnections a host gets a share. Beyond it, or beyond the limit, a
//     request is refused by an MPA reply, unless a connection gives way that has been
//     idle for longest: one that was accepted here, with nothing posted but receives,
//     of the host that has most and more than its fair share. For a host that has its
//     fair share itself, only its own connections give way.
//   - An unfinished handshake gives way to a newer one: the oldest of the same host where
//     its share is used up, or of the host that has most.
//   - A host gets a share of a listener's backlog, and of Config.MaxMemory for held messages.
//   - A host that makes refused accesses to memory again and again (Config.DeniedLimit)
//     has its new connections spaced out, because it may be guessing keys.
//   - A message that began in a receive of a shared queue, and goes on for 30 s in which
//     less than 32 KiB come, ends its connection. A connection has one such message at most.
//
// The key of a region is random, and so is the address by which peers name it
// ([verbs.MR.Remote]). A peer may revoke a key only if its region has the right
// [verbs.RemoteInvalidate]. The key of a memory window, also random, is valid on the connection that has bound it, until the owner or the
// peer revokes it or the connection ends; windows are of type 2.
//
// A completion queue that overruns loses completions of all queue pairs that share it.
// So queue pairs of peers that do not trust each other need a queue that is as deep as
// their work queues together, or one each; the log says where that is not so.
//
// # Vendor codes
//
// The Vendor field of completions and events is the Terminate message's
// layer<<12 | type<<8 | code (RFC 5040 section 4.8).
package iwarp
