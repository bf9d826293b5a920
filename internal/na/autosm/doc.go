// Package autosm is the network of an engine that reaches the processes of its own host over shared memory and those of other hosts over a
// network, as the option auto_sm of Mercury's HG layer makes one.
//
// An [Endpoint] joins an endpoint of package sm with one of another network. It passes each operation to one of the two, by the address of
// the peer:
//
//   - A peer from which a request has come has the address of the network that the request came over.
//   - A peer with a combined address, "uid://HOST#na+sm://PID-ID#ofi+tcp://IP:PORT", is reached over shared memory if HOST is the
//     identifier of this host, IP is an address of this host, and the endpoint in shared memory exists, is trusted, and belongs to the
//     process that has the address in the network. Otherwise it is reached over the network. The choice is made again whenever there is
//     no connection.
//   - Any other address belongs to the network, except one that begins with "na+sm:" or "sm:".
//
// C compares HOST only. Many hosts have the same identifier, because gethostid derives it from the address of the host's name, which is
// 127.0.0.1 or 127.0.1.1 on a usual installation: the number of the process would then lead to a process of this host that is not the peer.
// The same happens between two containers of one host if their processes have the same numbers. The region of a peer of this module has a hash of
// the address in the network. A peer in C is looked up in /proc: it must listen at the address, if that is one of ofi+tcp.
//
// Memory is registered with both. Bulk descriptors that travel over shared memory hold the handles of both networks, others those of the
// network (package hg decides that).
//
// The package works on Linux, as package sm does.
package autosm
