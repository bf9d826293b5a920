package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unique"
)

const (
	// TokenBytes is the length of the secret that [NewToken] makes. MinTokenBytes is the least length: 128 bits.
	TokenBytes    = 32
	MinTokenBytes = 16

	maxTokenBytes = 64 // the block of SHA-256: HMAC hashes a longer key to 32 bytes, so more bytes would add nothing
	// tokenPrefix begins the text of a token, so that a file with another secret, such as a password, is not taken for one.
	tokenPrefix = "cinnabar-token:"
	// maxTokenFile bounds the file of a token in bytes.
	maxTokenFile = 256
	// leastDistinct is the least number of different bytes in a secret, because an array that nothing was written to has one. Only one in
	// 10^13 secrets of 16 random bytes has fewer than leastDistinct.
	leastDistinct = 8
)

// Token is a secret of at least 128 random bits that several processes share. Each side of a connection proves to the other one that it has
// the token without sending it. String, the verbs of package fmt, package json and log lines do not show the secret. The zero Token is none.
type Token struct {
	// secret is a Handle and no string, because package fmt prints the fields of values within unexported fields without their methods. Of a
	// Handle it prints an address.
	secret unique.Handle[string]
}

// bytes returns the secret, which is empty for the zero Token.
func (t Token) bytes() []byte {
	if t.IsZero() {
		return nil
	}
	return []byte(t.secret.Value())
}

// NewToken returns a token of [TokenBytes] random bytes.
func NewToken() Token {
	var b [TokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return Token{unique.Make(string(b[:]))}
}

// TokenOf returns the token with the given secret. The caller guarantees that the bytes are random. TokenOf copies secret.
func TokenOf(secret []byte) (Token, error) {
	if n := len(secret); n < MinTokenBytes {
		return Token{}, fmt.Errorf("a token of %d bits; at least %d random bits are required, because a shorter one can be guessed: make one with cinnabar token new", 8*n, 8*MinTokenBytes)
	} else if n > maxTokenBytes {
		return Token{}, fmt.Errorf("a token of %d bytes; at most %d are allowed", n, maxTokenBytes)
	}
	var seen [256]bool
	distinct := 0
	for _, b := range secret {
		if !seen[b] {
			seen[b] = true
			distinct++
		}
	}
	if distinct < leastDistinct {
		return Token{}, fmt.Errorf("a token with %d different bytes, which are not random; make one with cinnabar token new", distinct)
	}
	return Token{unique.Make(string(secret))}, nil
}

// ParseToken reads the text of a token, as [Token.Reveal] returns it. White space around the text is ignored. The error does not contain the
// text.
func ParseToken(text string) (Token, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	if !ok {
		return Token{}, fmt.Errorf("this is no token, because it does not begin with %q; make one with cinnabar token new", tokenPrefix)
	}
	if base64.RawURLEncoding.DecodedLen(len(encoded)) > maxTokenBytes {
		return Token{}, fmt.Errorf("a token of %d characters; at most %d bytes are allowed", len(encoded), maxTokenBytes)
	}
	if strings.ContainsAny(encoded, "\r\n") { // package base64 ignores them
		return Token{}, errors.New("this is no token, because a line ends inside it")
	}
	secret, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return Token{}, fmt.Errorf("this is no token, because the text behind %q is not base64 in the alphabet for URLs; make one with cinnabar token new", tokenPrefix)
	}
	return TokenOf(secret)
}

// ReadToken reads a token from a file. On Unix the file must not be readable for all users, nor writable for its group.
func ReadToken(path string) (Token, error) {
	f, err := open(path)
	if err != nil {
		return Token{}, fmt.Errorf("token: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return Token{}, fmt.Errorf("token: %w", err)
	}
	if err := private(path, info); err != nil {
		return Token{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	switch {
	case err != nil:
		return Token{}, fmt.Errorf("token: %w", err)
	case len(text) > maxTokenFile:
		return Token{}, fmt.Errorf("token file %s has more than %d bytes; it holds the one line that cinnabar token new prints", path, maxTokenFile)
	}
	t, err := ParseToken(string(text))
	if err != nil {
		return Token{}, fmt.Errorf("token file %s: %w", path, err)
	}
	return t, nil
}

// pipeTime bounds each read of a file that is a pipe.
const pipeTime = 5 * time.Second

// open opens a file for reading. A pipe is allowed, and neither its missing nor its silent writer keeps the caller waiting, because a reload would
// otherwise never end.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		_ = f.SetReadDeadline(time.Now().Add(pipeTime)) // fails for other files, which need none
	}
	return f, err
}

// sharedRights are the rights on a file with a secret that other users must not have.
const sharedRights fs.FileMode = 0o027

// private returns an error if users other than the owner and the group may use the file at path, or if its group may change it.
func private(path string, info fs.FileInfo) error {
	if info.IsDir() {
		return fmt.Errorf("%s is a directory, and a file with a secret is required", path)
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&sharedRights != 0 {
		return fmt.Errorf("%s has mode %#o, so that other users can read or change the secret in it: run chmod 600 %s", path, mode, path)
	}
	return nil
}

// IsZero reports whether t is the zero Token.
func (t Token) IsZero() bool { return t == Token{} }

// Equal reports whether t and u are the same token, in a time that does not depend on their bytes.
func (t Token) Equal(u Token) bool { return hmac.Equal(t.bytes(), u.bytes()) }

// Reveal returns the text of the token for a file that other processes read.
func (t Token) Reveal() string {
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(t.bytes())
}

// String returns a text without the secret.
func (t Token) String() string {
	if t.IsZero() {
		return "no token"
	}
	return fmt.Sprintf("token of %d bits (hidden)", 8*len(t.bytes()))
}

// Format implements [fmt.Formatter], so that no verb prints the secret.
func (t Token) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, t.String()) } // an error is the writer's

// LogValue implements [slog.LogValuer].
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MAC returns the HMAC-SHA-256 of the parts with the secret as key. label is the purpose of the MAC. The length of each part is hashed before
// it, so that two lists with the same bytes and other boundaries have different MACs. A process must not compute MACs with a label of this module, "cinnabar …", for others,
// because they prove the token.
func (t Token) MAC(label string, parts ...[]byte) (mac [sha256.Size]byte) {
	h := hmac.New(sha256.New, t.bytes())
	add := func(b []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		_, _ = h.Write(n[:]) // never fails (package hash)
		_, _ = h.Write(b)    // never fails (package hash)
	}
	add([]byte(label))
	for _, p := range parts {
		add(p)
	}
	h.Sum(mac[:0])
	return mac
}
