package wire

import (
	"encoding/binary"
	"net/netip"

	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/native"
)

// channel is a connection between two processes. Responses are matched with requests of the same channel.
type channel struct {
	number int
	reads  [2][]*call // that wait for their data, by the direction of the read
	writes [2][]*call // that wait for their acknowledgements
}

func (d *decoder) channel() *channel {
	d.links++
	return &channel{number: d.links}
}

// call is an RPC that is under way.
type call struct {
	number int
	id     uint64
}

// callKey is the key of a call under way: the channel, the direction of the request, and its tag.
type callKey struct {
	channel, dir int
	tag          uint64
}

// memoryKey is the key for the call that has described memory to the peer: the channel, the direction of the message with the description, and the
// key of the memory.
type memoryKey struct {
	channel, dir int
	key          uint64
}

// belongs makes m a message of call c.
func (m *message) belongs(c *call) {
	if c != nil {
		m.call, m.rpc = c.number, c.id
	}
}

// sent records that an operation of call c waits for its answer, which comes in the other direction.
func sent(list *[]*call, c *call) {
	if len(*list) == maxPending {
		*list = (*list)[1:]
	}
	*list = append(*list, c)
}

// answered removes the oldest operation that waits, because answers come in order, and returns its call.
func answered(list *[]*call) *call {
	if len(*list) == 0 {
		return nil
	}
	c := (*list)[0]
	*list = (*list)[1:]
	return c
}

// access returns the call to which an access to memory belongs. dir is the direction of the access.
func (d *decoder) access(ch *channel, dir int, key uint64) *call {
	c, _ := d.memory.get(memoryKey{ch.number, 1 - dir, key})
	return c
}

// nativeMark is in the ids of RPCs of package native, see wire.NativeID.
var nativeMark = wire.NativeID("", 0) ^ wire.ID("", 0)

// addID adds the id of an RPC, its name if it is known, and its provider.
func (d *decoder) addID(m *message, n uint64) {
	m.add("id", id(n))
	if n>>32 == 0 { // Mercury's own ids have no provider
		if name := d.names[n]; name != "" {
			m.add("rpc", name)
		}
		return
	}
	if name := d.names[wire.WithProvider(n, 0)&^nativeMark]; name != "" {
		m.add("rpc", name)
	}
	if p := wire.Provider(n); p != wire.DefaultProvider {
		m.add("provider", uint64(p))
	}
}

// addFlags adds the names of flags of a core header.
func addFlags(m *message, flags uint8, form wire.Form) {
	text := ""
	for _, f := range []struct {
		bit  uint8
		name string
	}{{wire.FlagMoreData, "more-data"}, {wire.FlagNoResponse, "no-response"}} {
		if flags&f.bit != 0 {
			text += "," + f.name
		}
	}
	if form == wire.FormLong {
		text += ",checksums"
	}
	if text != "" {
		m.add("flags", text[1:])
	}
}

// origin returns the address at the start of a request and the bytes behind it.
func origin(b []byte) (netip.AddrPort, []byte) {
	if len(b) >= ofiaddr.Len4 {
		if a, err := ofiaddr.Parse(b[:ofiaddr.Len4]); err == nil {
			return a, b[ofiaddr.Len4:]
		}
	}
	if len(b) >= ofiaddr.Len6+1 {
		if a, err := ofiaddr.Parse(b[:ofiaddr.Len6]); err == nil {
			return a, b[ofiaddr.Len6:]
		}
	}
	return netip.AddrPort{}, b
}

// request reads a request: the address of its sender, and Mercury's headers. total is the number of its bytes, of which data may lack the last.
func (d *decoder) request(ch *channel, dir int, m *message, tag uint64, data []byte, total uint64) {
	m.operation = "request"
	m.add("tag", tag)
	from, rest := origin(data)
	r, payload, bad := wire.ParseRequest(rest, wire.Detect)
	if bad != nil && (uint64(len(data)) == total || payload == nil) {
		m.malformed(bad)
		return
	}
	if from.IsValid() {
		m.add("origin", from.String())
	}
	if r.Flags&wire.FlagNoResponse != 0 {
		m.operation = "one-way"
	}
	d.addID(m, r.ID)
	if uint64(len(data)) == total && wire.IsProbe(rest) {
		m.operation = "probe"
	}
	addFlags(m, r.Flags, r.Form)
	size := total - uint64(len(data)-len(payload))
	m.add("payload", size)
	d.last++
	c := &call{number: d.last, id: r.ID}
	m.belongs(c)
	if r.Flags&wire.FlagNoResponse == 0 || r.Flags&wire.FlagMoreData != 0 {
		d.calls.put(callKey{ch.number, dir, tag}, c)
	}
	args := payload
	if r.ID>>32 != 0 && r.Flags&wire.FlagMoreData == 0 {
		if _, a, ok := wire.ParseMargoRequest(payload); ok && r.ID&0xffff0000 == nativeMark {
			describeNative(m, a)
			args = a
		}
	}
	d.descriptors(ch, dir, m, c, args)
}

// describeNative adds the envelope of package native.
func describeNative(m *message, b []byte) {
	kind, fields, err := native.Describe(b)
	if err != nil {
		m.add("native-problem", err.Error())
		return
	}
	m.add("native", kind)
	m.addAttrs(fields)
}

// response reads a response, or the message by which its receiver says that it has fetched an overflow.
func (d *decoder) response(ch *channel, dir int, m *message, tag uint64, data []byte, total uint64) {
	m.operation = "response"
	m.add("tag", tag)
	if total == wire.AckSize {
		m.operation = "fetched"
		c, ok := d.calls.get(callKey{ch.number, dir, tag}) // of a response: the caller sends it
		if !ok {
			c, _ = d.calls.get(callKey{ch.number, 1 - dir, tag}) // of a one-way request
		}
		m.belongs(c)
		return
	}
	c, _ := d.calls.get(callKey{ch.number, 1 - dir, tag})
	m.belongs(c)
	if c != nil {
		d.addID(m, c.id)
	}
	form := wire.FormShort
	if len(data) > 1 && wire.ResponseHeader(data).Flags()&wire.FlagHasChecksums != 0 {
		form = wire.FormLong
	}
	r, payload, bad := wire.ParseResponse(data, form)
	if bad != nil && (uint64(len(data)) == total || payload == nil) {
		m.malformed(bad)
		return
	}
	m.add("code", wire.CodeName(uint8(r.Code), ""))
	addFlags(m, r.Flags, r.Form)
	if r.Code != wire.Success {
		return
	}
	m.add("payload", total-uint64(len(data)-len(payload)))
	if c != nil && c.id>>32 != 0 && r.Flags&wire.FlagMoreData == 0 {
		if code, rest, ok := wire.ParseMargoResponse(payload); ok {
			if code != 0 {
				m.add("margo-code", wire.CodeName(uint8(min(code, 255)), ""))
			} else if c.id&0xffff0000 == nativeMark {
				describeNative(m, rest)
			}
		}
	}
	d.descriptors(ch, dir, m, c, payload)
}

// maxScan is how many bytes of arguments or results are searched for bulk descriptors, and maxTries how many places in them are read as one.
const (
	maxScan  = 1 << 14
	maxTries = 64
)

// descriptors finds the bulk descriptors in arguments or results, whose types a capture does not have. A descriptor is recognized by its
// parts, which must fit each other, and by the handles of its segments.
func (d *decoder) descriptors(ch *channel, dir int, m *message, c *call, b []byte) {
	b = b[:min(len(b), maxScan)]
	for tries := 0; len(b) >= 40 && tries < maxTries; {
		size, segments := binary.LittleEndian.Uint64(b), uint64(binary.LittleEndian.Uint32(b[16:]))
		if size < 32 || size > uint64(len(b)-8) || b[15]|b[14] != 0 || // a length of 2^48 and more is none of memory
			segments == 0 || segments > (size-16)/16 {
			b = b[1:]
			continue
		}
		tries++
		desc, n, err := wire.CutProc(b)
		if err != nil {
			return
		}
		bulk, err := wire.ParseBulk(desc)
		if err != nil || bulk.Segments() == 0 {
			b = b[1:]
			continue
		}
		m.add("bulk", bulk.Len())
		for i := range bulk.Segments() {
			if h := bulk.Handle(i); len(h) >= 8 && c != nil {
				k := binary.LittleEndian.Uint64(h)
				d.memory.put(memoryKey{ch.number, dir, k}, c)
			}
		}
		b = b[n:]
	}
}
