package call

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codec"
	"cinnabar/native"
)

// checkReflect returns an error if options that --reflect replaces were given.
func (o *callOptions) checkReflect() error {
	if o.in != "" || o.out != "" || o.oneWay {
		return cli.Usagef("--reflect and --in, --out or --one-way were given; the process describes the types")
	}
	return nil
}

// list prints the RPCs that the process at address describes.
func (o *callOptions) list(ctx context.Context, address string, s cli.Streams) error {
	if err := o.checkReflect(); err != nil {
		return err
	}
	return o.caller.Engine(ctx, address, cinnabar.Config{MaxOverflow: maxResponse}, func(ctx context.Context, e *cinnabar.Engine) error {
		ep, err := e.Lookup(address)
		if err != nil {
			return err
		}
		for d, err := range native.Reflect(ctx, ep, "") {
			if err != nil {
				return explain(err)
			}
			if !o.selects(&d) {
				continue
			}
			if _, err := fmt.Fprintf(s.Out, "%s %s\n", d.String(), signature(&d)); err != nil {
				return err
			}
		}
		return nil
	})
}

// explain adds the remedy to the error of a process without reflection.
func explain(err error) error {
	if e, ok := errors.AsType[*cinnabar.Error](err); ok && e.Remote {
		return fmt.Errorf("the process describes no RPCs, because only Go programs that have called native.HandleReflection do; name the types by --in and --out: %w", err)
	}
	return err
}

// signature returns the types of an RPC.
func signature(d *native.Description) string {
	switch {
	case d.Problem != "":
		return d.Problem
	case d.OneWay:
		return typeText(d, d.In)
	}
	return typeText(d, d.In) + " -> " + typeText(d, d.Out)
}

// selects reports whether --provider and --flavor admit the RPC.
func (o *callOptions) selects(d *native.Description) bool {
	return (!o.numbered || d.Provider == o.provider && d.Flavor != cinnabar.Mercury) && (!o.flavored || d.Flavor == o.flavor.Flavor && !d.Native)
}

// find asks the process for the RPC with that name. It prefers a native RPC to others with the name.
func (o *callOptions) find(ctx context.Context, ep *cinnabar.Endpoint, name string) (*native.Description, error) {
	var f finding
	for d, err := range native.Reflect(ctx, ep, name) {
		if err != nil {
			return nil, explain(err)
		}
		if o.selects(&d) {
			f.add(&d)
		}
	}
	switch f.n {
	case 0:
		return nil, fmt.Errorf("the process describes no RPC %q of that provider and flavour; print its RPCs by --reflect without NAME", name)
	case 1:
		return &f.first, nil
	}
	return nil, fmt.Errorf("the process describes %d RPCs %q, among them %s and %s; choose one by --provider or --flavor", f.n, name, f.first.String(), f.second)
}

// finding is the result of a search. It has one description, because those of all RPCs of a hostile process may take gigabytes.
type finding struct {
	n      int
	first  native.Description
	second string // text of the second RPC
}

// add adds an RPC. The first native one replaces the others.
func (f *finding) add(d *native.Description) {
	if f.n > 0 && d.Native != f.first.Native {
		if f.first.Native {
			return
		}
		*f = finding{}
	}
	switch f.n++; f.n {
	case 1:
		f.first = *d
	case 2:
		f.second = d.String()
	}
}

// described calls an RPC with the types that the process describes.
func (o *callOptions) described(ctx context.Context, address, name string, s cli.Streams) error {
	if err := o.checkReflect(); err != nil {
		return err
	}
	return o.caller.Engine(ctx, address, cinnabar.Config{MaxOverflow: maxResponse}, func(ctx context.Context, e *cinnabar.Engine) (err error) {
		ep, err := e.Lookup(address)
		if err != nil {
			return err
		}
		d, err := o.find(ctx, ep, name)
		if err != nil {
			return err
		}
		shape, err := newShape(d)
		if err != nil {
			return fmt.Errorf("%s cannot be called by its description: %w", d.String(), err)
		}
		in := reflect.New(shape.in)
		if err := setArguments(in.Elem(), o.args); err != nil {
			return cli.Usagef("--args: %w; the arguments are %s", err, typeText(d, d.In))
		}
		places := bulkPlaces(nil, in.Elem())
		if len(places) != len(o.memory) {
			return cli.Usagef("the arguments, %s, have %d memories; --bulk-in and --bulk-out name %d files", typeText(d, d.In), len(places), len(o.memory))
		}
		handles, err := o.memory.expose(e)
		defer func() { err = errors.Join(err, o.memory.close(err == nil)) }()
		if err != nil {
			return err
		}
		for i, h := range handles {
			places[i].Set(reflect.ValueOf(h))
		}
		m := message{value: in}
		result, err := shape.call(ctx, ep, name, m)
		if err != nil {
			return err
		}
		if d.OneWay {
			return o.memory.grace(ctx, o.grace)
		}
		return shape.print(s, result)
	})
}

// shape is an RPC with the types of its description.
type shape struct {
	d       *native.Description
	codec   codec.Codec
	in, out reflect.Type
}

// newShape builds the types of a description.
func newShape(d *native.Description) (*shape, error) {
	c, known := codecs[d.Codec]
	switch {
	case d.Problem != "":
		return nil, errors.New(d.Problem)
	case d.Stream:
		return nil, errors.New("it is a stream, which only a program can open")
	case !known:
		return nil, fmt.Errorf("its codec %q is unknown; hgproc and cereal are known", d.Codec)
	}
	b := builder{d: d, tag: c.key, built: map[uint32]builtType{}}
	in, err := b.build(d.In)
	if err != nil {
		return nil, fmt.Errorf("its arguments: %w", err)
	}
	out, err := b.build(d.Out)
	if err != nil {
		return nil, fmt.Errorf("its results: %w", err)
	}
	for _, t := range []reflect.Type{in.typ, out.typ} {
		if _, err := c.codec.Plan(t); err != nil {
			return nil, err
		}
	}
	return &shape{d: d, codec: c.codec, in: in.typ, out: out.typ}, nil
}

// call calls the RPC.
func (x *shape) call(ctx context.Context, ep *cinnabar.Endpoint, name string, m message) (message, error) {
	var to cinnabar.Target = ep
	if x.d.Provider != noProvider && x.d.Flavor != cinnabar.Mercury {
		to = ep.Provider(x.d.Provider)
	}
	if x.d.Native {
		return native.New[message, message](name, native.WithCodec(x.codec)).Call(ctx, to, m)
	}
	opts := []cinnabar.RPCOption{cinnabar.WithFlavor(x.d.Flavor), cinnabar.WithCodec(x.codec)}
	if x.d.Flavor == cinnabar.Mercury {
		opts = append(opts, cinnabar.WithID(x.d.ID))
	}
	if x.d.OneWay {
		return message{}, cinnabar.NewOneWay[message](name, opts...).Send(ctx, to, m)
	}
	return cinnabar.NewRPC[message, message](name, opts...).Call(ctx, to, m)
}

// noProvider is the provider id of RPCs that are not addressed to one.
const noProvider = 65535

// print prints the result.
func (x *shape) print(s cli.Streams, result message) error {
	if x.out == reflect.TypeFor[struct{}]() {
		return nil
	}
	out := reflect.New(x.out)
	if _, err := codec.Decode(result.codec, result.raw, out.Interface()); err != nil {
		return fmt.Errorf("the response does not have the type %s that the process describes: %w; its %d bytes are %s", typeText(x.d, x.d.Out), err, len(result.raw), beginning(result.raw))
	}
	return cli.WriteJSON(s.Out, plain(out.Elem()))
}

// setArguments stores the JSON text of --args in a variable. An object has fields of a struct. An array has a value for each field except memory, or
// one value if the variable is no struct.
func setArguments(to reflect.Value, text string) error {
	if text = strings.TrimSpace(text); strings.HasPrefix(text, "{") && to.Kind() == reflect.Struct {
		return setFields(to, json.RawMessage(text))
	}
	var values []json.RawMessage
	if text != "" {
		if err := json.Unmarshal([]byte(text), &values); err != nil {
			return fmt.Errorf("%s is no JSON array and no JSON object of fields: %w", text, err)
		}
	}
	variables := []reflect.Value{to}
	if to.Kind() == reflect.Struct {
		variables = nil
		for i := range to.NumField() {
			if settable(to.Type().Field(i)) {
				variables = append(variables, to.Field(i))
			}
		}
	}
	if len(values) != len(variables) {
		return fmt.Errorf("%d values instead of %d", len(values), len(variables))
	}
	for i, v := range variables {
		if err := setValue(v, values[i]); err != nil {
			return fmt.Errorf("value %d: %w", i+1, err)
		}
	}
	return nil
}

// settable reports whether a field has a value in JSON.
func settable(f reflect.StructField) bool {
	return f.Type != bulkType && f.Type != variantType && f.IsExported()
}

// setFields stores a JSON object in a struct. Fields that the object does not have keep their values.
func setFields(to reflect.Value, text json.RawMessage) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	for name, value := range fields {
		f, ok := to.Type().FieldByName(name)
		if !ok || len(f.Index) != 1 || !settable(f) {
			return fmt.Errorf("there is no field %q for a value; names are written as in the description", name)
		}
		if err := setValue(to.FieldByIndex(f.Index), value); err != nil {
			return fmt.Errorf("field %s: %w", name, err)
		}
	}
	return nil
}

// setMap stores a JSON object in a map. Keys that are no strings are JSON values in the strings of the object.
func setMap(to reflect.Value, text json.RawMessage) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	to.Set(reflect.MakeMap(to.Type()))
	for name, value := range members {
		key, elem := reflect.New(to.Type().Key()).Elem(), reflect.New(to.Type().Elem()).Elem()
		if key.Kind() == reflect.String {
			key.SetString(name)
		} else if err := setValue(key, json.RawMessage(name)); err != nil {
			return fmt.Errorf("key %q: %w", name, err)
		}
		if err := setValue(elem, value); err != nil {
			return fmt.Errorf("element of key %q: %w", name, err)
		}
		to.SetMapIndex(key, elem)
	}
	return nil
}

// bulkPlaces appends the bulk handles in a struct, in the order of the fields. It does not look into lists.
func bulkPlaces(places []reflect.Value, v reflect.Value) []reflect.Value {
	switch {
	case v.Type() == bulkType:
		return append(places, v)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() { // package reflect refuses to set others
				places = bulkPlaces(places, v.Field(i))
			}
		}
	}
	return places
}

// object is a JSON object with its members in order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		b.WriteByte("{,"[min(i, 1)])
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	if len(o) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// plainFields returns a struct as package json can print it.
func plainFields(v reflect.Value) object {
	o := object{}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && f.Type != variantType {
			o = append(o, member{f.Name, plain(v.Field(i))})
		}
	}
	return o
}

// plainMap returns a map as package json can print it.
func plainMap(v reflect.Value) map[string]any {
	m := map[string]any{}
	for i := v.MapRange(); i.Next(); {
		key, err := json.Marshal(plain(i.Key()))
		if i.Key().Kind() == reflect.String || err != nil {
			key = []byte(fmt.Sprint(i.Key()))
		}
		m[string(key)] = plain(i.Value())
	}
	return m
}
