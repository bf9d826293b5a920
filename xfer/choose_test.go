package xfer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

var goldenChoice = map[string]fastMessage{
	"0100 0000 07000000 0010000000000000 05000000 00000000 70686f746f732f": {kind: fastOpen, length: 7, number: 4096, word: 5, tail: []byte("photos/")},
	"1000 0000 05000000 0000000000000000 01000000 02000000 00 ff3f 80 01":  {kind: fastWant, length: 5, word: 1, count: 2, tail: []byte{0, 0xff, 0x3f, 0x80, 1}},
	"1100 0000 06000000 0300000000000000 00000000 00000000 020003612e62":   {kind: fastNote, length: 6, number: 3, tail: []byte("\x02\x00\x03a.b")},
	"1100 0000 00000000 0300000000000000 01000000 00000000":                {kind: fastNote, number: 3, word: 1, tail: []byte{}},
}

func TestGoldenChoice(t *testing.T) {
	testGolden(t, goldenChoice, parseFast, appendFast, gocmp.AllowUnexported(fastMessage{}))
	hi := hello{fast: true, choice: true, digest: SHA256, size: 5}
	b := appendHello(nil, hi)
	if got, err := parseHello(b); err != nil || got != hi || b[6] != 4 {
		t.Errorf("got %+v, %v, abilities %d", got, err, b[6])
	}
	a := answer{protocol: Fast, choice: true, digest: SHA256, chunk: 1, buffers: 1}
	b = appendAnswer(nil, a)
	if got, err := parseAnswer(b); err != nil || got != a || b[6] != 4 {
		t.Errorf("got %+v, %v, form %d", got, err, b[6])
	}
	for kind := range 32 {
		m := fastMessage{kind: uint16(kind)}
		if _, n := parseFast(appendFast(nil, m)); (n >= 0) != (kind >= fastOpen && kind <= fastFailed || kind == fastWant || kind == fastNote || kind == fastRequest || kind == fastAttr) {
			t.Errorf("kind %d: length %d", kind, n)
		}
	}
	if _, n := parseFast(append(appendFast(nil, fastMessage{kind: fastWant}), 0)); n != fastLen {
		t.Errorf("got length %d", n)
	}
	long := appendFast(nil, fastMessage{kind: fastWant, tail: make([]byte, maxWantTail+1)})
	if _, n := parseFast(long); n >= 0 {
		t.Error("a tail beyond the limit is taken")
	}
}

// Ranges and removals are read as they were written, and malformed ones are not.
func TestRequestBytes(t *testing.T) {
	const size = 1 << 40
	list := []Range{{Offset: 100, Length: 1}, {Offset: 100, Length: MaxSumRange, Sum: true}, {Offset: 101, Length: 5}, {Offset: 1 << 39, Length: 1 << 39}, {Offset: size - 1, Length: 1, Sum: true}}
	out, in := ranges{100, 100}, ranges{100, 100}
	for _, r := range list {
		b := out.append(nil, r)
		if got, n := in.parse(b, size); n != len(b) || got != r {
			t.Errorf("got %+v, %d bytes; want %+v, %d", got, n, r, len(b))
		}
	}
	for name, b := range map[string]string{
		"nothing":              "",
		"no length":            "\x00",
		"length 0":             "\x00\x00",
		"sum of no bytes":      "\x00\x01",
		"beyond the end":       "\x0b\x02",
		"longer than the rest": "\x0a\x04",
		"distance of 64 bits":  "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02",
		"length of 63 bits":    "\x00\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"number of 65 bits":    "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x02",
	} {
		if r, n := new(ranges{100, 100}).parse([]byte(b), 111); n >= 0 {
			t.Errorf("%s: got %+v", name, r)
		}
	}
	if r, n := (&ranges{}).parse((&ranges{}).append(nil, Range{Length: MaxSumRange + 1, Sum: true}), size); n >= 0 {
		t.Errorf("a sum over the limit: got %+v", r)
	}
	for _, r := range []Removal{{Name: "a"}, {Name: "d", Dir: true, Depth: 3}, {Name: strings.Repeat("x", 255), Dir: true, Stays: true, Depth: 1024}} {
		b := appendRemoval(nil, r)
		if got, n := parseRemoval(b); n != len(b) || got != r {
			t.Errorf("got %+v, %d bytes; want %+v, %d", got, n, r, len(b))
		}
	}
	for _, b := range []string{"", "\x00\x00\x01a", "\x04\x00\x01a", "\x02\x00\x00", "\x02\x00\x02a", "\x02\x81\x08\x01a", "\x02\x00\x01/", "\x02\x00\x02..", "\x02\x00\x01.", "\x02\x00\x01\x00", "\x02", "\x02\x00"} {
		if r, n := parseRemoval([]byte(b)); n >= 0 {
			t.Errorf("%q: got %+v", b, r)
		}
	}
}

// FuzzChoice reads requests and removals of a peer. Those that are read follow one another, and are written as they were.
func FuzzChoice(f *testing.F) {
	f.Add([]byte{0, 2, 3, 5, 1, 3}, int64(100))
	f.Add([]byte("\x03\x00\x01a\x02\x01\x02bc"), int64(1))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		size &= math.MaxInt64
		in, out := ranges{}, ranges{}
		total := int64(0)
		for rest := b; ; {
			r, n := in.parse(rest, size)
			if n < 0 {
				break
			}
			before := out
			b := out.append(nil, r)
			if again, m := before.parse(b, size); m < 0 || again != r {
				t.Fatalf("%+v is read again as %+v", r, again)
			}
			if total += r.Length / 2; total > size || r.Offset+r.Length > size {
				t.Fatalf("%+v is beyond %d bytes", r, size)
			}
			rest = rest[n:]
		}
		var paths removalPaths
		for rest := b; ; {
			r, n := parseRemoval(rest)
			if n < 0 {
				break
			}
			paths.path(&r)
			rest = rest[n:]
		}
	})
}

// choosingFile is a File of which old is there already. It asks for the sums of sums, and for the data of wants and of the sums that differ, per of them at a time.
type choosingFile struct {
	old         []byte
	sums, wants []Range
	removals    []Removal
	per         int

	offer     Offer
	summing   int // sums that are under way
	sorted    bool
	data      []byte
	spared    []int
	committed bool
	commit    func() error
	steps     func() uint64
}

func (f *choosingFile) Choose(o Offer) error {
	f.offer = o
	f.data = make([]byte, o.Size)
	copy(f.data, f.old)
	return nil
}

func (f *choosingFile) Want() (w Wanted, err error) {
	if len(f.removals) > 0 {
		w.Removals, f.removals = f.removals, nil
		return w, nil
	}
	from := &f.sums
	if len(*from) == 0 {
		if f.summing > 0 {
			return w, nil
		}
		from = &f.wants
		if !f.sorted {
			f.sorted = true
			slices.SortFunc(f.wants, func(a, b Range) int { return cmp.Compare(a.Offset, b.Offset) })
		}
	}
	n := min(f.per, len(*from))
	w.Ranges, *from = (*from)[:n], (*from)[n:]
	if from == &f.sums {
		f.summing += n
	}
	w.Last = len(f.sums)+len(f.wants)+f.summing == 0
	return w, nil
}

func (f *choosingFile) Sum(r Range, sum [SumLen]byte) error {
	f.summing--
	h := f.offer.NewHash()
	h.Write(f.data[r.Offset:][:r.Length])
	if !bytes.Equal(h.Sum(nil), sum[:]) {
		f.wants = append(f.wants, Range{Offset: r.Offset, Length: r.Length})
	}
	return nil
}

func (f *choosingFile) Spare(n int) { f.spared = append(f.spared, n) }

func (f *choosingFile) WriteAt(b []byte, offset int64) (int, error) {
	return copy(f.data[offset:], b), nil
}

func (f *choosingFile) Commit() error {
	f.committed = true
	if f.commit != nil {
		return f.commit()
	}
	return nil
}

func (f *choosingFile) Discard() error { return nil }

func (f *choosingFile) Steps() uint64 {
	if f.steps == nil {
		return 0
	}
	return f.steps()
}

// sendTo sends to a receiver with this file over a device in memory, in a bubble of synctest.
func sendTo(t *testing.T, f File, s Sender, src Source) (Result, Result, error) {
	t.Helper()
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	l := must(verbs.Listen(dev, loopback))(t)
	type outcome struct {
		res Result
		err error
	}
	served := make(chan outcome, 1)
	observe := func() Progress { return &recorder{t: t, simulated: true} }
	s.Progress = observe
	r := Receiver{Open: func(context.Context, netip.AddrPort, string, Meta, int64) (File, error) { return f, nil }, Progress: observe}
	go func() {
		res, err := r.ServeOne(t.Context(), l)
		served <- outcome{res, err}
	}()
	res, err := s.Send(t.Context(), dev, l.Addr(), src)
	got := <-served
	if got.err != nil && err == nil && src.Choice.Wishes&WishDryRun == 0 {
		t.Errorf("the sender got %v, and the receiver %v", err, got.err)
	}
	if err := errors.Join(l.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	return res, got.res, err
}

// Of random files of which the receiver has a part, right or wrong, only what it chooses crosses, and the file is whole.
//
// parity: X02
func TestOnlyWantedCrosses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(0, 40_000).Draw(rt, "size")
		data := noise(size)
		head := rapid.IntRange(0, size).Draw(rt, "head")
		f := &choosingFile{old: bytes.Clone(data), per: rapid.IntRange(1, 200).Draw(rt, "per")}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		clear(f.old[:head])
		kept := 0
		most := rapid.SampledFrom([]int{10, 1000, 20_000}).Draw(rt, "range")
		for at := head; at < size; {
			n := min(1+random.IntN(most), size-at)
			r := Range{Offset: int64(at), Length: int64(n)}
			switch random.IntN(4) {
			case 0: // the receiver has nothing
				clear(f.old[at : at+n])
				f.wants = append(f.wants, r)
			case 1: // the receiver does not ask
				kept += n
			default:
				if random.IntN(3) == 0 {
					f.old[at+random.IntN(n)] ^= 1
				} else {
					kept += n
				}
				r.Sum = true
				f.sums = append(f.sums, r)
			}
			at += n
		}
		synctest.Test(t, func(t *testing.T) {
			src := sourceOf("f", data)
			src.Choice = &Choice{Head: int64(head)}
			s := Sender{Protocol: Fast, Chunk: minChunk, Window: rapid.IntRange(1, 9).Draw(rt, "window"), Digest: rapid.SampledFrom([]Digest{SHA256, NoDigest}).Draw(rt, "digest")}
			sent, stored, err := sendTo(t, f, s, src)
			if err != nil {
				rt.Fatal(err)
			}
			if !bytes.Equal(f.data, data) || !f.committed {
				rt.Fatal("the file differs")
			}
			if sent.Kept != int64(kept) || stored.Kept != int64(kept) || sent.Size != int64(size) || stored.Size != int64(size) {
				rt.Fatalf("%d bytes with %d kept at the sender, %d with %d at the receiver; want %d with %d", sent.Size, sent.Kept, stored.Size, stored.Kept, size, kept)
			}
		})
	})
}

// The list of removals reaches the sender, which spares some, before the file has its name.
func TestRemovals(t *testing.T) {
	for _, spares := range []string{"dir/a", ""} { // some, and all
		testRemovals(t, spares)
	}
}

func testRemovals(t *testing.T, spares string) {
	t.Helper()
	f := &choosingFile{per: 1}
	want := []string{}
	for i := range 1000 { // far more than one message has
		name := string(rune('a'+i%26)) + strings.Repeat("x", 40)
		f.removals = append(f.removals, Removal{Name: "dir", Dir: true, Stays: i%2 == 0}, Removal{Name: name, Depth: 1})
		if i%2 != 0 {
			want = append(want, "dir")
		}
		want = append(want, "dir/"+name)
	}
	synctest.Test(t, func(t *testing.T) {
		var got []string
		src := sourceOf("f", nil)
		src.Choice = &Choice{Wishes: WishDelete, Must: true, Remove: func(path string, dir bool) bool {
			if f.committed {
				t.Error("the list comes after the commit")
			}
			got = append(got, path)
			return !strings.HasPrefix(path, spares)
		}}
		if _, _, err := sendTo(t, f, Sender{}, src); err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if spares == "" && len(f.spared) != len(want) || spares != "" && (len(f.spared) != 39 || f.spared[1] != 2*26+1) {
			t.Errorf("spared are %v", f.spared)
		}
	})
}

// A dry run stores nothing, and is a success of the sender.
func TestDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &choosingFile{per: 1, wants: []Range{{Length: 10}}}
		src := sourceOf("f", noise(10))
		src.Choice = &Choice{Wishes: WishDryRun}
		if _, _, err := sendTo(t, f, Sender{}, src); err != nil || f.committed {
			t.Errorf("got %v; committed: %v", err, f.committed)
		}
	})
}

// A file that works for longer than the timeout of both sides is waited for as long as the work goes on, and no longer.
func TestLongWork(t *testing.T) {
	for name, stops := range map[string]time.Duration{"goes on": time.Hour, "stops": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				f := &choosingFile{per: 1, steps: func() uint64 { return uint64(min(time.Since(start), stops)) }}
				f.commit = func() error {
					<-time.NewTimer(10 * time.Minute).C
					return nil
				}
				src := sourceOf("f", nil)
				src.Choice = &Choice{}
				_, _, err := sendTo(t, f, Sender{}, src)
				if stops == time.Hour {
					if err != nil {
						t.Error(err)
					}
					return
				}
				wantCode(t, err, CodeTimeout, false, "nothing has moved for 30s")
				if took := time.Since(start); took < stops || took > 12*time.Minute {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// Receivers without Choosers take everything, and refuse to remove; those of earlier versions take everything too, unless the sender insists.
func TestPlainFileIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := noise(3*minChunk + 7)
		f := &memFile{disk: instant}
		src := sourceOf("f", data)
		src.Choice = &Choice{Head: minChunk + 5}
		if _, _, err := sendTo(t, f, Sender{Chunk: minChunk}, src); err != nil || !bytes.Equal(f.data, data) {
			t.Errorf("got %v and %d bytes", err, len(f.data))
		}
		src.Choice.Wishes = WishDelete
		_, _, err := sendTo(t, &memFile{disk: instant}, Sender{}, src)
		wantCode(t, err, CodeUnsupported, true, "removes nothing for senders")
		src.Choice = &Choice{Head: -1}
		_, err = (&Sender{}).Send(t.Context(), verbs.NewDevice(memdev.Open(memdev.Config{})), loopback, src)
		wantCode(t, err, CodeSource, false, "the head of the source")
	})
}

// streaming returns a client of a source of 1000 bytes with a head of 100 that has sent the head.
func streaming(t *testing.T, wishes Wishes) *fastClient {
	t.Helper()
	c := newFastClient(agreement{chunk: 4096, size: 1000, buffers: 2, digest: NoDigest, chooses: true}, "f", &Choice{Head: 100, Wishes: wishes})
	c.step(event{kind: evConnected}, nil)
	c.step(event{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastLayout, length: 4096, count: 2})}, nil)
	c.step(event{kind: evRead, n: 100}, nil)
	return c
}

// A client refuses choices that break the rules.
func TestBadChoices(t *testing.T) {
	want := func(last uint32, b string, count uint32) fastMessage {
		return fastMessage{kind: fastWant, word: last, count: count, tail: []byte(b)}
	}
	note := func(number uint64, tail string) fastMessage {
		return fastMessage{kind: fastNote, number: number, tail: []byte(tail)}
	}
	one := want(0, "\x00\x02", 1)
	for name, c := range map[string]struct {
		wishes Wishes
		msgs   []fastMessage
		text   string
	}{
		"nothing, not last":     {0, []fastMessage{want(0, "", 0)}, "WANT with 0 ranges"},
		"after the last":        {0, []fastMessage{want(1, "\x00\x02", 1), one}, "after the last one: true"},
		"beyond the end":        {0, []fastMessage{want(1, "\x00\x88\x0f", 1)}, "does not follow the others"},
		"too few":               {0, []fastMessage{want(1, "\x00\x02", 2)}, "does not follow the others"},
		"too many":              {0, []fastMessage{want(1, "\x00\x02\x00\x02", 1)}, "2 bytes behind its 1 ranges"},
		"count of 4 billion":    {0, []fastMessage{want(1, "\x00\x02", 1<<32-1)}, "does not follow the others"},
		"note out of turn":      {0, []fastMessage{note(2, "")}, "NOTE 2 with 0 bytes, after NOTE 0"},
		"note again":            {0, []fastMessage{note(1, ""), note(1, "")}, "after NOTE 1"},
		"removals not asked":    {WishUpdate, []fastMessage{note(1, "\x02\x00\x01a")}, "NOTE 1 with 4 bytes"},
		"removal without sense": {WishDelete, []fastMessage{note(1, "\x05")}, "makes no sense"},
		"removal of no parent":  {WishDelete, []fastMessage{note(1, "\x02\x01\x01a")}, "depth 1 and no directory"},
		"33 removals":           {WishDelete, []fastMessage{note(1, strings.Repeat("\x02\x00\x01a", 33))}, "makes no sense"},
	} {
		t.Run(name, func(t *testing.T) {
			client := streaming(t, c.wishes)
			var failure error
			for _, m := range c.msgs {
				for _, a := range client.step(event{kind: evReceived, data: appendFast(nil, m)}, nil) {
					if a.kind == actFinish {
						failure = a.err
					}
				}
			}
			if !errors.Is(failure, CodeProtocol) || !strings.Contains(failure.Error(), c.text) {
				t.Errorf("got %v, want %q", failure, c.text)
			}
		})
	}
	client := streaming(t, 0)
	for i := range 12 { // buffers are full, so that nothing more is read
		acts := client.step(event{kind: evReceived, data: appendFast(nil, want(0, "\x00\x02", 1))}, nil)
		if over := acts[len(acts)-1].kind == actFinish; over {
			if i < mostUnderWay {
				t.Errorf("WANT %d is refused", i)
			}
			return
		}
	}
	t.Error("a client takes any number of WANTs at once")
}

// A server refuses clients that break the rules, and files of its own program that do.
func TestBadChoosers(t *testing.T) {
	open := fastMessage{kind: fastOpen, number: 100, tail: []byte("f")}
	answer := fastMessage{kind: fastNote, number: 1}
	message := func(m fastMessage) event { return event{kind: evReceived, data: appendFast(nil, m)} }
	head := []event{message(open), {kind: evOpened}, message(fastMessage{kind: fastChunk, length: 100}), {kind: evStored, n: 100}}
	for name, c := range map[string]struct {
		events []event
		code   Code
		text   string
	}{
		"head beyond the file":   {[]event{message(fastMessage{kind: fastOpen, number: 1001, tail: []byte("f")})}, CodeProtocol, "the head of the file is said to have 1001 bytes"},
		"answer to no note":      {append(head[:2:2], message(answer)), CodeProtocol, "answered NOTE 1"},
		"answer twice":           {append(head[:2:2], event{kind: evWorking}, message(answer), message(answer)), CodeProtocol, "answered NOTE 1"},
		"spares what is not":     {append(head[:2:2], event{kind: evWorking}, message(fastMessage{kind: fastNote, number: 1, word: 1})), CodeProtocol, "spares entries"},
		"chunk beyond the head":  {append(head[:2:2], message(fastMessage{kind: fastChunk, length: 101})), CodeProtocol, "chunk 0 has 101 bytes"},
		"empty chunk":            {append(head[:2:2], message(fastMessage{kind: fastChunk})), CodeProtocol, "chunk 0 has 0 bytes"},
		"chunk before the wants": {append(head[:4:4], message(fastMessage{kind: fastChunk, number: 1, length: 1})), CodeProtocol, "after the end of the file"},
		"end before the last":    {append(head[:4:4], message(fastMessage{kind: fastEnd, number: 100})), CodeProtocol, "had not chosen all"},
		"end before the answer":  {append(head[:4:4], event{kind: evWanted, want: Wanted{Removals: []Removal{{Name: "r"}}}}, event{kind: evWanted, want: Wanted{Last: true}}, message(fastMessage{kind: fastEnd, number: 100})), CodeProtocol, "before it had answered"},
		"failing file":           {append(head[:4:4], event{kind: evWanted, err: failf(CodeStorage, "full")}), CodeStorage, "full"},
		"file that waits":        {append(head[:4:4], event{kind: evWanted}), CodeOther, "wants nothing"},
		"ranges out of order":    {append(head[:4:4], event{kind: evWanted, want: Wanted{Ranges: []Range{{Offset: 200, Length: 5}, {Offset: 204, Length: 5}}}}), CodeOther, "do not follow"},
		"range in the head":      {append(head[:4:4], event{kind: evWanted, want: Wanted{Ranges: []Range{{Offset: 99, Length: 5}}}}), CodeOther, "do not follow"},
		"range beyond the end":   {append(head[:4:4], event{kind: evWanted, want: Wanted{Ranges: []Range{{Offset: 100, Length: 901}}}}), CodeOther, "do not follow"},
		"sum of too much":        {append(head[:4:4], event{kind: evWanted, want: Wanted{Ranges: []Range{{Offset: 100, Length: 0, Sum: true}}}}), CodeOther, "do not follow"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFastServer(agreement{chunk: 4096, size: 1000, buffers: 2, digest: NoDigest, chooses: true}, verbs.RemoteAddr{})
			var failure error
			for _, ev := range c.events {
				for _, a := range s.step(ev, nil) {
					if a.kind == actFinish {
						failure = a.err
					}
				}
			}
			if !errors.Is(failure, c.code) && c.code != CodeOther || failure == nil || !strings.Contains(failure.Error(), c.text) {
				t.Errorf("got %v, want %q", failure, c.text)
			}
		})
	}
}

// FuzzChoosing gives messages of a peer to a client whose receiver chooses and to a server that lets its file choose. Neither keeps more than a bounded number of
// requests, and neither reads beyond the source.
//
// fuzz:state
func FuzzChoosing(f *testing.F) {
	message := func(m fastMessage) []byte {
		b := appendFast(nil, m)
		return append([]byte{byte(len(b)), byte(len(b) >> 8)}, b...)
	}
	f.Add(message(fastMessage{kind: fastWant, word: 1, count: 2, tail: []byte("\x00\x03\x05\x20")}))
	f.Add(slices.Concat(message(fastMessage{kind: fastWant, count: 1, tail: []byte("\x00\xa0\x0a")}), message(fastMessage{kind: fastCredit, number: 1}), message(fastMessage{kind: fastWant, word: 1})))
	f.Add(slices.Concat(message(fastMessage{kind: fastNote, number: 1, tail: []byte("\x03\x00\x01d\x02\x01\x01f")}), message(fastMessage{kind: fastNote, number: 2})))
	f.Add(message(fastMessage{kind: fastNote, number: 1, word: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		client := streaming(t, WishDelete)
		server := newFastServer(agreement{chunk: 4096, size: 1000, buffers: 2, digest: NoDigest, chooses: true}, verbs.RemoteAddr{})
		server.step(event{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastOpen, number: 100, tail: []byte("f")})}, nil)
		server.step(event{kind: evOpened}, nil)
		var clientOver, serverOver bool
		for len(b) >= 2 && !(clientOver && serverOver) {
			n := min(int(b[0])|int(b[1]&1)<<8, len(b)-2)
			data := b[2 : 2+n]
			b = b[2+n:]
			if !clientOver {
				clientOver = answerClient(t, client, client, event{kind: evReceived, data: data})
			}
			if !serverOver {
				serverOver = answerServer(server, event{kind: evReceived, data: data})
			}
		}
	})
}

// answerClient gives a machine with a client in it an event, and does the work that it asks for. It reports whether the machine has ended.
func answerClient(t *testing.T, m machine, c *fastClient, ev event) bool {
	for events := []event{ev}; len(events) > 0; events = events[1:] {
		for _, a := range m.step(events[0], nil) {
			switch a.kind {
			case actFinish:
				return true
			case actRead:
				parts := a.parts
				if parts == nil && a.n > 0 {
					parts = []Range{{Offset: a.offset, Length: int64(a.n)}}
				}
				for _, p := range parts {
					if p.Offset < 100 || p.Length <= 0 || p.Offset+p.Length > 1000 {
						t.Fatalf("%+v is read of 1000 bytes with a head of 100", p)
					}
				}
				events = append(events, event{kind: evRead, slot: a.slot, n: a.n})
			case actSend:
				if a.slot != none {
					events = append(events, event{kind: evSent, slot: a.slot})
				}
			default: // receives and writes
			}
		}
		if n := len(c.choice.queue); n > mostUnderWay*maxWantTail/2 {
			t.Fatalf("%d requests are kept", n)
		}
	}
	return false
}

// answerServer gives a server an event, and does the work that it asks for. It reports whether the server has ended.
func answerServer(s machine, ev event) bool {
	for events := []event{ev}; len(events) > 0; events = events[1:] {
		for _, a := range s.step(events[0], nil) {
			switch a.kind {
			case actFinish:
				return true
			case actStore:
				events = append(events, event{kind: evStored, slot: a.slot, n: a.n})
			case actWant:
				events = append(events, event{kind: evWanted, want: Wanted{Removals: []Removal{{Name: "r"}}, Ranges: []Range{{Offset: 100, Length: 900}}, Last: true}}, event{kind: evWorking})
			case actCommit:
				events = append(events, event{kind: evWorking}, event{kind: evCommitted})
			default: // receives and messages
			}
		}
	}
	return false
}

// A receiver chooses nothing of a stream, also if the peer lets it.
func TestNothingToChoose(t *testing.T) {
	r := &host{Receiver: &Receiver{Files: func(context.Context, netip.AddrPort, FileRequest) (Source, io.Closer, error) {
		return Source{}, nil, nil
	}}}
	for _, h := range []hello{{stream: true, choice: true, digest: SHA256}, {pull: true, choice: true, digest: SHA256}, {fast: true, choice: true, digest: SHA256}} {
		if a, _, err := r.choose(h, true); err != nil || a.chooses == h.stream {
			t.Errorf("%+v: %+v, %v", h, a, err)
		}
	}
}

// Sums are computed from the bytes of SumData, and ranges are read from Data.
func TestSumData(t *testing.T) {
	data := noise(100)
	r := reader{src: Source{Data: failingAt{}, Size: 100, Choice: &Choice{SumData: bytes.NewReader(data)}}, sum: sha256.New}
	b := make([]byte, SumLen)
	if err := r.readParts(b, []Range{{Offset: 10, Length: 90, Sum: true}}); err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(data[10:]); !bytes.Equal(b, sum[:]) {
		t.Errorf("got %x, want %x", b, sum)
	}
	if err := r.readParts(b, []Range{{Offset: 10, Length: SumLen}}); !errors.Is(err, errNotRead) {
		t.Errorf("got %v", err)
	}
}

var errNotRead = errors.New("it was read")

// failingAt is a source that cannot be read.
type failingAt struct{}

func (failingAt) ReadAt([]byte, int64) (int, error) { return 0, errNotRead }

// One read of the source hashes no more than one block, because a side hears nothing of the other meanwhile.
func TestSumsOfOneRead(t *testing.T) {
	s := newChosen(&Choice{}, 1<<40)
	for i := range int64(16) {
		s.queue = append(s.queue, Range{Offset: i * resumeBlock, Length: resumeBlock, Sum: true})
	}
	for range 16 {
		var read action
		if n := s.next(&read, 4096); n != SumLen || len(read.parts) != 1 {
			t.Fatalf("a read has %d bytes, of %+v", n, read.parts)
		}
	}
	for i := range int64(3) { // small ones are read together
		s.queue = append(s.queue, Range{Offset: i * 1000, Length: 1000, Sum: true})
	}
	var read action
	if n := s.next(&read, 4096); n != 3*SumLen || len(read.parts) != 3 {
		t.Errorf("a read has %d bytes, of %+v", n, read.parts)
	}
}

// A source of the largest size crosses with no sums beside it, because what crosses must have a length.
func TestSumsBeyondAllSizes(t *testing.T) {
	s := newFastServer(agreement{chunk: 4096, size: math.MaxInt64, buffers: 2, digest: NoDigest, chooses: true}, verbs.RemoteAddr{})
	var failure error
	for _, ev := range []event{
		{kind: evReceived, data: appendFast(nil, fastMessage{kind: fastOpen, tail: []byte("f")})},
		{kind: evOpened},
		{kind: evWanted, want: Wanted{Ranges: []Range{{Length: math.MaxInt64}, {Length: 1, Sum: true}}}},
	} {
		for _, a := range s.step(ev, nil) {
			if a.kind == actFinish {
				failure = a.err
			}
		}
	}
	if !errors.Is(failure, CodeTooLarge) {
		t.Errorf("got %v", failure)
	}
}
