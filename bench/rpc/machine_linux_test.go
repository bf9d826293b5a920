package main

import (
	"testing"
	"time"
)

func TestMachineTime(t *testing.T) {
	total, stolen, err := machineTime("cpu  100 20 3 4000 5000 6 7 800 900 0\ncpu0 1 1 1\n")
	if want := 1360 * time.Millisecond; err != nil || total != want || stolen != 8*time.Second {
		t.Errorf("%v, %v, %v, want %v and 8s", total, stolen, err, want)
	}
	for _, text := range []string{"", "cpu 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8 9\n", "cpu 1 x 3 4 5 6 7 8 9\n"} {
		if _, _, err := machineTime(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
