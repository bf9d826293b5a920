// Package recording reads, writes and plays recorded conversations of programs in C and C++ over ofi+tcp, so that tests need
// neither the programs nor their libraries. Only tests use it.
//
// # Format
//
// A recording is a text file of at most 5 MiB. Lines that begin with # are comments; the first ones name the programs and
// their versions. A line
//
//	conn dialer=IP:PORT listener=IP:PORT
//
// begins each connection, with the addresses at which both sides listen. One line follows for each connection management or
// data message, in the order of its arrival:
//
//	> ITEM...     from the side that dialed
//	< ITEM...     from the side that listened
//	> close       the end of the stream that the dialing side sends
//	< close       the end of the other
//
// The items of a message stand for its bytes, one after the other:
//
//	0a1b2c        the bytes themselves, in lower-case hexadecimal digits
//	~7+4096*65536 65536 bytes of the formula with seed 7, from offset 4096 on (see Pattern)
//	&01020300*40  the bytes 01 02 03 00 again and again, 40 bytes in all
//	$key1*8       a field of 8 bytes with a value that differs from run to run
//	!crc32c       4 bytes, big endian: the CRC-32C of all bytes of the message behind them
//	=sum1         no bytes: all bytes of the message behind it have the CRC-32C in the field sum1
//
// # Fields that differ
//
// A field takes its value where the program under test sends it for the first time. From there on every $ item with its name
// stands for that value, in both directions, and fields of one kind have different values each. The kind is the name without
// the digits at its end. There are
//
//	process  16 bytes  the identity in a connection request of cinnabar, which C ignores
//	pid      4 bytes   the process id in a connection request
//	port     2 bytes   the port at which the dialing side listens, in its connection request and before each of its requests
//	server   2 bytes   the port at which the listening side listens, which a Player sets and never learns
//	tag      4 bytes   the number by which a response finds its request
//	key      8 bytes   the key of memory, in descriptors and in reads and writes
//	sum      4 bytes   the checksum of arguments with keys that travel in a later message, big endian
//	probe    8 bytes   the id of the request that tests whether the peer computes checksums, for which no handler exists
//	cookie   2 bytes   the checksum of that request's header
//
// A Player compares all other bytes of the program under test, and reports the first that differs. It sends the other side's
// bytes as they were recorded, with the values of fields in their places.
package recording
