package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// inDirectory is the number of files in each directory of a tree.
const inDirectory = 500

// cases returns the cases in the order of their measurement.
func (s *setting) cases() []*benchCase {
	tree := benchCase{name: "tree", files: s.files, bytes: int64(s.files) * s.size, make: s.makeTree, paths: []path{
		{"cinnabar", s.cinnabar("--recursive --preserve", "")},
		{"cinnabar-blake3", s.cinnabar("--recursive --preserve --digest=blake3", "")},
		{"tar", s.tar(exec.Command("tar", "x"))},
		{"rsync", s.rsync()},
		{"copy", plainCopy},
	}}
	synced := tree
	synced.name = "synced"
	synced.paths = []path{
		{"cinnabar", s.cinnabar("--recursive --preserve", "--fsync")},
		{"tar", s.tar(s.role("untar"))},
		{"rsync", s.rsync("--fsync")},
	}
	large := benchCase{name: "large", files: 1, bytes: s.large, make: s.makeLarge, paths: []path{
		{"cinnabar", s.cinnabar("--digest=sha256", "")},
		{"tcp", s.tcpCopy("sha256")},
		{"copy", s.digestCopy("sha256")},
		{"cinnabar-blake3", s.cinnabar("--digest=blake3", "")},
		{"tcp-blake3", s.tcpCopy("blake3")},
		{"copy-blake3", s.digestCopy("blake3")},
		{"tar", s.tar(exec.Command("tar", "x"))},
		{"rsync", s.rsync()},
	}}
	return []*benchCase{&tree, &synced, &large}
}

// makeTree makes the source of a tree. All files have the same random bytes, but for the number of the file in front.
func (s *setting) makeTree(at string) error {
	b := randomBytes(s.size)
	for i := range s.files {
		dir := filepath.Join(at, fmt.Sprintf("d%04d", i/inDirectory))
		if i%inDirectory == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		copy(b, strconv.Itoa(i))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%06d", i)), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeLarge makes a large file of blocks of 1 MiB. They have the same random bytes, but for the number of bytes left in front.
func (s *setting) makeLarge(at string) (err error) {
	f, err := os.Create(at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := randomBytes(1 << 20)
	for left := s.large; left > 0; {
		n := min(left, int64(len(b)))
		copy(b, strconv.FormatInt(left, 10))
		if _, err := f.Write(b[:n]); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

func randomBytes(n int64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b) // never fails (math/rand/v2)
	return b
}

// role returns the command that runs this program in a role.
func (s *setting) role(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(s.self, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+name)
	return cmd
}

// start starts a program in the background, and kills it when ctx ends. wait waits for the end of the program.
func (s *setting) start(ctx context.Context, cmd *exec.Cmd) (wait func() error, err error) {
	if cmd.Stderr == nil {
		cmd.Stderr = s.log
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // it may have ended
	return func() error {
		err := cmd.Wait()
		stop()
		if err != nil {
			err = fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
		}
		return err
	}, nil
}

// cinnabar copies with send and recv. Spaces separate the options of each.
func (s *setting) cinnabar(sendOptions, recvOptions string) func(context.Context, string, string) error {
	return func(ctx context.Context, from, to string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		recv := exec.Command(s.program, append([]string{"recv", "--listen", "127.0.0.1:0", "--dir", to, "--once"}, strings.Fields(recvOptions)...)...)
		printed, err := recv.StdoutPipe()
		if err != nil {
			return err
		}
		wait, err := s.start(ctx, recv)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(printed)
		address := ""
		for address == "" && lines.Scan() {
			if _, text, found := strings.Cut(lines.Text(), " at "); found {
				address, _, _ = strings.Cut(text, ",")
			}
		}
		if address == "" {
			return errors.Join(errors.New("cinnabar recv prints no address"), wait())
		}
		send := exec.CommandContext(ctx, s.program, append([]string{"send", from, address}, strings.Fields(sendOptions)...)...)
		if text, err := send.CombinedOutput(); err != nil {
			cancel()
			return errors.Join(fmt.Errorf("cinnabar send: %w: %s", err, text), wait())
		}
		for lines.Scan() { // to the end, so that the receiver can write
		}
		return wait()
	}
}

// tar copies with tar c and with extract, a program that reads an archive.
func (s *setting) tar(extract *exec.Cmd) func(context.Context, string, string) error {
	return func(ctx context.Context, from, to string) error {
		x := &exec.Cmd{Path: extract.Path, Args: extract.Args, Env: extract.Env, Dir: to, Err: extract.Err}
		c := exec.Command("tar", "c", filepath.Base(from))
		c.Dir = filepath.Dir(from)
		return s.connected(ctx, c, x)
	}
}

// tcpCopy copies a file over a TCP connection with the role copy at both ends, and compares the two digests.
func (s *setting) tcpCopy(digest string) func(context.Context, string, string) error {
	return func(ctx context.Context, from, to string) error {
		sent, stored := filepath.Join(s.work, "sum-sent"), filepath.Join(s.work, "sum-stored")
		sender := s.role("copy", digest, from, "-", sent)
		receiver := s.role("copy", digest, "-", filepath.Join(to, filepath.Base(from)), stored)
		if err := s.connected(ctx, sender, receiver); err != nil {
			return err
		}
		a, errA := os.ReadFile(sent)
		b, errB := os.ReadFile(stored)
		if err := errors.Join(errA, errB); err != nil {
			return err
		}
		if !bytes.Equal(a, b) {
			return fmt.Errorf("the sender's digest is %x, and the receiver's %x", a, b)
		}
		return nil
	}
}

// connected runs two programs. One end of a TCP connection is the standard output of the sender, and the other end is the standard input of the receiver.
func (s *setting) connected(ctx context.Context, sender, receiver *exec.Cmd) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	here, there, err := connection(ctx)
	if err != nil {
		return err
	}
	receiver.Stdin = there
	waitReceiver, err := s.start(ctx, receiver)
	if err = errors.Join(err, there.Close()); err != nil {
		return errors.Join(err, here.Close())
	}
	sender.Stdout = here
	waitSender, err := s.start(ctx, sender)
	err = errors.Join(err, here.Close())
	if err == nil {
		err = waitSender()
	}
	if err != nil {
		cancel()
	}
	return errors.Join(err, waitReceiver())
}

// connection returns both ends of a TCP connection as files that block.
func connection(ctx context.Context) (here, there *os.File, err error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }() // it has no more use
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = c.Close() }() // its file stays
	a, err := l.Accept()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = a.Close() }() // its file stays
	if here, err = blocking(c); err != nil {
		return nil, nil, err
	}
	if there, err = blocking(a); err != nil {
		return nil, nil, errors.Join(err, here.Close())
	}
	return here, there, nil
}

// blocking returns a connection as a file for another program.
func blocking(c net.Conn) (*os.File, error) {
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return nil, err
	}
	_ = f.Fd() // makes it block, as programs expect
	return f, nil
}

// rsync copies to a daemon.
func (s *setting) rsync(options ...string) func(context.Context, string, string) error {
	return func(ctx context.Context, from, to string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		config := filepath.Join(s.work, "rsyncd.conf")
		text := fmt.Sprintf("use chroot = no\nreverse lookup = no\npid file =\n[to]\npath = %s\nread only = no\n", to)
		if os.Geteuid() == 0 {
			text = "uid = 0\ngid = 0\n" + text
		}
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return err
		}
		daemon := exec.Command("rsync", "--daemon", "--no-detach", "--address=127.0.0.1", "--port="+port, "--config="+config, "--log-file="+filepath.Join(s.work, "rsyncd.log"))
		wait, err := s.start(ctx, daemon)
		if err != nil {
			return err
		}
		defer func() {
			cancel()
			_ = wait() // it was killed
		}()
		if err := listening(ctx, port); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "rsync", append([]string{"-a", "--whole-file", from, "rsync://127.0.0.1:" + port + "/to/"}, options...)...)
		cmd.Stderr = s.log
		return cmd.Run()
	}
}

// freePort returns a port that nothing listens on.
func freePort(ctx context.Context) (string, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// listening waits until a port takes connections.
func listening(ctx context.Context, port string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			return c.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("rsync's daemon does not listen: %w", err)
		}
	}
}

func plainCopy(ctx context.Context, from, to string) error {
	return exec.CommandContext(ctx, "cp", "-a", from, to).Run()
}

// digestCopy copies a file, and computes a digest meanwhile.
func (s *setting) digestCopy(digest string) func(context.Context, string, string) error {
	return func(ctx context.Context, from, to string) error {
		wait, err := s.start(ctx, s.role("copy", digest, from, filepath.Join(to, filepath.Base(from)), filepath.Join(s.work, "sum")))
		if err != nil {
			return err
		}
		return wait()
	}
}
