package iwarp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/internal/sockio"
	"cinnabar/verbs"
)

// Dial implements verbs.DeviceDriver: TCP, then the active side's part of MPA.
func (d *device) Dial(ctx context.Context, dqp verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	const op = "dial"
	q, ok := dqp.(*qp)
	if !ok || q.pd.dev != d {
		return nil, verbs.Errorf(op, verbs.ErrInvalid, "the queue pair belongs to another device")
	}
	if d.isClosed() {
		return nil, verbs.Errorf(op, verbs.ErrClosed, "the device is closed")
	}
	local, err := d.cfg.localFor(op, p)
	if err != nil {
		return nil, err
	}
	if err := q.reserve(op); err != nil {
		return nil, err
	}
	defer q.release()
	if p.Timeout <= 0 {
		p.Timeout = d.cfg.HandshakeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	dialer := net.Dialer{Control: options(p)}
	if p.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(p.Source)
	}
	nc, err := dialer.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, netError(op, addr, err)
	}
	tc := nc.(*net.TCPConn) // network "tcp" makes no other
	s := &stream{tcp: tc}
	local.CRC = d.cfg.asksCRC(unmap(tcpAddr(tc.LocalAddr())).Addr(), unmap(tcpAddr(tc.RemoteAddr())).Addr())
	var h handshake
	if err = d.prove(ctx, s, addr, p.Timeout); err != nil {
		err = wrapMPA(op+" "+addr.String(), err)
	} else {
		h, err = d.request(ctx, s, local, p)
	}
	if err == nil {
		var c *conn
		_ = d.own.Take(hostquota.Connections, 1) // never refuses: the account of this process has no limit
		if c, err = d.start(q, s, h); err == nil {
			return c, nil
		}
		d.own.Give(hostquota.Connections, 1)
	}
	_ = tc.Close() // the caller receives the error of the handshake
	return nil, err
}

// netError returns an error of package net in this package's form, which has the operation and the address once.
func netError(op string, addr netip.AddrPort, err error) error {
	if e, ok := err.(*net.OpError); ok { //nolint:errorlint // a wrapped one has text of its own around it
		err = e.Err
	}
	return &verbs.Error{Op: op + " " + addr.String(), Err: err}
}

// request exchanges MPA frames as the active side.
func (d *device) request(ctx context.Context, s *stream, local mpa.Local, p verbs.ConnParam) (handshake, error) {
	op := "dial " + s.tcp.RemoteAddr().String()
	done := bound(ctx, s, p.Timeout)
	req, err := mpa.Request(local)
	if err != nil {
		return handshake{}, wrapMPA(op, err)
	}
	var reply mpa.Frame
	if err = writeFrame(s, req); err == nil {
		reply, err = readFrame(s)
	}
	if err = done(err); err != nil {
		return handshake{}, wrapMPA(op, err)
	}
	agreed, err := mpa.Finish(req, reply, local)
	if err != nil {
		d.terminateReply(s, err, req.CRC || reply.CRC)
		return handshake{}, wrapMPA(op, err)
	}
	return d.cfg.settle(op, true, agreed, p)
}

// terminateReply sends a Terminate to a peer that has accepted, because this side cannot
// accept its reply. It sends nothing if RFC 6581 section 8 has no code for err.
func (d *device) terminateReply(s *stream, err error, crc bool) {
	e, ok := errors.AsType[*mpa.Error](err)
	if !ok || !e.Code.Terminates() {
		return
	}
	t := (rdmap.Cause(mpa.TerminateLayer)<<12 | rdmap.Cause(mpa.TerminateType)<<8 | rdmap.Cause(e.Code)).Terminate()
	done := bound(context.Background(), s, d.cfg.HandshakeTimeout)
	_, werr := s.Write(appendTerminate(nil, &t, 1, crc))
	_ = done(werr) // the caller returns err, which is the cause
}

// options returns the function that sets the options of a new socket that p asks for.
func options(p verbs.ConnParam) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		if p.ReuseSource {
			if err := sockio.SetReuseAddr(c); err != nil {
				return err
			}
		}
		if p.TypeOfService == 0 {
			return nil
		}
		return sockio.SetTypeOfService(c, network == "tcp6", p.TypeOfService)
	}
}

// setTypeOfService sets the type of service of an accepted connection, whose peer is at remote. 0 changes nothing.
func setTypeOfService(tc *net.TCPConn, remote netip.Addr, octet uint8) error {
	if octet == 0 {
		return nil
	}
	c, err := tc.SyscallConn()
	if err != nil {
		return err
	}
	return sockio.SetTypeOfService(c, remote.Is6(), octet)
}
