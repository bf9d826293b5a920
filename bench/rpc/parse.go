package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"cinnabar/bench/internal/record"
)

// parseMercury reads the table of Mercury's programs: size, then a rate and a mean time. They print no percentiles. The rate of
// hg_rate is in calls, which the time repeats; that of the other programs is in MB/s of 10^6 bytes or in MiB/s, as the header of the
// column says.
func parseMercury(text string) (record.Round, error) {
	bytes := 0.0 // of the unit of the rate; 0: the rate is no bandwidth
	for line := range strings.Lines(text) {
		switch {
		case strings.Contains(line, "(MiB/s)"):
			bytes = 1 << 20
		case strings.Contains(line, "(MB/s)"):
			bytes = 1e6
		}
		fields := strings.Fields(line)
		if len(fields) != 3 || strings.HasPrefix(line, "#") {
			continue
		}
		rate, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return record.Round{}, err
		}
		usec, err := strconv.ParseFloat(fields[2], 64)
		return checked(record.Round{Usec: usec, MiB: rate * bytes / (1 << 20)}, err)
	}
	return record.Round{}, fmt.Errorf("no result in %q", text)
}

// parseLatency reads the table of na_lat: size and half a round trip.
func parseLatency(text string) (record.Round, error) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 && !strings.HasPrefix(line, "#") {
			usec, err := strconv.ParseFloat(fields[1], 64)
			return checked(record.Round{Usec: usec}, err)
		}
	}
	return record.Round{}, fmt.Errorf("no result in %q", text)
}

// parseJSON reads the last line of a program that prints JSON.
func parseJSON(text string) (record.Round, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var f struct {
		Usec  float64 `json:"usec_per_call"`
		MiB   float64 `json:"mib_per_second"`
		P50   float64 `json:"p50_usec"`
		P99   float64 `json:"p99_usec"`
		Least float64 `json:"least_calls_per_second"`
		Most  float64 `json:"most_calls_per_second"`
		Late  float64 `json:"delayed_wake_ups"`
		Tolls float64 `json:"delayed_signals"`
	}
	err := json.Unmarshal([]byte(lines[len(lines)-1]), &f)
	return checked(record.Round{Usec: f.Usec, MiB: f.MiB, P50: f.P50, P99: f.P99, Least: f.Least, Most: f.Most, Delayed: f.Late + f.Tolls}, err)
}

// checked refuses a result without a time.
func checked(r record.Round, err error) (record.Round, error) {
	if err == nil && !(r.Usec > 0) {
		err = errors.New("the program printed no time of a call")
	}
	return r, err
}
