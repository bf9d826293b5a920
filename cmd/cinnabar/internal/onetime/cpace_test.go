package onetime

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/gtank/ristretto255"
)

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The test vectors of draft-irtf-cfrg-cpace, appendix B.3 (ristretto255 and SHA-512).
func TestCPaceVectors(t *testing.T) {
	sid := unhex(t, "7e4b4791d6a8ef019b936c79fb7f2c57")
	channel := unhex(t, "6f630b425f726573706f6e6465720b415f696e69746961746f72")
	g := generator([]byte("Password"), channel, sid)
	if got, want := g.Encode(nil), unhex(t, "a6fc82c3b8968fbb2e06fee81ca858586dea50d248f0c7ca6a18b0902a30b36b"); !bytes.Equal(got, want) {
		t.Errorf("generator %x, want %x", got, want)
	}
	scalar := func(text string) *ristretto255.Scalar {
		s := ristretto255.NewScalar()
		if err := s.Decode(unhex(t, text)); err != nil {
			t.Fatal(err)
		}
		return s
	}
	ya, yb := scalar("da3d23700a9e5699258aef94dc060dfda5ebb61f02a5ea77fad53f4ff0976d08"), scalar("d2316b454718c35362d83d69df6320f38578ed5984651435e2949762d900b80d")
	shareA, shareB := ristretto255.NewElement().ScalarMult(ya, g).Encode(nil), ristretto255.NewElement().ScalarMult(yb, g).Encode(nil)
	if want := unhex(t, "d40fb265a7abeaee7939d91a585fe59f7053f982c296ec413c624c669308f87a"); !bytes.Equal(shareA, want) {
		t.Errorf("Ya %x, want %x", shareA, want)
	}
	if want := unhex(t, "08bcf6e9777a9c313a3db6daa510f2d398403319c2341bd506a92e672eb7e307"); !bytes.Equal(shareB, want) {
		t.Errorf("Yb %x, want %x", shareB, want)
	}
	want := unhex(t, "4c5469a16b2364c4b944ebc1a79e51d1674ad47db26e8718154f59faebfaa52d8346f30aa58377117eb20d527f2cbc5c76381f7fd372e89df8239f87f2e02ed1")
	for side, c := range map[string]struct {
		cpace
		other []byte
	}{
		"A": {cpace{sid: sid, own: shareA, scalar: ya, initiator: true, ad: "ADa", peer: "ADb"}, shareB},
		"B": {cpace{sid: sid, own: shareB, scalar: yb, ad: "ADb", peer: "ADa"}, shareA},
	} {
		if got, err := c.finish(c.other); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: ISK %x, %v, want %x", side, got, err, want)
		}
	}
}

// TestCPaceRefuses: the method finish refuses a share of the peer with which the secret would be known to anybody.
func TestCPaceRefuses(t *testing.T) {
	c := newCPace([]byte("x"), make([]byte, sidLen), true)
	for name, share := range map[string][]byte{
		"identity": make([]byte, shareLen), "short": c.own[:31], "empty": nil, "not canonical": bytes.Repeat([]byte{0xff}, shareLen),
	} {
		if secret, err := c.finish(share); err == nil {
			t.Errorf("%s: secret %x", name, secret)
		}
	}
}
