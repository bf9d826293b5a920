package rping

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"cinnabar/verbs"
)

// The protocol of rping, as rdma-core's librdmacm/examples/rping.c speaks it.
// Every message is a Send of 16 bytes. One round is
//
//	client                                   server
//	  | -- Send: address of the ping data --> |
//	  | <----------- RDMA Read -------------- |  prints the data
//	  | <------------- Send ----------------- |  "go ahead", content unused
//	  | -- Send: address of the sink -------> |
//	  | <----------- RDMA Write ------------- |  the same text, with its NUL
//	  | <------------- Send ----------------- |  "go ahead"
//
// and rounds follow one another until the client disconnects. The advertisement
// is struct rping_rdma_info, in network byte order:
//
//	 0               8        12       16
//	+---------------+--------+--------+
//	|    address    |  rkey  |  size  |
//	+---------------+--------+--------+
const (
	advertLen   = 16
	advertRKey  = 8
	advertSize  = 12
	defaultPort = 7174
	defaultSize = 64           // bytes of ping data unless -S says otherwise
	minSize     = 23           // "rdma-ping-2147483647: " and its NUL
	maxSize     = 64*1024 - 1  // the largest that the C program accepts
	fillFirst   = 'A'          // the filler runs from here ...
	fillLast    = 'z'          // ... to here, through the six signs between the cases
	pingPrefix  = "rdma-ping-" // followed by the round's number, ": " and the filler
	idleLimit   = time.Minute  // without a message, after which the peer counts as gone
	sendDepth   = 16           // send queue; the receive queue holds two
)

// advert names the memory that the peer may read or write.
type advert struct {
	remote verbs.RemoteAddr
	size   uint32 // bytes
}

// appendAdvert encodes a.
func appendAdvert(b []byte, a advert) []byte {
	b = binary.BigEndian.AppendUint64(b, a.remote.Addr)
	b = binary.BigEndian.AppendUint32(b, a.remote.RKey)
	return binary.BigEndian.AppendUint32(b, a.size)
}

// parseAdvert decodes a received message, which must be exactly one advertisement.
func parseAdvert(b []byte) (advert, error) {
	if len(b) != advertLen {
		return advert{}, fmt.Errorf("received a message of %d bytes where rping sends %d; is the peer an rping?", len(b), advertLen)
	}
	return advert{
		remote: verbs.RemoteAddr{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[advertRKey:])},
		size:   binary.BigEndian.Uint32(b[advertSize:]),
	}, nil
}

// check refuses an advertisement that the server's buffer cannot serve.
func (a advert) check(limit int) error {
	switch {
	case a.size == 0:
		return fmt.Errorf("the client offers 0 bytes of ping data; the smallest size is -S %d", minSize)
	case uint64(a.size) > uint64(limit):
		return fmt.Errorf("the client's ping data has %d bytes, this server's buffer %d: size differs; start both sides with the same -S", a.size, limit)
	}
	return nil
}

// fillPing writes the data of round n: the text, the filler that starts one
// letter later in every round, and a final NUL.
func fillPing(b []byte, n int32) {
	text := strconv.AppendInt(append(make([]byte, 0, minSize), pingPrefix...), int64(n), 10)
	used := copy(b, append(text, ": "...))
	const letters = fillLast - fillFirst + 1
	for i := used; i < len(b); i++ {
		b[i] = byte(fillFirst + (int(n%letters)+i-used)%letters)
	}
	if len(b) > 0 {
		b[len(b)-1] = 0
	}
}

// nextPing numbers the round after n. C's counter is an int, which this wraps
// to 0 instead of leaving it to chance.
func nextPing(n int32) int32 { return (n + 1) & (1<<31 - 1) }

// pingText is the data up to its NUL, or all of it if a hostile peer sent none.
func pingText(b []byte) []byte {
	if n := bytes.IndexByte(b, 0); n >= 0 {
		return b[:n]
	}
	return b
}

// echoLen is how much the server writes back: the text with its NUL.
func echoLen(b []byte) int { return min(len(pingText(b))+1, len(b)) }
