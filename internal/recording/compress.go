package recording

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
)

// Plain makes a conversation with the messages as they are, without fields and formulas.
func Plain(raw []Raw, dialer, listener netip.AddrPort) Conversation {
	c := Conversation{Dialer: dialer, Listener: listener}
	for _, m := range raw {
		c.Messages = append(c.Messages, Message{FromDialer: m.FromDialer, End: m.Bytes == nil, Items: literal(m.Bytes)})
	}
	return c
}

func literal(b []byte) []Item {
	if len(b) == 0 {
		return nil
	}
	return []Item{{Kind: Literal, Size: len(b), Bytes: b}}
}

// Compress makes a conversation of a program in cinnabar, which dialed, with another one. It finds the fields that differ from run to
// run, and writes long parts as formulas. probed reports whether the first request asks the peer for checksums. listener is the
// address at which the other program listens.
func Compress(raw []Raw, listener netip.AddrPort, probed bool) (Conversation, error) {
	if len(raw) < 2 || !raw[0].FromDialer || len(raw[0].Bytes) != connectSize {
		return Conversation{}, fmt.Errorf("%d messages do not begin with a connection request", len(raw))
	}
	s := scanner{names: map[string]string{}, counts: map[string]int{}, probed: probed}
	request := raw[0].Bytes
	s.port = request[34:36]
	s.server = binary.BigEndian.AppendUint16(nil, listener.Port())
	c := Conversation{Listener: listener}
	c.Dialer = netip.AddrPortFrom(listener.Addr(), binary.BigEndian.Uint16(s.port))
	all := make([][]found, len(raw))
	connected := false
	for i, m := range raw {
		switch {
		case m.Bytes == nil:
		case i == 0:
			all[i] = []found{field(8, "process", 16), field(34, "port", 2), field(36, "pid", 4)}
		case !m.FromDialer && !connected:
			connected = true
			all[i] = []found{field(34, "port", 2)}
		default:
			all[i] = s.data(m)
		}
	}
	s.laterSums(raw, all)
	for i, m := range raw {
		c.Messages = append(c.Messages, Message{FromDialer: m.FromDialer, End: m.Bytes == nil, Items: split(m.Bytes, all[i])})
	}
	return c, nil
}

// found is an item at a known offset of a message.
type found struct {
	at int
	Item
}

func field(at int, name string, size int) found {
	return found{at, Item{Kind: Field, Name: name, Size: size}}
}

// scanner finds the fields of one conversation after the other.
type scanner struct {
	port, server []byte
	names        map[string]string // of tags and keys by their values
	counts       map[string]int    // of names for each kind
	probed       bool
}

// name returns the name of a value. A new value gets a name.
func (s *scanner) name(kind string, value []byte) string {
	if name, ok := s.names[kind+string(value)]; ok {
		return name
	}
	s.counts[kind]++
	name := fmt.Sprint(kind, s.counts[kind])
	s.names[kind+string(value)] = name
	return name
}

// Operations of data messages, and flags.
const (
	opMessage    = 0
	opTagged     = 1
	opReadRsp    = 3
	flagCQData   = 1
	flagSums     = 0x80
	flagMoreData = 1
	addressSize  = 16
	handleSize   = 48
)

// data finds the fields of a data message.
func (s *scanner) data(m Raw) []found {
	b := m.Bytes
	var all []found
	body := min(int(b[offHeader]), len(b))
	sumAt := 0
	switch {
	case b[offOp] == opMessage && b[offFlags]&flagCQData != 0: // a request
		if m.FromDialer {
			all = append(all, field(16, s.name("tag", b[16:20]), 4))
		}
		core := body + addressSize
		if m.FromDialer && s.probed {
			s.probed = false
			all = append(all, field(core+2, "probe", 8), field(core+12, "cookie", 2))
		} else if b[core+10]&flagSums != 0 {
			sumAt = core + 16
		}
	case b[offOp] == opTagged:
		at := body - 8
		if name, ok := s.names["tag"+string(b[at:at+4])]; ok {
			all = append(all, field(at, name, 4))
		}
		if len(b) >= body+20 && b[body+1]&flagSums != 0 {
			sumAt = body + 16
		}
	}
	all = append(all, s.keys(b, m.FromDialer)...)
	all = append(all, s.ports(b)...)
	sortFound(all)
	if sumAt > 0 && slices.ContainsFunc(all, func(f found) bool { return f.at > sumAt }) &&
		binary.BigEndian.Uint32(b[sumAt:]) == crc32.Checksum(b[sumAt+4:], castagnoli) {
		all = append(all, found{sumAt, Item{Kind: Sum, Size: sumSize}})
		sortFound(all)
	}
	return all
}

func sortFound(all []found) { slices.SortStableFunc(all, func(x, y found) int { return x.at - y.at }) }

// laterSums finds the checksums of arguments that do not fit into their requests and have fields.
func (s *scanner) laterSums(raw []Raw, all [][]found) {
	for i, m := range raw {
		if !m.FromDialer || len(m.Bytes) < 2*headerSize || m.Bytes[offOp] != opMessage || m.Bytes[offFlags]&flagCQData == 0 {
			continue
		}
		core := int(m.Bytes[offHeader]) + addressSize
		if m.Bytes[core+10]&(flagSums|flagMoreData) != flagSums|flagMoreData {
			continue
		}
		sum := m.Bytes[core+16 : core+16+sumSize]
		for j := i + 1; j < len(raw); j++ {
			b := raw[j].Bytes
			if raw[j].FromDialer && len(b) > headerSize && b[offOp] == opReadRsp && len(all[j]) > 0 &&
				crc32.Checksum(b[headerSize:], castagnoli) == binary.BigEndian.Uint32(sum) {
				name := s.name("sum", sum)
				all[i] = append(all[i], field(core+16, name, sumSize))
				sortFound(all[i])
				all[j] = slices.Insert(all[j], 0, found{headerSize, Item{Kind: Verify, Name: name}})
				break
			}
		}
	}
}

// keys finds the keys of memory that the dialing side has exposed: in memory handles, which are key, length, 1, rights, base
// and length again, and wherever the value stands after that.
func (s *scanner) keys(b []byte, fromDialer bool) (all []found) {
	one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	if fromDialer {
		for at := headerSize; at+handleSize <= len(b); at++ {
			h := b[at : at+handleSize]
			rights := h[24] >= 1 && h[24] <= 3 && bytes.Equal(h[25:32], make([]byte, 7))
			if rights && bytes.Equal(h[16:24], one) && bytes.Equal(h[8:16], h[40:48]) && !bytes.Equal(h[:8], make([]byte, 8)) {
				s.name("key", h[:8])
			}
		}
	}
	for value, name := range s.names {
		if fieldKind(name) != "key" {
			continue
		}
		key := []byte(value[len("key"):])
		for at := headerSize; ; at += len(key) {
			i := bytes.Index(b[at:], key)
			if i < 0 {
				break
			}
			at += i
			all = append(all, field(at, name, 8))
		}
	}
	return all
}

// ports finds the two sides' own addresses.
func (s *scanner) ports(b []byte) (all []found) {
	for name, port := range map[string][]byte{"port": s.port, "server": s.server} {
		addr := slices.Concat([]byte{2, 0}, port, []byte{127, 0, 0, 1}, make([]byte, 8))
		for at := headerSize; at < len(b); at += len(addr) {
			i := bytes.Index(b[at:], addr)
			if i < 0 {
				break
			}
			at += i
			all = append(all, field(at+2, name, 2))
		}
	}
	return all
}

// split returns the items of a message, of which some are known.
func split(b []byte, known []found) (items []Item) {
	at := 0
	for _, f := range known {
		items = append(items, shorten(b[at:f.at])...)
		items = append(items, f.Item)
		at = f.at + f.Size
	}
	return append(items, shorten(b[at:])...)
}

// shortest is the least number of bytes that a formula stands for.
const shortest = 64

// shorten replaces long parts of b by formulas and repetitions.
func shorten(b []byte) (items []Item) {
	start := 0
	for at := 0; at < len(b); {
		it := formula(b[at:])
		if r := repeated(b[at:]); r.Size > it.Size {
			it = r
		}
		if it.Size < shortest {
			at++
			continue
		}
		items = append(items, literal(b[start:at])...)
		items = append(items, it)
		at += it.Size
		start = at
	}
	return append(items, literal(b[start:])...)
}

// formula returns the formula that the longest beginning of b follows. Neighbouring bytes of a formula differ by 31, except for one
// pair in 256, whence the last 8 bits of the offset follow, and another one in 65536, whence 8 more bits follow.
func formula(b []byte) Item {
	jump, wrap := 0, 0
	for i := 1; i < len(b) && wrap == 0; i++ {
		switch b[i] - b[i-1] {
		case 31:
			continue
		case 31 + 17:
			if jump == 0 {
				jump = i
			}
			continue
		case 31 + 17 + 5:
			wrap = i
			continue
		}
		break
	}
	best := Item{Kind: Formula}
	for _, offset := range []int{-wrap & 0xffff, -jump & 0xff} {
		it := Item{Kind: Formula, Offset: uint64(offset), Seed: uint32(b[0] - patternByte(0, uint64(offset)))}
		for it.Size < len(b) && b[it.Size] == patternByte(it.Seed, it.Offset+uint64(it.Size)) {
			it.Size++
		}
		if it.Size > best.Size {
			best = it
		}
	}
	return best
}

// repeated returns the shortest period of the longest beginning of b that repeats itself at least four times.
func repeated(b []byte) Item {
	best := Item{Kind: Repeat}
	for period := 1; period <= 256 && 4*period <= len(b); period++ {
		n := period
		for n < len(b) && b[n] == b[n-period] {
			n++
		}
		if n >= 4*period && n > best.Size {
			best = Item{Kind: Repeat, Size: n, Bytes: b[:period]}
		}
	}
	return best
}
