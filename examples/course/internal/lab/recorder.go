package lab

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// The addresses in a capture. They are the same in each run, unlike the ports of the loopback interface. RFC 5737 reserves these
// networks for documentation.
var (
	clientAddr = netip.MustParseAddr("192.0.2.1")
	serverAddr = netip.MustParseAddr("192.0.2.2")
)

const (
	clientPort = 40001 // of the first connection; the next one has the next port
	serverPort = 18515

	segment = 1460 // bytes of one recorded packet, as on Ethernet
	packets = 16   // packets of one read

	flagFIN = 0x01
	flagSYN = 0x02
	flagACK = 0x10
)

// recorder forwards connections and writes their bytes to a capture in the form pcap. It writes bytes before it forwards them, so the
// capture has a message before each message that the receiver sends because of it.
type recorder struct {
	listeners []*net.TCPListener
	serving   sync.WaitGroup

	mu   sync.Mutex
	out  *bufio.Writer // +checklocks:mu
	err  error         // +checklocks:mu
	buf  []byte        // +checklocks:mu
	port uint16        // +checklocks:mu
}

func newRecorder(out io.Writer) *recorder {
	// The header of the file: version 2.4, at most 65,535 bytes of a packet, packets that begin with the IP header.
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = binary.LittleEndian.AppendUint16(b, 2)
	b = binary.LittleEndian.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = binary.LittleEndian.AppendUint32(b, 65535)
	b = binary.LittleEndian.AppendUint32(b, 101)
	r := &recorder{out: bufio.NewWriter(out), port: clientPort}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, r.err = r.out.Write(b)
	return r
}

// forward returns an address. Connections to it are recorded, and forwarded to another address.
func (r *recorder) forward(to netip.AddrPort) (netip.AddrPort, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(Loopback))
	if err != nil {
		return netip.AddrPort{}, err
	}
	r.listeners = append(r.listeners, l)
	r.serving.Go(func() { r.serve(l, to) })
	return netip.ParseAddrPort(l.Addr().String())
}

// serve accepts connections until close.
func (r *recorder) serve(l *net.TCPListener, to netip.AddrPort) {
	for {
		client, err := l.AcceptTCP()
		if err != nil {
			return
		}
		server, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
		if err != nil {
			r.fail(errors.Join(err, client.Close()))
			return
		}
		ends := [2]netip.AddrPort{netip.AddrPortFrom(clientAddr, r.nextPort()), netip.AddrPortFrom(serverAddr, serverPort)}
		up := &flow{r: r, in: client, out: server, from: ends[0], to: ends[1]}
		down := &flow{r: r, in: server, out: client, from: ends[1], to: ends[0]}
		up.record(flagSYN, nil)
		down.record(flagSYN|flagACK, nil)
		var both sync.WaitGroup
		both.Go(up.pump)
		both.Go(down.pump)
		r.serving.Go(func() {
			both.Wait()
			_, _ = client.Close(), server.Close() // both directions have ended
		})
	}
}

// close waits for the end of all connections, and completes the file.
func (r *recorder) close() error {
	var errs []error
	for _, l := range r.listeners {
		errs = append(errs, l.Close())
	}
	r.serving.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(append(errs, r.err, r.out.Flush())...)
}

// nextPort returns the client's port of the next connection.
func (r *recorder) nextPort() uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.port++
	return r.port - 1
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = errors.Join(r.err, err)
}

// flow is one direction of a connection. One goroutine uses it at a time.
type flow struct {
	r        *recorder
	in, out  *net.TCPConn
	from, to netip.AddrPort
	sequence uint32
}

// pump records and forwards bytes until the sender ends the direction, or the connection breaks.
func (f *flow) pump() {
	buf := make([]byte, packets*segment)
	for {
		n, err := f.in.Read(buf)
		for b := buf[:n]; len(b) > 0; b = b[min(segment, len(b)):] {
			f.record(flagACK, b[:min(segment, len(b))])
		}
		if n > 0 {
			if _, werr := f.out.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			f.record(flagFIN|flagACK, nil)
			_, _ = f.out.CloseWrite(), f.in.CloseRead() // the other direction goes on until its own end
			return
		}
	}
}

// record writes a packet of TCP over IPv4 with its time. Its checksums and acknowledgements stay 0, because readers of captures need
// neither.
func (f *flow) record(flags byte, data []byte) {
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	now, size := time.Now(), 40+len(data)
	b := binary.LittleEndian.AppendUint32(r.buf[:0], uint32(now.Unix()))
	b = binary.LittleEndian.AppendUint32(b, uint32(now.Nanosecond()/1000))
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = append(b, 0x45, 0, byte(size>>8), byte(size), 0, 0, 0, 0, 64, 6, 0, 0)
	b = append(b, f.from.Addr().AsSlice()...)
	b = append(b, f.to.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, f.from.Port())
	b = binary.BigEndian.AppendUint16(b, f.to.Port())
	b = binary.BigEndian.AppendUint32(b, f.sequence)
	b = append(b, 0, 0, 0, 0, 0x50, flags, 255, 255, 0, 0, 0, 0)
	b = append(b, data...)
	if f.sequence += uint32(len(data)); flags&(flagSYN|flagFIN) != 0 {
		f.sequence++
	}
	_, err := r.out.Write(b)
	r.err = errors.Join(r.err, err)
	r.buf = b
}
