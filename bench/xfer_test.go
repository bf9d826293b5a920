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
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/zeebo/blake3"

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

	blake3Digest xfer.Digest = "blake3"
)

// fileHashes are the digests that the benchmark adds to those of package xfer, as the command does.
var fileHashes = xfer.Hashes{blake3Digest: func() hash.Hash { return blake3.New() }}

// localConfig is the configuration that the command gives the software device. It leaves MPA's CRC out between processes of one host.
// Package xfer has a CRC32C for each chunk in any case.
var localConfig = iwarp.Config{NoLocalCRC: true}

// BenchmarkFile moves a file between two directories in memory, from one process to
// another: by reads and writes over TCP, and by package xfer. All include the
// receiver's word that the file is complete; with a digest, both sides of the TCP
// copy hash too.
func BenchmarkFile(b *testing.B) {
	path := benchDirs(b)
	for _, digest := range fileDigests {
		fileCase(b, fmt.Sprintf("digest=%s/path=tcp", digest), func(b *testing.B) { benchTCPFile(b, path, digest) })
		for _, p := range fileProtocols(digest) {
			fileCase(b, fmt.Sprintf("digest=%s/path=%s", digest, p), func(b *testing.B) {
				benchXferFile(b, path, xfer.Sender{Protocol: p, Digest: digest, Hashes: fileHashes})
			})
		}
	}
}

// BenchmarkFileBesideTCP moves the file in turn by reads and writes over TCP and by package xfer, both with the digest, and reports
// the median of the quotients of their times, of-tcp: 1 if both take as long, less if package xfer takes longer. Other programs of
// the machine delay both alike.
func BenchmarkFileBesideTCP(b *testing.B) {
	path := benchDirs(b)
	for _, digest := range fileDigests {
		for _, p := range fileProtocols(digest) {
			fileCase(b, fmt.Sprintf("digest=%s/path=%s", digest, p), func(b *testing.B) {
				tcp := net.TCPAddrFromAddrPort(startPeer(b, tcpFileRole(digest)))
				addr, dev := startPeer(b, "xfer-file"), openLocalDevice(b)
				s := xfer.Sender{Protocol: p, Digest: digest, Hashes: fileHashes}
				var ratios []float64
				for b.Loop() {
					start := time.Now()
					if err := sendTCPFile(tcp, path, digest); err != nil {
						b.Fatal(err)
					}
					plain := time.Since(start)
					forgetFile(b)
					start = time.Now()
					sendXferFile(b, dev, addr, path, &s)
					ratios = append(ratios, plain.Seconds()/time.Since(start).Seconds())
					forgetFile(b)
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[len(ratios)/2], "of-tcp")
			})
		}
	}
}

// fileDigests are the ways to compare files.
var fileDigests = []xfer.Digest{xfer.NoDigest, xfer.SHA256, blake3Digest}

// fileProtocols returns the protocols of package xfer that have the digest.
func fileProtocols(digest xfer.Digest) []xfer.Protocol {
	if digest == xfer.NoDigest {
		return []xfer.Protocol{xfer.Basic, xfer.Fast}
	}
	return []xfer.Protocol{xfer.Fast}
}

// benchDirs makes a directory of files in memory, and the file that is sent, whose path it returns.
func benchDirs(b *testing.B) string {
	b.Helper()
	size := fileSize(b)
	dir := memoryDir(b, 2*size) // the source, and what arrives
	path := filepath.Join(dir, fileName)
	makeFile(b, path, size)
	b.Setenv(fileDirEnv, filepath.Join(dir, "in"))
	if err := os.Mkdir(os.Getenv(fileDirEnv), 0o700); err != nil {
		b.Fatal(err)
	}
	return path
}

// fileCase runs one case.
func fileCase(b *testing.B, name string, run func(b *testing.B)) {
	b.Run(name, func(b *testing.B) {
		b.SetBytes(fileSize(b))
		run(b)
	})
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

// newSum is the hash of a copy with a digest, nil for none.
func newSum(digest xfer.Digest) hash.Hash {
	switch digest {
	case xfer.NoDigest:
		return nil
	case xfer.SHA256:
		return sha256.New()
	default:
		return fileHashes[digest]()
	}
}

// tcpFileRole returns the role of the process that receives by reads and writes.
func tcpFileRole(digest xfer.Digest) string { return "tcp-file/" + digest.String() }

func benchTCPFile(b *testing.B, path string, digest xfer.Digest) {
	addr := net.TCPAddrFromAddrPort(startPeer(b, tcpFileRole(digest)))
	for b.Loop() {
		if err := sendTCPFile(addr, path, digest); err != nil {
			b.Fatal(err)
		}
		forgetFile(b)
	}
}

// sendTCPFile sends the file and waits until the receiver has it, with the same digest.
func sendTCPFile(addr *net.TCPAddr, path string, digest xfer.Digest) error {
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
	sum, err := copyPlain(c, f, newSum(digest))
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
	if answer != sum {
		return errors.New("the digests differ")
	}
	return nil
}

// tcpFile receives one file after the other.
func tcpFile(digest xfer.Digest) error {
	l, err := listenTCP()
	if err != nil {
		return err
	}
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return err
		}
		if err := recvTCPFile(c, os.Getenv(fileDirEnv), digest); err != nil {
			return err
		}
	}
}

// recvTCPFile stores what comes under a temporary name and renames it, as package
// xfer does, and answers with the digest.
func recvTCPFile(c *net.TCPConn, dir string, digest xfer.Digest) error {
	defer c.Close()
	f, err := os.CreateTemp(dir, "part-")
	if err != nil {
		return err
	}
	sum, err := copyPlain(f, c, newSum(digest))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, fileName)); err != nil {
		return err
	}
	_, err = c.Write(sum[:])
	return err
}

func benchXferFile(b *testing.B, path string, s xfer.Sender) {
	addr, dev := startPeer(b, "xfer-file"), openLocalDevice(b)
	for b.Loop() {
		sendXferFile(b, dev, addr, path, &s)
		forgetFile(b)
	}
}

// openLocalDevice opens a device with localConfig, which is closed with the benchmark.
func openLocalDevice(b *testing.B) *verbs.Device {
	b.Helper()
	dev, err := iwarp.Open(localConfig)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := dev.Close(); err != nil {
			b.Error(err)
		}
	})
	return dev
}

// sendXferFile sends the file and waits until the receiver has it.
func sendXferFile(b *testing.B, dev *verbs.Device, addr netip.AddrPort, path string, s *xfer.Sender) {
	b.Helper()
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
	dir, err := xfer.OpenDir(context.Background(), os.Getenv(fileDirEnv), xfer.DirOptions{Overwrite: true})
	if err != nil {
		return err
	}
	dev, err := iwarp.Open(localConfig)
	if err != nil {
		return err
	}
	l, err := verbs.Listen(dev, loopback)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	r := xfer.Receiver{Open: dir.Open, Hashes: fileHashes}
	return r.Serve(context.Background(), l)
}
