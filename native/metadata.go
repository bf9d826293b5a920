package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"cinnabar/codes"
)

// Limits of a [Metadata].
const (
	MaxMetadataKeys  = 64       // keys
	MaxMetadataBytes = 16 << 10 // bytes of all keys and values together
	maxKey           = 128      // bytes of a key
)

// Metadata are strings by key that travel with a request or a response, such as the name of a tenant. A key has 1 to 128 of the characters a to z,
// 0 to 9, '.', '_' and '-'; a value has any bytes, so a program that prints values of its peers escapes them. At most 64 keys and
// 16 KiB travel, counted over all keys and values.
type Metadata map[string]string

// check returns an error that names the limit which m exceeds.
func (m Metadata) check() error {
	if len(m) > MaxMetadataKeys {
		return fmt.Errorf("metadata has %d keys, at most %d; join some, or make them arguments", len(m), MaxMetadataKeys)
	}
	size := 0
	for k, v := range m {
		if !isName(k, maxKey) {
			return fmt.Errorf("metadata key %.200q: a key has 1 to %d of the characters a to z, 0 to 9, '.', '_' and '-'", k, maxKey)
		}
		size += len(k) + len(v)
	}
	if size > MaxMetadataBytes {
		return fmt.Errorf("metadata has %d bytes in keys and values, at most %d; send large values as arguments", size, MaxMetadataBytes)
	}
	return nil
}

// append appends m, which is valid, with its keys in order.
//
//	+-------+------------------------------------------------
//	| count | for each: key length 1, key, value length 2, value
//	+-------+------------------------------------------------
func (m Metadata) append(b []byte) []byte {
	b = append(b, byte(len(m)))
	if len(m) == 0 {
		return b
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b = append(b, byte(len(k)))
		b = append(b, k...)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(m[k])))
		b = append(b, m[k]...)
	}
	return b
}

// parseMetadata reads metadata. The result is nil if there is none.
func parseMetadata(r *reader) (Metadata, error) {
	count, size, last := r.uint8(), 0, ""
	if count > MaxMetadataKeys {
		return nil, malformed("metadata has %d keys, at most %d", count, MaxMetadataKeys)
	}
	var m Metadata
	for range count {
		k := string(r.take(r.uint8()))
		v := string(r.take(r.uint16()))
		switch size += len(k) + len(v); {
		case r.bad:
			return nil, r.end()
		case !isName(k, maxKey):
			return nil, malformed("metadata key %q", k)
		case k <= last:
			return nil, malformed("metadata keys %q and %q are not in order", last, k)
		case size > MaxMetadataBytes:
			return nil, malformed("metadata has more than %d bytes", MaxMetadataBytes)
		}
		if m == nil {
			m = make(Metadata, count)
		}
		m[k], last = v, k
	}
	return m, nil
}

type metadataKey struct{}

// WithMetadata returns a context for native calls that carry m, and the metadata of ctx under other keys. It copies m. The calls that a handler makes with
// its context carry none of the request's metadata, because only the handler knows which entries other services may see. Call returns an error if there
// is more than the limits of [Metadata] allow.
func WithMetadata(ctx context.Context, m Metadata) context.Context {
	merged := maps.Clone(m)
	if merged == nil {
		merged = Metadata{}
	}
	for k, v := range outgoingMetadata(ctx) {
		if _, newer := merged[k]; !newer {
			merged[k] = v
		}
	}
	return context.WithValue(ctx, metadataKey{}, merged)
}

// outgoingMetadata returns the metadata of calls that are made with ctx.
func outgoingMetadata(ctx context.Context) Metadata {
	m, _ := ctx.Value(metadataKey{}).(Metadata)
	return m
}

// MetadataFrom returns the metadata of the request that a handler serves, from the handler's context or one derived from it. The program
// may change the result. It is nil for any other context, and for a request without metadata.
func MetadataFrom(ctx context.Context) Metadata {
	if in := served(ctx); in != nil {
		return maps.Clone(in.requested())
	}
	return nil
}

// Causes of the errors of SetMetadata.
var (
	errNotServing = errors.New("the context is not that of a handler of a native RPC")
	errAnswered   = errors.New("the response is made already; set metadata before the handler returns")
)

// SetMetadata puts metadata into the response of the handler that has ctx, also if it returns an error. A later value of a key replaces
// an earlier one. An error wraps codes.InvalidArg, and says that the response would exceed the limits of [Metadata], that it is made
// already, or that ctx does not belong to a handler.
func SetMetadata(ctx context.Context, key, value string) error {
	in := served(ctx)
	if in == nil {
		return fmt.Errorf("set metadata: %w: %w", codes.InvalidArg, errNotServing)
	}
	if err := in.setReply(key, value); err != nil {
		return fmt.Errorf("set metadata: %w: %w", codes.InvalidArg, err)
	}
	return nil
}
