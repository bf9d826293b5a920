// Command server receives files from the client beside it, by the protocol of
// Bedeir's paper on flow control, until it is interrupted:
//
//	server [-listen HOST:PORT] [-dir DIR] [-device NAME]
//
// It listens at port 12345 of every address and writes into the current directory,
// on the software device or the machine's RDMA device of that name.
// Where -listen says otherwise, the address is printed to standard error. Files
// that exist are not overwritten, and of a file that did not arrive whole nothing
// is left. The failure of one client is printed and concerns no other.
//
// The numbers in the comments are the steps of the paper's section 2.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"

	"cinnabar/examples/bedeir/rc"
	ft "cinnabar/examples/filetransfer"
	"cinnabar/verbs"
)

func main() { os.Exit(ft.Main(run)) }

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "", "address to listen at, HOST:PORT; port 0 is a free one")
	dir := flags.String("dir", ".", "directory for the files")
	device := flags.String("device", "", "RDMA device; none is the software device")
	flags.Usage = func() {
		_, _ = fmt.Fprintf(stderr, `usage: %s [-listen HOST:PORT] [-dir DIR] [-device NAME]

Without -listen the server listens on every address of this machine, port 12345, as the paper's program does, and takes
files from any host that reaches it. -listen 127.0.0.1:12345 keeps other machines out.

`, args[0])
		flags.PrintDefaults()
	}
	err := flags.Parse(args[1:])
	if err != nil || flags.NArg() > 0 {
		if err == nil { // else Parse has printed it
			flags.Usage()
		}
		return 1
	}
	s := &server{out: stdout, err: stderr}
	if *listen != "" {
		s.listening = func(addr netip.AddrPort) { _, _ = fmt.Fprintf(stderr, "listening at %s\n", addr) }
	}
	err = s.serve(ctx, *listen, *dir, *device)
	if err != nil && ctx.Err() == nil {
		_, _ = fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// server has the state of all connections.
type server struct {
	out, err  io.Writer
	listening func(netip.AddrPort)
	root      *os.Root // nothing outside of this directory is touched
	lib       *rc.Library
}

// serve opens the directory and a device, and serves until ctx ends.
func (s *server) serve(ctx context.Context, listen, dir, device string) (err error) {
	if s.root, err = os.OpenRoot(dir); err != nil {
		return err
	}
	dev, err := ft.OpenDevice(device)
	if err == nil {
		err = errors.Join(s.serveOver(ctx, dev, ft.HostPort(listen)), dev.Close())
	}
	return errors.Join(err, s.root.Close())
}

// serveOver serves on a device.
func (s *server) serveOver(ctx context.Context, dev *verbs.Device, listen string) (err error) {
	s.lib, err = rc.Init(dev, rc.Config{
		PreConnection: s.onPreConn,
		Connection:    s.onConnection,
		Completion:    s.onCompletion,
		Disconnect:    s.onDisconnect,
		Listening:     s.listening,
		Idle:          ft.IdleLimit,
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.out, "waiting for connections. interrupt (^C) to exit."); err != nil {
		return errors.Join(err, s.lib.Close())
	}
	return errors.Join(s.lib.ServerLoop(ctx, listen), s.lib.Close()) // step 1
}

// connection is the paper's struct conn_context, the state of one client.
type connection struct {
	buffer *verbs.MR // the memory that the client writes to
	msgs   *verbs.MR // the three messages, ready to be sent
	file   *os.File  // nil until the client has named it
	name   string
	done   bool // all chunks are written
}

// onPreConn is step 3: memory, and a receive for the client's first write. The
// messages never change, so no send needs to wait for the one before.
func (s *server) onPreConn(conn *rc.Conn) (err error) {
	c := &connection{}
	conn.Data = c
	if c.buffer, err = s.lib.GetPD().AllocMR(ft.BufferSize, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return err
	}
	if c.msgs, err = s.lib.GetPD().AllocMR(int(ft.MsgDone+1)*ft.MessageLen, 0); err != nil {
		return err
	}
	for id := ft.MsgMR; id <= ft.MsgDone; id++ {
		ft.AppendMessage(c.msgs.Bytes()[:int(id)*ft.MessageLen], ft.Message{ID: id, Buffer: c.buffer.Remote()})
	}
	return postReceive(conn)
}

// postReceive lets the client make one more write. The receive needs no memory:
// the write says itself where its bytes go.
func postReceive(conn *rc.Conn) error {
	_, err := conn.QP().PostRecv([]verbs.RecvWR{{}})
	return err
}

// onConnection is step 4: the client learns where to write.
func (s *server) onConnection(conn *rc.Conn) error { return sendMessage(conn, ft.MsgMR) }

// sendMessage sends one of the three messages.
func sendMessage(conn *rc.Conn, id ft.MessageID) error {
	sge := conn.Data.(*connection).msgs.SGE(int(id)*ft.MessageLen, ft.MessageLen)
	_, err := conn.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{sge}}})
	return err
}

// onCompletion is where the client's writes arrive. Their immediate data is the
// number of bytes: 0 at the end, that of the name first, that of a chunk between.
func (s *server) onCompletion(conn *rc.Conn, wc verbs.WC) error {
	c := conn.Data.(*connection)
	switch {
	case !wc.Op.IsRecv():
		return nil
	case wc.Op != verbs.WCRecvRDMAImm || wc.HasInv:
		return errors.New("the client sent a message, or revoked a key, where a write was due")
	case !wc.HasImm || wc.Imm > ft.BufferSize:
		return fmt.Errorf("the client announced %d bytes (immediate data: %t) for a buffer of %d", wc.Imm, wc.HasImm, ft.BufferSize)
	case wc.Imm == 0 && c.file != nil:
		c.done = true
		return sendMessage(conn, ft.MsgDone) // step 11
	}
	take := s.takeChunk
	if c.file == nil {
		take = s.takeName
	}
	if err := take(c, c.buffer.Bytes()[:wc.Imm]); err != nil {
		return err
	}
	if err := postReceive(conn); err != nil {
		return err
	}
	return sendMessage(conn, ft.MsgReady)
}

// takeName is step 6.
func (s *server) takeName(c *connection, b []byte) (err error) {
	if c.name, err = parseName(b); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.out, "opening file %s\n", c.name); err != nil {
		return err
	}
	c.file, err = s.root.OpenFile(c.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	return err
}

// takeChunk is step 8.
func (s *server) takeChunk(c *connection, b []byte) error {
	if _, err := fmt.Fprintf(s.out, "received %d bytes.\n", len(b)); err != nil {
		return err
	}
	_, err := c.file.Write(b)
	return err
}

// onDisconnect is step 13.
func (s *server) onDisconnect(conn *rc.Conn, err error) {
	c := conn.Data.(*connection)
	if err := c.release(); err != nil {
		s.report(conn, c, err)
	}
	if c.file == nil {
		s.report(conn, c, orElse(err, "it left without naming a file"))
		return
	}
	closing := c.file.Close()
	if c.done && closing == nil {
		_, _ = fmt.Fprintf(s.out, "finished transferring %s\n", c.name)
		return
	}
	if c.done {
		err = closing
	}
	s.report(conn, c, errors.Join(orElse(err, "it left before the end of the file"), s.root.Remove(c.name)))
}

// orElse returns err, or an error with the text if there is none.
func orElse(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

// release lets go of the memory.
func (c *connection) release() error {
	var errs []error
	for _, mr := range []*verbs.MR{c.buffer, c.msgs} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(errs...)
}

// report prints the error of a client.
func (s *server) report(conn *rc.Conn, c *connection, err error) {
	_, _ = fmt.Fprintf(s.err, "client %s, file %q: %v\n", conn.RemoteAddr(), c.name, err)
}
