// Command client sends a file to the server beside it, by the protocol of
// Bedeir's paper on flow control:
//
//	client [-device NAME] SERVER FILE
//
// SERVER is a host, or HOST:PORT where the server does not listen at port 12345.
// NAME is an RDMA device of the machine; without it the software device is used.
// The exit code is 0 once the server has said that it has the whole file, and 1
// otherwise.
//
// The numbers in the comments are the steps of the paper's section 2.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"cinnabar/examples/bedeir/rc"
	ft "cinnabar/examples/filetransfer"
	"cinnabar/verbs"
)

func main() { os.Exit(ft.Main(run)) }

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	device := flags.String("device", "", "RDMA device; none is the software device")
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() != 2 {
		_, _ = fmt.Fprintf(stderr, "usage: %s <server-address> <file-name>\n", args[0]) // the paper's line
		return 1
	}
	server, path := flags.Arg(0), flags.Arg(1)
	name := filepath.Base(path)
	file, err := openInput(path)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "unable to open input file \"%s\"\n", name)
		return 1
	}
	c := &client{out: stdout, file: file, name: name}
	err = c.send(ctx, *device, ft.HostPort(server))
	if err := errors.Join(err, file.Close()); err != nil {
		_, _ = fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// openInput opens a file that can be read from beginning to end.
func openInput(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = syscall.EISDIR
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// client is the paper's struct client_context. It belongs to the callbacks
// while the connection stands.
type client struct {
	out  io.Writer
	file *os.File
	name string

	lib     *rc.Library
	longest int       // bytes of one write on this device
	msg     *verbs.MR // where the server's messages arrive
	buffer  *verbs.MR // the bytes to write to the server
	peer    verbs.RemoteAddr
	writing bool         // a write has not completed: the buffer is the device's
	todo    ft.MessageID // the server's next request; 0: none yet
	named   bool         // the name was sent
	ended   bool         // the zero-byte write was made
	done    bool         // the server has confirmed
}

// send connects to the server and sends the file.
func (c *client) send(ctx context.Context, device, server string) error {
	dev, err := ft.OpenDevice(device)
	if err != nil {
		return err
	}
	return errors.Join(c.sendOver(ctx, dev, server), dev.Close())
}

// sendOver does it on a device.
func (c *client) sendOver(ctx context.Context, dev *verbs.Device, server string) (err error) {
	if c.longest, err = ft.LongestMessage(dev); err != nil {
		return err
	}
	c.lib, err = rc.Init(dev, rc.Config{
		PreConnection: c.onPreConn,
		Connection:    nil,
		Completion:    c.onCompletion,
		Disconnect:    nil,
		Idle:          ft.IdleLimit,
	})
	if err != nil {
		return err
	}
	err = c.lib.ClientLoop(ctx, server, nil)
	if err == nil && !c.done {
		err = fmt.Errorf("%s ended the connection before it had the whole file; its own messages say why", server)
	}
	return errors.Join(err, c.release())
}

// release lets go of the memory, which no queue pair uses any more.
func (c *client) release() error {
	var errs []error
	for _, mr := range []*verbs.MR{c.msg, c.buffer} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(append(errs, c.lib.Close())...)
}

// onPreConn is step 2: the receive for the server's first message is posted
// before the connection is made.
func (c *client) onPreConn(conn *rc.Conn) (err error) {
	if c.msg, err = c.lib.GetPD().AllocMR(ft.MessageLen, verbs.LocalWrite); err != nil {
		return err
	}
	if c.buffer, err = c.lib.GetPD().AllocMR(ft.BufferSize, 0); err != nil {
		return err
	}
	return c.postReceive(conn)
}

// postReceive makes room for one message.
func (c *client) postReceive(conn *rc.Conn) error {
	_, err := conn.QP().PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{c.msg.SGE(0, ft.MessageLen)}}})
	return err
}

// onCompletion takes in messages and ends of writes. The paper's program answers
// each message at once; this one first waits for its own write to complete, since
// until then the buffer is not its to fill.
func (c *client) onCompletion(conn *rc.Conn, wc verbs.WC) error {
	if wc.Op.IsRecv() {
		if wc.Op != verbs.WCRecv || wc.HasImm || wc.HasInv { // then Len is not that of a message in msg
			return rc.Die("the server wrote, or revoked a key, where a message was due")
		}
		m, ok := ft.ParseMessage(c.msg.Bytes()[:min(wc.Len, ft.MessageLen)])
		if !ok {
			return rc.Die("the server sent %d bytes that are no message of this protocol", wc.Len)
		}
		if m.ID == ft.MsgMR {
			c.peer = m.Buffer
		}
		c.todo = m.ID
	} else {
		c.writing = false
	}
	if c.writing || c.todo == 0 {
		return nil
	}
	id := c.todo
	c.todo = 0
	return c.answer(conn, id)
}

// answer does the step that a message asks for. The receive for the next message is
// posted before the write that provokes it.
func (c *client) answer(conn *rc.Conn, id ft.MessageID) error {
	switch {
	case id == ft.MsgMR && !c.named:
		return c.step(conn, "received MR, sending file name", c.sendFileName)
	case id == ft.MsgReady && c.named && !c.ended:
		return c.step(conn, "received READY, sending chunk", c.sendNextChunk)
	case id == ft.MsgDone && c.ended:
		c.done = true
		if _, err := fmt.Fprintln(c.out, "received DONE, disconnecting"); err != nil {
			return err
		}
		return conn.Disconnect() // step 12
	}
	return rc.Die("the server sent message %d out of turn", id)
}

// step announces and takes one of the steps 5, 7 and 10.
func (c *client) step(conn *rc.Conn, text string, send func(*rc.Conn) error) error {
	if _, err := fmt.Fprintln(c.out, text); err != nil {
		return err
	}
	if err := c.postReceive(conn); err != nil {
		return err
	}
	return send(conn)
}

// sendFileName is step 5: the name with the NUL behind it.
func (c *client) sendFileName(conn *rc.Conn) error {
	c.named = true
	n := copy(c.buffer.Bytes(), c.name+"\x00")
	return c.writeRemote(conn, n)
}

// sendNextChunk is step 7, and at the end of the file step 10.
func (c *client) sendNextChunk(conn *rc.Conn) error {
	n, err := io.ReadFull(c.file, c.buffer.Bytes())
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return rc.Die("read the input file: %w", err)
	}
	c.ended = n == 0
	return c.writeRemote(conn, n)
}

// writeRemote writes the first n bytes of the buffer to the beginning of the
// server's, and sends it n as the immediate. Bytes that are too many for one message of the device
// go in several, of which the last, behind all others, has the number.
func (c *client) writeRemote(conn *rc.Conn, n int) error {
	var wrs []verbs.SendWR
	done := 0
	for ; n-done > c.longest; done += c.longest {
		wrs = append(wrs, verbs.SendWR{Op: verbs.OpWrite, Remote: c.peer.Add(uint64(done)), SGL: []verbs.SGE{c.buffer.SGE(done, c.longest)}})
	}
	last := verbs.SendWR{Op: verbs.OpWriteImm, Flags: verbs.Signaled, Remote: c.peer.Add(uint64(done)), Imm: uint32(n)}
	if n > 0 {
		last.SGL = []verbs.SGE{c.buffer.SGE(done, n-done)}
	}
	c.writing = true
	_, err := conn.QP().PostSend(append(wrs, last))
	return err
}
