package tlsio

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"cinnabar/internal/invariants"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tlstest"
)

// Types of records and of messages of the handshake (RFC 8446, sections 5.1 and 4).
const (
	recordData       = 23
	messageKeyUpdate = 24
)

// keys are those of one direction (RFC 8446, section 7.3). They seal and open records as crypto/tls does, and with other contents.
type keys struct {
	t      testing.TB
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// loggedKeys returns the keys that crypto/tls has written to a key log.
func loggedKeys(t testing.TB, log []byte, label string) *keys {
	t.Helper()
	for lines := bufio.NewScanner(bytes.NewReader(log)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == label {
			secret, err := hex.DecodeString(f[2])
			if err != nil {
				t.Fatal(err)
			}
			k := &keys{t: t, secret: secret}
			k.derive()
			return k
		}
	}
	t.Fatalf("the key log has no %s", label)
	return nil
}

// expand is HKDF-Expand-Label with an empty context (RFC 8446, section 7.1).
func (k *keys) expand(label string, n int) []byte {
	label = "tls13 " + label
	info := append(binary.BigEndian.AppendUint16(nil, uint16(n)), byte(len(label)))
	b, err := hkdf.Expand(sha256.New, k.secret, string(append(append(info, label...), 0)), n)
	if err != nil {
		k.t.Fatal(err)
	}
	return b
}

func (k *keys) derive() {
	block, err := aes.NewCipher(k.expand("key", 16))
	if err != nil {
		k.t.Fatal(err)
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		k.t.Fatal(err)
	}
	k.iv, k.seq = k.expand("iv", 12), 0
}

// update changes to the next keys (RFC 8446, section 7.2).
func (k *keys) update() {
	k.secret = k.expand("traffic upd", len(k.secret))
	k.derive()
}

func (k *keys) nonce() []byte {
	n := bytes.Clone(k.iv)
	binary.BigEndian.PutUint64(n[4:], binary.BigEndian.Uint64(n[4:])^k.seq)
	k.seq++
	return n
}

// seal returns a record.
func (k *keys) seal(kind byte, b []byte) []byte {
	inner := append(bytes.Clone(b), kind)
	head := binary.BigEndian.AppendUint16([]byte{recordData, 3, 3}, uint16(len(inner)+k.aead.Overhead()))
	return k.aead.Seal(head, k.nonce(), inner, head)
}

// open returns the contents of the first record of b, and the bytes behind it.
func (k *keys) open(b []byte) (kind byte, data, rest []byte) {
	k.t.Helper()
	if len(b) < 5 || len(b) < 5+int(binary.BigEndian.Uint16(b[3:])) {
		k.t.Fatalf("no record in % x", b)
	}
	n := 5 + int(binary.BigEndian.Uint16(b[3:]))
	inner, err := k.aead.Open(nil, k.nonce(), b[5:n], b[:5])
	if err != nil {
		k.t.Fatal(err)
	}
	return inner[len(inner)-1], inner[:len(inner)-1], b[n:]
}

// keyUpdate returns the record of a key update, after which k has the next keys. With request the peer is to update its keys too.
func (k *keys) keyUpdate(request bool) []byte {
	msg := []byte{messageKeyUpdate, 0, 0, 1, 0}
	if request {
		msg[4] = 1
	}
	b := k.seal(recordHandshake, msg)
	k.update()
	return b
}

// forged is a connection of which the test has the keys, so that it can send any record in the place of either end.
type forged struct {
	client, server *Conn
	there, back    *pipe
	toServer       *keys
	toClient       *keys
}

func newForged(t *testing.T) *forged {
	t.Helper()
	local := tlstest.NewCA(t).Local(t)
	logging := local.Clone()
	var log bytes.Buffer
	logging.KeyLogWriter = &log
	f := new(forged)
	f.client, f.server, f.there, f.back = connected(t, nil, prepared(t, logging), prepared(t, local))
	if id := f.client.tls.ConnectionState().CipherSuite; id != tls.TLS_AES_128_GCM_SHA256 {
		t.Skipf("this machine prefers %s, for which the test has no code", tls.CipherSuiteName(id))
	}
	f.toServer, f.toClient = loggedKeys(t, log.Bytes(), "CLIENT_TRAFFIC_SECRET_0"), loggedKeys(t, log.Bytes(), "SERVER_TRAFFIC_SECRET_0")
	return f
}

// TestKeyUpdate sends key updates among data, one byte at a time, and checks that the stream goes on in both directions.
func TestKeyUpdate(t *testing.T) {
	f := newForged(t)
	var sent, got []byte
	for i := range 5 {
		sent = append(append(sent, f.toServer.seal(recordData, []byte{byte(i)})...), f.toServer.keyUpdate(true)...)
	}
	sent = append(sent, f.toServer.seal(recordData, []byte("end"))...)
	for _, b := range sent {
		f.there.b = append(f.there.b, b)
		buf := make([]byte, 10)
		n, err := f.server.TryReadv([][]byte{buf})
		got = append(got, buf[:n]...)
		if err != nil && !errors.Is(err, sockio.ErrWouldBlock) {
			t.Fatal(err)
		}
	}
	if string(got) != "\x00\x01\x02\x03\x04end" {
		t.Errorf("read %q", got)
	}
	mustWrite(t, f.server, "answer")
	for range 5 {
		kind, msg, rest := f.toClient.open(f.back.b)
		if kind != recordHandshake || !bytes.Equal(msg, []byte{messageKeyUpdate, 0, 0, 1, 0}) {
			t.Fatalf("a record of type %d with % x, want the answer to a key update", kind, msg)
		}
		f.toClient.update()
		f.back.b = rest
	}
	if kind, msg, rest := f.toClient.open(f.back.b); kind != recordData || string(msg) != "answer" || len(rest) > 0 {
		t.Errorf("a record of type %d with %q and %d bytes behind it", kind, msg, len(rest))
	}
}

// TestKeyUpdateFlood sends key updates among data and reads none of the answers. The connection ends with a bounded amount of memory in use.
func TestKeyUpdateFlood(t *testing.T) {
	f := newForged(t)
	f.back.most = 1000
	var err error
	for n := 0; err == nil; n++ {
		if n > outBytes {
			t.Fatal("the flood goes on")
		}
		f.there.b = append(append(f.there.b, f.toServer.keyUpdate(true)...), f.toServer.seal(recordData, []byte{1})...)
		_, err = f.server.TryReadv([][]byte{make([]byte, 10)})
		f.server.mem.mu.Lock()
		if len(f.server.mem.out) > outBytes {
			t.Fatalf("%d bytes wait, want at most %d", len(f.server.mem.out), outBytes)
		}
		f.server.mem.mu.Unlock()
	}
	if !errors.Is(err, ErrFlood) {
		t.Errorf("the reader's error is %v", err)
	}
	if _, err := f.server.TryWritev([][]byte{{1}}); !errors.Is(err, ErrFlood) {
		t.Errorf("the writer's error is %v", err)
	}
}

// TestAnswersGiveMemoryBack checks that a connection keeps little memory after the peer has read the answers to many key updates.
func TestAnswersGiveMemoryBack(t *testing.T) {
	f := newForged(t)
	f.back.most = 0
	for range 1000 {
		f.there.b = append(append(f.there.b, f.toServer.keyUpdate(true)...), f.toServer.seal(recordData, []byte{1})...)
		if _, err := f.server.TryReadv([][]byte{make([]byte, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	f.back.most = 1 << 20
	mustWrite(t, f.server, "end")
	f.server.mem.mu.Lock()
	defer f.server.mem.mu.Unlock()
	if n := cap(f.server.mem.out); n > keepBytes {
		t.Errorf("%d bytes of memory are kept, want at most %d", n, keepBytes)
	}
}

// TestMessagesAfterHandshake sends messages of the handshake that bring no data, too many of them or ones that no end may send.
func TestMessagesAfterHandshake(t *testing.T) {
	ticket := []byte{4, 0, 0, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 9, 0, 0}
	const most = 40
	for name, record := range map[string]func(k *keys) []byte{
		"key updates":                 func(k *keys) []byte { return k.keyUpdate(false) },
		"key updates with answers":    func(k *keys) []byte { return k.keyUpdate(true) },
		"session tickets":             func(k *keys) []byte { return k.seal(recordHandshake, ticket) },
		"empty data":                  func(k *keys) []byte { return k.seal(recordData, nil) },
		"a hello":                     func(k *keys) []byte { return k.seal(recordHandshake, []byte{1, 0, 0, 0}) },
		"a request for a certificate": func(k *keys) []byte { return k.seal(recordHandshake, []byte{13, 0, 0, 3, 0, 0, 0}) },
		"a long message":              func(k *keys) []byte { return k.seal(recordHandshake, []byte{4, 255, 255, 255}) },
		"a message of many records": func(k *keys) []byte {
			return k.seal(recordHandshake, append([]byte{messageKeyUpdate, 0, 255, 255}, make([]byte, 10_000)...))
		},
		"two messages and new keys":    func(k *keys) []byte { return k.seal(recordHandshake, []byte{messageKeyUpdate, 0, 0, 1, 0, 4, 0}) },
		"a record of an unknown type":  func(k *keys) []byte { return k.seal(99, []byte{1}) },
		"a record with nothing within": func(k *keys) []byte { return k.seal(0, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newForged(t)
			for end, k := range map[*Conn]*keys{f.server: f.toServer, f.client: f.toClient} {
				from := f.there
				if end == f.client {
					from = f.back
				}
				from.b = nil
				err := sockio.ErrWouldBlock
				n := 0
				for ; errors.Is(err, sockio.ErrWouldBlock) && n < most; n++ {
					from.b = append(from.b, record(k)...)
					_, err = end.TryReadv([][]byte{make([]byte, 10)})
				}
				if err == nil || errors.Is(err, sockio.ErrWouldBlock) {
					t.Errorf("client %v: the connection goes on after %d records: %v", end == f.client, n, err)
				}
			}
		})
	}
}

// TestReadsAllThatHasCome sends records of data and of key updates in pieces that end anywhere, and reads them into buffers of all kinds of lengths. When a
// read finds nothing, all data of the whole records that have come was read, because no other event wakes the reader for it.
func TestReadsAllThatHasCome(t *testing.T) {
	for seed := range uint64(20) {
		f, rng := newForged(t), rand.New(rand.NewPCG(seed, 3))
		lengths := []int{1, 100, 4096, recordBytes - 1, recordBytes}
		var want, got []byte
		var wire []byte
		var ends []int // of records: in wire, and in want behind it
		for range 60 {
			if n := rng.IntN(10); n < 3 {
				wire = append(wire, f.toServer.keyUpdate(n == 0)...)
			} else {
				data := make([]byte, lengths[rng.IntN(len(lengths))])
				for i := range data {
					data[i] = byte(rng.Uint32())
				}
				wire, want = append(wire, f.toServer.seal(recordData, data)...), append(want, data...)
			}
			ends = append(ends, len(wire), len(want))
		}
		for sent := 0; sent < len(wire); {
			n := min(1+rng.IntN(40_000), len(wire)-sent)
			if rng.IntN(3) == 0 { // to the end of a record
				for ; ends[0] <= sent; ends = ends[2:] {
				}
				n = ends[0] - sent
			}
			f.there.b = append(f.there.b, wire[sent:sent+n]...)
			sent += n
			for {
				bufs := [][]byte{make([]byte, lengths[rng.IntN(len(lengths))]), make([]byte, rng.IntN(50_000))}
				n, err := f.server.TryReadv(bufs)
				got = append(append(got, bufs[0][:min(n, len(bufs[0]))]...), bufs[1][:max(n-len(bufs[0]), 0)]...)
				if errors.Is(err, sockio.ErrWouldBlock) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			come := 0
			for i := 0; i < len(ends) && ends[i] <= sent; i += 2 {
				come = ends[i+1]
			}
			if len(got) < come || !bytes.Equal(got, want[:len(got)]) {
				t.Fatalf("seed %d: %d bytes were read after %d of %d bytes of records, want %d", seed, len(got), sent, len(wire), come)
			}
			f.back.b = nil
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %d: %d bytes were read, want %d", seed, len(got), len(want))
		}
	}
}

// TestOneReadForRecord checks that crypto/tls reads once for a record, because each of its reads allocates.
func TestOneReadForRecord(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates, and sync.Pool drops at random under it")
	}
	client, server, there, _ := localPair(t, nil)
	data, buf, room := [][]byte{make([]byte, 200)}, [][]byte{make([]byte, 1000)}, make([]byte, 0, 1000)
	one := func() {
		there.b = room
		if n, err := client.TryWritev(data); n != 200 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := server.TryReadv(buf); n != 200 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := server.TryReadv(buf); n != 0 || !errors.Is(err, sockio.ErrWouldBlock) {
			t.Fatal(n, err)
		}
	}
	for range 100 {
		one()
	}
	if n := testing.AllocsPerRun(1000, one); n > 1 {
		t.Errorf("%v allocations, want at most 1", n)
	}
}
