package recording

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Recording is a file of recorded conversations.
type Recording struct {
	Comments      []string // without the # at their beginnings
	Conversations []Conversation
}

// Conversation holds the messages of one connection.
type Conversation struct {
	Dialer, Listener netip.AddrPort // the addresses at which the sides listen; the zero value if the file has none
	Messages         []Message
}

// Message is one message, or the end of one side's stream.
type Message struct {
	FromDialer bool
	End        bool   // the end of the stream; there are no items
	Items      []Item // the items of the message, in their order
}

// Size returns the length of the message in bytes.
func (m *Message) Size() int {
	n := 0
	for i := range m.Items {
		n += m.Items[i].Size
	}
	return n
}

// Kind is the kind of an Item.
type Kind uint8

// The kinds of items, in the order of the package's documentation.
const (
	Literal Kind = iota // Bytes
	Formula             // Pattern(Seed, Offset, Size)
	Repeat              // Bytes, again and again
	Field               // the value of the field Name
	Sum                 // the CRC-32C of all bytes that follow
	Verify              // no bytes: all bytes that follow have the CRC-32C in the field Name
)

// Item stands for Size bytes of a message.
type Item struct {
	Kind   Kind
	Size   int
	Bytes  []byte
	Seed   uint32
	Offset uint64
	Name   string
}

const sumSize = 4

// String returns the item as it stands in a file.
func (it Item) String() string {
	switch it.Kind {
	case Formula:
		return fmt.Sprintf("~%d+%d*%d", it.Seed, it.Offset, it.Size)
	case Repeat:
		return fmt.Sprintf("&%x*%d", it.Bytes, it.Size)
	case Field:
		return fmt.Sprintf("$%s*%d", it.Name, it.Size)
	case Sum:
		return "!crc32c"
	case Verify:
		return "=" + it.Name
	case Literal:
	}
	return hex.EncodeToString(it.Bytes)
}

// Limits of a file. A message of the recorded programs has at most 4 MiB of payload.
const (
	maxFile    = 5 << 20
	maxMessage = 4<<20 + 4096
	maxTotal   = 256 << 20 // bytes of all messages of a file
	maxField   = 16
	maxName    = 16
)

// parseItem reads one item.
func parseItem(s string) (Item, error) {
	switch s[0] {
	case '~':
		return parseFormula(s)
	case '&':
		return parseRepeat(s)
	case '$':
		return parseField(s)
	case '=':
		if kind := fieldKind(s[1:]); kind != "sum" || len(s)-1 > maxName {
			return Item{}, fmt.Errorf("item %.40q: only fields of the kind sum are compared", s)
		}
		return Item{Kind: Verify, Name: s[1:]}, nil
	case '!':
		if s != "!crc32c" {
			return Item{}, fmt.Errorf("item %.40q: the only sum is !crc32c", s)
		}
		return Item{Kind: Sum, Size: sumSize}, nil
	}
	b, err := parseHex(s)
	if err != nil {
		return Item{}, err
	}
	return Item{Kind: Literal, Size: len(b), Bytes: b}, nil
}

func parseHex(s string) ([]byte, error) {
	if s == "" || strings.ContainsAny(s, "ABCDEF") {
		return nil, fmt.Errorf("item %.40q: bytes are pairs of lower-case hexadecimal digits", s)
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("item %.40q: %w", s, err)
	}
	return b, nil
}

// parseSize reads the decimal number behind the item's asterisk, which is between 1 and limit.
func parseSize(s string, limit int) (before string, size int, err error) {
	before, digits, ok := strings.Cut(s, "*")
	n, err := parseNumber(digits, uint64(limit))
	if !ok || err != nil || n == 0 {
		return "", 0, fmt.Errorf("item %.40q: a size of 1 to %d bytes must stand behind *", s, limit)
	}
	return before, int(n), nil
}

// parseNumber reads a decimal number as strconv writes it: without sign and without zeros in front.
func parseNumber(s string, limit uint64) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, err
	}
	if n > limit || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("number %.40q is above %d, or not in its shortest form", s, limit)
	}
	return n, nil
}

func parseFormula(s string) (Item, error) {
	rest, size, err := parseSize(s[1:], maxMessage)
	if err != nil {
		return Item{}, err
	}
	before, after, _ := strings.Cut(rest, "+")
	seed, err := parseNumber(before, 1<<32-1)
	if err != nil {
		return Item{}, fmt.Errorf("item %.40q: seed: %w", s, err)
	}
	offset, err := parseNumber(after, 1<<40)
	if err != nil {
		return Item{}, fmt.Errorf("item %.40q: offset: %w", s, err)
	}
	return Item{Kind: Formula, Size: size, Seed: uint32(seed), Offset: offset}, nil
}

func parseRepeat(s string) (Item, error) {
	rest, size, err := parseSize(s[1:], maxMessage)
	if err != nil {
		return Item{}, err
	}
	b, err := parseHex(rest)
	if err != nil {
		return Item{}, err
	}
	if len(b) > size {
		return Item{}, fmt.Errorf("item %.40q: %d bytes are repeated in %d", s, len(b), size)
	}
	return Item{Kind: Repeat, Size: size, Bytes: b}, nil
}

func parseField(s string) (Item, error) {
	name, size, err := parseSize(s[1:], maxField)
	if err != nil {
		return Item{}, err
	}
	if want, ok := fieldSizes[fieldKind(name)]; len(name) > maxName || !ok || want != size {
		return Item{}, fmt.Errorf("item %.40q: no field has this name and size", s)
	}
	return Item{Kind: Field, Size: size, Name: name}, nil
}

// fieldSizes holds the sizes in bytes of the kinds of fields.
var fieldSizes = map[string]int{
	"process": 16, "pid": 4, "port": 2, "server": 2, "tag": 4, "key": 8, "sum": sumSize, "probe": 8, "cookie": 2,
}

// fieldKind returns the name of a field without the digits at its end.
func fieldKind(name string) string { return strings.TrimRight(name, "0123456789") }

// Pattern returns n bytes of the formula with seed, from offset on. Byte i of it is
//
//	seed + 31 i + 17 ⌊i/256⌋ + 5 ⌊i/65536⌋   modulo 256
//
// as in the C programs of test/interop. n must not be negative.
func Pattern(seed uint32, offset uint64, n int) []byte {
	b := make([]byte, n)
	fillPattern(b, seed, offset)
	return b
}

func fillPattern(b []byte, seed uint32, offset uint64) {
	for i := range b {
		b[i] = patternByte(seed, offset+uint64(i))
	}
}

func patternByte(seed uint32, i uint64) byte {
	return byte(uint64(seed) + i*31 + i>>8*17 + i>>16*5)
}
