package main

import (
	"fmt"
	"strconv"
	"strings"
)

// Over na+sm one program is measured at a time in any case, as everywhere here. More than that: nothing else on the
// machine may use na+sm, since Mercury's server removes the files of all others when it starts.

// mercurySM is a client of Mercury's over na+sm.
func mercurySM(program, size, inflight string, loops int, more ...string) path {
	args := append([]string{program, "-c", "na", "-p", "sm", "-y", size, "-z", size, "-x", inflight, "-l", "LOOPS"}, more...)
	return path{
		name: "mercury", server: []string{"hg_perf_server", "-c", "na", "-p", "sm"}, ready: "# Waiting",
		client: args, loops: loops, parse: parseMercury,
	}
}

func oursSM(op string, args ...string) path {
	p := ours(op, args...)
	p.server, p.ready = []string{"cinnabar", "perf", "serve", "--once", "na+sm"}, "na+sm"
	return p
}

// rateSM is rateCase over na+sm.
func rateSM(size, inflight, loops int) benchCase {
	z, n := strconv.Itoa(size), strconv.Itoa(inflight)
	return benchCase{
		name: fmt.Sprintf("na+sm rate %d bytes, %d in flight", size, inflight), unit: "usec/call",
		value: func(f figure) float64 { return f.Usec },
		paths: []path{mercurySM("hg_rate", z, n, loops), oursSM("rate", "--size", z, "--inflight", n)},
	}
}

// bulkSM is bulkCase over na+sm.
func bulkSM(op string, size, loops int) benchCase {
	z := strconv.Itoa(size)
	name := fmt.Sprintf("na+sm %s %d KiB", op, size>>10)
	return benchCase{
		name: name, unit: "MiB/s",
		value: func(f figure) float64 { return f.MiB },
		paths: []path{mercurySM("hg_"+strings.ReplaceAll(op, "-", "_"), z, "1", loops, "-w", "1"), oursSM(op, "--size", z)},
	}
}

// pingSM is messages of the bare transport, one at a time, there and back: half of that, as na_lat counts.
func pingSM(size, loops int) benchCase {
	z := strconv.Itoa(size)
	return benchCase{
		name: fmt.Sprintf("na+sm transport, message of %d bytes", size), unit: "usec",
		value: func(f figure) float64 { return f.Usec },
		paths: []path{
			{
				name: "mercury", server: []string{"na_perf_server", "-p", "sm"}, ready: "# Waiting",
				client: []string{"na_lat", "-p", "sm", "-y", z, "-z", z, "-l", "LOOPS"}, loops: loops, parse: parseLatency,
			},
			{
				name: "cinnabar", server: []string{"smping", "serve"}, ready: "na+sm",
				client: []string{"smping", "ping", "ADDRESS", "-size", z, "-duration", "DURATION"}, parse: parseJSON,
			},
		},
	}
}

// parseLatency reads the table of na_lat: size and half a round trip.
func parseLatency(text string) (figure, error) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 && !strings.HasPrefix(line, "#") {
			usec, err := strconv.ParseFloat(fields[1], 64)
			return figure{Usec: usec}, err
		}
	}
	return figure{}, fmt.Errorf("no result in %q", text)
}
