// Package dnstest is a DNS server on the loopback for tests of code that resolves host names. A [Server] answers queries for
// addresses from a table that the test changes, and its [Server.Resolver] asks no other server:
//
//	s := dnstest.Start(t)
//	s.Set("store.test", "127.0.0.2", "127.0.0.3")
//	cfg := &cinnabar.Config{Resolver: s.Resolver()}
//
// Names in the test domain are not in any host's table of names (RFC 6761). All methods are safe for concurrent use.
package dnstest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// Server is a DNS server. It runs until its test ends.
type Server struct {
	t  testing.TB
	ln net.Listener
	wg sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	hosts map[string][]netip.Addr
	// +checklocks:mu
	services map[string][]*net.SRV
	// +checklocks:mu
	failing map[string]bool
	// +checklocks:mu
	silent bool
	// +checklocks:mu
	queries int
	// +checklocks:mu
	conns map[net.Conn]struct{}
	// +checklocks:mu
	closed bool
}

// Start starts a server without names.
func Start(t testing.TB) *Server {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, ln: ln, hosts: map[string][]netip.Addr{}, services: map[string][]*net.SRV{}, failing: map[string]bool{}, conns: map[net.Conn]struct{}{}}
	s.wg.Go(s.accept)
	t.Cleanup(s.close)
	return s
}

// Resolver returns a resolver that asks only this server, over TCP, because TCP has no limit on the length of an answer.
func (s *Server) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp4", s.ln.Addr().String())
	}}
}

// Set makes the name stand for the addresses; with none, the name exists without addresses.
func (s *Server) Set(name string, addrs ...string) {
	list := []netip.Addr{}
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[name+"."] = list
}

// SetService makes the name stand for SRV records. Each Target is the name of a host without a dot at the end.
func (s *Server) SetService(name string, records ...*net.SRV) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[name+"."] = records
}

// Fail makes the server answer queries for the name with a failure (SERVFAIL), or with its records again.
func (s *Server) Fail(name string, failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing[name+"."] = failing
}

// Silence makes the server leave queries unanswered, or answer again.
func (s *Server) Silence(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
}

// Queries returns the number of queries for addresses so far.
func (s *Server) Queries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queries
}

func (s *Server) close() {
	_ = s.ln.Close() // fails only if it is closed already
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close() // ends its goroutine
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			_ = c.Close() // too late for an answer
		} else {
			s.conns[c] = struct{}{}
			s.wg.Go(func() { s.serve(c) })
		}
		s.mu.Unlock()
	}
}

// serve answers the queries of a connection, each with its length in two bytes before it (RFC 1035, section 4.2.2).
func (s *Server) serve(c net.Conn) {
	defer func() {
		_ = c.Close() // all is written
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
	}()
	for {
		var n [2]byte
		if _, err := io.ReadFull(c, n[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(n[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		answer, err := s.answer(b)
		if err != nil {
			s.t.Errorf("query % x: %v", b, err)
			return
		}
		if answer == nil {
			continue
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// Parts of a DNS message (RFC 1035, section 4.1).
const (
	headLen   = 12
	response  = 0x8400 // flags: a response, with authority
	failure   = 2      // response code: the server cannot process the query
	noName    = 3      // response code: the name does not exist
	typeA     = 1
	typeAAAA  = 28
	typeSRV   = 33
	classIN   = 1
	firstName = 0xc000 | headLen // pointer to the name of the question
)

// answer returns the answer to a query with one question; nil: there is none.
//
//	ID 2 | flags 2 | questions 2 | answers 2 | authorities 2 | additional 2
//	question: name, as labels with their lengths, and 0 | type 2 | class 2
//	answer: name 2, a pointer | type 2 | class 2 | time to live 4 | length 2 | address, or priority 2 | weight 2 | port 2 | name of the host
func (s *Server) answer(query []byte) ([]byte, error) {
	if len(query) < headLen {
		return nil, errors.New("shorter than a header")
	}
	name, at := "", headLen
	for at < len(query) && query[at] != 0 {
		end := at + 1 + int(query[at])
		if end >= len(query) {
			return nil, errors.New("a label beyond the end")
		}
		name += strings.ToLower(string(query[at+1:end])) + "."
		at = end
	}
	if at += 5; at > len(query) {
		return nil, errors.New("no type and class of the question")
	}
	kind := binary.BigEndian.Uint16(query[at-4:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries++
	if s.silent {
		return nil, nil
	}
	ips, known := s.hosts[name]
	records, isService := s.services[name]
	b := append([]byte(nil), query[:at]...)
	clear(b[6:headLen])
	binary.BigEndian.PutUint16(b[2:], response)
	if !known && !isService {
		binary.BigEndian.PutUint16(b[2:], response|noName)
	}
	if s.failing[name] {
		binary.BigEndian.PutUint16(b[2:], response|failure)
		return b, nil
	}
	n := uint16(0)
	for _, ip := range ips {
		if ip.Is4() && kind != typeA || ip.Is6() && kind != typeAAAA {
			continue
		}
		n++
		b = binary.BigEndian.AppendUint16(b, firstName)
		b = binary.BigEndian.AppendUint16(b, kind)
		b = binary.BigEndian.AppendUint16(b, classIN)
		b = binary.BigEndian.AppendUint32(b, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(ip.BitLen()/8))
		b = append(b, ip.AsSlice()...)
	}
	if kind != typeSRV {
		records = nil
	}
	for _, r := range records {
		n++
		b = binary.BigEndian.AppendUint16(b, firstName)
		b = binary.BigEndian.AppendUint16(b, kind)
		b = binary.BigEndian.AppendUint16(b, classIN)
		b = binary.BigEndian.AppendUint32(b, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(6+len(r.Target)+2))
		for _, field := range []uint16{r.Priority, r.Weight, r.Port} {
			b = binary.BigEndian.AppendUint16(b, field)
		}
		for label := range strings.SplitSeq(r.Target, ".") {
			b = append(append(b, byte(len(label))), label...)
		}
		b = append(b, 0)
	}
	binary.BigEndian.PutUint16(b[6:], n)
	return b, nil
}
