// Command mixedpeer is one side of a conversation of mixed messages. The other
// side is test/rdmavm/c/mixed.c, on rdma-core: it shows that two implementations
// move every byte, and that each understands how the other ends a connection.
//
//	mixedpeer -s | -c -a ADDRESS [-p PORT] [-n MESSAGES] [-r SEED] [-b CASE] [-device NAME]
//
// The program uses the software device, verbs/iwarp, unless -device names a real one.
// Both sides know:
//
//   - Each has 16 slots of 1 MiB and 64 bytes, one behind the other, that the peer
//     may read and write, and as many of its own.
//   - The client connects and sends HELLO: how many messages there are, the seed
//     that all of them are drawn from, and whether it is going to violate the
//     server's rights. The server, as the passive side, says nothing before.
//   - Then they take turns, the client first. The side that has the turn waits for READY,
//     posts all messages of the turn at once and DONE behind them: sends, writes and
//     reads, message k to and from slot k. The other one has posted the
//     receives and filled the slots that are read before it sends READY; after
//     DONE it checks the bytes that came. A side that reads checks the bytes that it has read.
//   - At the end each sends the other in BYE how many messages were wrong.
//
// A control message is 48 bytes, big-endian:
//
//	 0  magic "MIXE"
//	 4  kind: 1 HELLO, 2 READY, 3 DONE, 4 BYE
//	 8  HELLO: number of the bad case, 0 for none
//	12  key of the sender's slots
//	16  HELLO: messages in all; READY, DONE: turn; BYE: wrong messages
//	24  address of the sender's slots
//	32  HELLO: seed
//	40  nothing
//
// The exit status is 0 if no byte was wrong, and for a bad case if the connection
// ended.
package main
