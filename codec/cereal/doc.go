// Package cereal writes Go values as Thallium does: with the C++ library cereal, into an archive that copies raw bytes.
// It is the codec of RPCs of Thallium's flavour.
//
// # Nouns
//
// [Codec] makes a plan for a Go type. [Variant], [ClassVersion] and [Rest] are types for C++ types that have no Go type of their own.
// Types may write their own bytes by implementing [codec.Appender] and [codec.Decoder]; [AppendSize], [AppendString] and
// their inverses help them.
//
// # Encoding
//
// Values follow each other in order, little-endian, without padding, alignment or type tags. The arguments of a call are
// a std::tuple, and so are its results: several of them are the fields of a struct, and a struct with one field has the
// bytes of the field. Counts are u64.
//
//	Go                            C++                                  bytes
//	int8 … int64, uint8 … uint64  int8_t … uint64_t, enums of them     1, 2, 4, 8
//	bool                          bool                                 1: 0 or 1; anything but 0 is read as true
//	float32, float64              float, double                        4, 8: IEEE 754
//	complex64, complex128         std::complex<float>, <double>        8, 16: real, imaginary
//	time.Duration                 std::chrono::nanoseconds             8; other durations are integers of their unit
//	string                        std::string                          length, text, without NUL
//	[]byte                        std::vector<char>, std::string       length, bytes
//	[]T                           std::vector, list, deque,            count, elements
//	                              forward_list, queue, stack,
//	                              multiset, std::basic_string<T>
//	[]struct{ K; V }              std::multimap                        count, keys and elements in turn
//	map[K]V                       std::map, std::unordered_map         count, keys and elements in turn
//	map[K]struct{}                std::set, std::unordered_set         count, keys
//	[n]T                          std::array, T[n]                     n elements, no count
//	struct                        class, std::pair, std::tuple         its fields, embedded structs in their place
//	struct{}                      empty class, std::tuple<>            none
//	*T with cereal:"optional"     std::optional<T>                     u8 1 for none; u8 0, value
//	*T with cereal:"unique"       std::unique_ptr<T>                   u8 0 for null; u8 1, value
//	*T with cereal:"shared"       std::shared_ptr<T>, weak_ptr<T>      u32 id: 0 for null; the first time with the
//	                                                                   highest bit set, and the value
//	struct with Variant           std::variant                         i32 index, value
//	struct with ClassVersion      class with CEREAL_CLASS_VERSION      u32 before the first value of the class
//	field with cereal:"when=F"    if(F) in save and load               the field, or none
//	codec.Result[T]               a class with m_success               u8 1, value; or u8 0, error text
//	codec.Appender and Decoder    the bytes of the methods               tl::bulk is a BulkHandle
//
// A tag holds for all pointers in its field's type: []*T with cereal:"shared" is a vector of shared pointers. Shared
// pointers are counted through a whole message, so that one object in C++ is one in Go, cycles included; types
// that write their own bytes do not take part in that. The tag cereal:"-" leaves a field out.
//
// The tag cereal:"when=F" has a field travel only if the earlier bool F is true, when=!F if it is false, when=F:1|2 if the
// earlier integer F has one of the values. A field that does not travel must be zero when the value is written, because
// its content would be lost, and is zero after reading.
//
// A class with a save or serialize method that does not follow the order of its members is a struct in the order of the method.
// Everything else in such a method, as the use of C++'s serialization contexts, belongs in AppendProc and DecodeProc of a Go
// type, which keeps the values that they need in fields that do not travel.
//
// # Order and identity
//
// Maps are written in ascending order of their keys, as a std::map is: numbers by value, strings by their bytes, arrays
// and structs element by element. In the order of an unordered map there is nothing to be equal to. Keys may come in any
// order; one that comes twice is refused, since a map would forget it: a multimap is a slice.
//
// A nil slice or map is written as an empty one. Empty slices are read as nil, empty maps as maps that can be written to.
//
// # Widths
//
// C++ reads the next bytes as they are: it never detects a wrong width. So types that have different sizes on different
// machines are refused, Go's int, uint and uintptr, and the program declares the width:
//
//	int, unsigned           int32, uint32
//	long, unsigned long     int64, uint64 on Linux and macOS; int32, uint32 on Windows
//	long long, size_t       int64, uint64
//	ptrdiff_t               int64
//	char, unsigned char     int8 or uint8, uint8
//	wchar_t                 int32 on Linux, uint16 on Windows; char16_t and char32_t are uint16 and uint32
//	long double             nothing: its 16 bytes mean something else on each processor
//	enum                    int32 unless it says another type; Go's is a named integer
//
// Refused are interfaces, channels, functions, unexported fields, pointers without a tag, and elements and keys that take
// no bytes. std::bitset is a struct of a uint8, which is 3, and as many bytes as are needed, the first bit in the highest
// place. C++'s polymorphic pointers, which name their class, have no Go form. [Codec.Plan] names the field and the type to
// use in its place. Peers that were built with THALLIUM_DEBUG_RPC_TYPES put the names of types in front of each message
// and cannot be talked to; RPCs of Thallium's flavour say so when they meet one that names types of C++ or Thallium.
//
// # Usage
//
//	// void put(const tl::request&, const std::string& key, const std::vector<double>& values, const std::optional<int>& ttl)
//	type Put struct {
//		Key    string
//		Values []float64
//		TTL    *int32 `cereal:"optional"`
//	}
//
//	plan, err := cereal.Codec{}.Plan(reflect.TypeFor[Put]())
//	if err != nil {
//		return err
//	}
//	buf, err := plan.Append(nil, &Put{Key: "k", Values: []float64{1.5}})
//	if err != nil {
//		return err
//	}
//	var in Put
//	n, err := plan.Decode(buf, &in)
//
// # Hostile input
//
// C++ trusts every message. This package checks every count against the rest of the message before it allocates, and
// then allocates in proportion to the bytes that it has read: an input of n bytes makes it allocate a small multiple of n, or of
// the size that the program's own element types have in memory. Slices, maps and pointers that lie more than 10,000 deep
// in each other are refused in both directions, so that no message decides how much stack it takes and a value that
// contains itself ends. Elements of a container that take less than a byte each on average are refused too. An input that
// ends early fails with [codec.ErrOverflow] in an error that names the field; a shared pointer to an object that was never
// sent, or is of another type, and an alternative that a variant does not have, are refused.
// Bytes after the value are left alone, as C++ leaves them.
//
// # Concurrency and allocation
//
// Everything here is safe for concurrent use. Appending to a buffer with room allocates nothing for values without maps
// and shared pointers. Decoding copies: it allocates for each string, slice, map and pointer and for nothing else.
package cereal
