package codec

import "reflect"

// Codec turns Go values into a family's bytes and back. Implementations are safe for concurrent use.
type Codec interface {
	// Name is one lower-case word for messages and traces, such as "hgproc".
	Name() string

	// Plan examines t and returns how its values are written. It fails with an [*Error] that names the first field
	// which the family has no bytes for. It is meant to be called once per type, when an RPC is declared.
	Plan(t reflect.Type) (Plan, error)
}

// Plan writes and reads the values of one Go type T, the one it was made for. It is safe for concurrent use.
type Plan interface {
	// Append appends *v, where v is a *T, to b and returns the extended buffer. It keeps neither b nor v. When it
	// fails, the content of b's spare capacity is undefined and the returned buffer is b.
	Append(b []byte, v any) ([]byte, error)

	// Decode reads a value from the start of b into *v, where v is a *T, and returns how many bytes it took. Bytes
	// after the value are the caller's business: C peers ignore them. It does not keep v. Nothing that is stored in *v
	// aliases b or memory that *v referred to before, nor *v itself unless methods of a type in *v have stored it. When
	// it fails, *v holds a part of the value.
	Decode(b []byte, v any) (n int, err error)
}

// Appender is implemented by types that write their own bytes, the same in every family. A type that implements it,
// on the value or on the pointer, must also be a [Decoder] on the pointer.
type Appender interface {
	// AppendProc appends the value to b and returns the extended buffer. It may go back and change bytes that it has
	// appended, and must not change the bytes of b. The receiver is never a nil pointer.
	AppendProc(b []byte) ([]byte, error)
}

// AppenderWith is [Appender] for types with parts that the codec in use writes: an element of any type, or a value that
// only the program can choose. A type that implements it must also be a [DecoderWith] on the pointer. [Append] appends a part.
type AppenderWith interface {
	// AppendProcWith appends the value to b, as AppendProc does. c is the codec that the whole value is written with, or a form of it for
	// one network. A type that writes other bytes for another codec compares c.Name().
	AppendProcWith(c Codec, b []byte) ([]byte, error)
}

// DecoderWith is [Decoder] for types with parts that the codec in use reads. [Decode] reads a part.
type DecoderWith interface {
	// DecodeProcWith reads the value from the start of b, as DecodeProc does. c is the codec that the whole value is read with.
	DecodeProcWith(c Codec, b []byte) (n int, err error)
}

// Decoder is implemented by types that read their own bytes.
type Decoder interface {
	// DecodeProc reads the value from the start of b, which holds all that remains of the message, and returns how
	// many bytes it took. It must not keep b, and must check every length against len(b) before it allocates. If b
	// ends too early the error should be [ErrOverflow] or wrap it.
	DecodeProc(b []byte) (n int, err error)
}
