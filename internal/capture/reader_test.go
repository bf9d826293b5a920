package capture_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/capture"
)

// pcapFile returns a file in the form pcap with these packets, 1.25 s apart.
func pcapFile(order binary.ByteOrder, magic uint32, link uint32, packets ...[]byte) []byte {
	b := make([]byte, 24)
	order.PutUint32(b, magic)
	order.PutUint16(b[4:], 2)
	order.PutUint16(b[6:], 4)
	order.PutUint32(b[20:], link)
	part := uint32(250_000)
	if magic == 0xa1b23c4d {
		part = 250_000_000
	}
	for i, p := range packets {
		head := make([]byte, 16)
		order.PutUint32(head, uint32(1000+i))
		order.PutUint32(head[4:], part)
		order.PutUint32(head[8:], uint32(len(p)))
		order.PutUint32(head[12:], uint32(len(p)+3))
		b = append(append(b, head...), p...)
	}
	return b
}

// block returns a block of pcapng.
func block(order binary.ByteOrder, kind uint32, body []byte) []byte {
	body = append(bytes.Clone(body), make([]byte, -len(body)&3)...)
	b := make([]byte, 8)
	order.PutUint32(b, kind)
	order.PutUint32(b[4:], uint32(len(body)+12))
	b = append(b, body...)
	return append(b, b[4:8]...)
}

// section begins a pcapng file.
func section(order binary.ByteOrder) []byte {
	body := make([]byte, 16)
	order.PutUint32(body, 0x1a2b3c4d)
	order.PutUint16(body[4:], 1)
	copy(body[8:], "\xff\xff\xff\xff\xff\xff\xff\xff")
	return block(order, 0x0a0d0d0a, body)
}

func iface(order binary.ByteOrder, link uint16, options ...byte) []byte {
	body := make([]byte, 8)
	order.PutUint16(body, link)
	return block(order, 1, append(body, options...))
}

func enhanced(order binary.ByteOrder, id uint32, stamp uint64, data []byte) []byte {
	body := make([]byte, 20)
	order.PutUint32(body, id)
	order.PutUint32(body[4:], uint32(stamp>>32))
	order.PutUint32(body[8:], uint32(stamp))
	order.PutUint32(body[12:], uint32(len(data)))
	order.PutUint32(body[16:], uint32(len(data)+3))
	return block(order, 6, append(body, data...))
}

// read returns the packets of a file and the error at its end.
func read(t *testing.T, file []byte) ([]capture.Packet, error) {
	t.Helper()
	r, err := capture.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	var list []capture.Packet
	for {
		var p capture.Packet
		if err := r.Next(&p); err != nil {
			if again := r.Next(&p); again != err { //nolint:errorlint // the same value, as promised
				t.Errorf("the next call returns %v after %v", again, err)
			}
			return list, err
		}
		p.Data = bytes.Clone(p.Data)
		list = append(list, p)
	}
}

func TestForms(t *testing.T) {
	want := []string{"one", "", "three"}
	data := [][]byte{[]byte("one"), {}, []byte("three")}
	little, big := binary.ByteOrder(binary.LittleEndian), binary.ByteOrder(binary.BigEndian)
	simple := func(order binary.ByteOrder, s string) []byte {
		b := make([]byte, 4)
		order.PutUint32(b, uint32(len(s)))
		return block(order, 3, append(b, s...))
	}
	nanos := []byte{0, 9, 0, 1, 9, 0, 0, 0, 0, 14, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0} // units of 1 ns, 5 s later
	for name, file := range map[string][]byte{
		"micro little": pcapFile(little, 0xa1b2c3d4, 1, data...),
		"micro big":    pcapFile(big, 0xa1b2c3d4, 1, data...),
		"nano little":  pcapFile(little, 0xa1b23c4d, 1|0x1000_0000, data...),
		"nano big":     pcapFile(big, 0xa1b23c4d, 1, data...),
		"pcapng": slices.Concat(section(little), iface(little, 1), block(little, 5, []byte("statistics")), enhanced(little, 0, 1000_250_000, data[0]), enhanced(little, 0, 1001_250_000, nil),
			enhanced(little, 0, 1002_250_000, data[2])),
		"two sections": slices.Concat(section(little), iface(little, 1), enhanced(little, 0, 1000_250_000, data[0]), enhanced(little, 0, 1001_250_000, nil),
			section(big), iface(big, 1, nanos...), enhanced(big, 0, 997_250_000_000, data[2])),
		"simple": slices.Concat(section(big), iface(big, 1), simple(big, "one"), simple(big, ""), simple(big, "three")),
	} {
		t.Run(name, func(t *testing.T) {
			list, err := read(t, file)
			if !errors.Is(err, io.EOF) || len(list) != len(want) {
				t.Fatalf("%d packets, %v", len(list), err)
			}
			for i, p := range list {
				at := time.Unix(int64(1000+i), 250_000_000)
				if string(p.Data) != want[i] || p.Number != i+1 || p.Link != 1 || name != "simple" && (p.Length != len(want[i])+3 || !p.Time.Equal(at)) {
					t.Errorf("packet %+v, want %q at %v", p, want[i], at)
				}
			}
			for n := range file { // each shorter file has the packets before its end
				part, err := read(t, file[:n])
				e, ok := errors.AsType[*capture.Error](err)
				if !errors.Is(err, io.EOF) && !(ok && e.Truncated) || len(part) > len(list) {
					t.Fatalf("the first %d bytes have %d packets, %v", n, len(part), err)
				}
			}
		})
	}
}

// A time stamp that no text of RFC 3339 has is none.
func TestOddTimes(t *testing.T) {
	order := binary.LittleEndian
	seconds := []byte{9, 0, 1, 0, 0, 0, 0, 0} // units of 1 s
	for _, tc := range []struct {
		offset, stamp uint64
		want          int64 // 0: no time
	}{
		{0, 5, 5}, {1 << 63, 5, 0}, {1<<63 - 1, 5, 0}, {0, 1<<64 - 1, 0}, {1 << 32, 5, 1<<32 + 5}, {^uint64(0), 5, 4}, {^uint64(9), 5, 0},
		{0, 253402300799, 253402300799}, {1, 253402300799, 0}, {0, 253402300800, 0},
	} {
		face := iface(order, 1, order.AppendUint64(slices.Concat(seconds, []byte{14, 0, 8, 0}), tc.offset)...)
		list, err := read(t, slices.Concat(section(order), face, enhanced(order, 0, tc.stamp, []byte("x"))))
		if !errors.Is(err, io.EOF) || len(list) != 1 {
			t.Fatalf("%+v: %d packets, %v", tc, len(list), err)
		}
		p := list[0]
		if tc.want == 0 && !p.Time.IsZero() || tc.want != 0 && p.Time.Unix() != tc.want {
			t.Errorf("%+v: %v", tc, p.Time)
		}
		if _, err := p.Time.MarshalText(); err != nil {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestRefusedFiles(t *testing.T) {
	little := binary.LittleEndian
	long := pcapFile(little, 0xa1b2c3d4, 1, []byte("one"))
	little.PutUint32(long[24+8:], capture.MaxPacket+1)
	version := pcapFile(little, 0xa1b2c3d4, 1)
	version[4] = 3
	start := slices.Concat(section(little), iface(little, 1))
	odd := block(little, 6, nil)
	odd[4] = 13
	huge := block(little, 6, nil)
	little.PutUint32(huge[4:], 1<<31)
	wrongLength := enhanced(little, 0, 0, []byte("abc"))
	little.PutUint32(wrongLength[8+12:], 5)
	for name, tt := range map[string]struct {
		file []byte
		want string
	}{
		"another file":     {[]byte("package capture"), "neither pcap nor pcapng at byte 0"},
		"version":          {version, "version 3 of pcap, of which version 2 is known at byte 4"},
		"long packet":      {long, "a packet of 262145 bytes, of which 262144 are the most at byte 24"},
		"no order":         {block(little, 0x0a0d0d0a, make([]byte, 16)), "without its order"},
		"no interface":     {slices.Concat(section(little), enhanced(little, 0, 0, nil)), "a packet of interface 0, and 0 are described at byte 28"},
		"odd block":        {slices.Concat(start, odd), "a block of 13 bytes at byte 48"},
		"huge block":       {slices.Concat(start, huge), "of which 327692 are the most at byte 48"},
		"short block":      {slices.Concat(start, block(little, 6, []byte("four"))), "a packet block of 16 bytes"},
		"longer than room": {slices.Concat(start, wrongLength), "a packet of 5 bytes in a block with room for 4"},
		"short interface":  {slices.Concat(section(little), block(little, 1, []byte("four"))), "an interface block of 16 bytes"},
		"many interfaces":  {slices.Concat(section(little), bytes.Repeat(iface(little, 1), 4097)), "more than 4096 interfaces"},
	} {
		if _, err := read(t, tt.file); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// segment returns an IPv4 packet with a TCP segment.
func segment(src, dst netip.AddrPort, seq uint32, flags byte, data string) []byte {
	b := make([]byte, 40)
	b[0], b[9] = 0x45, 6
	binary.BigEndian.PutUint16(b[2:], uint16(40+len(data)))
	a4, d4 := src.Addr().As4(), dst.Addr().As4()
	copy(b[12:], a4[:])
	copy(b[16:], d4[:])
	binary.BigEndian.PutUint16(b[20:], src.Port())
	binary.BigEndian.PutUint16(b[22:], dst.Port())
	binary.BigEndian.PutUint32(b[24:], seq)
	b[32], b[33] = 0x50, flags
	return append(b, data...)
}

var (
	addrA = netip.MustParseAddrPort("10.0.0.1:1000")
	addrB = netip.MustParseAddrPort("10.0.0.2:2000")
)

func TestLinks(t *testing.T) {
	ip4 := segment(addrA, addrB, 7, 2, "data")
	ip6 := slices.Concat([]byte{0x60, 0, 0, 0, 0, 32, 0, 64}, netip.IPv6LinkLocalAllNodes().AsSlice(), netip.IPv6Loopback().AsSlice(),
		[]byte{6, 0, 0, 0, 0, 0, 0, 0}, ip4[20:]) // one header of options
	mac := make([]byte, 12)
	fragment := bytes.Clone(ip4)
	fragment[6] = 0x20
	fragment6 := bytes.Clone(ip6)
	fragment6[6], fragment6[43] = 44, 1
	short := bytes.Clone(ip4)
	short[32] = 0xf0
	for name, tt := range map[string]struct {
		link capture.LinkType
		data []byte
		skip capture.Skip
	}{
		"ethernet":        {1, slices.Concat(mac, []byte{8, 0}, ip4, []byte("padding")), capture.Taken},
		"two tags":        {1, slices.Concat(mac, []byte{0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0}, ip4), capture.Taken},
		"too many tags":   {1, slices.Concat(mac, bytes.Repeat([]byte{0x81, 0, 0, 1}, 6), []byte{8, 0}, ip4), capture.Other},
		"raw":             {101, ip4, capture.Taken},
		"raw 6":           {101, ip6, capture.Taken},
		"IPv4":            {228, ip4, capture.Taken},
		"IPv6":            {229, ip6, capture.Taken},
		"cooked":          {113, slices.Concat(make([]byte, 14), []byte{8, 0}, ip4), capture.Taken},
		"cooked 2":        {276, slices.Concat([]byte{0x86, 0xdd}, make([]byte, 18), ip6), capture.Taken},
		"loopback":        {0, slices.Concat([]byte{30, 0, 0, 0}, ip6), capture.Taken},
		"loop of OpenBSD": {108, slices.Concat([]byte{0, 0, 0, 2}, ip4), capture.Taken},
		"cut":             {101, ip4[:42], capture.Taken},
		"ARP":             {1, slices.Concat(mac, []byte{8, 6}, make([]byte, 28)), capture.Other},
		"fragment":        {101, fragment, capture.Fragment},
		"fragment 6":      {101, fragment6, capture.Fragment},
		"short header":    {101, short, capture.Short},
		"half a header":   {101, ip4[:30], capture.Short},
		"link":            {147, ip4, capture.LinkWrong},
	} {
		s, skip := capture.Parse(&capture.Packet{Link: tt.link, Data: tt.data, Length: len(tt.data)})
		if skip != tt.skip {
			t.Errorf("%s: %v, want %v", name, skip, tt.skip)
		} else if skip == capture.Taken && (s.Src.Port() != 1000 || s.Dst.Port() != 2000 || s.Seq != 7 || !s.SYN || s.FIN || s.Length != 4 || !strings.HasPrefix("data", string(s.Payload))) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func FuzzReader(f *testing.F) {
	little := binary.LittleEndian
	f.Add(pcapFile(little, 0xa1b2c3d4, 101, segment(addrA, addrB, 7, 2, ""), segment(addrA, addrB, 8, 16, "data")))
	f.Add(slices.Concat(section(little), iface(little, 101), enhanced(little, 0, 5, segment(addrA, addrB, 8, 17, "data"))))
	f.Fuzz(func(t *testing.T, file []byte) {
		list, err := read(t, file)
		if err == nil {
			t.Fatal("no end")
		}
		a := capture.NewAssembler(capture.Limits{Connections: 2, Waiting: 256, Segments: 4, Total: 512}, func(_, _ netip.AddrPort, _ bool) capture.Handler { return &recorder{} })
		for _, p := range list {
			if s, skip := capture.Parse(&p); skip == capture.Taken {
				if s.Length < len(s.Payload) {
					t.Fatalf("%d bytes of a payload of %d", len(s.Payload), s.Length)
				}
				if s.TCP {
					a.Add(&s)
				}
			}
		}
		a.Close()
	})
}
