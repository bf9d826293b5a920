package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/envelope"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/querylimit"
)

// Description describes an RPC that a server has registered, as [Reflect] receives it. All texts are printable.
type Description struct {
	Name     string
	ID       uint64 // on the wire
	Provider uint16 // 65535: none is addressed
	Flavor   cinnabar.Flavor
	Native   bool   // of this package
	Stream   bool   // declared by NewStream
	OneWay   bool   // without a response
	Codec    string // its name, such as "hgproc"
	In, Out  uint32 // indices in Types of the arguments and the results, or of the elements of a stream
	Types    []Type `proc:"counted=uint16"`
	// Problem names the limit that the types exceed; then Types is empty, and In and Out are 0. Problem is empty if Types is complete.
	Problem string
}

// Type describes a type of Go.
type Type struct {
	Name   string  // with the path of its package; empty for types without a name and for predeclared ones
	Kind   string  // as reflect.Kind has it ("struct", "ptr", "uint8"), or "custom" for a type that writes its own bytes
	Len    uint64  // elements of an array
	Elem   uint32  // the index in Types of the element of an array, a map, a pointer or a slice
	Key    uint32  // the index in Types of the key of a map
	Fields []Field `proc:"counted=uint16"`
}

// Field describes a field of a struct.
type Field struct {
	Name string
	Tag  string // the options of the codec, such as "counted=uint64"
	Type uint32 // its index in Types
}

// Limits of a description, for servers and clients. They bound the memory of a client that reads the description of a hostile server, and the time of a
// server that describes the types of its program.
const (
	maxTypes      = 256       // types of one RPC
	maxFields     = 1024      // fields of these types
	maxDepth      = 32        // types inside each other, up to a type that is described already
	maxTypeBytes  = 32 << 10  // bytes of names and tags of one RPC
	maxTypeName   = 512       // bytes of the name of a type; the rest is cut off
	maxRPCName    = 1024      // bytes of the name of an RPC
	maxPageRPCs   = 256       // RPCs in one answer
	fullPage      = 64 << 10  // an answer of more bytes has no further RPC
	maxPage       = 256 << 10 // bytes of one answer
	maxRegistered = 1 << 16   // RPCs of one server
)

// reflectRequest asks for the RPCs with Name, or for all if Name is empty, with ids greater than After.
type reflectRequest struct {
	Name  string
	After uint64
	First bool // the first request: After has no meaning. A field of its own, because 0 may be an id
}

// reflectPage is the answer: RPCs in the order of their ids.
type reflectPage struct{ pageBody }

type pageBody struct {
	RPCs []Description `proc:"counted=uint16"`
	More bool          // RPCs with greater ids follow
}

// AppendProc implements [codec.Appender].
func (p reflectPage) AppendProc(b []byte) ([]byte, error) {
	return codec.Append(hgproc.Codec{}, b, &p.pageBody)
}

// DecodeProc implements [codec.Decoder]. It refuses answers beyond the limits.
func (p *reflectPage) DecodeProc(b []byte) (int, error) {
	if len(b) > maxPage {
		return 0, fmt.Errorf("a description of RPCs has %d bytes, at most %d", len(b), maxPage)
	}
	n, err := codec.Decode(hgproc.Codec{}, b, &p.pageBody)
	if err != nil {
		return 0, err
	}
	if len(p.RPCs) > maxPageRPCs {
		return 0, fmt.Errorf("an answer describes %d RPCs, at most %d", len(p.RPCs), maxPageRPCs)
	}
	for i := range p.RPCs {
		if err := p.RPCs[i].check(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// reflectRPC is the RPC that describes the others. Its name begins with two underscores, because engines serve such RPCs outside of
// Config.RPCPool, whose workers may all be busy.
var reflectRPC = New[reflectRequest, reflectPage]("__native_reflect__")

// HandleReflection lets clients read the names, the fields and the types of all RPCs of the engine, also those of its providers and those of package
// cinnabar, by [Reflect] and by "cinnabar call --reflect". A server without it describes nothing. Interceptors see the RPC "__native_reflect__".
//
// One RPC is described with at most 256 types, 1,024 fields, types that lie 32 deep in each other, and 32 KiB of names and tags. A type that refers to
// itself is described once.
//
// An answer has at most 256 RPCs and costs the server some of its time, so a host gets ten a second, and all hosts together 40. Further requests fail with
// codes.Again; [Reflect] repeats them.
func HandleReflection(on cinnabar.Registrar, opts ...cinnabar.HandleOption) error {
	limiter := querylimit.New()
	return reflectRPC.Handle(on, func(ctx context.Context, in reflectRequest) (reflectPage, error) {
		end, err := limiter.Begin(hostquota.FromContext(ctx))
		if err != nil {
			audit.RecordIn(ctx, audit.Refused, "a peer reads descriptions too often")
			return reflectPage{}, fmt.Errorf("%w: %w", codes.Again, err)
		}
		defer end()
		return describePage(served(ctx).server.Served.Registrations(), in), nil
	}, opts...)
}

// describePage describes the RPCs that in asks for, up to the limits of an answer.
func describePage(all []envelope.Registration, in reflectRequest) (page reflectPage) {
	size := 0
	for i := range all {
		r := &all[i]
		if !in.First && r.ID <= in.After || in.Name != "" && r.Name != in.Name {
			continue
		}
		if size > fullPage || len(page.RPCs) == maxPageRPCs {
			page.More = true
			break
		}
		d := describe(r)
		size += d.size()
		page.RPCs = append(page.RPCs, d)
	}
	return page
}

// size is about the number of bytes of the description on the wire.
func (d *Description) size() int {
	n := 64 + len(d.Name) + len(d.Codec) + len(d.Problem)
	for i := range d.Types {
		t := &d.Types[i]
		n += 64 + len(t.Name) + len(t.Kind)
		for _, f := range t.Fields {
			n += 32 + len(f.Name) + len(f.Tag)
		}
	}
	return n
}

// Reflect asks the process that to names for its RPCs with that name, or for all if it is empty, and yields them in the order of their ids. An error is
// yielded once, as the last value: codes.NoEntry says that the server has no reflection ([HandleReflection]). If the server answers codes.Again, Reflect asks
// again after a pause, at most eight times in succession, which take five seconds.
func Reflect(ctx context.Context, to cinnabar.Target, name string) iter.Seq2[Description, error] {
	return func(yield func(Description, error) bool) {
		next, total := reflectRequest{Name: name, First: true}, 0
		for {
			page, err := reflectPatiently(ctx, to, next)
			if err == nil {
				err = page.follows(next)
			}
			if total += len(page.RPCs); err == nil && total > maxRegistered {
				err = fmt.Errorf("native: the server describes more than %d RPCs (%w); ask for one by its name", maxRegistered, codes.ProtocolError)
			}
			if err != nil {
				yield(Description{}, err)
				return
			}
			for _, d := range page.RPCs {
				if !yield(d, nil) {
					return
				}
				next.After, next.First = d.ID, false
			}
			if !page.More {
				return
			}
		}
	}
}

// reflectPatiently asks for a page, again after a pause if the server has no time for it.
func reflectPatiently(ctx context.Context, to cinnabar.Target, in reflectRequest) (reflectPage, error) {
	const first, most, repeats = 100 * time.Millisecond, 800 * time.Millisecond, 8
	for pause, n := first, 0; ; pause, n = min(2*pause, most), n+1 {
		page, err := reflectRPC.Call(ctx, to, in)
		if !errors.Is(err, codes.Again) || n == repeats {
			return page, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return reflectPage{}, fmt.Errorf("%w, after: %w", context.Cause(ctx), err)
		}
	}
}

// follows returns an error if a page is no answer to a request, so that a hostile server cannot make a client ask forever.
func (p *reflectPage) follows(in reflectRequest) error {
	for _, d := range p.RPCs {
		switch {
		case !in.First && d.ID <= in.After:
			return fmt.Errorf("native: the server describes RPC %#x after RPC %#x (%w)", d.ID, in.After, codes.ProtocolError)
		case in.Name != "" && d.Name != printable(in.Name):
			return fmt.Errorf("native: the server describes RPC %q in place of %q (%w)", d.Name, in.Name, codes.ProtocolError)
		}
		in.After, in.First = d.ID, false
	}
	if p.More && len(p.RPCs) == 0 {
		return fmt.Errorf("native: the server announces RPCs and describes none (%w)", codes.ProtocolError)
	}
	return nil
}

// check returns an error that names the field of a received description that is not valid.
func (d *Description) check() error {
	fields, texts := 0, len(d.Codec)
	switch {
	case len(d.Name) > maxRPCName, d.Name != printable(d.Name):
		return fmt.Errorf("the name of RPC %#x is not printable, or longer than %d bytes", d.ID, maxRPCName)
	case d.Flavor > cinnabar.Thallium:
		return fmt.Errorf("RPC %q has flavour %d, which is unknown", d.Name, d.Flavor)
	case d.Codec != printable(d.Codec), d.Problem != printable(d.Problem), len(d.Problem) > maxText:
		return fmt.Errorf("a text of RPC %q is not printable, or longer than %d bytes", d.Name, maxText)
	case len(d.Types) > maxTypes:
		return fmt.Errorf("RPC %q has %d types, at most %d", d.Name, len(d.Types), maxTypes)
	case len(d.Types) == 0 && (d.Problem == "" || d.In != 0 || d.Out != 0):
		return fmt.Errorf("RPC %q has no types", d.Name)
	case len(d.Types) > 0 && !d.refers(d.In, d.Out):
		return fmt.Errorf("the arguments and results of RPC %q are types %d and %d of %d", d.Name, d.In, d.Out, len(d.Types))
	}
	for i := range d.Types {
		t := &d.Types[i]
		shape, known := kinds[t.Kind]
		texts += len(t.Name)
		switch {
		case !known:
			return fmt.Errorf("type %d of RPC %q is of the kind %q, which is unknown", i, d.Name, t.Kind)
		case t.Name != printable(t.Name) || len(t.Name) > maxTypeName:
			return fmt.Errorf("the name of type %d of RPC %q is not printable, or longer than %d bytes", i, d.Name, maxTypeName)
		case shape&hasElem != 0 && !d.refers(t.Elem) || shape&hasKey != 0 && !d.refers(t.Key),
			shape&hasElem == 0 && t.Elem != 0 || shape&hasKey == 0 && t.Key != 0 || shape&hasLen == 0 && t.Len != 0,
			shape&hasFields == 0 && len(t.Fields) > 0:
			return fmt.Errorf("type %d of RPC %q, a %s, has wrong parts", i, d.Name, t.Kind)
		}
		for _, f := range t.Fields {
			texts += len(f.Name) + len(f.Tag)
			if f.Name == "" || f.Name != printable(f.Name) || f.Tag != printable(f.Tag) || !d.refers(f.Type) {
				return fmt.Errorf("field %q of type %d of RPC %q is not valid", f.Name, i, d.Name)
			}
		}
		fields += len(t.Fields)
	}
	if fields > maxFields || texts > maxTypeBytes {
		return fmt.Errorf("the types of RPC %q have %d fields and %d bytes of names, at most %d and %d", d.Name, fields, texts, maxFields, maxTypeBytes)
	}
	return nil
}

// refers reports whether all places are in Types.
func (d *Description) refers(places ...uint32) bool {
	for _, p := range places {
		if int64(p) >= int64(len(d.Types)) {
			return false
		}
	}
	return true
}

// String returns the name, the flavour and the provider on one line.
func (d *Description) String() string {
	kind := map[cinnabar.Flavor]string{cinnabar.Margo: "margo", cinnabar.Mercury: "mercury", cinnabar.Thallium: "thallium"}[d.Flavor]
	switch {
	case d.Stream:
		kind = "stream"
	case d.Native:
		kind = "native"
	case d.OneWay:
		kind = cmp.Or(kind, "margo") + ", one-way"
	}
	if d.Provider == 65535 || d.Flavor == cinnabar.Mercury {
		return fmt.Sprintf("%s (%s)", d.Name, kind)
	}
	return fmt.Sprintf("%s@%d (%s)", d.Name, d.Provider, kind)
}
