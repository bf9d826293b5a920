package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/shm"
)

// A client of na+sm by hand. It has a server's region in its memory and could write anywhere there; it keeps to its own
// pair of rings, because processes of one user can destroy each other's memory anyway.

// The layout of a region: see package internal/na/sm.
const (
	smBuffers    = 0x00108
	smBufferMap  = 0x40108
	smPairs      = 0x41000
	smPairMap    = 0x92080
	smRegionSize = 0x93000

	smBufferSize = 4096
	smPairSize   = 0x500
	smPairReply  = 0x280 // the ring to the client
	smPairWords  = 4

	smProducerHead = 0x00
	smProducerTail = 0x04
	smConsumerHead = 0x40
	smConsumerTail = 0x44
	smSlots        = 0x80
	smSlotCount    = 64

	smReserved = 1 // kinds of commands
	smReleased = 2
)

// smClient is a client without a connection.
type smClient struct {
	mem    []byte
	socket int
	to     *unix.SockaddrUnix
}

// openSM maps the region of the server at an address of na+sm.
func openSM(o *order) (*smClient, error) {
	name := strings.TrimPrefix(o.Server.Addr, "na+sm://")
	f, err := os.OpenFile(filepath.Join("/dev/shm", "na_sm-"+name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the mapping stays
	mem, err := unix.Mmap(int(f.Fd()), 0, smRegionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("socket", err), unix.Munmap(mem))
	}
	return &smClient{mem, socket, &unix.SockaddrUnix{Name: filepath.Join("/tmp", "na_sm-"+name, "sock")}}, nil
}

func (c *smClient) close() { _ = errors.Join(unix.Close(c.socket), unix.Munmap(c.mem)) }

// datagram sends bytes and descriptors to the server's socket. A full socket is waited for.
func (c *smClient) datagram(ctx context.Context, b []byte, fds ...int) error {
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	for {
		_, err := unix.SendmsgN(c.socket, b, control, c.to, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ETOOMANYREFS) {
			return os.NewSyscallError("sendmsg", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause(ctx, 100*time.Microsecond)
	}
}

// command is a command of a process about a pair.
func command(pid, id, pair, kind int) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(uint32(pid))|uint64(id)<<32|uint64(pair)<<40|uint64(kind)<<48)
}

// claim clears the lowest bit that is set in the words at off and returns its number.
func (c *smClient) claim(off, words int) (int, bool) {
	for w := range words {
		m := shm.Uint64(c.mem, off+8*w)
		for v := m.Load(); v != 0; v = m.Load() {
			if i := bits.TrailingZeros64(v); m.CompareAndSwap(v, v&^(1<<i)) {
				return 64*w + i, true
			}
		}
	}
	return 0, false
}

// smPeer is a connection: a pair of rings and two eventfds.
type smPeer struct {
	*smClient
	id, pair     int
	toServer     int // eventfd that this peer signals
	fromServer   int // eventfd that the server signals
	at, answered uint32
}

// errNoPair says that all places of the server are taken.
var errNoPair = errors.New("no pair of rings is free")

// connect claims a pair and sends the command.
func (c *smClient) connect(ctx context.Context, id int) (*smPeer, error) {
	pair, ok := c.claim(smPairMap, smPairWords)
	if !ok {
		return nil, errNoPair
	}
	p := &smPeer{smClient: c, id: id & 0xff, pair: pair}
	var err error
	if p.toServer, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	if p.fromServer, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, errors.Join(os.NewSyscallError("eventfd", err), unix.Close(p.toServer))
	}
	// Messages that the previous client of the pair has left are neither sent nor received.
	p.at = p.word(0, smConsumerTail).Load() % smSlotCount
	p.word(0, smProducerHead).Store(p.at)
	p.word(0, smProducerTail).Store(p.at)
	p.answered = p.word(smPairReply, smProducerTail).Load() % smSlotCount
	p.word(smPairReply, smConsumerHead).Store(p.answered)
	p.word(smPairReply, smConsumerTail).Store(p.answered)
	if err := c.datagram(ctx, command(os.Getpid(), p.id, pair, smReserved), p.toServer, p.fromServer); err != nil {
		return nil, errors.Join(err, p.closeFDs())
	}
	return p, nil
}

// word is a word of one of the pair's rings: 0 is the ring to the server, smPairReply that to the client.
func (p *smPeer) word(ring, off int) *atomic.Uint32 {
	return shm.Uint32(p.mem, smPairs+p.pair*smPairSize+ring+off)
}

func (p *smPeer) closeFDs() error {
	return errors.Join(unix.Close(p.toServer), unix.Close(p.fromServer))
}

// leave releases the pair as a proper client does.
func (p *smPeer) leave(ctx context.Context) error {
	err := p.datagram(ctx, command(os.Getpid(), p.id, p.pair, smReleased))
	return errors.Join(err, p.closeFDs())
}

// push puts a descriptor into the ring to the server and signals. It reports false if the ring is full.
func (p *smPeer) push(d uint64) bool {
	next := (p.at + 1) % smSlotCount
	if next == p.word(0, smConsumerTail).Load()%smSlotCount {
		return false
	}
	shm.Uint64(p.mem, smPairs+p.pair*smPairSize+smSlots+8*int(p.at)).Store(d)
	p.at = next
	p.word(0, smProducerHead).Store(next)
	p.word(0, smProducerTail).Store(next)
	ring(p.toServer, 1)
	return true
}

// ring adds n to an eventfd. A sum that an eventfd cannot hold is not added.
func ring(fd int, n uint64) {
	_, _ = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, n)) // an attack goes on without
}

// request sends a request. It reports false if there is no copy buffer, or no room in the ring.
func (p *smPeer) request(tag uint32, body []byte) bool {
	b, ok := p.claim(smBufferMap, 1)
	if !ok {
		return false
	}
	copy(p.mem[smBuffers+b*smBufferSize:][:smBufferSize], body)
	if !p.push(smDescriptor(tag, len(body), b, 0)) {
		shm.Uint64(p.mem, smBufferMap).Or(1 << b)
		return false
	}
	return true
}

// smDescriptor describes a message in a copy buffer.
func smDescriptor(tag uint32, n, buffer int, kind uint8) uint64 {
	return uint64(tag) | uint64(uint16(n))<<32 | uint64(uint8(buffer))<<48 | uint64(kind)<<56
}

// alive reports whether the pair still is this peer's, as far as the region shows.
func (p *smPeer) alive() bool {
	return shm.Uint64(p.mem, smPairMap+8*(p.pair/64)).Load()>>(p.pair%64)&1 == 0
}
