// Package hgproc writes Go values as Mercury's hg_proc routines do, so that a Go struct and a C structure declared
// with MERCURY_GEN_PROC have the same bytes. It is the default codec of Margo and Mercury RPCs.
//
// # Nouns
//
// [Codec] makes a plan for a Go type. [ID] and [ConstString] are types for two C types that no Go type stands for.
// Types may write their own bytes by implementing [codec.Appender] and [codec.Decoder]; [AppendString] and
// [DecodeString] help them.
//
// # Encoding
//
// Values follow each other in order of declaration, little-endian, without padding, alignment or type tags. Mercury
// builds that use XDR write something else and cannot be talked to.
//
//	Go                            C                       bytes
//	int8 … int64, uint8 … uint64  int8_t … uint64_t       1, 2, 4, 8
//	uint64                        hg_size_t, hg_ptr_t     8
//	ID                            hg_id_t                 4, the low half
//	bool                          hg_bool_t               1: 0 or 1; anything but 0 is read as true
//	float32, float64              raw copies              4, 8: IEEE 754
//	[n]T                          a loop, hg_proc_raw     n elements
//	[]T with proc:"count=N"       a loop, hg_proc_raw     as many elements as the earlier integer field N says
//	[]T with proc:"counted=T"     a count and a loop      the count as integer type T, elements
//	field with proc:"when=F"      if (F), switch (F)      the field, or none
//	codec.Result[T]               a flag and a union      1: 1, value; or 0, error text
//	struct                        MERCURY_GEN_PROC        its fields, embedded structs in their place
//	struct{}                      void                    none
//	_ [n]byte                     padding                 n zeros; ignored when read
//	string                        hg_string_t             u64 length with NUL, text, NUL, 0, 0
//	ConstString                   hg_const_string_t       u64 length with NUL, text, NUL, 1, 0
//	*string, *ConstString         the same, or NULL       as above; u64 0 for nil
//	codec.Appender and Decoder    hg_proc_cb_t            the bytes of the methods
//
// A null string from a peer is read into a string as "". Blank fields are for C programs that send a structure as it
// lies in memory, with the gaps that their compiler leaves. The tag proc:"-" leaves a field out.
//
// Go's int and uint are refused, because C peers cannot know their size; so are maps, interfaces, channels, functions,
// other pointers, recursive types, unexported fields, and slices without a count, since Mercury sends no length for
// raw bytes. [Codec.Plan] names the field and the type to use in its place.
//
// # Counts, options and unions
//
// Three patterns that most C services write by hand are tags. A list with its count is one field. A field travels under
// a condition on an earlier field, which gives optional values and unions:
//
//	type Put struct {
//		Key   []byte `proc:"counted=uint64"`    // hg_size_t and hg_proc_raw
//		Kind  int32                             // switch (kind)
//		Count int64  `proc:"when=Kind:1|2"`     //   case 1: case 2: hg_proc_int64_t
//		Text  string `proc:"when=Kind:3"`       //   case 3: hg_proc_hg_string_t
//		HasTTL bool                             // if (has_ttl)
//		TTL   uint32 `proc:"when=HasTTL"`       //   hg_proc_uint32_t
//	}
//
// A field that does not travel must be zero when the value is written, because its content would be lost, and is zero
// after reading.
//
// # Usage
//
//	// MERCURY_GEN_PROC(put_in_t, ((hg_string_t)(key)) ((hg_size_t)(size)) ((int32_t)(flags)))
//	type PutIn struct {
//		Key   string
//		Size  uint64
//		Flags int32
//	}
//
//	plan, err := hgproc.Codec{}.Plan(reflect.TypeFor[PutIn]())
//	if err != nil {
//		return err
//	}
//	buf, err := plan.Append(nil, &PutIn{Key: "k", Size: 4096})
//	if err != nil {
//		return err // a NUL in the key, or a count that is not the length of its slice
//	}
//	var in PutIn
//	n, err := plan.Decode(buf, &in)
//
// # Hostile input
//
// C trusts every message. This package checks every length against the rest of the message before it allocates, and
// then allocates in proportion to the bytes that it has read: an input of n bytes makes it allocate a small multiple of n, or of
// the size that the program's own element types have in memory. An input that ends early fails with
// [codec.ErrOverflow] in an error that names the field. Strings without their NUL or with a NUL inside are refused, in
// both directions. Bytes after the value are left alone, as C leaves them.
//
// # Concurrency and allocation
//
// Everything here is safe for concurrent use. Appending to a buffer with room allocates nothing. Decoding copies: it
// allocates for each string and slice and for nothing else. Plans walk values by reflection, at a few nanoseconds for
// each number; a type on a hot path may write its own bytes in less.
package hgproc
