package identity

import (
	"crypto/x509"
	"os"
	"strconv"
	"strings"
	"testing"

	"cinnabar/internal/tlstest"
)

// authority returns the certificate of a new authority in PEM, which has several lines and ends with a line feed.
func authority(t testing.TB) string {
	t.Helper()
	ca := tlstest.NewCA(t)
	_, _, roots := ca.Write(t, t.TempDir(), ca.Issue(t, tlstest.Certificate{}))
	text, err := os.ReadFile(roots)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text)) + "\n"
}

// TestAuthorities checks that each malformed block is an error with its line, though the file has a certificate before it.
func TestAuthorities(t *testing.T) {
	one, two := authority(t), authority(t)
	lines := strings.Count(one, "\n")
	body := strings.Split(two, "\n")
	garbled := strings.Replace(two, body[1], "AAAA"+body[1][4:], 1)
	for _, test := range []struct {
		name, text string
		count      int
		errors     []string
	}{
		{"two", one + two, 2, nil},
		{"comments and another block", "# first\n" + one + "\nsecond\n-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + two, 2, nil},
		{"line ends of Windows", strings.ReplaceAll(one+two, "\n", "\r\n"), 2, nil},
		{"no last line end", strings.TrimSuffix(one, "\n"), 1, nil},
		{"empty", "", 0, []string{"no certificate in PEM"}},
		{"comments", "# none\n", 0, []string{"no certificate in PEM"}},
		{"not X.509", one + garbled, 0, []string{"line " + strconv.Itoa(lines+1), "cannot be read"}},
		{"not base64", one + "\n" + strings.Replace(two, body[1], "!"+body[1][1:], 1), 0, []string{"line " + strconv.Itoa(lines+2), "not PEM"}},
		{"not base64, before another", strings.Replace(two, body[1], "!"+body[1][1:], 1) + one, 0, []string{"line 1 ", "not PEM"}},
		{"cut", one + two[:len(two)/2], 0, []string{"line " + strconv.Itoa(lines+1), "end is missing"}},
		{"cut, before another", two[:len(two)/2] + "\n" + one, 0, []string{"line 1 ", "end is missing"}},
		{"a short first line", one + strings.TrimPrefix(two, "-"), 0, []string{"line " + strconv.Itoa(lines+strings.Count(two, "\n")), "does not begin"}},
		{"another type", one + strings.ReplaceAll(two, " CERTIFICATE", " TRUSTED CERTIFICATE"), 0, []string{"line " + strconv.Itoa(lines+1), "TRUSTED CERTIFICATE", "openssl x509"}},
		{"headers", strings.Replace(two, "-----\n", "-----\nA: b\n\n", 1), 0, []string{"line 1 ", "headers"}},
	} {
		pool, err := parseAuthorities([]byte(test.text))
		if (err == nil) != (test.errors == nil) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.errors)
			continue
		}
		for _, want := range test.errors {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q, want %q in it", test.name, err, want)
			}
		}
		if err == nil {
			want := x509.NewCertPool()
			if want.AppendCertsFromPEM([]byte(test.text)); !pool.Equal(want) {
				t.Errorf("%s: the pool has other certificates than %d", test.name, test.count)
			}
		}
	}
}

// FuzzAuthorities checks that a text that is accepted has all certificates that package x509 finds in it.
func FuzzAuthorities(f *testing.F) {
	one := authority(f)
	for _, text := range []string{one, one + one, "", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", one[:100], "-----BEGIN -----BEGIN \n-----END ", strings.ReplaceAll(one, "\n", "\r\n")} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		pool, err := parseAuthorities(text)
		if err != nil {
			return
		}
		all := pool.Clone()
		if all.AppendCertsFromPEM(text); !all.Equal(pool) {
			t.Errorf("certificates are missing of %q", text)
		}
	})
}
