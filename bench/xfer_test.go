//go:build unix

package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// The benchmark of files. The directory where files arrive is told to the other process
// in its environment.
const (
	fileSizeEnv = "CINNABAR_BENCH_FILE" // bytes of the file, 1 GiB by default
	fileDirEnv  = "CINNABAR_BENCH_DIR"
	fileName    = "data"
	copyBuffer  = 1 << 20
)

// BenchmarkFile moves a file between two directories in memory, from one process to
// another: by reads and writes over TCP, and by package xfer. All include the
// receiver's word that the file is complete; with a digest, both sides of the TCP
// copy hash too.
func BenchmarkFile(b *testing.B) {
	size := fileSize(b)
	dir := memoryDir(b, 2*size) // the source, and what arrives
	path := filepath.Join(dir, fileName)
	makeFile(b, path, size)
	b.Setenv(fileDirEnv, filepath.Join(dir, "in"))
	if err := os.Mkdir(os.Getenv(fileDirEnv), 0o700); err != nil {
		b.Fatal(err)
	}
	for _, v := range []struct {
		name string
		run  func(b *testing.B)
	}{
		{"digest=none/path=tcp", func(b *testing.B) { benchTCPFile(b, "tcp-file", path, false) }},
		{"digest=none/path=basic", func(b *testing.B) { benchXferFile(b, path, xfer.Sender{Protocol: xfer.Basic}) }},
		{"digest=none/path=fast", func(b *testing.B) { benchXferFile(b, path, xfer.Sender{Protocol: xfer.Fast, Digest: xfer.NoDigest}) }},
		{"digest=sha256/path=tcp", func(b *testing.B) { benchTCPFile(b, "tcp-file/sha256", path, true) }},
		{"digest=sha256/path=fast", func(b *testing.B) { benchXferFile(b, path, xfer.Sender{Protocol: xfer.Fast}) }},
	} {
		b.Run(v.name, func(b *testing.B) {
			b.SetBytes(size)
			v.run(b)
		})
	}
}

// fileSize is how large the file is to be.
func fileSize(b *testing.B) int64 {
	b.Helper()
	text := os.Getenv(fileSizeEnv)
	switch {
	case text != "":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			b.Fatalf("%s is %q; it counts bytes", fileSizeEnv, text)
		}
		return n
	case testing.Short():
		return 64 << 20
	}
	return 1 << 30
}

// memoryDir returns a directory of a file system in memory with room for n bytes, or
// skips the benchmark.
func memoryDir(b *testing.B, n int64) string {
	b.Helper()
	for _, at := range []string{"/dev/shm", os.TempDir()} {
		if !memoryRoom(at, n) {
			continue
		}
		dir, err := os.MkdirTemp(at, "cinnabar-bench-") //nolint:usetesting // in memory, wherever TMPDIR is
		if err != nil {
			continue // not ours to write to
		}
		b.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				b.Error(err)
			}
		})
		return dir
	}
	b.Skipf("neither /dev/shm nor %s is a tmpfs with room for %d MiB; -short and %s take less", os.TempDir(), n>>20, fileSizeEnv)
	return ""
}

// makeFile writes random data, which nothing can compress or share.
func makeFile(b *testing.B, path string, size int64) {
	b.Helper()
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{1}), size); err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
}

// copyPlain copies by reads and writes of 1 MiB: the interfaces that would let the kernel
// move the data by itself are hidden. It returns the digest of what passed if sum is not nil.
func copyPlain(to io.Writer, from io.Reader, sum hash.Hash) (digest [32]byte, err error) {
	if sum != nil {
		to = io.MultiWriter(to, sum)
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, copyBuffer))
	if err == nil && sum != nil {
		digest = [32]byte(sum.Sum(nil))
	}
	return digest, err
}

// newSum is the hash of a copy with or without digest.
func newSum(hashing bool) hash.Hash {
	if hashing {
		return sha256.New()
	}
	return nil
}

func benchTCPFile(b *testing.B, role, path string, hashing bool) {
	addr := net.TCPAddrFromAddrPort(startPeer(b, role))
	for b.Loop() {
		if err := sendTCPFile(addr, path, hashing); err != nil {
			b.Fatal(err)
		}
		forgetFile(b)
	}
}

// sendTCPFile sends the file and waits until the receiver has it, with the same digest.
func sendTCPFile(addr *net.TCPAddr, path string, hashing bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := net.DialTCP("tcp", nil, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	digest, err := copyPlain(c, f, newSum(hashing))
	if err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	var answer [32]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	if answer != digest {
		return errors.New("the digests differ")
	}
	return nil
}

// tcpFile receives one file after the other.
func tcpFile(hashing bool) error {
	l, err := listenTCP()
	if err != nil {
		return err
	}
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return err
		}
		if err := recvTCPFile(c, os.Getenv(fileDirEnv), hashing); err != nil {
			return err
		}
	}
}

// recvTCPFile stores what comes under a temporary name and renames it, as package
// xfer does, and answers with the digest.
func recvTCPFile(c *net.TCPConn, dir string, hashing bool) error {
	defer c.Close()
	f, err := os.CreateTemp(dir, "part-")
	if err != nil {
		return err
	}
	digest, err := copyPlain(f, c, newSum(hashing))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, fileName)); err != nil {
		return err
	}
	_, err = c.Write(digest[:])
	return err
}

func benchXferFile(b *testing.B, path string, s xfer.Sender) {
	addr := startPeer(b, "xfer-file")
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			b.Error(err)
		}
	}()
	for b.Loop() {
		src, f, err := xfer.OpenFile(path, false)
		if err != nil {
			b.Fatal(err)
		}
		res, err := s.Send(context.Background(), dev, addr, src)
		if err != nil {
			b.Fatal(err)
		}
		if res.Protocol != s.Protocol || res.Size != src.Size {
			b.Fatalf("%d bytes of %d by the %s protocol", res.Size, src.Size, res.Protocol)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
		forgetFile(b)
	}
}

// forgetFile removes what has arrived, outside the clock: to give back its memory takes long.
func forgetFile(b *testing.B) {
	b.StopTimer()
	defer b.StartTimer()
	if err := os.Remove(filepath.Join(os.Getenv(fileDirEnv), fileName)); err != nil {
		b.Fatal(err)
	}
}

// xferFile receives one file after the other.
func xferFile() error {
	dir, err := xfer.OpenDir(os.Getenv(fileDirEnv), xfer.DirOptions{Overwrite: true})
	if err != nil {
		return err
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	l, err := verbs.Listen(dev, loopback)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	r := xfer.Receiver{Open: dir.Open}
	return r.Serve(context.Background(), l)
}
